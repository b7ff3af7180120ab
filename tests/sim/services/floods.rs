//! Senders that open translated flows without end, and connections that keep their translation.

use std::net::IpAddr;
use std::time::Duration;

use palisade::ids::PortId;
use palisade::net::flow::Protocol;

use super::fixture::{
    SERVICE, TARGET, backend_of, becomes, exchange, external_address, packet, seen_by_client, transport,
    virtual_address, with_backends,
};
use crate::frames::{Spec, Transport};
use crate::rig::assertions::{A, B, C, CLIENT};
use crate::rig::model::{RST, SYN};
use crate::rig::{HOST, Rig, Setting, UPLINK, addressed, node_address, outside_address, pod_address};

/// Packet `step` between a client and a virtual address, and as the backend, pod 1, sees it.
fn both(client: IpAddr, service: IpAddr, step: usize, protocol: Protocol, port: u16) -> [Spec; 2] {
    let backend = pod_address(1)[usize::from(client.is_ipv6())];
    [(service, SERVICE), (backend, TARGET)].map(|(server, server_port)| {
        let (src, dst) = if step == 1 { (server, client) } else { (client, server) };
        packet(src, dst, transport(protocol, step, [port, server_port]))
    })
}

/// Lets packet `step` of a client pass.
#[track_caller]
fn pass(rig: &mut Rig, from: PortId, (client, service): (IpAddr, IpAddr), step: usize, port: u16) {
    let [at_client, at_backend] = both(client, service, step, Protocol::TCP, port);
    if step == 1 {
        becomes(rig, B, &at_backend, from, &at_client);
    } else {
        becomes(rig, from, &at_client, B, &at_backend);
    }
}

fn reset([src, dst]: [IpAddr; 2], ports: [u16; 2]) -> Spec {
    let transport = Transport::Tcp { ports, flags: RST, sequence: 101, acknowledgement: 0, window: 0 };
    packet(src, dst, transport)
}

/// Opens flows that nobody answers, from a pod and from outside.
fn flood(rig: &mut Rig, rounds: u32) {
    for n in 0..rounds {
        let mut frames = [Vec::new(), Vec::new()];
        for n in n * 30..n * 30 + 30 {
            let port = (n % 60_000) as u16 + 1;
            let sent = seen_by_client(Protocol::UDP, (n % 2) as usize, 0, 2, port);
            frames[0].push(addressed(C, &sent).bytes());
            let transport = Transport::Tcp {
                ports: [port, SERVICE],
                flags: SYN,
                sequence: 1,
                acknowledgement: 0,
                window: 1,
            };
            let sent = packet(outside_address((n % 199) as usize + 1)[0], external_address()[0], transport);
            frames[1].push(addressed(UPLINK, &sent).bytes());
        }
        drop(rig.send_on(0, C, &frames[0]));
        drop(rig.send_on(0, UPLINK, &frames[1]));
    }
}

#[test]
fn floods_of_several_senders_take_no_connection_its_translation() {
    for workers in [1, 2] {
        let mut rig = Rig::new(workers, &with_backends(&Setting::open(), &[1]));
        let inside = (pod_address(0)[0], virtual_address()[0]);
        // The client outside shares its port with the flood.
        let outside = (outside_address(200)[0], external_address()[0]);
        for port in CLIENT..CLIENT + 40 {
            for step in 0..3 {
                pass(&mut rig, A, inside, step, port);
                pass(&mut rig, UPLINK, outside, step, port);
            }
        }
        for _ in 0..3 {
            rig.wait(Duration::from_secs(5));
            flood(&mut rig, 200);
            for port in CLIENT..CLIENT + 40 {
                // The backend sends first: nothing repairs what is lost.
                for (from, ends) in [(A, inside), (UPLINK, outside)] {
                    let [at_client, at_backend] = both(ends.0, ends.1, 1, Protocol::TCP, port);
                    becomes(&mut rig, B, &at_backend, from, &at_client);
                    pass(&mut rig, from, ends, 2, port);
                }
            }
        }
    }
}

#[test]
fn a_connection_gets_its_replies_from_the_address_that_it_was_opened_to_last() {
    for workers in [1, 2] {
        let mut rig = Rig::new(workers, &with_backends(&Setting::open(), &[1]));
        let (client, services) = (pod_address(0)[0], [virtual_address()[0], external_address()[0]]);
        for (n, service) in [services[0], services[1], services[0]].into_iter().enumerate() {
            for step in 0..3 {
                pass(&mut rig, A, (client, service), step, CLIENT);
            }
            let sent = reset([client, service], [CLIENT, SERVICE]);
            let seen = reset([client, pod_address(1)[0]], [CLIENT, TARGET]);
            becomes(&mut rig, A, &sent, B, &seen);
            if n == 0 {
                // The first connection is forgotten, its bindings are not.
                rig.wait(Duration::from_mins(10));
            }
        }
    }
}

#[test]
fn a_connection_that_has_ended_keeps_no_backend_that_has_left() {
    let conntrack = palisade::dataplane::ConntrackSettings {
        flows_max: 1024,
        tcp_pickup: true,
        ..palisade::dataplane::ConntrackSettings::default()
    };
    for workers in [1, 2] {
        let mut rig = Rig::with(workers, conntrack.clone(), &with_backends(&Setting::open(), &[1]));
        exchange(&mut rig, Protocol::TCP, 0, [0, 1], CLIENT);
        let sent = reset([pod_address(0)[0], virtual_address()[0]], [CLIENT, SERVICE]);
        becomes(&mut rig, A, &sent, B, &reset([pod_address(0)[0], pod_address(1)[0]], [CLIENT, TARGET]));
        rig.wait(Duration::from_mins(10));
        rig.publish(&with_backends(&Setting::open(), &[2]));
        assert_eq!(backend_of(&mut rig, A, &seen_by_client(Protocol::TCP, 0, 2, 0, CLIENT)), 2);
    }
}

#[test]
fn senders_within_their_quota_leave_every_connection_its_binding() {
    let conntrack = palisade::dataplane::ConntrackSettings {
        flows_max: 2048,
        ..palisade::dataplane::ConntrackSettings::default()
    };
    for workers in [1, 2] {
        let mut rig = Rig::with(workers, conntrack.clone(), &with_backends(&Setting::open(), &[1]));
        let inside = virtual_address()[0];
        let senders = [
            (C, (pod_address(2)[0], inside)),
            (HOST, (node_address()[0], inside)),
            (UPLINK, (outside_address(200)[0], external_address()[0])),
        ];
        // Each opens connections until no more are assured.
        for port in CLIENT..CLIENT + 700 {
            for (from, ends) in senders {
                for step in 0..3 {
                    let [at_client, at_backend] = both(ends.0, ends.1, step, Protocol::TCP, port);
                    let (from, sent) = if step == 1 { (B, at_backend) } else { (from, at_client) };
                    drop(rig.send(from, &sent));
                }
            }
            // The other worker polls too: slots of ended flows wait for its batch.
            rig.sim.step();
        }
        let assured = rig.sim.flows(usize::MAX).iter().filter(|flow| flow.assured).count();
        assert!(assured > 1100, "{assured}");
        for port in CLIENT..CLIENT + 300 {
            for step in 0..3 {
                pass(&mut rig, A, (pod_address(0)[0], inside), step, port);
            }
            rig.sim.step();
        }
    }
}
