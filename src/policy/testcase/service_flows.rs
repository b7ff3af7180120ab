//! Flows to a Service: one to each backend that a client may get.

use std::net::{IpAddr, SocketAddr};

use super::endpoint::Endpoint;
use super::endpoint_flows::{ProbeError, addresses, is_protocol_of_family, pods_of, source_port};
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::objects::{Object, Pod, ServiceName};
use crate::policy::services::{ServiceBackends, ServiceClient, backends_for};

/// Creates the connections that a Service makes of a client's: one to each backend of a family in which the client has
/// an address. No connection and no error means that the Service has no backend for this client.
pub fn expand_service(
    objects: &[Object],
    from: &Endpoint,
    to: &ServiceName,
    protocol: Protocol,
    port: u16,
) -> Result<(Vec<FlowKey>, ServiceBackends), ProbeError> {
    let sources = addresses(&pods_of(objects), from)?;
    let mut found =
        backends_for(objects, to, protocol, port, client(objects, from)).map_err(ProbeError::Service)?;
    let source_for = |to: &SocketAddr| {
        let is_of_family = |address: &IpAddr| address.is_ipv4() == to.is_ipv4();
        let source = sources.iter().copied().find(is_of_family)?;
        is_protocol_of_family(protocol, to.is_ipv4()).then_some(source)
    };
    // A Service without an address yet gets one of the family of its backends.
    let virtual_ends = if found.addresses.is_empty() { &found.backends } else { &found.addresses };
    if !virtual_ends.is_empty() && virtual_ends.iter().all(|end| source_for(end).is_none()) {
        return Err(ProbeError::Families { from: from.to_string(), to: format!("service {to}"), protocol });
    }
    let flow = |backend: &SocketAddr| {
        Some(FlowKey {
            src: source_for(backend)?,
            dst: backend.ip(),
            protocol,
            src_port: source_port(protocol, port),
            dst_port: backend.port(),
        })
    };
    let flows: Vec<FlowKey> = found.backends.iter().filter_map(flow).collect();
    found.leave_unused(|backend| source_for(backend).is_none(), "the client has no address of its family");
    Ok((flows, found))
}

/// Place of a client: the node of a pod, or outside.
fn client<'a>(objects: &'a [Object], from: &Endpoint) -> ServiceClient<'a> {
    let is_client = |pod: &Pod| match from {
        Endpoint::Pod(name) => pod.name == *name,
        Endpoint::Ip(address) => !pod.finished && pod.addresses.contains(address),
    };
    let pod = objects.iter().find_map(|object| match object {
        Object::Pod(pod) if is_client(pod) => Some(pod),
        _ => None,
    });
    match pod {
        Some(pod) => ServiceClient::Pod { node: pod.node.as_deref() },
        None => ServiceClient::Outside {
            address: match from {
                Endpoint::Ip(address) => Some(*address),
                Endpoint::Pod(_) => None,
            },
        },
    }
}
