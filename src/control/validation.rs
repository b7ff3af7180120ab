//! Validation of requests on their own, before any comparison with the running switch.

use std::net::IpAddr;

use super::protocol::{PodRequest, PortRequest};
use super::{ApiError, PortRoute};
use crate::dataplane::{Bandwidth, Mac, PortKind, PortSpec};
use crate::limits::{MTU_MAX, POD_ADDRESSES_MAX, PORT_MAPPINGS_MAX};
use crate::tables::{PodName, PortMapping};

/// Most bytes of a port's name.
const PORT_NAME_BYTES_MAX: usize = 63;
/// Most bytes of an interface's name: `IFNAMSIZ` (16) of `linux/if.h` less the terminating zero.
const INTERFACE_BYTES_MAX: usize = 15;

/// Least MTU of a tap device: that of IPv4 (RFC 791 section 3.2).
const MTU_MIN: u32 = 68;

/// Validates a port request.
pub(crate) fn validate_port(name: &str, request: &PortRequest) -> Result<PortSpec, ApiError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    if name.is_empty() || name.len() > PORT_NAME_BYTES_MAX || !name.chars().all(plain) {
        let reason = format!(
            "{name:?} is not a port's name: use up to {PORT_NAME_BYTES_MAX} letters, digits and any of . _ - @"
        );
        return Err(ApiError::Field { field: "name", reason });
    }
    let interface = request.interface.as_deref().unwrap_or(name);
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
    if interface.is_empty() || interface.len() > INTERFACE_BYTES_MAX || !interface.chars().all(fits) {
        let reason = format!(
            "{interface:?} cannot be the name of an interface, which has 1 to {INTERFACE_BYTES_MAX} bytes \
             without spaces and slashes"
        );
        return Err(ApiError::Field { field: "interface", reason });
    }
    if let Some(vlan) = request.vlan.filter(|vlan| !(1..=4094).contains(vlan)) {
        return Err(ApiError::Field {
            field: "vlan",
            reason: format!("is {vlan}, and must be from 1 to 4094"),
        });
    }
    match (request.kind, request.addresses.as_slice()) {
        (PortKind::Host, []) => {
            let reason = "a host port needs the node's addresses: give at least one".to_owned();
            return Err(ApiError::Field { field: "addresses", reason });
        }
        (PortKind::Host, addresses) => addresses_are_usable(addresses)?,
        (PortKind::Pod | PortKind::Tap | PortKind::Uplink, []) => {}
        (PortKind::Pod | PortKind::Tap | PortKind::Uplink, _) => {
            let reason =
                "only a host port has addresses; those of a pod stand in the pod's request".to_owned();
            return Err(ApiError::Field { field: "addresses", reason });
        }
    }
    validate_tap(request)?;
    Ok(PortSpec {
        interface: interface.to_owned(),
        kind: request.kind,
        vlan: request.vlan,
        namespace: request.namespace.clone(),
        namespace_cookie: request.namespace_cookie,
        requested_mtu: request.mtu,
        requested_mac: request.mac,
    })
}

/// Validates the fields of a tap device, which no other port has.
fn validate_tap(request: &PortRequest) -> Result<(), ApiError> {
    let wrong = |field, reason: String| Err(ApiError::Field { field, reason });
    let is_tap = request.kind == PortKind::Tap;
    match (request.namespace.as_deref(), is_tap) {
        (None, true) => {
            let reason = "a tap port needs the network namespace of its pod: a name of `ip netns`, or an absolute path";
            return wrong("namespace", reason.to_owned());
        }
        (Some(_), false) => {
            return wrong("namespace", "only a tap port has a network namespace".to_owned());
        }
        (Some(name), true) if !name.starts_with('/') && (name.is_empty() || name.contains('/')) => {
            return wrong(
                "namespace",
                format!("{name:?} is neither a name of `ip netns` nor an absolute path"),
            );
        }
        // Another process may have the number later, and with it another namespace.
        (Some(name), true) if name.starts_with("/proc/") => {
            let reason = format!(
                "{name:?} ends with its process: `ip netns attach NAME PID` gives the namespace a name"
            );
            return wrong("namespace", reason);
        }
        _ => {}
    }
    match request.mac {
        Some(_) if !is_tap => {
            return wrong(
                "mac",
                "only a tap port has an Ethernet address here: set that of the interface".to_owned(),
            );
        }
        Some(mac) if !mac.is_unicast() => {
            return wrong("mac", format!("{mac} is not the address of one station"));
        }
        _ => {}
    }
    if request.namespace_cookie.is_some() && !is_tap {
        return wrong("namespace_cookie", "only a tap port has a network namespace".to_owned());
    }
    match request.mtu {
        Some(_) if !is_tap => {
            wrong("mtu", "only a tap port has an MTU here: set that of the interface".to_owned())
        }
        Some(mtu) if !(MTU_MIN..=MTU_MAX as u32).contains(&mtu) => {
            wrong("mtu", format!("is {mtu}, and must be from {MTU_MIN} to {MTU_MAX}"))
        }
        _ if is_tap && request.vlan.is_some() => {
            wrong("vlan", "a tap port carries untagged frames".to_owned())
        }
        _ => Ok(()),
    }
}

/// Validates a pod's name, addresses and Ethernet address.
pub(crate) fn validate_pod(pod: &PodName, request: &PodRequest, gateway: Mac) -> Result<(), ApiError> {
    if pod.to_string().parse::<PodName>().as_ref() != Ok(pod) {
        let reason = format!("{:?} is not a pod's name: the path ends in NAMESPACE/NAME", pod.to_string());
        return Err(ApiError::Field { field: "pod", reason });
    }
    let count = request.addresses.len();
    if !(1..=POD_ADDRESSES_MAX).contains(&count) {
        let reason = format!("a pod has 1 to {POD_ADDRESSES_MAX} addresses, these are {count}");
        return Err(ApiError::Field { field: "addresses", reason });
    }
    addresses_are_usable(&request.addresses)?;
    validate_bandwidth(&request.bandwidth)?;
    validate_port_mappings(&request.port_mappings)?;
    match request.mac {
        Some(mac) if !mac.is_unicast() => {
            Err(ApiError::Field { field: "mac", reason: format!("{mac} is not the address of one station") })
        }
        Some(mac) if mac == gateway => Err(ApiError::Field {
            field: "mac",
            reason: format!("{mac} is the address of the switch itself"),
        }),
        _ => Ok(()),
    }
}

/// Validates rates and bursts.
pub(crate) fn validate_bandwidth(bandwidth: &Bandwidth) -> Result<(), ApiError> {
    let wrong = |(field, reason)| ApiError::Field { field: "bandwidth", reason: format!("{field} {reason}") };
    bandwidth.check().map_err(wrong)
}

fn validate_port_mappings(mappings: &[PortMapping]) -> Result<(), ApiError> {
    let wrong = |reason: String| Err(ApiError::Field { field: "port_mappings", reason });
    if mappings.len() > PORT_MAPPINGS_MAX {
        return wrong(format!("a pod has at most {PORT_MAPPINGS_MAX}, these are {}", mappings.len()));
    }
    for (i, mapping) in mappings.iter().enumerate() {
        if let Some(other) = mappings[..i].iter().find(|other| other.overlaps(mapping)) {
            return wrong(format!("{mapping} and {other} are the same port of the node"));
        }
    }
    Ok(())
}

/// Validates a route on its own.
pub(crate) fn validate_route(route: &PortRoute) -> Result<(), ApiError> {
    let wrong = |reason: String| Err(ApiError::Field { field: "next_hop", reason });
    match route.next_hop {
        None if route.node => {
            wrong("is missing: a route of the node's kernel, too, has a next router".to_owned())
        }
        Some(hop) if hop.is_ipv4() != route.prefix.addr().is_ipv4() => {
            wrong("is not of the prefix's address family".to_owned())
        }
        Some(hop) => {
            unusable(hop).map_or(Ok(()), |what| wrong(format!("{hop} is {what}, and no router has it")))
        }
        None => Ok(()),
    }
}

fn addresses_are_usable(addresses: &[IpAddr]) -> Result<(), ApiError> {
    for (i, address) in addresses.iter().enumerate() {
        let reason = if addresses[..i].contains(address) {
            format!("{address} stands there twice")
        } else if let Some(what) = unusable(*address) {
            format!("{address} is {what}, and no host can have it as its own")
        } else {
            continue;
        };
        return Err(ApiError::Field { field: "addresses", reason });
    }
    Ok(())
}

fn unusable(address: IpAddr) -> Option<&'static str> {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    match address {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_multicast() => Some("a multicast address"),
        _ if broadcast => Some("the broadcast address"),
        _ if mapped => Some("an IPv4 address in IPv6 clothes (write it as IPv4)"),
        _ => None,
    }
}

/// Tests for the name of a container's port, which the CNI plugin makes.
pub(crate) fn is_container_port(name: &str) -> bool {
    name.strip_prefix("cni")
        .is_some_and(|digits| digits.len() == 12 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}
