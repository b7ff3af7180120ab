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
    let ipv4 = format!("/proc/sys/net/ipv4/conf/{interface}");
    // 8: answer ARP for no local address; 1: take packets only from where their source is routed to.
    // Documentation/networking/ip-sysctl.rst
    for (setting, value) in [("arp_ignore", "8"), ("rp_filter", "1"), ("forwarding", "0")] {
        write_setting(&format!("{ipv4}/{setting}"), value)?;
    }
    let ipv6 = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    // A kernel without IPv6 has no such file.
    if Path::new(&ipv6).exists() {
        write_setting(&ipv6, "1")?;
    }
    RouteSocket::open()?.set_up(interface)
}

fn write_setting(file: &str, value: &str) -> Result<(), NetlinkError> {
    std::fs::write(file, value).context(|| format!("write {value} to {file}"))
}
