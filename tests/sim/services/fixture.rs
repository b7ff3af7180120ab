//! Services of the rig, and packets to and from them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use palisade::ids::PortId;
use palisade::net::flow::Protocol;
use palisade::tables::{ServicePort, ServicePortName, ServiceSet, ServiceTable};

use crate::frames::{Spec, Transport};
use crate::rig::model::{ACK, SYN};
use crate::rig::{Rig, Setting, forwarded, ip, pod_address};

/// Port of the Service.
pub(crate) const SERVICE: u16 = 80;
/// Target port of its backends.
pub(crate) const TARGET: u16 = 8080;

pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

/// Virtual addresses: IPv4, IPv6.
pub(crate) fn virtual_address() -> [IpAddr; 2] {
    [ip("10.96.0.1"), ip("fd00:96::1")]
}

/// Virtual addresses for the outside.
pub(crate) fn external_address() -> [IpAddr; 2] {
    [ip("203.0.113.9"), ip("2001:db8:9::9")]
}

/// Port of a Service with these pods as backends, at the first virtual addresses.
pub(crate) fn port(pods: &[usize]) -> ServicePort {
    let backends: Vec<SocketAddr> = pods
        .iter()
        .flat_map(|pod| pod_address(*pod).map(|address| SocketAddr::new(address, TARGET)))
        .collect();
    ServicePort {
        cluster: virtual_address().map(|address| SocketAddr::new(address, SERVICE)).to_vec(),
        external: external_address().map(|address| SocketAddr::new(address, SERVICE)).to_vec(),
        internal_backends: backends.clone(),
        external_backends: backends,
        ..ServicePort::default()
    }
}

/// The same port for each protocol.
pub(crate) fn services(port: &ServicePort) -> Arc<ServiceSet> {
    services_at(port, &[])
}

/// The same port for each protocol, and the addresses of the node.
pub(crate) fn services_at(port: &ServicePort, node_addresses: &[IpAddr]) -> Arc<ServiceSet> {
    let name = |protocol| ServicePortName {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        port: None,
        protocol,
    };
    let ports = PROTOCOLS.map(|protocol| (name(protocol), port.clone())).into();
    Arc::new(ServiceSet::new(&ServiceTable { node_addresses: node_addresses.to_vec(), ports }).unwrap())
}

/// Setting with the Service of these pods.
pub(crate) fn with_backends(setting: &Setting, pods: &[usize]) -> Setting {
    Setting { services: Some(services(&port(pods))), ..setting.clone() }
}

/// Flows that the Service has opened, to each backend.
pub(crate) fn opened(rig: &Rig, protocol: Protocol) -> (u64, Vec<(SocketAddr, u64)>) {
    let flows = rig.sim.service_flows();
    let (_, flows) = flows.into_iter().find(|(name, _)| name.protocol == protocol).unwrap();
    (flows.total, flows.backends.into_iter().filter(|(_, count)| *count > 0).collect())
}

/// Header of the `step`th packet of a connection or exchange: 0 and 2 from the client, 1 from the server.
pub(crate) fn transport(protocol: Protocol, step: usize, [client, server]: [u16; 2]) -> Transport {
    let ports = if step == 1 { [server, client] } else { [client, server] };
    match protocol {
        Protocol::TCP => {
            let (flags, sequence, acknowledgement) =
                [(SYN, 100, 0), (SYN | ACK, 500, 101), (ACK, 101, 501)][step];
            Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 }
        }
        Protocol::UDP => Transport::Udp { ports },
        _ => Transport::Sctp { ports, chunk: [1, 2, 10][step] },
    }
}

/// Packet between two addresses; a connection's opening segments carry no data.
pub(crate) fn packet(src: IpAddr, dst: IpAddr, transport: Transport) -> Spec {
    let payload = if matches!(transport, Transport::Tcp { .. }) { Vec::new() } else { b"some data".to_vec() };
    Spec { payload, ..Spec::new(src, dst, transport) }
}

/// Packet of an exchange of a pod's port with the Service, as the pod sees it.
pub(crate) fn seen_by_client(
    protocol: Protocol,
    family: usize,
    step: usize,
    pod: usize,
    client: u16,
) -> Spec {
    let (own, virtual_end) = (pod_address(pod)[family], virtual_address()[family]);
    let (src, dst) = if step == 1 { (virtual_end, own) } else { (own, virtual_end) };
    packet(src, dst, transport(protocol, step, [client, SERVICE]))
}

/// The same packet as the backend sees it.
pub(crate) fn seen_by_backend(
    protocol: Protocol,
    family: usize,
    step: usize,
    [pod, backend]: [usize; 2],
    client: u16,
) -> Spec {
    let (own, other) = (pod_address(pod)[family], pod_address(backend)[family]);
    let (src, dst) = if step == 1 { (other, own) } else { (own, other) };
    packet(src, dst, transport(protocol, step, [client, TARGET]))
}

/// Sends a packet, which leaves by one port as another one.
#[track_caller]
pub(crate) fn becomes(rig: &mut Rig, from: PortId, sent: &Spec, to: PortId, seen: &Spec) {
    let before = rig.counters(from);
    let frames = rig.send(from, sent);
    let drops = rig.drops_since(from, &before);
    assert_eq!(frames.len(), 1, "drops: {drops:?}");
    assert_eq!(frames, [(to, forwarded(to, seen))], "drops: {drops:?}");
}

/// Runs an exchange of a pod's port with the Service, all of whose packets pass by one backend.
#[track_caller]
pub(crate) fn exchange(
    rig: &mut Rig,
    protocol: Protocol,
    family: usize,
    [pod, backend]: [usize; 2],
    client: u16,
) {
    let (a, b) = (PortId(pod as u16), PortId(backend as u16));
    for step in 0..3 {
        let at_client = seen_by_client(protocol, family, step, pod, client);
        let at_backend = seen_by_backend(protocol, family, step, [pod, backend], client);
        if step == 1 {
            becomes(rig, b, &at_backend, a, &at_client);
        } else {
            becomes(rig, a, &at_client, b, &at_backend);
        }
    }
}

/// The pod that a packet to the Service goes to.
#[track_caller]
pub(crate) fn backend_of(rig: &mut Rig, from: PortId, sent: &Spec) -> usize {
    let before = rig.counters(from);
    let frames = rig.send(from, sent);
    let drops = rig.drops_since(from, &before);
    assert_eq!(frames.len(), 1, "drops: {drops:?}");
    frames[0].0.index()
}
