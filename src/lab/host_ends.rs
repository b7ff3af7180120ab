//! Host ends of the pods' veth pairs.

use std::os::fd::AsFd;

use super::LabError;
use super::error::write_setting;
use super::journal::Journal;
use super::namespace::Namespace;
use crate::netlink::RouteSocket;

/// Moves the pods' host ends from the calling thread's namespace to another, and returns their names.
pub(super) fn move_host_ends<'a>(journal: &'a Journal, to: &Namespace) -> Result<Vec<&'a str>, LabError> {
    let inside = to.open()?;
    let names: Vec<&str> = journal.host_ends().collect();
    let kernel = RouteSocket::open()?;
    for name in &names {
        kernel.set_namespace(name, inside.as_fd())?;
    }
    Ok(names)
}

/// Sets the host end of a pod up in the calling thread's namespace. The stack there neither sends nor answers
/// on it.
pub(super) fn raise_host_end(interface: &str) -> Result<(), LabError> {
    let ipv4 = format!("/proc/sys/net/ipv4/conf/{interface}");
    // 8: answer ARP for no local address; 1: take packets only from where their source is routed to.
    // Documentation/networking/ip-sysctl.rst
    for (setting, value) in [("arp_ignore", "8"), ("rp_filter", "1"), ("forwarding", "0")] {
        write_setting(format!("{ipv4}/{setting}"), value)?;
    }
    write_setting(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1")?;
    Ok(RouteSocket::open()?.set_up(interface)?)
}
