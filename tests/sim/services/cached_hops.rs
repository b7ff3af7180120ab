//! Flows whose hop is cached beside their binding: from the third packet of the client on, if both directions were seen.

use std::time::Duration;

use palisade::dataplane::{DropReason, FlowInfo};
use palisade::net::flow::Protocol;

use super::fixture::{backend_of, becomes, exchange, seen_by_backend, seen_by_client, with_backends};
use crate::frames::{Spec, Transport};
use crate::rig::assertions::{A, B, C, CLIENT, flows, is_dropped, mute, serves};
use crate::rig::model::{ACK, RST};
use crate::rig::{Rig, Setting, forwarded, pod_address};

/// Protocols and families.
fn kinds() -> impl Iterator<Item = (Protocol, usize)> {
    [Protocol::UDP, Protocol::TCP].into_iter().flat_map(|protocol| [(protocol, 0), (protocol, 1)])
}

/// Sends `count` packets of the client to its backend.
#[track_caller]
fn send(rig: &mut Rig, (protocol, family): (Protocol, usize), count: usize) {
    for _ in 0..count {
        let sent = seen_by_client(protocol, family, 2, 0, CLIENT);
        becomes(rig, A, &sent, B, &seen_by_backend(protocol, family, 2, [0, 1], CLIENT));
    }
}

/// A rig with one flow of four packets to the backend, the last of which takes a cached hop, and its setting: others with the same
/// Services leave the flow's binding current.
fn with_flow(workers: usize, (protocol, family): (Protocol, usize)) -> (Rig, Setting) {
    let setting = with_backends(&Setting::open(), &[1]);
    let mut rig = Rig::new(workers, &setting);
    exchange(&mut rig, protocol, family, [0, 1], CLIENT);
    send(&mut rig, (protocol, family), 2);
    (rig, setting)
}

fn flow(rig: &Rig) -> FlowInfo {
    let flows = flows(rig);
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows.into_iter().next().unwrap()
}

#[test]
fn every_packet_is_counted_with_its_bytes_and_its_time() {
    for (workers, kind) in [1, 2].into_iter().flat_map(|workers| kinds().map(move |kind| (workers, kind))) {
        let (protocol, family) = kind;
        let (mut rig, _) = with_flow(workers, kind);
        let bytes = forwarded(B, &seen_by_backend(protocol, family, 2, [0, 1], CLIENT)).len() as u64 - 14;
        let mut packets = 4;
        for _ in 0..3 {
            send(&mut rig, kind, 7);
            packets += 7;
            let seen = flow(&rig);
            assert_eq!((seen.packets, seen.bytes, seen.reply_packets), (packets, packets * bytes, 1));
            rig.sim.now += Duration::from_millis(300);
            rig.sim.step();
            assert!(flow(&rig).idle_ms >= 300);
            send(&mut rig, kind, 1);
            packets += 1;
            assert!(flow(&rig).idle_ms < 300, "{:?}", flow(&rig));
            rig.wait(Duration::from_secs(2));
        }
        assert_eq!(flow(&rig).packets, packets);
        // A reply shows that it is still one flow.
        let reply = seen_by_backend(protocol, family, 1, [0, 1], CLIENT);
        becomes(&mut rig, B, &reply, A, &seen_by_client(protocol, family, 1, 0, CLIENT));
        assert_eq!((flow(&rig).packets, flow(&rig).reply_packets), (packets, 2));
    }
}

#[test]
fn a_change_of_policy_at_either_end_holds_for_the_next_packet() {
    for (protocol, family) in kinds() {
        let closed =
            [(0, mute(), DropReason::PolicyEgress), (1, serves(protocol, 1), DropReason::PolicyIngress)];
        for (pod, rules, reason) in closed {
            let (mut rig, open) = with_flow(1, (protocol, family));
            rig.publish(&open.with(pod, rules));
            is_dropped(&mut rig, A, &seen_by_client(protocol, family, 2, 0, CLIENT), reason);
            assert!(flows(&rig).is_empty());
            rig.publish(&open);
            if protocol == Protocol::UDP {
                send(&mut rig, (protocol, family), 3);
                assert_eq!(flow(&rig).packets, 3);
            }
        }
    }
}

#[test]
fn a_flow_that_is_ended_takes_its_cached_hop_with_it() {
    for (protocol, family) in kinds() {
        let (mut rig, _) = with_flow(1, (protocol, family));
        send(&mut rig, (protocol, family), 3);
        let mut seen = 0;
        rig.sim.end_flows(&mut |flow| {
            seen = flow.packets;
            true
        });
        assert_eq!((seen, flows(&rig).len()), (7, 0));
        if protocol == Protocol::TCP {
            let segment = seen_by_client(protocol, family, 2, 0, CLIENT);
            is_dropped(&mut rig, A, &segment, DropReason::InvalidState);
            continue;
        }
        send(&mut rig, (protocol, family), 1);
        assert_eq!(flow(&rig).packets, 1, "the packet has opened another flow");
    }
}

#[test]
fn a_datagram_moves_when_its_backend_is_gone_and_leaves_the_counts_of_its_flow_whole() {
    for family in [0, 1] {
        let (mut rig, _) = with_flow(1, (Protocol::UDP, family));
        send(&mut rig, (Protocol::UDP, family), 5);
        rig.publish(&with_backends(&Setting::open(), &[2]));
        exchange(&mut rig, Protocol::UDP, family, [0, 2], CLIENT);
        for _ in 0..3 {
            let sent = seen_by_client(Protocol::UDP, family, 2, 0, CLIENT);
            assert_eq!(backend_of(&mut rig, A, &sent), C.index());
        }
        let of = |backend: usize| {
            let to = pod_address(backend)[family];
            let flow = flows(&rig).into_iter().find(|flow| flow.key.dst == to);
            flow.map(|flow| (flow.packets, flow.reply_packets))
        };
        assert_eq!((of(1), of(2)), (Some((9, 1)), Some((5, 1))));
    }
}

#[test]
fn a_flow_goes_on_when_the_services_and_next_hops_change() {
    for kind in kinds() {
        let (mut rig, open) = with_flow(2, kind);
        for n in 0..3 {
            // Settings with and without a policy differ in rules alone; a new set of Services is another one.
            rig.publish(&open.with(2, mute()));
            send(&mut rig, kind, 2);
            rig.publish(&with_backends(&Setting::open(), if n == 1 { &[1, 2] } else { &[1] }));
            send(&mut rig, kind, 2);
        }
        assert_eq!(flow(&rig).packets, 16);
    }
}

#[test]
fn a_packet_that_may_not_go_on_is_dropped_and_not_counted_with_its_flow() {
    for protocol in [Protocol::UDP, Protocol::TCP] {
        let (mut rig, _) = with_flow(1, (protocol, 0));
        let last = Spec { ttl: 1, ..seen_by_client(protocol, 0, 2, 0, CLIENT) };
        let before = rig.counters(A);
        rig.send(A, &last);
        assert_eq!(rig.drops_since(A, &before).into_keys().collect::<Vec<_>>(), ["ttl-exceeded"]);
        assert_eq!(flow(&rig).packets, 4);
    }
}

/// A segment of the client with these control bits and this number, as the client and as the backend sees it.
fn segment(family: usize, flags: u8, sequence: u32, payload: &[u8]) -> [Spec; 2] {
    let at_client = seen_by_client(Protocol::TCP, family, 2, 0, CLIENT);
    [at_client, seen_by_backend(Protocol::TCP, family, 2, [0, 1], CLIENT)].map(|spec| {
        let Transport::Tcp { ports, acknowledgement, window, .. } = spec.transport else { unreachable!() };
        let transport = Transport::Tcp { ports, flags, sequence, acknowledgement, window };
        Spec { transport, payload: payload.to_vec(), ..spec }
    })
}

#[test]
fn a_reset_is_judged_by_the_segments_that_took_a_cached_hop() {
    for family in [0, 1] {
        let (mut rig, _) = with_flow(1, (Protocol::TCP, family));
        let data = [7; 50];
        for n in 0..4 {
            let [sent, seen] = segment(family, ACK, 101 + 50 * n, &data);
            becomes(&mut rig, A, &sent, B, &seen);
        }
        let [guessed, _] = segment(family, RST, 101 + 100_000, &[]);
        is_dropped(&mut rig, A, &guessed, DropReason::InvalidState);
        let [late, seen] = segment(family, RST, 101 + 50, &[]);
        becomes(&mut rig, A, &late, B, &seen);
        assert_eq!(flow(&rig).state, "established", "its receiver challenges it");
        let [exact, seen] = segment(family, RST, 101 + 200, &[]);
        becomes(&mut rig, A, &exact, B, &seen);
        assert_eq!(flow(&rig).state, "reset");
        let [data, _] = segment(family, ACK, 101 + 200, &data);
        let counted = flow(&rig).packets;
        rig.send(A, &data);
        assert_eq!(flow(&rig).state, "reset");
        assert_eq!(counted, 4 + 4 + 2);
    }
}
