//! Front ends of one backend that a client uses from one port: virtual addresses, and the backend's own.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use palisade::dataplane::{ConntrackSettings, DropReason};
use palisade::net::flow::Protocol;
use palisade::tables::ServicePort;

use super::errors::error;
use super::fixture::{
    SERVICE, TARGET, becomes, external_address, opened, packet, port, services, transport, virtual_address,
    with_backends,
};
use crate::frames::Spec;
use crate::random::{Random, histories};
use crate::rig::assertions::{A, B, CLIENT, flows, is_dropped};
use crate::rig::rule_lists::PodRules;
use crate::rig::{Rig, Setting, addressed, forwarded, ip, pod_address};

/// Front ends of pod 1: two virtual addresses and its own.
fn front_ends(family: usize) -> [SocketAddr; 3] {
    [(virtual_address(), SERVICE), (external_address(), SERVICE), (pod_address(1), TARGET)]
        .map(|(addresses, port)| SocketAddr::new(addresses[family], port))
}

/// Packet `step` between a port of pod 0 and a server.
fn between(protocol: Protocol, step: usize, client_port: u16, server: SocketAddr) -> Spec {
    let client = pod_address(0)[usize::from(server.is_ipv6())];
    let (src, dst) = if step == 1 { (server.ip(), client) } else { (client, server.ip()) };
    packet(src, dst, transport(protocol, step, [client_port, server.port()]))
}

/// The backend's own front end in the family of another one.
fn backend(front_end: SocketAddr) -> SocketAddr {
    front_ends(usize::from(front_end.is_ipv6()))[2]
}

/// Source port of a frame.
fn source_port(frame: &[u8], is_v6: bool) -> u16 {
    let at = if is_v6 { 54 } else { 34 };
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Sends a packet of the client to a front end. Returns the source port from which the backend gets it; all else of the packet
/// is what the client has sent.
#[track_caller]
fn arrives(rig: &mut Rig, protocol: Protocol, step: usize, client_port: u16, to: SocketAddr) -> u16 {
    let before = rig.counters(A);
    let out = rig.send(A, &between(protocol, step, client_port, to));
    let [(B, frame)] = out.as_slice() else { panic!("{out:?} {:?}", rig.drops_since(A, &before)) };
    let source = source_port(frame, to.is_ipv6());
    assert_eq!(*frame, forwarded(B, &between(protocol, step, source, backend(to))));
    source
}

/// Lets the backend reply to a source port: the client gets the reply from its front end, at its own port.
#[track_caller]
fn is_answered(rig: &mut Rig, protocol: Protocol, source: u16, client_port: u16, front_end: SocketAddr) {
    let at_backend = between(protocol, 1, source, backend(front_end));
    becomes(rig, B, &at_backend, A, &between(protocol, 1, client_port, front_end));
}

/// Runs an exchange of a client's port with a front end. Returns the source port that the backend knows.
#[track_caller]
fn exchange(rig: &mut Rig, protocol: Protocol, client_port: u16, front_end: SocketAddr) -> u16 {
    let source = arrives(rig, protocol, 0, client_port, front_end);
    is_answered(rig, protocol, source, client_port, front_end);
    assert_eq!(arrives(rig, protocol, 2, client_port, front_end), source);
    source
}

#[test]
fn each_front_end_of_a_backend_answers_one_port_of_a_client() {
    const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for protocol in super::fixture::PROTOCOLS {
        for (family, order) in [0, 1].into_iter().flat_map(|family| ORDERS.map(|order| (family, order))) {
            let mut rig = Rig::new(1 + family, &with_backends(&Setting::open(), &[1]));
            let front_ends = order.map(|n| front_ends(family)[n]);
            let sources = front_ends.map(|front_end| exchange(&mut rig, protocol, CLIENT, front_end));
            // The first flow has the client's own port.
            assert_eq!(sources[0], CLIENT);
            assert!(sources[1] != CLIENT && sources[2] != CLIENT && sources[1] != sources[2], "{sources:?}");
            for _ in 0..3 {
                for (source, front_end) in sources.into_iter().zip(front_ends) {
                    assert_eq!(arrives(&mut rig, protocol, 2, CLIENT, front_end), source);
                    is_answered(&mut rig, protocol, source, CLIENT, front_end);
                }
                rig.wait(Duration::from_secs(3));
            }
            let services = flows(&rig).iter().filter_map(|flow| flow.service).count();
            assert_eq!((flows(&rig).len(), services, opened(&rig, protocol).0), (3, 2, 2));
            rig.check();
        }
    }
}

#[test]
fn packets_of_one_batch_to_two_front_ends_all_arrive() {
    for [one, other] in [[0, 1], [1, 0], [0, 2], [2, 0]] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        let ends = [front_ends(0)[one], front_ends(0)[other]];
        let sent = [ends[0], ends[1], ends[0], ends[1]];
        let frames = sent.map(|end| addressed(A, &between(Protocol::UDP, 0, CLIENT, end)).bytes());
        let out = rig.send_on(0, A, &frames);
        let mut sources: Vec<u16> = out.iter().map(|(_, frame)| source_port(frame, false)).collect();
        sources.sort_unstable();
        let moved = sources.iter().copied().find(|source| *source != CLIENT).unwrap();
        let mut expected = [CLIENT, CLIENT, moved, moved];
        expected.sort_unstable();
        assert_eq!(sources, expected);
        for (source, front_end) in [CLIENT, moved].into_iter().zip(ends) {
            is_answered(&mut rig, Protocol::UDP, source, CLIENT, front_end);
        }
    }
}

#[test]
fn random_queries_to_many_front_ends_are_all_answered() {
    for seed in histories("queries to front ends of one backend", 0..3, 2) {
        let mut random = Random(seed.number);
        let mut rig = Rig::new(1 + seed.number as usize % 2, &with_backends(&Setting::open(), &[1]));
        for _ in 0..400 {
            let family = random.below(2) as usize;
            let front_end = front_ends(family)[random.below(3) as usize];
            let client_port = CLIENT + random.below(20) as u16;
            let source = arrives(&mut rig, Protocol::UDP, 0, client_port, front_end);
            is_answered(&mut rig, Protocol::UDP, source, client_port, front_end);
            if random.below(30) == 0 {
                rig.wait(Duration::from_secs(2 + random.below(200)));
            }
        }
    }
}

#[test]
fn a_late_datagram_of_the_backend_closes_no_front_end() {
    /// End of the flow, whose binding stays.
    #[derive(Clone, Copy)]
    enum End {
        Timeout,
        Policy,
        Flush,
    }
    for (family, end) in
        [0, 1].into_iter().flat_map(|family| [End::Timeout, End::Policy, End::Flush].map(|end| (family, end)))
    {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        let [front_end, _, backend] = front_ends(family);
        exchange(&mut rig, Protocol::UDP, CLIENT, front_end);
        match end {
            End::Timeout => rig.wait(Duration::from_mins(10)),
            // A policy denies it for a moment.
            End::Policy => {
                let closed = PodRules { ingress: Some(Vec::new()), egress: None };
                rig.publish(&with_backends(&Setting::open().with(1, closed), &[1]));
                drop(rig.send(B, &between(Protocol::UDP, 1, CLIENT, backend)));
                rig.publish(&with_backends(&Setting::open(), &[1]));
            }
            End::Flush => assert_eq!(rig.sim.end_flows(&mut |_| true), 1),
        }
        assert_eq!(flows(&rig), []);
        let late = between(Protocol::UDP, 1, CLIENT, backend);
        for _ in 0..3 {
            becomes(&mut rig, B, &late, A, &late);
            let source = exchange(&mut rig, Protocol::UDP, CLIENT, front_end);
            assert_ne!(source, CLIENT);
        }
    }
}

#[test]
fn a_moved_flow_outlives_the_one_that_has_the_clients_port() {
    for workers in [1, 2] {
        let mut rig = Rig::new(workers, &with_backends(&Setting::open(), &[1]));
        let [first, _, direct] = front_ends(0);
        exchange(&mut rig, Protocol::UDP, CLIENT, first);
        let source = exchange(&mut rig, Protocol::UDP, CLIENT, direct);
        for _ in 0..30 {
            rig.wait(Duration::from_secs(20));
            assert_eq!(arrives(&mut rig, Protocol::UDP, 2, CLIENT, direct), source);
            is_answered(&mut rig, Protocol::UDP, source, CLIENT, direct);
        }
        assert_eq!(flows(&rig).len(), 1, "the flow by the Service has ended");
        // Both have ended: the next flow has the client's port.
        rig.wait(Duration::from_mins(10));
        assert_eq!(exchange(&mut rig, Protocol::UDP, CLIENT, direct), CLIENT);
    }
}

#[test]
fn a_port_beside_the_moved_one_has_a_flow_of_its_own() {
    for workers in [1, 2] {
        let mut rig = Rig::new(workers, &with_backends(&Setting::open(), &[1]));
        let [first, second, _] = front_ends(0);
        exchange(&mut rig, Protocol::UDP, CLIENT, first);
        let source = exchange(&mut rig, Protocol::UDP, CLIENT, second);
        // Another socket of the client has the source port that the backend knows.
        let other = exchange(&mut rig, Protocol::UDP, source, second);
        assert_ne!(other, source);
        for (source, client_port) in [(source, CLIENT), (other, source)] {
            is_answered(&mut rig, Protocol::UDP, source, client_port, second);
        }
    }
}

#[test]
fn errors_about_moved_flows_quote_the_ports_that_their_receivers_know() {
    for (family, protocol) in [(0, Protocol::UDP), (1, Protocol::UDP), (0, Protocol::TCP), (1, Protocol::TCP)]
    {
        for bytes in [[28, 48][family], usize::MAX] {
            let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
            let [first, second, backend] = front_ends(family);
            exchange(&mut rig, protocol, CLIENT, first);
            let source = exchange(&mut rig, protocol, CLIENT, second);
            // The backend reports about a packet of the client.
            let sent = error(backend.ip(), &between(protocol, 2, source, backend), bytes);
            let seen = error(second.ip(), &between(protocol, 2, CLIENT, second), bytes);
            becomes(&mut rig, B, &sent, A, &seen);
            // The client reports about a reply.
            let client: IpAddr = pod_address(0)[family];
            let sent = error(client, &between(protocol, 1, CLIENT, second), bytes);
            let seen = error(client, &between(protocol, 1, source, backend), bytes);
            becomes(&mut rig, A, &sent, B, &seen);
        }
    }
}

#[test]
fn a_client_port_has_eight_flows_to_one_backend() {
    let addresses: Vec<SocketAddr> =
        (1..=9).map(|host| SocketAddr::new(ip(&format!("10.96.1.{host}")), SERVICE)).collect();
    let ports = ServicePort { cluster: addresses.clone(), ..port(&[1]) };
    for workers in [1, 2] {
        let mut rig = Rig::new(workers, &Setting { services: Some(services(&ports)), ..Setting::open() });
        let mut sources: Vec<u16> =
            addresses[..8].iter().map(|end| exchange(&mut rig, Protocol::UDP, CLIENT, *end)).collect();
        sources.sort_unstable();
        sources.dedup();
        assert_eq!(sources.len(), 8);
        let ninth = between(Protocol::UDP, 0, CLIENT, addresses[8]);
        is_dropped(&mut rig, A, &ninth, DropReason::ServiceCollision);
        exchange(&mut rig, Protocol::UDP, CLIENT + 1, addresses[8]);
    }
}

#[test]
fn a_connection_that_is_no_longer_tracked_takes_no_other_port() {
    let mut rig = Rig::with(
        1,
        ConntrackSettings { flows_max: 1024, ..ConntrackSettings::default() },
        &with_backends(&Setting::open(), &[1]),
    );
    let [first, second, _] = front_ends(0);
    exchange(&mut rig, Protocol::TCP, CLIENT, first);
    // A segment of no connection by another front end opens nothing.
    let stray = between(Protocol::TCP, 2, CLIENT, second);
    let before = rig.counters(A);
    assert_eq!(rig.send(A, &stray), []);
    assert_eq!(rig.drops_since(A, &before).values().sum::<u64>(), 1);
    is_answered(&mut rig, Protocol::TCP, CLIENT, CLIENT, first);
}
