//! Explanations of a new connection's path, compared with the verdict of its first packet.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use palisade::dataplane::{ConntrackSettings, DropReason, FlowPath, PathHop, Settings};
use palisade::ids::AttachmentId;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::tables::{RuleOrigin, ServicePort, Verdict};

use crate::frames::{Spec, Transport};
use crate::masquerade;
use crate::rig::assertions::{A, B, mute, serves};
use crate::rig::rule_lists::{PodRules, Rule};
use crate::rig::{
    HOST, Rig, Setting, UPLINK, gateway_address, ip, node_address, outside_address, pod_address,
    router_address,
};
use crate::services::fixture::{SERVICE, TARGET, external_address, port, services_at, virtual_address};

/// Addresses of every kind, each in both families.
fn addresses() -> Vec<[IpAddr; 2]> {
    vec![
        pod_address(0),
        pod_address(1),
        pod_address(2),
        // Address within the pods' prefixes that no pod has.
        [ip("10.0.0.6"), ip("fd00::6")],
        gateway_address(),
        node_address(),
        virtual_address(),
        external_address(),
        outside_address(1),
        outside_address(2),
        [ip("192.0.2.7"), router_address()[1]],
        [ip("224.0.0.251"), ip("ff0e::fb")],
        [ip("127.0.0.1"), ip("::1")],
    ]
}

fn settings() -> Vec<Setting> {
    let open = Setting::open();
    let peers = Some(vec![pod_address(0)[0], outside_address(1)[0], outside_address(1)[1]]);
    let from_some = PodRules { ingress: Some(vec![Rule { peers, ..Rule::ALL }]), egress: None };
    let mut unknown = open.clone();
    unknown.rules[1] = None;
    let mut detached = open.clone();
    detached.attachments[1] = None;
    // A Service of two pods, also at ports of the node.
    let port = ServicePort {
        node_port: Some(81),
        mapped: node_address().map(|address| SocketAddr::new(address, SERVICE)).to_vec(),
        ..port(&[A.index(), B.index()])
    };
    let served = Setting { services: Some(services_at(&port, &node_address())), ..open.clone() };
    let outside = masquerade::setting();
    let mut elsewhere = port.clone();
    elsewhere.external_backends = outside_address(9).map(|address| SocketAddr::new(address, TARGET)).to_vec();
    let mut moved = open.clone();
    moved.attachments[1] = Some(AttachmentId(99));
    vec![
        open.with(0, serves(Protocol::TCP, 80)).with(1, from_some),
        open.with(0, mute()).with(2, PodRules { ingress: Some(vec![]), egress: None }),
        Setting { draining: [B].into(), ..open.clone() },
        Setting { loaded: false, ..open.clone() },
        served.with(1, mute()).with(0, serves(Protocol::TCP, TARGET)),
        Setting { services: Some(services_at(&elsewhere, &node_address())), ..outside.clone() },
        Setting { services: served.services.clone(), ..outside.with(1, mute()) },
        served,
        Setting { fail_open: true, ..unknown.clone() },
        unknown,
        detached,
        moved,
    ]
}

fn transport(protocol: Protocol, ports: [u16; 2]) -> Transport {
    match protocol {
        Protocol::TCP => Transport::Tcp { ports, flags: 2, sequence: 1, acknowledgement: 0, window: 1000 },
        Protocol::UDP => Transport::Udp { ports },
        _ => Transport::Echo { request: true, identifier: ports[1] },
    }
}

/// Sends the first packet of the flow and returns the counted drops by reason.
fn sent(rig: &mut Rig, path: &FlowPath) -> BTreeMap<String, u64> {
    let FlowKey { src, dst, protocol, src_port, dst_port } = path.flow;
    let spec = Spec::new(src, dst, transport(protocol, [src_port, dst_port]));
    let port = path.comes_by.unwrap_or(UPLINK);
    let before = rig.counters(port);
    rig.send(port, &spec);
    let drops = rig.drops_since(port, &before);
    let after = rig.counters(port);
    let passed = after.forwarded + after.consumed - before.forwarded - before.consumed;
    assert_eq!(passed + drops.values().sum::<u64>(), 1, "{path:?}");
    drops
}

#[test]
fn what_is_said_of_a_path_is_what_becomes_of_its_packet() {
    let conntrack = ConntrackSettings { flows_max: 1 << 14, ..ConntrackSettings::default() };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut next_port = 1024;
    let (mut translated, mut masqueraded) = (0, 0);
    for setting in settings() {
        for is_router_known in [true, false] {
            if !is_router_known && setting.services.is_some() && setting.masquerade.is_none() {
                continue;
            }
            let masquerade = setting.masquerade.as_ref().map(|set| set.external.clone());
            let settings = Settings { masquerade, ..crate::rig::settings(1, conntrack.clone()) };
            let mut rig = Rig::with_settings(&settings, &setting);
            rig.know_router(is_router_known);
            let ends = addresses();
            for (source, destination) in ends.iter().flat_map(|src| ends.iter().map(move |dst| (src, dst))) {
                for (family, icmp) in [(0, Protocol::ICMP), (1, Protocol::ICMPV6)] {
                    for (protocol, dst_port) in
                        [(Protocol::TCP, 80), (Protocol::TCP, 81), (Protocol::UDP, 80), (icmp, 7)]
                    {
                        next_port = if next_port > 60_000 { 1024 } else { next_port + 1 };
                        let (src_port, dst_port) =
                            if protocol.has_ports() { (next_port, dst_port) } else { (next_port, next_port) };
                        let (src, dst) = (source[family], destination[family]);
                        let flow = FlowKey { src, dst, protocol, src_port, dst_port };
                        let path = rig.sim.path(&flow);
                        let is_resolved = path.neighbor.is_none_or(|neighbor| neighbor.mac.is_some());
                        let expected = match path.dropped {
                            // A packet without a route is not evaluated by policy.
                            None
                            | Some(
                                DropReason::PolicyEgress
                                | DropReason::PolicyIngress
                                | DropReason::UnknownPod
                                | DropReason::Draining,
                            ) if !is_resolved => Some("unresolved"),
                            reason => reason.map(DropReason::name),
                        };
                        let expected: BTreeMap<String, u64> =
                            expected.into_iter().map(|reason| (reason.to_owned(), 1)).collect();
                        let out = match path.destination {
                            PathHop::Port { port, .. } if expected.is_empty() => Some(port),
                            _ => None,
                        };
                        let before = out.map(|port| rig.counters(port).transmitted);
                        assert_eq!(sent(&mut rig, &path), expected, "{setting:?}\n{path:#?}");
                        let after = out.map(|port| rig.counters(port).transmitted);
                        assert_eq!(after, before.map(|count| count + 1), "{setting:?}\n{path:#?}");
                        translated += usize::from(path.backend.is_some());
                        masqueraded += usize::from(path.masquerade.is_some());
                        let reason = expected.into_keys().next().unwrap_or_else(|| "passed".to_owned());
                        *seen.entry(reason).or_default() += 1;
                    }
                }
            }
        }
    }
    for reason in [
        "passed",
        "spoofed",
        "multicast",
        "no-route",
        "unresolved",
        "unknown-pod",
        "policy-egress",
        "policy-ingress",
        "draining",
        "service-no-backend",
    ] {
        assert!(seen.contains_key(reason), "{reason} never came: {seen:?}");
    }
    assert!(translated > 100 && masqueraded > 100, "{translated} {masqueraded}");
}

#[test]
fn a_path_names_ports_pods_rules_and_the_next_station() {
    let mut rig = Rig::new(1, &Setting::open().with(1, serves(Protocol::TCP, 80)));
    let flow =
        |src: IpAddr, dst: IpAddr| FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: 80 };
    let path = rig.sim.path(&flow(pod_address(0)[0], pod_address(1)[0]));
    assert_eq!((path.comes_by, path.may_send, path.dropped, path.reply_dropped), (Some(A), true, None, None));
    assert_eq!(path.destination, PathHop::Port { port: B, is_open: true, next_hop: None });
    assert_eq!(path.destination_pod.unwrap().name, "b");
    let ingress = path.ingress.unwrap();
    assert_eq!((ingress.verdict, ingress.row.len()), (Verdict::Allow, 2));
    assert_eq!(ingress.row[0].ports, Some((Protocol::TCP, 80, 80)));
    assert!(matches!(ingress.decided_by, RuleOrigin::Rule { .. }));

    let path = rig.sim.path(&flow(node_address()[0], pod_address(1)[0]));
    assert_eq!((path.comes_by, path.ingress.unwrap().decided_by), (Some(HOST), RuleOrigin::OwnNode));

    let outside = flow(pod_address(0)[0], outside_address(1)[0]);
    rig.know_router(false);
    let neighbor = rig.sim.path(&outside).neighbor.unwrap();
    assert_eq!((neighbor.address, neighbor.mac), (router_address()[0], None));
    rig.know_router(true);
    let path = rig.sim.path(&outside);
    assert!(path.neighbor.unwrap().mac.is_some());
    assert_eq!(rig.sim.solicitations(), [], "to be asked about is no use of a neighbour");
    assert_eq!((path.mtu, rig.sim.flows_len()), (Some(1500), 0), "nothing is entered");
    assert!(rig.sim.counters().decisions.is_empty(), "nothing is counted");
}
