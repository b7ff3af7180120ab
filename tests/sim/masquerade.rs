//! Masquerading: flows of pods to the outside leave with an address of the node.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::{
    ConntrackSettings, DesiredState, DropReason, FlowMemory, Masquerade, MasqueradeSettings, Settings,
};
use palisade::ids::PortId;
use palisade::net::flow::Protocol;
use palisade::tables::ServicePort;

use crate::frames::{self, Spec, Transport};
use crate::rig::assertions::{A, B, CLIENT, flows, is_dropped, mute, passes};
use crate::rig::model::{ACK, FIN, RST, SYN};
use crate::rig::{
    HOST, Rig, Setting, UPLINK, addressed, forwarded, node_address, outside_address, pod_address,
};
use crate::services::errors::error;
use crate::services::fixture::{
    PROTOCOLS, SERVICE, TARGET, becomes, packet, port, services, services_at, transport, virtual_address,
};
use crate::services::fragments::cut;

/// Port of servers outside.
const SERVER: u16 = 443;
/// External ports of the tests: few.
pub(crate) const FIRST: u16 = 61_000;
pub(crate) const PORTS: u16 = 512;

pub(crate) fn external() -> MasqueradeSettings {
    MasqueradeSettings { addresses: node_address().to_vec(), ports: FIRST..=FIRST + PORTS - 1 }
}

/// Pods keep their addresses to host 9 outside.
pub(crate) fn setting() -> Setting {
    let except = outside_address(9).map(ipnet::IpNet::from).into();
    Setting {
        masquerade: Some(Arc::new(Masquerade {
            external: external(),
            except,
            waits: false,
            serves_outside: false,
        })),
        ..Setting::open()
    }
}

pub(crate) fn settings(workers: usize) -> Settings {
    Settings {
        masquerade: Some(external()),
        ..crate::rig::settings(workers, ConntrackSettings { flows_max: 4096, ..ConntrackSettings::default() })
    }
}

fn rig() -> Rig {
    Rig::with_settings(&settings(1), &setting())
}

fn datagram(src: IpAddr, dst: IpAddr, ports: [u16; 2]) -> Spec {
    packet(src, dst, Transport::Udp { ports })
}

/// Source port, or identifier, of a frame that has left by the uplink.
pub(crate) fn external_port(frame: &[u8], family: usize) -> u16 {
    frames::check(frame).unwrap();
    let l4 = 18 + [20, 40][family];
    let protocol = if family == 0 { frame[18 + 9] } else { frame[18 + 6] };
    let at = l4 + if matches!(protocol, 1 | 58) { 4 } else { 0 };
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Sends the first packet of a pod's flow, which leaves by the uplink. Returns its external port.
#[track_caller]
pub(crate) fn open(rig: &mut Rig, from: PortId, sent: &Spec) -> u16 {
    let before = rig.counters(from);
    let out = rig.send(from, sent);
    let drops = rig.drops_since(from, &before);
    let [(UPLINK, frame)] = out.as_slice() else { panic!("{out:?}, drops: {drops:?}") };
    external_port(frame, usize::from(sent.src.is_ipv6()))
}

#[test]
fn flows_leave_with_the_nodes_address_and_replies_come_back_to_their_pods() {
    for workers in [1, 2] {
        for family in [0, 1] {
            let mut rig = Rig::with_settings(&settings(workers), &setting());
            let [pod, node, server] =
                [pod_address(0)[family], node_address()[family], outside_address(5)[family]];
            for protocol in PROTOCOLS {
                let first = packet(pod, server, transport(protocol, 0, [CLIENT, SERVER]));
                let port = open(&mut rig, A, &first);
                assert!((FIRST..FIRST + PORTS).contains(&port), "{port}");
                // The third packet twice: a UDP flow changes no more then.
                for step in [1, 2, 2, 1] {
                    let inside = transport(protocol, step, [CLIENT, SERVER]);
                    let outside = transport(protocol, step, [port, SERVER]);
                    if step == 1 {
                        let (sent, seen) = (packet(server, node, outside), packet(server, pod, inside));
                        becomes(&mut rig, UPLINK, &sent, A, &seen);
                    } else {
                        let (sent, seen) = (packet(pod, server, inside), packet(node, server, outside));
                        becomes(&mut rig, A, &sent, UPLINK, &seen);
                    }
                }
            }
            let echo = |request, identifier| Transport::Echo { request, identifier };
            let identifier = open(&mut rig, A, &packet(pod, server, echo(true, 5)));
            assert!(identifier >= 64_512, "{identifier}");
            let reply = packet(server, node, echo(false, identifier));
            becomes(&mut rig, UPLINK, &reply, A, &packet(server, pod, echo(false, 5)));
            let all = flows(&rig);
            let shown = all.iter().filter(|flow| flow.masquerade.is_some_and(|end| end.ip() == node)).count();
            assert_eq!((all.len(), shown), (4, 4));
        }
    }
}

#[test]
fn pods_keep_their_addresses_to_exceptions_to_each_other_and_to_the_node() {
    for family in [0, 1] {
        let mut rig = rig();
        let pod = pod_address(0)[family];
        passes(&mut rig, A, UPLINK, &datagram(pod, outside_address(9)[family], [CLIENT, SERVER]));
        passes(&mut rig, A, B, &datagram(pod, pod_address(1)[family], [CLIENT, SERVER]));
        passes(&mut rig, A, HOST, &datagram(pod, node_address()[family], [CLIENT, SERVER]));
        // A flow that begins outside keeps the pod's address in its replies.
        let client = outside_address(5)[family];
        passes(&mut rig, UPLINK, A, &datagram(client, pod, [CLIENT, SERVER]));
        passes(&mut rig, A, UPLINK, &datagram(pod, client, [SERVER, CLIENT]));
    }
}

#[test]
fn a_table_that_is_nearly_full_gives_each_flow_a_port() {
    let mut rig = rig();
    let [pod, server] = [pod_address(0)[0], outside_address(5)[0]];
    // 4,096 flows fit into the table.
    for number in 0..3600 {
        open(&mut rig, A, &datagram(pod, server, [CLIENT, 1000 + number]));
    }
}

#[test]
fn one_external_port_serves_flows_to_many_servers_and_one_flow_to_each() {
    let mut rig = rig();
    let server = |number: u16| outside_address(5 + usize::from(number % 4))[0];
    let mut seen = BTreeSet::new();
    // More flows than ports: four addresses, two ports each.
    for number in 0..PORTS {
        for to_port in [SERVER, SERVER + 1] {
            let from = [A, B][usize::from(number % 2)];
            let sent =
                datagram(pod_address(from.index())[0], server(number / 2), [CLIENT + number / 2, to_port]);
            let port = open(&mut rig, from, &sent);
            assert!(seen.insert((server(number / 2), to_port, port)), "{port} twice");
        }
    }
    let ports: BTreeSet<u16> = seen.iter().map(|(_, _, port)| *port).collect();
    assert!(ports.len() < seen.len(), "no port serves two servers");
}

#[test]
fn a_pod_that_takes_all_ports_to_a_server_leaves_others_theirs() {
    for workers in [1, 2] {
        let mut rig = Rig::with_settings(&settings(workers), &setting());
        let server = outside_address(5)[0];
        let denied = |rig: &Rig| rig.counters(A).drops.get("masquerade").copied().unwrap_or(0);
        for client in 1024..1024 + 4 * PORTS {
            let frame = datagram(pod_address(0)[0], server, [client, SERVER]);
            rig.send_on(usize::from(client) % workers, A, &[addressed(A, &frame).bytes()]);
        }
        assert!(denied(&rig) > u64::from(PORTS), "{}", denied(&rig));
        open(&mut rig, B, &datagram(pod_address(1)[0], server, [CLIENT, SERVER]));
        // And itself those to other servers.
        open(&mut rig, A, &datagram(pod_address(0)[0], outside_address(6)[0], [CLIENT, SERVER]));
        // Ports are free again when the flows have ended.
        rig.wait(Duration::from_hours(1));
        open(&mut rig, A, &datagram(pod_address(0)[0], server, [CLIENT, SERVER]));
    }
}

#[test]
fn nobody_reaches_a_pod_by_an_external_port_but_the_server_of_its_flow() {
    for family in [0, 1] {
        let mut rig = rig();
        let [pod, node, server] =
            [pod_address(0)[family], node_address()[family], outside_address(5)[family]];
        let external = open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
        let unknown = DropReason::MasqueradeUnknown;
        for sent in [
            datagram(server, node, [SERVER + 1, external]),
            datagram(outside_address(6)[family], node, [SERVER, external]),
            datagram(server, node, [SERVER, external ^ 1]),
            packet(server, node, transport(Protocol::TCP, 1, [external, SERVER])),
            packet(server, node, Transport::Echo { request: false, identifier: 65_000 }),
        ] {
            is_dropped(&mut rig, UPLINK, &sent, unknown);
        }
        // Other ports are the node's.
        passes(&mut rig, UPLINK, HOST, &datagram(server, node, [SERVER, FIRST - 1]));
        // A port of the same number is the node's where pods ask for it.
        passes(&mut rig, B, HOST, &datagram(pod_address(1)[family], node, [CLIENT, external]));
        becomes(
            &mut rig,
            UPLINK,
            &datagram(server, node, [SERVER, external]),
            A,
            &datagram(server, pod, [SERVER, CLIENT]),
        );
    }
}

#[test]
fn a_packet_to_the_pods_own_address_is_no_reply_to_its_masqueraded_flow() {
    let mut rig = Rig::with_settings(
        &settings(1),
        &setting().with(0, crate::rig::rule_lists::PodRules { ingress: Some(Vec::new()), egress: None }),
    );
    let [pod, server] = [pod_address(0)[0], outside_address(5)[0]];
    let port = open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
    let before = rig.counters(UPLINK);
    assert_eq!(rig.send(UPLINK, &datagram(server, pod, [SERVER, CLIENT])), []);
    assert_eq!(rig.drops_since(UPLINK, &before), [("policy-ingress".to_owned(), 1)].into());
    let reply = datagram(server, node_address()[0], [SERVER, port]);
    becomes(&mut rig, UPLINK, &reply, A, &datagram(server, pod, [SERVER, CLIENT]));
}

#[test]
fn errors_quote_the_packets_that_their_receivers_know() {
    for family in [0, 1] {
        for bytes in [if family == 0 { 28 } else { 48 }, usize::MAX] {
            let mut rig = rig();
            let [pod, node, server] =
                [pod_address(0)[family], node_address()[family], outside_address(5)[family]];
            for transport in [
                |ports: [u16; 2]| Transport::Udp { ports },
                |ports: [u16; 2]| Transport::Echo { request: true, identifier: ports[0] },
            ] {
                let sent = packet(pod, server, transport([CLIENT, SERVER]));
                let external = open(&mut rig, A, &sent);
                let seen = packet(node, server, transport([external, SERVER]));
                for reporter in [outside_address(8)[family], server] {
                    becomes(
                        &mut rig,
                        UPLINK,
                        &error(reporter, &seen, bytes),
                        A,
                        &error(reporter, &sent, bytes),
                    );
                }
                // About a packet that has not been sent.
                let guessed = packet(node, server, transport([external ^ 1, SERVER]));
                let guessed = error(server, &guessed, bytes);
                is_dropped(&mut rig, UPLINK, &guessed, DropReason::MasqueradeUnknown);
            }
            let external = open(&mut rig, A, &datagram(pod, server, [CLIENT + 1, SERVER]));
            let reply = datagram(server, node, [SERVER, external]);
            let at_pod = datagram(server, pod, [SERVER, CLIENT + 1]);
            becomes(&mut rig, UPLINK, &reply, A, &at_pod);
            becomes(&mut rig, A, &error(pod, &at_pod, bytes), UPLINK, &error(node, &reply, bytes));
        }
    }
}

#[test]
fn an_error_of_the_switch_quotes_the_packet_as_its_sender_has_sent_it() {
    let mut rig = rig();
    let [pod, server] = [pod_address(0)[0], outside_address(5)[0]];
    let expiring = Spec { ttl: 1, ..datagram(pod, server, [CLIENT, SERVER]) };
    for _ in 0..2 {
        let out = rig.send(A, &expiring);
        let [(A, answer)] = out.as_slice() else { panic!("{out:?}") };
        frames::check(answer).unwrap();
        assert_eq!(answer[42 + 12..42 + 16], addressed(A, &expiring).bytes()[26..30]);
        open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
    }
}

/// A large datagram in two frames that arrive on a port.
pub(crate) fn fragments(port: PortId, src: IpAddr, dst: IpAddr, ports: [u16; 2]) -> [Vec<u8>; 2] {
    let datagram = Spec { payload: (0..200).collect(), ..datagram(src, dst, ports) };
    let frame = addressed(port, &datagram);
    // The cut knows no tags.
    let tag = frame.vlan.map(|_| frame.bytes()[12..16].to_vec()).unwrap_or_default();
    let parts = cut(&Spec { vlan: None, ..frame }.bytes(), usize::from(src.is_ipv6()), 80);
    parts.map(|part| [&part[..12], &tag, &part[12..]].concat())
}

/// Addresses of a frame on a port.
pub(crate) fn addresses(port: PortId, frame: &[u8], family: usize) -> &[u8] {
    let ip = &frame[if port == UPLINK { 18 } else { 14 }..];
    if family == 0 { &ip[12..20] } else { &ip[8..40] }
}

#[test]
fn fragments_follow_their_first_ones_in_both_directions() {
    for family in [0, 1] {
        let mut rig = rig();
        let [pod, node, server] =
            [pod_address(0)[family], node_address()[family], outside_address(5)[family]];
        let external = open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
        let ways = [
            (A, fragments(A, pod, server, [CLIENT, SERVER]), UPLINK, datagram(node, server, [1, 2])),
            (UPLINK, fragments(UPLINK, server, node, [SERVER, external]), A, datagram(server, pod, [1, 2])),
        ];
        for (from, sent, to, ends) in ways {
            let expected = forwarded(to, &ends);
            let out = rig.send_on(0, from, &sent);
            let seen: Vec<_> =
                out.iter().map(|(port, frame)| (*port, addresses(*port, frame, family))).collect();
            assert_eq!(seen, [(to, addresses(to, &expected, family)); 2]);
        }
        // A later fragment to the node of which the switch has seen no first one.
        let [_, later] = fragments(UPLINK, outside_address(6)[family], node, [1, 2]);
        let before = rig.counters(UPLINK);
        assert_eq!(rig.send_on(0, UPLINK, &[later]), []);
        assert_eq!(rig.drops_since(UPLINK, &before), [("masquerade-unknown".to_owned(), 1)].into());
    }
}

#[test]
fn an_answer_to_a_denied_reply_comes_from_the_address_that_its_sender_knows() {
    let [pod, node, server] = [pod_address(0)[0], node_address()[0], outside_address(5)[0]];
    let backend = SocketAddr::new(server, SERVER);
    let shared = ServicePort { internal_backends: vec![backend], ..port(&[]) };
    for to in [SocketAddr::new(server, SERVER), SocketAddr::new(virtual_address()[0], SERVICE)] {
        let services = Some(services(&shared));
        let mut rig = Rig::with_settings(&settings(1), &Setting { services: services.clone(), ..setting() });
        let sent = packet(pod, to.ip(), transport(Protocol::TCP, 0, [CLIENT, to.port()]));
        let external = open(&mut rig, A, &sent);
        let denied = Setting { services, ..setting() }.with(0, mute());
        rig.sim.publish(DesiredState { rejects: true, ..denied.desired() });
        rig.sim.step();
        let reply = packet(server, node, transport(Protocol::TCP, 1, [external, SERVER]));
        let out = rig.send(UPLINK, &reply);
        let [(UPLINK, answer)] = out.as_slice() else { panic!("{out:?}") };
        frames::check(answer).unwrap();
        let ends = forwarded(UPLINK, &datagram(node, server, [1, 2]));
        assert_eq!(addresses(UPLINK, answer, 0), addresses(UPLINK, &ends, 0));
        assert_eq!(external_port(answer, 0), external);
    }
}

#[test]
fn a_node_port_among_the_external_ports_is_served() {
    let mut rig = Rig::with_settings(&settings(1), &setting());
    let shared = ServicePort { node_port: Some(FIRST + 7), ..port(&[1]) };
    rig.publish(&Setting { services: Some(services_at(&shared, &node_address())), ..setting() });
    for family in [0, 1] {
        let [client, node] = [outside_address(5)[family], node_address()[family]];
        let seen = datagram(client, pod_address(1)[family], [CLIENT, TARGET]);
        becomes(&mut rig, UPLINK, &datagram(client, node, [CLIENT, FIRST + 7]), B, &seen);
    }
}

#[test]
fn a_policy_that_denies_a_masqueraded_flow_ends_it() {
    let mut rig = rig();
    let [pod, node, server] = [pod_address(0)[0], node_address()[0], outside_address(5)[0]];
    let external = open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
    rig.publish(&setting().with(0, mute()));
    is_dropped(&mut rig, UPLINK, &datagram(server, node, [SERVER, external]), DropReason::PolicyEgress);
    is_dropped(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]), DropReason::PolicyEgress);
    let unknown = DropReason::MasqueradeUnknown;
    is_dropped(&mut rig, UPLINK, &datagram(server, node, [SERVER, external]), unknown);
    rig.publish(&setting());
    let external = open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
    let reply = datagram(server, node, [SERVER, external]);
    becomes(&mut rig, UPLINK, &reply, A, &datagram(server, pod, [SERVER, CLIENT]));
}

#[test]
fn a_connection_that_is_opened_again_keeps_its_external_port() {
    for end in [RST, FIN] {
        let mut rig = rig();
        let [pod, node, server] = [pod_address(0)[0], node_address()[0], outside_address(5)[0]];
        let segment = |flags, sequence, acknowledgement| Transport::Tcp {
            ports: [CLIENT, SERVER],
            flags,
            sequence,
            acknowledgement,
            window: 1000,
        };
        let answer = |port, flags, sequence, acknowledgement| Transport::Tcp {
            ports: [SERVER, port],
            flags,
            sequence,
            acknowledgement,
            window: 1000,
        };
        let external = open(&mut rig, A, &packet(pod, server, segment(SYN, 100, 0)));
        let from_server = |rig: &mut Rig, flags, sequence, acknowledgement| {
            let sent = packet(server, node, answer(external, flags, sequence, acknowledgement));
            let seen = packet(server, pod, answer(CLIENT, flags, sequence, acknowledgement));
            becomes(rig, UPLINK, &sent, A, &seen);
        };
        from_server(&mut rig, SYN | ACK, 500, 101);
        open(&mut rig, A, &packet(pod, server, segment(ACK, 101, 501)));
        if end == RST {
            open(&mut rig, A, &packet(pod, server, segment(RST, 101, 0)));
        } else {
            open(&mut rig, A, &packet(pod, server, segment(FIN | ACK, 101, 501)));
            from_server(&mut rig, FIN | ACK, 501, 102);
            open(&mut rig, A, &packet(pod, server, segment(ACK, 102, 502)));
        }
        assert_eq!(open(&mut rig, A, &packet(pod, server, segment(SYN, 9000, 0))), external);
        from_server(&mut rig, SYN | ACK, 7000, 9001);
    }
}

#[test]
fn no_flow_begins_while_other_nodes_may_become_exceptions() {
    let mut rig = rig();
    let [pod, server] = [pod_address(0)[0], outside_address(5)[0]];
    let external = open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
    let mut waiting = setting();
    let masquerade = waiting.masquerade.as_ref().map(|masquerade| Masquerade::clone(masquerade)).unwrap();
    waiting.masquerade = Some(Arc::new(Masquerade { waits: true, ..masquerade }));
    rig.publish(&waiting);
    is_dropped(&mut rig, A, &datagram(pod, server, [CLIENT + 1, SERVER]), DropReason::Masquerade);
    passes(&mut rig, A, UPLINK, &datagram(pod, outside_address(9)[0], [CLIENT, SERVER]));
    assert_eq!(open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER])), external);
    rig.publish(&setting());
    open(&mut rig, A, &datagram(pod, server, [CLIENT + 1, SERVER]));
}

#[test]
fn protocols_without_ports_do_not_leave_and_keep_their_addresses_to_exceptions() {
    for family in [0, 1] {
        let mut rig = rig();
        let pod = pod_address(0)[family];
        for transport in [
            Transport::Other(50),
            // A message that opens no flow.
            Transport::Icmp { kind: [40, 200][family], code: 0, rest: [0; 4] },
        ] {
            let to = |host| packet(pod, outside_address(host)[family], transport);
            is_dropped(&mut rig, A, &to(5), DropReason::Masquerade);
            passes(&mut rig, A, UPLINK, &to(9));
        }
    }
}

#[test]
fn a_service_whose_endpoint_is_outside_is_reached_with_the_nodes_address() {
    for family in [0, 1] {
        let [pod, node, server] =
            [pod_address(0)[family], node_address()[family], outside_address(5)[family]];
        let backend = SocketAddr::new(server, SERVER);
        let shared =
            ServicePort { internal_backends: vec![backend], external_backends: vec![backend], ..port(&[]) };
        let mut rig =
            Rig::with_settings(&settings(1), &Setting { services: Some(services(&shared)), ..setting() });
        let virtual_end = virtual_address()[family];
        for protocol in PROTOCOLS {
            let first = packet(pod, virtual_end, transport(protocol, 0, [CLIENT, SERVICE]));
            let external = open(&mut rig, A, &first);
            for step in [1, 2, 2, 1, 2] {
                let inside = transport(protocol, step, [CLIENT, SERVICE]);
                let outside = transport(protocol, step, [external, SERVER]);
                if step == 1 {
                    let (sent, seen) = (packet(server, node, outside), packet(virtual_end, pod, inside));
                    becomes(&mut rig, UPLINK, &sent, A, &seen);
                } else {
                    let (sent, seen) = (packet(pod, virtual_end, inside), packet(node, server, outside));
                    becomes(&mut rig, A, &sent, UPLINK, &seen);
                }
            }
        }
        // From the same port to the server's own address: a flow of its own.
        let own = open(&mut rig, A, &datagram(pod, server, [CLIENT, SERVER]));
        let reply = datagram(server, node, [SERVER, own]);
        becomes(&mut rig, UPLINK, &reply, A, &datagram(server, pod, [SERVER, CLIENT]));
        // Errors of the server, and of the pod, about packets of the flow to the Service.
        let sent = datagram(pod, virtual_end, [CLIENT + 1, SERVICE]);
        let external = open(&mut rig, A, &sent);
        let seen = datagram(node, server, [external, SERVER]);
        becomes(
            &mut rig,
            UPLINK,
            &error(server, &seen, usize::MAX),
            A,
            &error(virtual_end, &sent, usize::MAX),
        );
        let reply = datagram(server, node, [SERVER, external]);
        let at_pod = datagram(virtual_end, pod, [SERVICE, CLIENT + 1]);
        becomes(&mut rig, UPLINK, &reply, A, &at_pod);
        becomes(&mut rig, A, &error(pod, &at_pod, usize::MAX), UPLINK, &error(node, &reply, usize::MAX));
    }
}

/// Directory that is removed at the end.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn masqueraded_flows_go_on_after_a_restart_with_their_ports() {
    let directory =
        Directory(PathBuf::from(format!("/dev/shm/palisade-sim-masquerade-{}", std::process::id())));
    let memory = FlowMemory::Directory { path: directory.0.clone(), fallback: None };
    let mut settings = settings(2);
    settings.conntrack.memory = memory;
    let mut rig = Rig::with_settings(&settings, &setting());
    let server = outside_address(5)[0];
    let ports: Vec<u16> = (0..100)
        .map(|n| open(&mut rig, A, &datagram(pod_address(0)[0], server, [CLIENT + n, SERVER])))
        .collect();
    drop(rig);
    let mut rig = Rig::with_settings(&settings, &setting());
    // New flows get none of their ports, by either worker.
    for n in 0..100 {
        let frame = addressed(B, &datagram(pod_address(1)[0], server, [CLIENT + n, SERVER])).bytes();
        let out = rig.send_on(usize::from(n) % 2, B, &[frame]);
        let [(UPLINK, frame)] = out.as_slice() else { panic!("{out:?}") };
        assert!(!ports.contains(&external_port(frame, 0)));
    }
    for (n, external) in (0..100).zip(&ports) {
        let reply = datagram(server, node_address()[0], [SERVER, *external]);
        becomes(&mut rig, UPLINK, &reply, A, &datagram(server, pod_address(0)[0], [SERVER, CLIENT + n]));
        let sent = datagram(pod_address(0)[0], server, [CLIENT + n, SERVER]);
        assert_eq!(open(&mut rig, A, &sent), *external);
    }
}
