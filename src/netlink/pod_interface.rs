//! The two ends of a pod's link: addresses and routes inside the pod, and the settings of a host end.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

use super::NetlinkError;
use super::error::Context;
use super::socket::RouteSocket;

/// A route of a pod by way of its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PodRoute {
    /// Destinations.
    pub(crate) prefix: IpNet,
    /// Address of the gateway, which is on the link.
    pub(crate) gateway: IpAddr,
    /// MTU of the route, bytes; that of the interface where absent.
    pub(crate) mtu: Option<u32>,
}

/// Sets an interface of the calling thread's namespace up, with these addresses and routes.
pub(crate) fn configure_pod_interface(
    name: &str,
    addresses: &[IpAddr],
    routes: &[PodRoute],
) -> Result<(), NetlinkError> {
    let kernel = RouteSocket::open()?;
    kernel.set_up(name)?;
    for address in addresses {
        kernel.add_address(name, *address)?;
    }
    for PodRoute { prefix, gateway, mtu } in routes {
        kernel.add_gateway_route(name, *prefix, *gateway, *mtu)?;
    }
    Ok(())
}

/// Sets the host end of a pod up in the calling thread's namespace. The stack there neither sends nor answers on it.
pub(crate) fn raise_host_end(interface: &str) -> Result<(), NetlinkError> {
    // 8: answer ARP for no local address; 1: take packets only from where their source is routed to.
    // Documentation/networking/ip-sysctl.rst
    write_settings("ipv4", interface, &[("arp_ignore", "8"), ("rp_filter", "1"), ("forwarding", "0")])?;
    write_settings("ipv6", interface, &[("disable_ipv6", "1")])?;
    RouteSocket::open()?.set_up(interface)
}

/// Sets the host end of a pod up in the calling thread's namespace, as a router for the pod: the stack there answers ARP and
/// forwards. Nothing that the pod says changes the node's own routes. Returns a warning for the operator, if forwarding
/// concerns the whole node.
pub(crate) fn raise_routed_host_end(interface: &str) -> Result<Option<String>, NetlinkError> {
    let ipv4 = [
        ("accept_redirects", "0"),
        ("send_redirects", "0"),
        ("accept_source_route", "0"),
        ("arp_ignore", "0"),
        ("rp_filter", "1"),
        ("proxy_arp", "1"),
        ("forwarding", "1"),
    ];
    write_settings("ipv4", interface, &ipv4)?;
    // Router advertisements of a pod would change the node's routes.
    let ipv6 = [("accept_ra", "0"), ("accept_redirects", "0"), ("autoconf", "0"), ("disable_ipv6", "0")];
    write_settings("ipv6", interface, &ipv6)?;
    RouteSocket::open()?.set_up(interface)?;
    forward_ipv6(interface)
}

/// Forwards packets that arrive on an interface. Returns a warning for the operator, if that concerns the whole node.
pub(crate) fn forward_from(interface: &str) -> Result<Option<String>, NetlinkError> {
    write_settings("ipv4", interface, &[("forwarding", "1")])?;
    forward_ipv6(interface)
}

/// Forwards IPv6: for the interface alone where the kernel can (since Linux 6.17), or else for the node.
fn forward_ipv6(interface: &str) -> Result<Option<String>, NetlinkError> {
    let one = setting("ipv6", interface, "force_forwarding");
    if Path::new(&one).exists() {
        return write_setting(&one, "1").map(|()| None);
    }
    let all = setting("ipv6", "all", "forwarding");
    // A kernel without IPv6 has no such file.
    if !Path::new(&all).exists() || std::fs::read_to_string(&all).is_ok_and(|value| value.trim() == "1") {
        return Ok(None);
    }
    write_setting(&all, "1")?;
    Ok(Some(format!("{all} is 1 now: this kernel forwards IPv6 on all interfaces of the node or on none")))
}

fn setting(family: &str, interface: &str, name: &str) -> String {
    format!("/proc/sys/net/{family}/conf/{interface}/{name}")
}

/// Writes settings of an interface. A kernel without IPv6 has none of that family.
fn write_settings(family: &str, interface: &str, settings: &[(&str, &str)]) -> Result<(), NetlinkError> {
    for (name, value) in settings {
        let file = setting(family, interface, name);
        if family == "ipv4" || Path::new(&file).exists() {
            write_setting(&file, value)?;
        }
    }
    Ok(())
}

fn write_setting(file: &str, value: &str) -> Result<(), NetlinkError> {
    std::fs::write(file, value).context(|| format!("write {value} to {file}"))
}
