//! Flows whose hop is cached beside their binding: from the third packet of the client on, if both directions were seen.

use std::time::Duration;

use palisade::dataplane::{DropReason, FlowInfo};
use palisade::net::flow::Protocol;

use super::fixture::{backend_of, becomes, exchange, seen_by_backend, seen_by_client, with_backends};
use crate::rig::assertions::{A, B, C, CLIENT, flows, is_dropped, mute, serves};
use crate::rig::{Rig, Setting, forwarded, pod_address};

/// Sends `count` packets of the client to its backend.
#[track_caller]
fn send(rig: &mut Rig, family: usize, count: usize) {
    for _ in 0..count {
        let sent = seen_by_client(Protocol::UDP, family, 2, 0, CLIENT);
        becomes(rig, A, &sent, B, &seen_by_backend(Protocol::UDP, family, 2, [0, 1], CLIENT));
    }
}

/// A rig with one flow of four packets to the backend, the last of which takes a cached hop, and its setting: others with the same
/// Services leave the flow's binding current.
fn with_flow(workers: usize, family: usize) -> (Rig, Setting) {
    let setting = with_backends(&Setting::open(), &[1]);
    let mut rig = Rig::new(workers, &setting);
    exchange(&mut rig, Protocol::UDP, family, [0, 1], CLIENT);
    send(&mut rig, family, 2);
    (rig, setting)
}

fn flow(rig: &Rig) -> FlowInfo {
    let flows = flows(rig);
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows.into_iter().next().unwrap()
}

#[test]
fn every_packet_is_counted_with_its_bytes_and_its_time() {
    for (workers, family) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        let (mut rig, _) = with_flow(workers, family);
        let bytes =
            forwarded(B, &seen_by_backend(Protocol::UDP, family, 2, [0, 1], CLIENT)).len() as u64 - 14;
        let mut packets = 4;
        for _ in 0..3 {
            send(&mut rig, family, 7);
            packets += 7;
            let seen = flow(&rig);
            assert_eq!((seen.packets, seen.bytes, seen.reply_packets), (packets, packets * bytes, 1));
            rig.sim.now += Duration::from_millis(300);
            rig.sim.step();
            assert!(flow(&rig).idle_ms >= 300);
            send(&mut rig, family, 1);
            packets += 1;
            assert!(flow(&rig).idle_ms < 300, "{:?}", flow(&rig));
            rig.wait(Duration::from_secs(2));
        }
        assert_eq!(flow(&rig).packets, packets);
        // A reply shows that it is still one flow.
        let reply = seen_by_backend(Protocol::UDP, family, 1, [0, 1], CLIENT);
        becomes(&mut rig, B, &reply, A, &seen_by_client(Protocol::UDP, family, 1, 0, CLIENT));
        assert_eq!((flow(&rig).packets, flow(&rig).reply_packets), (packets, 2));
    }
}

#[test]
fn a_change_of_policy_at_either_end_holds_for_the_next_packet() {
    let closed =
        [(0, mute(), DropReason::PolicyEgress), (1, serves(Protocol::UDP, 1), DropReason::PolicyIngress)];
    for (pod, rules, reason) in closed {
        for family in [0, 1] {
            let (mut rig, open) = with_flow(1, family);
            rig.publish(&open.with(pod, rules.clone()));
            is_dropped(&mut rig, A, &seen_by_client(Protocol::UDP, family, 2, 0, CLIENT), reason);
            assert!(flows(&rig).is_empty());
            rig.publish(&open);
            send(&mut rig, family, 3);
            assert_eq!(flow(&rig).packets, 3);
        }
    }
}

#[test]
fn a_flow_that_is_ended_takes_its_cached_hop_with_it() {
    for family in [0, 1] {
        let (mut rig, _) = with_flow(1, family);
        send(&mut rig, family, 3);
        let mut seen = 0;
        rig.sim.end_flows(&mut |flow| {
            seen = flow.packets;
            true
        });
        assert_eq!((seen, flows(&rig).len()), (7, 0));
        send(&mut rig, family, 1);
        assert_eq!(flow(&rig).packets, 1, "the packet has opened another flow");
    }
}

#[test]
fn a_datagram_moves_when_its_backend_is_gone_and_leaves_the_counts_of_its_flow_whole() {
    for family in [0, 1] {
        let (mut rig, _) = with_flow(1, family);
        send(&mut rig, family, 5);
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
    for family in [0, 1] {
        let (mut rig, open) = with_flow(2, family);
        for n in 0..3 {
            // Settings with and without a policy differ in rules alone; a new set of Services is another one.
            rig.publish(&open.with(2, mute()));
            send(&mut rig, family, 2);
            rig.publish(&with_backends(&Setting::open(), if n == 1 { &[1, 2] } else { &[1] }));
            send(&mut rig, family, 2);
        }
        assert_eq!(flow(&rig).packets, 16);
    }
}

#[test]
fn a_packet_that_may_not_go_on_is_dropped_and_not_counted_with_its_flow() {
    let (mut rig, _) = with_flow(1, 0);
    let last = crate::frames::Spec { ttl: 1, ..seen_by_client(Protocol::UDP, 0, 2, 0, CLIENT) };
    let before = rig.counters(A);
    rig.send(A, &last);
    assert_eq!(rig.drops_since(A, &before).into_keys().collect::<Vec<_>>(), ["ttl-exceeded"]);
    assert_eq!(flow(&rig).packets, 4);
}
