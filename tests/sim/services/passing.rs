//! Packets to a Service and their replies.

use palisade::dataplane::DropReason;
use palisade::net::flow::Protocol;

use super::fixture::{
    PROTOCOLS, SERVICE, TARGET, becomes, exchange, external_address, opened, packet, port, seen_by_client,
    services, transport, with_backends,
};
use crate::frames::{self, Transport};
use crate::rig::assertions::{A, B, CLIENT, flows, is_dropped, mute, serves};
use crate::rig::model::RST;
use crate::rig::{Rig, Setting, UPLINK, addressed, outside_address, pod_address};

#[test]
fn a_flow_and_its_replies_are_translated() {
    for workers in [1, 2] {
        for protocol in PROTOCOLS {
            for family in [0, 1] {
                let mut rig = Rig::new(workers, &with_backends(&Setting::open(), &[1]));
                exchange(&mut rig, protocol, family, [0, 1], CLIENT);
                exchange(&mut rig, protocol, family, [0, 1], CLIENT + 1);
                let flows = flows(&rig);
                assert_eq!(flows.len(), 2);
                let service = super::fixture::virtual_address()[family];
                for flow in flows {
                    assert_eq!((flow.key.dst, flow.key.dst_port), (pod_address(1)[family], TARGET));
                    assert_eq!(flow.service, Some((service, SERVICE).into()));
                }
                assert_eq!(opened(&rig, protocol), (2, vec![((pod_address(1)[family], TARGET).into(), 2)]));
            }
        }
    }
}

#[test]
fn tap_ports_get_unfinished_checksums_over_the_new_addresses() {
    for family in [0, 1] {
        for taps in [[A, B].as_slice(), &[A], &[B]] {
            let setting = with_backends(&Setting::open(), &[1]);
            let mut rig = Rig::open_with_taps(
                &crate::rig::settings(1, palisade::dataplane::ConntrackSettings::default()),
                &setting,
                crate::rig::MTU,
                [1; crate::rig::PODS],
                taps,
            );
            let mut frame = addressed(A, &seen_by_client(Protocol::UDP, family, 0, 0, CLIENT)).bytes();
            frames::unfinish(&mut frame);
            let out = rig.send_on(0, A, &[frame]);
            let [(to, bytes)] = out.as_slice() else { panic!("{out:?}") };
            assert_eq!(*to, B);
            // A memory port finishes what the switch leaves unfinished.
            let expected = super::fixture::seen_by_backend(Protocol::UDP, family, 0, [0, 1], CLIENT);
            let mut expected = crate::rig::forwarded(B, &expected);
            if *bytes != expected {
                frames::unfinish(&mut expected);
            }
            assert_eq!(*bytes, expected);
        }
    }
}

#[test]
fn policy_is_asked_about_the_backend_and_a_denied_packet_leaves_nothing() {
    for (port, passes) in [(TARGET, true), (SERVICE, false)] {
        let open = Setting::open().with(1, serves(Protocol::UDP, port));
        let mut rig = Rig::new(1, &with_backends(&open, &[1]));
        let sent = seen_by_client(Protocol::UDP, 0, 0, 0, CLIENT);
        if passes {
            exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
        } else {
            is_dropped(&mut rig, A, &sent, DropReason::PolicyIngress);
            assert_eq!((flows(&rig).len(), opened(&rig, Protocol::UDP).0), (0, 0));
        }
    }
    let mut rig = Rig::new(1, &with_backends(&Setting::open().with(0, mute()), &[1]));
    is_dropped(&mut rig, A, &seen_by_client(Protocol::TCP, 0, 0, 0, CLIENT), DropReason::PolicyEgress);
}

#[test]
fn a_change_of_policy_ends_a_flow_to_a_service() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
    rig.publish(&with_backends(&Setting::open().with(0, mute()), &[1]));
    is_dropped(&mut rig, A, &seen_by_client(Protocol::UDP, 0, 2, 0, CLIENT), DropReason::PolicyEgress);
}

#[test]
fn a_pod_reaches_itself_by_its_own_service() {
    for protocol in PROTOCOLS {
        for family in [0, 1] {
            // Policy does not keep a pod from itself.
            let mut rig = Rig::new(1, &with_backends(&Setting::open().with(0, mute()), &[0]));
            let own = pod_address(0)[family];
            let service = super::fixture::virtual_address()[family];
            for step in 0..3 {
                let at_client = seen_by_client(protocol, family, step, 0, CLIENT);
                // The backend sees the virtual address with the client's port.
                let (src, dst) = if step == 1 { (own, service) } else { (service, own) };
                let at_backend = packet(src, dst, transport(protocol, step, [CLIENT, TARGET]));
                let (sent, seen) = if step == 1 { (at_backend, at_client) } else { (at_client, at_backend) };
                becomes(&mut rig, A, &sent, A, &seen);
            }
            assert_eq!(opened(&rig, protocol).0, 1);
        }
    }
    let closed = Setting { loaded: false, ..Setting::open() };
    let mut rig = Rig::new(1, &with_backends(&closed, &[0]));
    is_dropped(&mut rig, A, &seen_by_client(Protocol::UDP, 0, 0, 0, CLIENT), DropReason::UnknownPod);
}

#[test]
fn a_service_without_backends_refuses_by_reset_or_port_unreachable() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[]));
        let wrong_port = |protocol| {
            let (own, service) = (pod_address(0)[family], super::fixture::virtual_address()[family]);
            packet(own, service, transport(protocol, 0, [CLIENT, SERVICE + 1]))
        };
        for protocol in [Protocol::TCP, Protocol::UDP] {
            for sent in [seen_by_client(protocol, family, 0, 0, CLIENT), wrong_port(protocol)] {
                let before = rig.counters(A);
                let out = rig.send(A, &sent);
                let drops = rig.drops_since(A, &before);
                assert_eq!(drops, [("service-no-backend".to_owned(), 1)].into());
                let [(to, answer)] = out.as_slice() else { panic!("{out:?}") };
                assert_eq!(*to, A);
                frames::check(answer).unwrap();
                let l4 = if family == 0 { 34 } else { 54 };
                if protocol == Protocol::TCP {
                    let from = if family == 0 { &answer[26..30] } else { &answer[22..38] };
                    let service = super::fixture::virtual_address()[family];
                    let expected = match service {
                        std::net::IpAddr::V4(address) => address.octets().to_vec(),
                        std::net::IpAddr::V6(address) => address.octets().to_vec(),
                    };
                    assert_eq!(from, expected, "from the virtual address");
                    assert_eq!(answer[l4 + 13] & RST, RST);
                } else {
                    let unreachable = if family == 0 { [3, 3] } else { [1, 4] };
                    assert_eq!(answer[l4..l4 + 2], unreachable);
                    assert!(
                        answer[l4 + 8..].starts_with(&sent.ip()[..20]),
                        "it quotes what the pod has sent"
                    );
                }
            }
        }
        assert_eq!(flows(&rig), []);
    }
}

#[test]
fn the_outside_reaches_local_backends_at_external_addresses_only() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        let client = outside_address(5)[family];
        let sent = packet(client, external_address()[family], Transport::Udp { ports: [CLIENT, SERVICE] });
        let seen = packet(client, pod_address(1)[family], Transport::Udp { ports: [CLIENT, TARGET] });
        becomes(&mut rig, UPLINK, &sent, B, &seen);
        let sent = packet(pod_address(1)[family], client, Transport::Udp { ports: [TARGET, CLIENT] });
        let seen = packet(external_address()[family], client, Transport::Udp { ports: [SERVICE, CLIENT] });
        becomes(&mut rig, B, &sent, UPLINK, &seen);
        let inside = packet(
            client,
            super::fixture::virtual_address()[family],
            Transport::Udp { ports: [CLIENT, SERVICE] },
        );
        is_dropped(&mut rig, UPLINK, &inside, DropReason::NoRoute);

        let remote = palisade::tables::ServicePort {
            external_backends: vec![(outside_address(7)[family], TARGET).into()],
            ..port(&[1])
        };
        rig.publish(&Setting { services: Some(services(&remote)), ..Setting::open() });
        let sent =
            packet(client, external_address()[family], Transport::Udp { ports: [CLIENT + 1, SERVICE] });
        is_dropped(&mut rig, UPLINK, &sent, DropReason::ServiceRemote);
        // A pod reaches them by the node's uplink: replies come back to the pod's address.
        let from = pod_address(0)[family];
        let sent = packet(from, external_address()[family], Transport::Udp { ports: [CLIENT, SERVICE] });
        let seen = packet(from, outside_address(7)[family], Transport::Udp { ports: [CLIENT, TARGET] });
        becomes(&mut rig, A, &sent, UPLINK, &seen);
    }
}
