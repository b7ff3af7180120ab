//! Flows between two endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::endpoint::Endpoint;
use crate::nearest::nearest;
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::objects::{Object, Pod, replicas};
use crate::policy::services::ServiceError;
use crate::tables::PodName;

/// Source port of every flow. Policy does not depend on it.
const SOURCE_PORT: u16 = 49_152;

/// Reason for a probe without flows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Case has no such pod.
    #[error("there is no pod {pod}{}", .near.as_ref().map(|near| format!(": is it {near}?")).unwrap_or_default())]
    UnknownPod {
        /// Name.
        pod: PodName,
        /// Pod with a similar name.
        near: Option<PodName>,
    },
    /// Pod has no address of its own.
    #[error(
        "pod {pod} has no address, and gets none of its own because it is on the host's network or has finished: \
         give it one in status.podIPs, or name an address"
    )]
    NoAddress {
        /// Pod.
        pod: PodName,
    },
    /// Two sides have no address family in common.
    #[error("{from} and {to} have no address of one family for {protocol}")]
    Families {
        /// Source.
        from: String,
        /// Destination.
        to: String,
        /// Protocol.
        protocol: Protocol,
    },
    /// Service is unknown, or has no such port or virtual address.
    #[error(transparent)]
    Service(ServiceError),
}

/// Addresses of pods by name.
pub(super) fn pods_of(objects: &[Object]) -> BTreeMap<PodName, Vec<IpAddr>> {
    let pods = objects.iter().filter_map(|object| match object {
        Object::Pod(Pod { name, addresses, .. }) => Some((name.clone(), addresses.clone())),
        _ => None,
    });
    pods.collect()
}

/// Source port of a flow.
pub(super) fn source_port(protocol: Protocol, port: u16) -> u16 {
    if protocol.has_ports() { SOURCE_PORT } else { port }
}

/// Creates the connections between two endpoints: one for each family in which both have an address, between
/// their first addresses. A workload with replicas connects to itself from its first pod to its second.
pub fn expand_probe(
    pods: &BTreeMap<PodName, Vec<IpAddr>>,
    from: &Endpoint,
    to: &Endpoint,
    protocol: Protocol,
    port: u16,
) -> Result<Vec<FlowKey>, ProbeError> {
    let (sources, destinations) =
        (addresses(pods, from)?, addresses(pods, &destination_replica(from, to, pods))?);
    let mut flows = Vec::new();
    for is_v4 in [true, false] {
        let first = |list: &[IpAddr]| list.iter().copied().find(|address| address.is_ipv4() == is_v4);
        if !is_protocol_of_family(protocol, is_v4) {
            continue;
        }
        if let (Some(src), Some(dst)) = (first(&sources), first(&destinations)) {
            let src_port = source_port(protocol, port);
            flows.push(FlowKey { src, dst, protocol, src_port, dst_port: port });
        }
    }
    if flows.is_empty() {
        return Err(ProbeError::Families { from: from.to_string(), to: to.to_string(), protocol });
    }
    Ok(flows)
}

/// Destination of a probe; the second pod of a workload that is its own destination.
fn destination_replica(from: &Endpoint, to: &Endpoint, pods: &BTreeMap<PodName, Vec<IpAddr>>) -> Endpoint {
    match to {
        Endpoint::Pod(pod) if from == to => {
            let second = replicas::second_replica(pod);
            Endpoint::Pod(if pods.contains_key(&second) { second } else { pod.clone() })
        }
        _ => to.clone(),
    }
}

/// Addresses of an endpoint.
pub(super) fn addresses(
    pods: &BTreeMap<PodName, Vec<IpAddr>>,
    end: &Endpoint,
) -> Result<Vec<IpAddr>, ProbeError> {
    match end {
        Endpoint::Ip(address) => Ok(vec![*address]),
        Endpoint::Pod(pod) => match pods.get(pod) {
            None => Err(ProbeError::UnknownPod {
                pod: pod.clone(),
                near: nearest(&pod.to_string(), pods.keys()).cloned(),
            }),
            Some(addresses) if addresses.is_empty() => Err(ProbeError::NoAddress { pod: pod.clone() }),
            Some(addresses) => Ok(addresses.clone()),
        },
    }
}

/// Tests whether a protocol exists in a family. `ICMP` and `ICMPv6` belong to one family each.
pub(super) fn is_protocol_of_family(protocol: Protocol, is_v4: bool) -> bool {
    match protocol {
        Protocol::ICMP => is_v4,
        Protocol::ICMPV6 => !is_v4,
        _ => true,
    }
}
