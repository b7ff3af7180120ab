//! ICMP errors about packets of translated flows.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::DropReason;
use palisade::net::flow::Protocol;
use palisade::tables::{ServicePort, ServicePortName, ServiceSet, ServiceTable};

use super::fixture::{
    SERVICE, TARGET, becomes, exchange, external_address, packet, seen_by_backend, seen_by_client,
    with_backends,
};
use crate::frames::{self, Spec, Transport};
use crate::rig::assertions::{A, B, CLIENT, flows, is_dropped};
use crate::rig::{Rig, Setting, pod_address};

/// Error "port unreachable" from an address to the sender of a packet, with `bytes` of it.
pub(crate) fn error(from: IpAddr, about: &Spec, bytes: usize) -> Spec {
    let (kind, code) = if about.src.is_ipv4() { (3, 3) } else { (1, 4) };
    let mut quote = about.ip();
    quote.truncate(bytes);
    let transport = Transport::Icmp { kind, code, rest: [0; 4] };
    Spec { payload: quote, ..packet(from, about.src, transport) }
}

#[test]
fn errors_of_both_ends_quote_the_packets_that_their_receivers_know() {
    for family in [0, 1] {
        for protocol in [Protocol::UDP, Protocol::TCP] {
            // The quote ends behind the ports, or holds the whole packet.
            for bytes in [if family == 0 { 28 } else { 48 }, usize::MAX] {
                let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
                exchange(&mut rig, protocol, family, [0, 1], CLIENT);
                // The backend reports about a packet of the client.
                let sent = error(
                    pod_address(1)[family],
                    &seen_by_backend(protocol, family, 2, [0, 1], CLIENT),
                    bytes,
                );
                let virtual_end = super::fixture::virtual_address()[family];
                let seen = error(virtual_end, &seen_by_client(protocol, family, 2, 0, CLIENT), bytes);
                becomes(&mut rig, B, &sent, A, &seen);
                // The client reports about a reply.
                let sent =
                    error(pod_address(0)[family], &seen_by_client(protocol, family, 1, 0, CLIENT), bytes);
                let about = seen_by_backend(protocol, family, 1, [0, 1], CLIENT);
                let seen = error(pod_address(0)[family], &about, bytes);
                becomes(&mut rig, A, &sent, B, &seen);
            }
        }
    }
}

#[test]
fn an_error_about_no_flow_reaches_no_backend() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
    let other = seen_by_client(Protocol::UDP, 0, 1, 0, CLIENT + 1);
    let before = rig.counters(A);
    assert_eq!(rig.send(A, &error(pod_address(0)[0], &other, usize::MAX)), []);
    assert_eq!(rig.drops_since(A, &before).values().sum::<u64>(), 1);
    let as_other =
        error(pod_address(1)[0], &seen_by_backend(Protocol::UDP, 0, 2, [2, 1], CLIENT), usize::MAX);
    is_dropped(&mut rig, B, &as_other, DropReason::InvalidState);
}

#[test]
fn an_error_of_the_switch_quotes_the_packet_as_the_client_has_sent_it() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        exchange(&mut rig, Protocol::UDP, family, [0, 1], CLIENT);
        for client in [CLIENT, CLIENT + 1] {
            let expiring = Spec { ttl: 1, ..seen_by_client(Protocol::UDP, family, 2, 0, client) };
            let out = rig.send(A, &expiring);
            let [(to, answer)] = out.as_slice() else { panic!("{out:?}") };
            assert_eq!(*to, A);
            frames::check(answer).unwrap();
            let quote = &answer[if family == 0 { 42 } else { 62 }..];
            assert_eq!(quote, expiring.ip());
        }
        // So does one about a reply.
        let expiring = Spec { ttl: 1, ..seen_by_backend(Protocol::UDP, family, 1, [0, 1], CLIENT) };
        let out = rig.send(B, &expiring);
        let [(to, answer)] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!(*to, B);
        assert_eq!(answer[if family == 0 { 42 } else { 62 }..], expiring.ip());
    }
}

#[test]
fn an_error_about_a_packet_of_a_flow_that_the_backend_has_opened_is_no_error_about_a_reply() {
    // Pod 1 serves the first address, pod 0 the second one, on the port that it is a client from.
    let both = |pods: [usize; 2]| {
        let cluster = ServicePort { external: Vec::new(), ..super::fixture::port(&[pods[0]]) };
        let mut other = super::fixture::port(&[pods[1]]);
        other.cluster.clear();
        for backends in [&mut other.internal_backends, &mut other.external_backends] {
            backends.iter_mut().for_each(|backend| backend.set_port(CLIENT));
        }
        let name = |name: &str| ServicePortName {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            port: None,
            protocol: Protocol::UDP,
        };
        let ports = [(name("web"), cluster), (name("other"), other)].into();
        let table = ServiceTable { node_addresses: Vec::new(), ports };
        Setting { services: Some(Arc::new(ServiceSet::new(&table).unwrap())), ..Setting::open() }
    };
    let mut rig = Rig::new(1, &both([1, 0]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
    rig.wait(Duration::from_hours(1));
    assert_eq!(flows(&rig), []);
    // Pod 1 reaches pod 0 between the same ports.
    let ports = [TARGET, SERVICE];
    let sent = packet(pod_address(1)[0], external_address()[0], Transport::Udp { ports });
    let ports = [TARGET, CLIENT];
    let seen = packet(pod_address(1)[0], pod_address(0)[0], Transport::Udp { ports });
    becomes(&mut rig, B, &sent, A, &seen);
    let about = seen_by_client(Protocol::UDP, 0, 1, 0, CLIENT);
    is_dropped(&mut rig, A, &error(pod_address(0)[0], &about, usize::MAX), DropReason::ServiceCollision);
}
