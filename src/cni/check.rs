//! Comparison of an attachment with its result: CHECK.

use std::net::IpAddr;

use super::config::{InterfaceKind, NetworkConfig};
use super::environment::{Attachment, Environment};
use super::error::{CniError, Code};
use super::ipam::{self, Ipam};
use super::link::{PodNamespace, address_in};
use super::record::{Part, Record, Records, port_name};
use super::result::{CniResult, Interface};
use crate::control::Client;
use crate::control::protocol::PortState;
use crate::netlink;

/// Checks the attachment: interface, addresses, routes, port and pod.
pub(super) fn check(
    environment: &Environment,
    config: &NetworkConfig,
    records: &Records,
    switch: &Client,
) -> Result<(), CniError> {
    let attachment = environment.attachment()?;
    let path = environment.namespace()?;
    let previous = config.required_previous()?;
    config.for_ipam(None)?;
    let namespace = PodNamespace::open(path)?;
    let record = records.read(Part::Attached, &attachment)?.filter(|record| record.network == config.name);
    let record =
        record.filter(|_| records.read(Part::Pending, &attachment).is_ok_and(|other| other.is_none()));
    let Some(record) = record else {
        let Attachment { container, interface } = &attachment;
        let what = format!("container {container} has no attachment {interface} of network {}", config.name);
        return Err(CniError::new(Code::UNKNOWN_CONTAINER, what));
    };
    let at = previous.interfaces.iter().position(|interface| {
        interface.name == attachment.interface && interface.sandbox.as_deref() == Some(path)
    });
    let Some(at) = at else {
        let what = format!("prevResult has no interface {} in {path}", attachment.interface);
        return Err(CniError::new(Code::INVALID_CONFIG, what));
    };
    check_interface(&record, &namespace, &previous.interfaces[at])?;
    check_addresses(&record, &namespace, previous, at)?;
    check_switch(&record, switch)?;
    let mut given = record.config.clone();
    given.extend(
        config.raw.iter().filter(|(key, _)| *key != "ipam").map(|(key, value)| (key.clone(), value.clone())),
    );
    let (path_of_plugins, timeout) = (&environment.path, ipam::TIMEOUT);
    let ipam = Ipam { path: path_of_plugins, config: &given, arguments: &environment.arguments, timeout };
    ipam.check(&attachment, path)
}

fn differs(what: String) -> CniError {
    CniError::new(Code::DIFFERS, what)
}

fn check_interface(record: &Record, namespace: &PodNamespace, wanted: &Interface) -> Result<(), CniError> {
    let name = &record.interface;
    let Some(link) = namespace.link(name)? else {
        return Err(differs(format!("interface {name} is gone from {}", record.namespace)));
    };
    let mac = link.mac.to_string();
    if link.kind != record.kind.of_the_kernel() {
        return Err(differs(format!(
            "interface {name} is of kind {:?}, and was {:?}",
            link.kind, record.kind
        )));
    }
    if wanted.mac.as_ref().is_some_and(|wanted| !wanted.eq_ignore_ascii_case(&mac)) {
        return Err(differs(format!(
            "interface {name} has the Ethernet address {mac}, and prevResult another"
        )));
    }
    if link.mtu != record.mtu {
        return Err(differs(format!("interface {name} has MTU {}, and was given {}", link.mtu, record.mtu)));
    }
    if !link.is_up {
        return Err(differs(format!("interface {name} is set down")));
    }
    if record.kind == InterfaceKind::Veth {
        netlink::Interface::find(&port_name(&record.attachment()))
            .map_err(|error| differs(format!("the end of {name} on the node: {error}")))?;
    }
    Ok(())
}

fn check_addresses(
    record: &Record,
    namespace: &PodNamespace,
    previous: &CniResult,
    at: usize,
) -> Result<(), CniError> {
    let name = &record.interface;
    let present = namespace.addresses(name)?;
    for ip in previous.ips.iter().filter(|ip| ip.interface.is_none_or(|index| index == at)) {
        let address = ip.address.addr();
        if !record.addresses.contains(&address) {
            return Err(differs(format!(
                "{address} of prevResult is not an address that this attachment was given"
            )));
        }
        if !present.contains(&address) {
            return Err(differs(format!("interface {name} lacks the address {address}")));
        }
    }
    let own = record.result.iter().flat_map(|result| &result.routes);
    for route in own.filter(|route| previous.routes.iter().any(|other| other.dst == route.dst)) {
        let hop: Option<IpAddr> = namespace.next_hop(address_in(&route.dst)).ok();
        if hop != route.gw {
            return Err(differs(format!("the route to {} of {name} is gone or leads elsewhere", route.dst)));
        }
    }
    Ok(())
}

fn check_switch(record: &Record, switch: &Client) -> Result<(), CniError> {
    let port = port_name(&record.attachment());
    let ports = switch.ports()?;
    match ports.iter().find(|info| info.name == port) {
        None => return Err(differs(format!("the switch has no port {port}"))),
        Some(info) if info.state != PortState::Up => {
            let reason = info.reason.clone().unwrap_or_default();
            return Err(differs(format!("port {port} is {}: {reason}", info.state)));
        }
        Some(_) => {}
    }
    let pods = switch.pods()?;
    let is_attached =
        |addresses: &[IpAddr]| record.addresses.iter().all(|address| addresses.contains(address));
    match pods.iter().find(|info| info.pod == record.pod) {
        Some(info) if info.port == port && is_attached(&info.addresses) => Ok(()),
        Some(_) => Err(differs(format!("pod {} has another port or other addresses", record.pod))),
        None => Err(differs(format!("pod {} is not attached to the switch", record.pod))),
    }
}
