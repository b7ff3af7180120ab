//! Pods that pretend to be others, and pods that fill tables.

use std::net::SocketAddr;

use palisade::dataplane::DropReason;
use palisade::net::flow::Protocol;
use palisade::tables::ServicePort;

use super::fixture::{
    SERVICE, TARGET, becomes, exchange, external_address, packet, port, seen_by_backend, seen_by_client,
    services, virtual_address, with_backends,
};
use crate::frames::Transport;
use crate::rig::assertions::{A, B, C, CLIENT, is_dropped, passes};
use crate::rig::{HOST, Rig, Setting, UPLINK, gateway_address, node_address, pod_address};

#[test]
fn a_virtual_address_is_nobodys_source() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        exchange(&mut rig, Protocol::UDP, family, [0, 1], CLIENT);
        for port in [B, C, HOST, UPLINK] {
            let reply = seen_by_client(Protocol::UDP, family, 1, 0, CLIENT);
            is_dropped(&mut rig, port, &reply, DropReason::Spoofed);
        }
        // A host outside may have an external address, on ports that no Service has.
        let ports = Transport::Udp { ports: [SERVICE + 1, CLIENT] };
        let outside = packet(external_address()[family], pod_address(0)[family], ports);
        passes(&mut rig, UPLINK, A, &outside);
    }
}

#[test]
fn another_pod_does_not_answer_for_the_backend() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
    // With its own address the third pod opens a flow of its own, which is not translated.
    let own = packet(pod_address(2)[0], pod_address(0)[0], Transport::Udp { ports: [TARGET, CLIENT] });
    passes(&mut rig, C, A, &own);
    let as_backend = seen_by_backend(Protocol::UDP, 0, 1, [0, 1], CLIENT);
    is_dropped(&mut rig, C, &as_backend, DropReason::Spoofed);
}

#[test]
fn a_pod_that_opens_flows_without_end_takes_no_flow_from_another() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
    for client in CLIENT..CLIENT + 20 {
        exchange(&mut rig, Protocol::UDP, 0, [0, 1], client);
    }
    for n in 0..20_000u32 {
        let (client, step) = ((n % 60_000) as u16 + 1, 0);
        let sent = seen_by_client(Protocol::UDP, (n % 2) as usize, step, 2, client);
        drop(rig.send(C, &sent));
    }
    for client in CLIENT..CLIENT + 20 {
        let sent = seen_by_client(Protocol::UDP, 0, 2, 0, client);
        becomes(&mut rig, A, &sent, B, &seen_by_backend(Protocol::UDP, 0, 2, [0, 1], client));
        let reply = seen_by_backend(Protocol::UDP, 0, 1, [0, 1], client);
        becomes(&mut rig, B, &reply, A, &seen_by_client(Protocol::UDP, 0, 1, 0, client));
    }
}

#[test]
fn a_packet_outside_any_connection_opens_none() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
    is_dropped(&mut rig, A, &seen_by_client(Protocol::TCP, 0, 2, 0, CLIENT), DropReason::InvalidState);
    // A reply to nothing is an ordinary packet of the backend.
    is_dropped(&mut rig, B, &seen_by_backend(Protocol::TCP, 0, 1, [0, 1], CLIENT), DropReason::InvalidState);
    let echo =
        packet(pod_address(0)[0], virtual_address()[0], Transport::Echo { request: true, identifier: 1 });
    let before = rig.counters(A);
    rig.send(A, &echo);
    assert_eq!(rig.drops_since(A, &before), [("service-no-backend".to_owned(), 1)].into());
}

#[test]
fn a_service_takes_no_address_from_a_pod_the_node_or_the_switch() {
    for family in [0, 1] {
        let taken = [pod_address(2)[family], node_address()[family], gateway_address()[family]];
        let taken = taken.map(|address| SocketAddr::new(address, SERVICE)).to_vec();
        let greedy = ServicePort { external: taken, ..port(&[1]) };
        let mut rig = Rig::new(1, &Setting { services: Some(services(&greedy)), ..Setting::open() });
        let own = pod_address(0)[family];
        let to_pod = packet(own, pod_address(2)[family], Transport::Udp { ports: [CLIENT, SERVICE] });
        passes(&mut rig, A, C, &to_pod);
        let reply = packet(pod_address(2)[family], own, Transport::Udp { ports: [SERVICE, CLIENT] });
        passes(&mut rig, C, A, &reply);
        let to_node = packet(own, node_address()[family], Transport::Udp { ports: [CLIENT, SERVICE] });
        passes(&mut rig, A, HOST, &to_node);
        let to_switch = packet(own, gateway_address()[family], Transport::Udp { ports: [CLIENT, SERVICE] });
        assert_eq!(rig.send(A, &to_switch), []);
    }
}
