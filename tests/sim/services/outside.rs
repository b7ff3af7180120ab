//! Node ports and external addresses, for clients outside and for those of this node.

use std::net::{IpAddr, SocketAddr};

use palisade::dataplane::DropReason;
use palisade::net::flow::Protocol;
use palisade::tables::ServicePort;

use super::fixture::{
    PROTOCOLS, SERVICE, TARGET, becomes, external_address, opened, packet, port, services, services_at,
    transport, virtual_address,
};
use crate::frames::Transport;
use crate::rig::assertions::{A, B, CLIENT, is_dropped, passes};
use crate::rig::{HOST, Rig, Setting, UPLINK, ip, node_address, outside_address, pod_address};

const NODE_PORT: u16 = 30_080;

fn datagram(src: IpAddr, dst: IpAddr, ports: [u16; 2]) -> crate::frames::Spec {
    packet(src, dst, Transport::Udp { ports })
}

fn with(port: &ServicePort, node_addresses: &[IpAddr]) -> Setting {
    Setting { services: Some(services_at(port, node_addresses)), ..Setting::open() }
}

#[test]
fn clients_outside_reach_node_ports_and_the_node_keeps_its_other_ports() {
    for family in [0, 1] {
        let node = node_address()[family];
        let shared = ServicePort { node_port: Some(NODE_PORT), ..port(&[1]) };
        let mut rig = Rig::new(1, &with(&shared, &node_address()));
        let (client, backend) = (outside_address(5)[family], pod_address(1)[family]);
        for protocol in PROTOCOLS {
            for step in 0..3 {
                let (to_node, to_pod) = ([CLIENT, NODE_PORT], [CLIENT, TARGET]);
                let [sent, seen] = [(node, to_node), (backend, to_pod)].map(|(end, ports)| {
                    let (src, dst) = if step == 1 { (end, client) } else { (client, end) };
                    packet(src, dst, transport(protocol, step, ports))
                });
                if step == 1 {
                    becomes(&mut rig, B, &seen, UPLINK, &sent);
                } else {
                    becomes(&mut rig, UPLINK, &sent, B, &seen);
                }
            }
        }
        passes(&mut rig, UPLINK, HOST, &datagram(client, node, [CLIENT, NODE_PORT + 1]));
    }
}

#[test]
fn nobody_outside_has_an_address_of_the_node() {
    for family in [0, 1] {
        // An address that no port of the switch has.
        let other = [ip("192.0.2.77"), ip("2001:db8:7::77")];
        let shared = ServicePort { node_port: Some(NODE_PORT), ..port(&[1]) };
        let mut rig = Rig::new(1, &with(&shared, &other));
        for from in [other, node_address(), pod_address(0), virtual_address()] {
            let sent = datagram(from[family], other[family], [CLIENT, NODE_PORT]);
            is_dropped(&mut rig, UPLINK, &sent, DropReason::Spoofed);
        }
        let sent = datagram(outside_address(5)[family], other[family], [CLIENT, NODE_PORT]);
        let seen = datagram(outside_address(5)[family], pod_address(1)[family], [CLIENT, TARGET]);
        becomes(&mut rig, UPLINK, &sent, B, &seen);
    }
}

#[test]
fn clients_outside_get_no_backend_in_the_node_itself() {
    for family in [0, 1] {
        let own = SocketAddr::new(node_address()[family], TARGET);
        for (pods, expected) in [(&[1][..], true), (&[], false)] {
            let mut shared = port(pods);
            shared.external_backends.push(own);
            let mut rig = Rig::new(1, &Setting { services: Some(services(&shared)), ..Setting::open() });
            for client in CLIENT..CLIENT + 10 {
                let from = outside_address(5)[family];
                let sent = datagram(from, external_address()[family], [client, SERVICE]);
                if expected {
                    becomes(
                        &mut rig,
                        UPLINK,
                        &sent,
                        B,
                        &datagram(from, pod_address(1)[family], [client, TARGET]),
                    );
                } else {
                    is_dropped(&mut rig, UPLINK, &sent, DropReason::ServiceRemote);
                }
            }
        }
    }
}

#[test]
fn pods_reach_external_addresses_whatever_the_policy_for_the_outside() {
    for family in [0, 1] {
        let remote = SocketAddr::new(outside_address(7)[family], TARGET);
        // The backends of a Service with both traffic policies Local, whose one pod runs elsewhere.
        let shared = ServicePort {
            node_port: Some(NODE_PORT),
            short_circuit_backends: Some(vec![remote]),
            ..port(&[])
        };
        let mut rig = Rig::new(1, &with(&shared, &node_address()));
        let own = pod_address(0)[family];
        for (to, to_port) in [(external_address()[family], SERVICE), (node_address()[family], NODE_PORT)] {
            let client = CLIENT + u16::from(to_port == SERVICE);
            let sent = datagram(own, to, [client, to_port]);
            let seen = datagram(own, remote.ip(), [client, TARGET]);
            becomes(&mut rig, A, &sent, UPLINK, &seen);
            // A change of the Services, after which the binding is checked.
            rig.publish(&with(&ServicePort { affinity_seconds: Some(9), ..shared.clone() }, &node_address()));
            becomes(&mut rig, A, &sent, UPLINK, &seen);
            rig.publish(&with(&shared, &node_address()));
            let outside = datagram(outside_address(5)[family], to, [client, to_port]);
            let before = rig.counters(UPLINK);
            rig.send(UPLINK, &outside);
            assert_eq!(rig.drops_since(UPLINK, &before), [("service-no-backend".to_owned(), 1)].into());
        }
        let inside = datagram(own, virtual_address()[family], [CLIENT, SERVICE]);
        let before = rig.counters(A);
        rig.send(A, &inside);
        assert_eq!(rig.drops_since(A, &before), [("service-no-backend".to_owned(), 1)].into());
        assert_eq!(opened(&rig, Protocol::UDP).0, 2);
    }
}

#[test]
fn a_load_balancer_takes_its_sources_and_open_connections_go_on() {
    for family in [0, 1] {
        let limited = |hosts: &[usize]| ServicePort {
            node_port: Some(NODE_PORT),
            guarded: external_address().map(|address| SocketAddr::new(address, SERVICE)).to_vec(),
            source_ranges: hosts.iter().flat_map(|host| outside_address(*host)).map(Into::into).collect(),
            ..port(&[1])
        };
        let mut rig = Rig::new(1, &with(&limited(&[5]), &node_address()));
        let [balancer, node, backend] =
            [external_address()[family], node_address()[family], pod_address(1)[family]];
        let [allowed, other] = [5, 6].map(|host| outside_address(host)[family]);
        let segment =
            |src, step, port| packet(src, balancer, transport(Protocol::TCP, step, [port, SERVICE]));
        let at_pod = |src, step, port| packet(src, backend, transport(Protocol::TCP, step, [port, TARGET]));
        let open = |rig: &mut Rig, src, port| {
            becomes(rig, UPLINK, &segment(src, 0, port), B, &at_pod(src, 0, port));
            let answer = packet(backend, src, transport(Protocol::TCP, 1, [port, TARGET]));
            let seen = packet(balancer, src, transport(Protocol::TCP, 1, [port, SERVICE]));
            becomes(rig, B, &answer, UPLINK, &seen);
            becomes(rig, UPLINK, &segment(src, 2, port), B, &at_pod(src, 2, port));
        };
        open(&mut rig, allowed, CLIENT);
        let to_balancer = |src| datagram(src, balancer, [CLIENT, SERVICE]);
        for from in [other, pod_address(0)[family]] {
            let port = if from == other { UPLINK } else { A };
            is_dropped(&mut rig, port, &segment(from, 0, CLIENT), DropReason::ServiceSource);
            is_dropped(&mut rig, port, &to_balancer(from), DropReason::ServiceSource);
        }
        // The ranges are about the load balancer's addresses alone.
        let to_node = datagram(other, node, [CLIENT, NODE_PORT]);
        becomes(&mut rig, UPLINK, &to_node, B, &datagram(other, backend, [CLIENT, TARGET]));
        rig.publish(&with(&limited(&[6]), &node_address()));
        becomes(&mut rig, UPLINK, &segment(allowed, 2, CLIENT), B, &at_pod(allowed, 2, CLIENT));
        for port in [CLIENT, CLIENT + 1] {
            is_dropped(&mut rig, UPLINK, &segment(allowed, 0, port), DropReason::ServiceSource);
        }
        open(&mut rig, other, CLIENT);
    }
}
