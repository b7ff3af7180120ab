//! Backends that come and go, and clients that keep theirs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use palisade::dataplane::DropReason;
use palisade::ids::PortId;
use palisade::net::flow::Protocol;
use palisade::tables::ServicePort;

use super::fixture::{
    SERVICE, TARGET, backend_of, becomes, exchange, external_address, opened, packet, port, seen_by_backend,
    seen_by_client, services, transport, virtual_address, with_backends,
};
use crate::frames::Transport;
use crate::rig::assertions::{A, B, CLIENT, flows, is_dropped, mute};
use crate::rig::model::{ACK, FIN, SYN};
use crate::rig::{HOST, Rig, Setting, UPLINK, node_address, outside_address, pod_address};

const BOTH: [usize; 2] = [1, 2];

fn with(port: &ServicePort) -> Setting {
    Setting { services: Some(services(port)), ..Setting::open() }
}

/// A client's port whose flow of this protocol goes to a backend.
fn client_of(rig: &mut Rig, protocol: Protocol, backend: usize) -> u16 {
    let goes_there =
        |client: &u16| backend_of(rig, A, &seen_by_client(protocol, 0, 0, 0, *client)) == backend;
    (CLIENT..CLIENT + 50).find(goes_there).expect("one of fifty flows goes to each of two backends")
}

#[test]
fn flows_are_divided_and_each_keeps_its_backend() {
    let mut rig = Rig::new(2, &with_backends(&Setting::open(), &BOTH));
    let first: Vec<usize> = (0..40)
        .map(|n| backend_of(&mut rig, A, &seen_by_client(Protocol::UDP, 0, 0, 0, CLIENT + n)))
        .collect();
    assert!(
        BOTH.iter().all(|backend| first.iter().filter(|found| *found == backend).count() >= 8),
        "{first:?}"
    );
    for (n, backend) in first.iter().enumerate() {
        let again = seen_by_client(Protocol::UDP, 0, 2, 0, CLIENT + n as u16);
        assert_eq!(backend_of(&mut rig, A, &again), *backend);
    }
    assert_eq!(opened(&rig, Protocol::UDP).0, 40);
}

#[test]
fn a_connection_stays_with_a_backend_that_leaves_and_the_next_one_does_not() {
    for protocol in [Protocol::TCP, Protocol::SCTP] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        exchange(&mut rig, protocol, 0, [0, 1], CLIENT);
        rig.publish(&with_backends(&Setting::open(), &[2]));
        assert_eq!(backend_of(&mut rig, A, &seen_by_client(protocol, 0, 2, 0, CLIENT)), 1);
        exchange(&mut rig, protocol, 0, [0, 2], CLIENT + 1);
        // The replies of the first connection still come from the virtual address.
        let reply = seen_by_backend(protocol, 0, 1, [0, 1], CLIENT);
        let out = rig.send(PortId(1), &reply);
        assert_eq!(out, [(A, crate::rig::forwarded(A, &seen_by_client(protocol, 0, 1, 0, CLIENT)))]);
    }
}

#[test]
fn datagrams_move_when_their_backend_is_gone_and_stay_otherwise() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &BOTH));
    let clients = BOTH.map(|backend| client_of(&mut rig, Protocol::UDP, backend));
    rig.publish(&with_backends(&Setting::open(), &[2]));
    for client in clients {
        assert_eq!(backend_of(&mut rig, A, &seen_by_client(Protocol::UDP, 0, 2, 0, client)), 2);
        let reply = seen_by_backend(Protocol::UDP, 0, 1, [0, 2], client);
        let expected = crate::rig::forwarded(A, &seen_by_client(Protocol::UDP, 0, 1, 0, client));
        assert_eq!(rig.send(PortId(2), &reply), [(A, expected)]);
    }
    rig.publish(&with_backends(&Setting::open(), &BOTH));
    for client in clients {
        assert_eq!(backend_of(&mut rig, A, &seen_by_client(Protocol::UDP, 0, 2, 0, client)), 2);
    }
}

#[test]
fn a_service_that_goes_takes_new_flows_no_more() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
    rig.publish(&Setting::open());
    // The address is one like any other: it is routed.
    let sent = seen_by_client(Protocol::UDP, 0, 2, 0, CLIENT);
    let out = rig.send(A, &sent);
    assert_eq!(out, [(crate::rig::UPLINK, crate::rig::forwarded(crate::rig::UPLINK, &sent))]);
}

#[test]
fn a_client_with_affinity_keeps_its_backend_for_a_while_after_its_last_flow() {
    let affine = |pods: &[usize]| with(&ServicePort { affinity_seconds: Some(60), ..port(pods) });
    let mut rig = Rig::new(1, &affine(&BOTH));
    let to = |rig: &mut Rig, client: u16| backend_of(rig, A, &seen_by_client(Protocol::UDP, 0, 0, 0, client));
    let kept = to(&mut rig, CLIENT);
    for n in 1..30 {
        assert_eq!(to(&mut rig, CLIENT + n), kept);
    }
    for n in 30..33 {
        rig.wait(Duration::from_secs(50));
        assert_eq!(to(&mut rig, CLIENT + n), kept, "each flow extends it");
    }
    // A backend that leaves keeps no client.
    let other = BOTH.into_iter().find(|backend| *backend != kept).unwrap();
    rig.publish(&affine(&[other]));
    assert_eq!(to(&mut rig, CLIENT + 40), other);
    // It comes back, and gets the client back after the time.
    rig.publish(&affine(&BOTH));
    assert_eq!(to(&mut rig, CLIENT + 41), other);
    for n in 0..8 {
        rig.wait(Duration::from_millis(59_900));
        assert_eq!(to(&mut rig, CLIENT + 50 + n), other, "no affinity ends early");
    }
    rig.wait(Duration::from_secs(70));
    assert_eq!(to(&mut rig, CLIENT + 42), kept);
}

#[test]
fn a_port_of_a_client_opens_a_connection_by_another_address_when_the_one_before_has_ended() {
    for family in [0, 1] {
        let (own, backend) = (pod_address(0)[family], pod_address(1)[family]);
        // Each packet of one connection, by one of the Service's addresses: it becomes the same packet of the pod.
        let segment = |rig: &mut Rig,
                       by: IpAddr,
                       from_client: bool,
                       flags: u8,
                       [sequence, acknowledgement]: [u32; 2]| {
            let with = |end: IpAddr, port: u16| {
                let ends = [(own, CLIENT), (end, port)];
                let [(src, src_port), (dst, dst_port)] = if from_client { ends } else { [ends[1], ends[0]] };
                let ports = [src_port, dst_port];
                packet(src, dst, Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 })
            };
            let (at_client, at_backend) = (with(by, SERVICE), with(backend, TARGET));
            if from_client {
                becomes(rig, A, &at_client, B, &at_backend);
            } else {
                becomes(rig, B, &at_backend, A, &at_client);
            }
        };
        let open = |rig: &mut Rig, by: IpAddr, first: u32| {
            segment(rig, by, true, SYN, [first, 0]);
            segment(rig, by, false, SYN | ACK, [first + 400, first + 1]);
            segment(rig, by, true, ACK, [first + 1, first + 401]);
        };
        let [cluster, external] = [virtual_address()[family], external_address()[family]];
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        open(&mut rig, cluster, 100);
        segment(&mut rig, cluster, true, FIN | ACK, [101, 501]);
        segment(&mut rig, cluster, false, FIN | ACK, [501, 102]);
        segment(&mut rig, cluster, true, ACK, [102, 502]);
        // It is another connection, and policy is asked again.
        open(&mut rig, external, 5000);
        assert_eq!(opened(&rig, Protocol::TCP).0, 2);
        let flows = flows(&rig);
        assert_eq!(
            flows.iter().map(|flow| flow.service).collect::<Vec<_>>(),
            [Some((external, SERVICE).into())]
        );
        // Nothing reaches it by the address before.
        let late = packet(own, cluster, transport(Protocol::TCP, 2, [CLIENT, SERVICE]));
        rig.wait(Duration::from_secs(3));
        is_dropped(&mut rig, A, &late, DropReason::ServiceCollision);
        segment(&mut rig, external, true, FIN | ACK, [5001, 5401]);
        segment(&mut rig, external, false, FIN | ACK, [5401, 5002]);
        segment(&mut rig, external, true, ACK, [5002, 5402]);
        rig.publish(&with_backends(&Setting::open().with(0, mute()), &[1]));
        let syn = packet(own, cluster, transport(Protocol::TCP, 0, [CLIENT, SERVICE]));
        is_dropped(&mut rig, A, &syn, DropReason::PolicyEgress);
    }
}

#[test]
fn clients_outside_find_the_local_one_of_many_backends() {
    let remote = (0..250).map(|host| SocketAddr::from(([198, 51, 100, host], TARGET)));
    let with = |attached: bool| {
        let local = SocketAddr::new(pod_address(1)[0], TARGET);
        let backends: Vec<SocketAddr> = remote.clone().chain([local]).collect();
        let many =
            ServicePort { internal_backends: backends.clone(), external_backends: backends, ..port(&[]) };
        let mut setting = with(&many);
        if !attached {
            setting.attachments[1] = None;
        }
        setting
    };
    let mut rig = Rig::new(1, &with(true));
    let to = |from: IpAddr, service: IpAddr, client: u16| {
        packet(from, service, transport(Protocol::UDP, 0, [client, SERVICE]))
    };
    for client in CLIENT..CLIENT + 20 {
        let outside = to(outside_address(5)[0], external_address()[0], client);
        assert_eq!(backend_of(&mut rig, UPLINK, &outside), 1);
        let node = to(node_address()[0], virtual_address()[0], client);
        assert_eq!(backend_of(&mut rig, HOST, &node), 1);
    }
    // Pods take all of them.
    let away = (CLIENT..CLIENT + 20)
        .filter(|client| backend_of(&mut rig, A, &seen_by_client(Protocol::UDP, 0, 0, 0, *client)) != 1);
    assert!(away.count() >= 15);
    rig.publish(&with(false));
    let outside = to(outside_address(5)[0], external_address()[0], CLIENT + 30);
    is_dropped(&mut rig, UPLINK, &outside, DropReason::ServiceRemote);
    rig.publish(&with(true));
    assert_eq!(backend_of(&mut rig, UPLINK, &outside), 1);
}

#[test]
fn the_node_takes_another_backend_than_itself() {
    let own = SocketAddr::new(node_address()[0], TARGET);
    for (pods, expected) in [([1].as_slice(), Some(1)), (&[], None)] {
        let mut shared = port(pods);
        shared.internal_backends.push(own);
        let mut rig = Rig::new(1, &with(&shared));
        for client in CLIENT..CLIENT + 20 {
            let transport = transport(Protocol::UDP, 0, [client, SERVICE]);
            let sent = packet(node_address()[0], virtual_address()[0], transport);
            if let Some(backend) = expected {
                assert_eq!(backend_of(&mut rig, HOST, &sent), backend);
            } else {
                let before = rig.counters(HOST);
                rig.send(HOST, &sent);
                let drops = rig.drops_since(HOST, &before);
                assert_eq!(drops, [("service-no-backend".to_owned(), 1)].into());
            }
        }
    }
}

#[test]
fn the_address_of_a_service_is_no_backend() {
    for (pods, expected) in [([1].as_slice(), Some(1)), (&[], None)] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), pods));
        let mut shared = port(pods);
        shared.internal_backends.push(SocketAddr::new(virtual_address()[0], TARGET));
        rig.publish(&with(&shared));
        for client in CLIENT..CLIENT + 20 {
            let sent = seen_by_client(Protocol::UDP, 0, 0, 0, client);
            if let Some(backend) = expected {
                assert_eq!(backend_of(&mut rig, A, &sent), backend);
            } else {
                let before = rig.counters(A);
                rig.send(A, &sent);
                assert_eq!(rig.drops_since(A, &before), [("service-no-backend".to_owned(), 1)].into());
            }
        }
    }
}
