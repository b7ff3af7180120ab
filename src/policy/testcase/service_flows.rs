//! Flows to a Service: one to each backend that a client may get.

use std::net::IpAddr;

use super::endpoint::Endpoint;
use super::endpoint_flows::{ProbeError, addresses, is_protocol_of_family, pods_of, source_port};
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::objects::{Object, Pod, ServiceName};
use crate::policy::services::{ServiceBackends, ServiceClient, backends_for};

/// Creates the connections that a Service makes of a client's: one to each backend. No connection and no
/// error means that the Service has no backend.
pub fn expand_service(
    objects: &[Object],
    from: &Endpoint,
    to: &ServiceName,
    protocol: Protocol,
    port: u16,
) -> Result<(Vec<FlowKey>, ServiceBackends), ProbeError> {
    let sources = addresses(&pods_of(objects), from)?;
    let found =
        backends_for(objects, to, protocol, port, client(objects, from)).map_err(ProbeError::Service)?;
    let flow = |backend: &std::net::SocketAddr| {
        let is_v4 = backend.is_ipv4();
        let src = sources.iter().copied().find(|address: &IpAddr| address.is_ipv4() == is_v4)?;
        let src_port = source_port(protocol, port);
        is_protocol_of_family(protocol, is_v4).then_some(FlowKey {
            src,
            dst: backend.ip(),
            protocol,
            src_port,
            dst_port: backend.port(),
        })
    };
    let flows: Vec<FlowKey> = found.backends.iter().filter_map(flow).collect();
    if flows.is_empty() && !found.backends.is_empty() {
        return Err(ProbeError::Families { from: from.to_string(), to: format!("service {to}"), protocol });
    }
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
        None => ServiceClient::Outside,
    }
}
