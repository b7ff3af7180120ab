//! Life of a flow: its state, its counters, its pods, its end.

use std::time::Duration;

use palisade::dataplane::DropReason;
use palisade::ids::AttachmentId;
use palisade::tables::{Direction, RuleOrigin, Verdict};

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{
    A, B, C, CLIENT, SERVER, connect, decisions, flows, is_dropped, mute, passes, tcp, udp, udp_of,
};
use crate::rig::model::{ACK, FIN, RST, SYN};
use crate::rig::rule_lists::PodRules;
use crate::rig::{Rig, Setting, addressed, pod_address};

/// Chunks of SCTP (RFC 9260 section 3.2).
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;

#[test]
fn a_connection_passes_both_ways_and_is_followed() {
    let mut rig = Rig::new(1, &Setting::open().with(0, PodRules { ingress: Some(Vec::new()), egress: None }));
    connect(&mut rig);
    let flow = &flows(&rig)[0];
    assert_eq!((&*flow.state, flow.packets, flow.reply_packets), ("established", 2, 1));
    assert_eq!((flow.bytes, flow.reply_bytes), (80, 40));
    assert_eq!(flow.egress, Some(RuleOrigin::NotIsolated { direction: Direction::Egress }));
    passes(&mut rig, B, A, &tcp(FIN | ACK, false));
    passes(&mut rig, A, B, &tcp(RST | ACK, true));
    assert_eq!(flows(&rig)[0].state, "reset");
}

#[test]
fn the_two_directions_of_a_flow_may_be_on_different_workers() {
    let mut rig = Rig::new(2, &Setting::open());
    for (worker, port, spec) in [
        (0, A, tcp(SYN, true)),
        (1, B, tcp(SYN | ACK, false)),
        (0, A, tcp(ACK, true)),
        (1, B, tcp(ACK, false)),
    ] {
        assert_eq!(rig.send_on(worker, port, &[addressed(port, &spec).bytes()]).len(), 1);
    }
    let flow = &flows(&rig)[0];
    assert_eq!((&*flow.state, flow.packets, flow.reply_packets), ("established", 2, 2));
    let workers = rig.sim.counters().workers;
    assert!(workers.values().all(|worker| worker.received > 0), "{workers:?}");
}

#[test]
fn packets_of_one_flow_in_one_batch_open_it_once_and_are_evaluated_once() {
    const FLOWS: u16 = 60;
    let mut rig = Rig::new(1, &Setting::open());
    let frame = |port| addressed(A, &udp(0, 1, [port, SERVER])).bytes();
    let batch: Vec<Vec<u8>> = (0..FLOWS).chain([7, 8, 7, 9]).map(|i| frame(CLIENT + i)).collect();
    assert_eq!(rig.send_on(0, A, &batch).len(), batch.len());
    let packets: Vec<u64> = flows(&rig).iter().map(|flow| flow.packets).collect();
    let expected = |i| match i {
        7 => 3,
        8 | 9 => 2,
        _ => 1,
    };
    assert_eq!(packets, (0..FLOWS).map(expected).collect::<Vec<u64>>());
    let evaluated: Vec<u64> = decisions(&rig, Verdict::Allow).into_values().collect();
    assert_eq!(evaluated, [u64::from(FLOWS); 2], "each flow on each side");
}

#[test]
fn a_pod_attached_with_the_address_of_another_inherits_nothing() {
    // Directly, after idle time, and with the last pod's policy loaded again in between.
    for between in [vec![], vec![None], vec![Some(AttachmentId(1)), None, Some(AttachmentId(78))]] {
        for family in [0, 1] {
            let mut rig = Rig::new(1, &Setting::open().with(0, mute()).with(1, PodRules::default()));
            // b sends to a, which may only answer.
            passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
            passes(&mut rig, A, B, &udp_of(family, 0, 1, [53, 1000]));
            for attachment in between.iter().copied().chain([Some(AttachmentId(77))]) {
                let mut setting = Setting::open().with(0, mute());
                setting.attachments[0] = attachment;
                rig.publish(&setting);
            }
            is_dropped(&mut rig, A, &udp_of(family, 0, 1, [53, 1000]), DropReason::PolicyEgress);
            assert_eq!(rig.sim.flows_len(), 0);
            passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
            assert_eq!(flows(&rig)[0].packets, 1);
        }
    }
}

#[test]
fn a_flow_goes_on_while_other_pods_come_and_go_and_either_end_may_have_been_silent() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &Setting::open().with(0, mute()));
        passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
        passes(&mut rig, A, B, &udp_of(family, 0, 1, [53, 1000]));
        for (attachment, a_speaks) in [(None, false), (Some(77), false), (None, true), (Some(78), true)] {
            let mut setting = Setting::open().with(0, mute());
            setting.attachments[2] = attachment.map(AttachmentId);
            rig.publish(&setting);
            if a_speaks {
                passes(&mut rig, A, B, &udp_of(family, 0, 1, [53, 1000]));
            } else {
                passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
            }
            rig.wait(Duration::from_secs(2));
        }
        let flow = &flows(&rig)[0];
        assert_eq!((flow.packets, flow.reply_packets), (3, 3), "it is the flow that it was");
    }
}

#[test]
fn flows_of_a_pod_that_is_gone_end_within_a_sweep_though_nobody_speaks() {
    let mut rig = Rig::new(2, &Setting::open());
    connect(&mut rig);
    passes(&mut rig, A, C, &udp(0, 2, [1, 2]));
    let mut setting = Setting::open();
    setting.attachments[1] = None;
    rig.publish(&setting);
    rig.wait(Duration::from_secs(2));
    let left: Vec<_> = flows(&rig).into_iter().map(|flow| flow.key.dst).collect();
    assert_eq!(left, [pod_address(2)[0]]);
}

#[test]
fn idle_flows_are_forgotten_and_their_replies_with_them() {
    let mut rig = Rig::new(2, &Setting::open().with(1, mute()));
    passes(&mut rig, A, B, &udp(0, 1, [1000, 53]));
    rig.wait(Duration::from_secs(30));
    passes(&mut rig, B, A, &udp(1, 0, [53, 1000]));
    assert_eq!(flows(&rig)[0].state, "udp-two-way");
    rig.wait(Duration::from_mins(2));
    passes(&mut rig, B, A, &udp(1, 0, [53, 1000]));
    rig.wait(Duration::from_secs(121));
    assert_eq!(rig.sim.flows_len(), 0);
    is_dropped(&mut rig, B, &udp(1, 0, [53, 1000]), DropReason::PolicyEgress);
}

#[test]
fn a_port_pair_used_again_is_evaluated_again_and_by_its_opener() {
    let mut rig = Rig::new(1, &Setting::open().with(1, mute()));
    connect(&mut rig);
    passes(&mut rig, A, B, &tcp(RST | ACK, true));
    let syn = |from: usize, to: usize, ports| {
        let transport =
            Transport::Tcp { ports, flags: SYN, sequence: 9000, acknowledgement: 0, window: 1000 };
        Spec { payload: Vec::new(), ..Spec::new(pod_address(from)[0], pod_address(to)[0], transport) }
    };
    is_dropped(&mut rig, B, &syn(1, 0, [SERVER, CLIENT]), DropReason::PolicyEgress);
    passes(&mut rig, A, B, &syn(0, 1, [CLIENT, SERVER]));
    let flow = &flows(&rig)[0];
    assert_eq!((&*flow.state, flow.packets, flow.reply_packets), ("syn-sent", 1, 0));
}

#[test]
fn an_association_is_not_opened_by_the_side_that_may_only_answer() {
    let mut rig = Rig::new(1, &Setting::open().with(1, mute()));
    let sctp = |from: usize, to: usize, chunk| {
        let ports = if from == 0 { [CLIENT, 9] } else { [9, CLIENT] };
        Spec::new(pod_address(from)[0], pod_address(to)[0], Transport::Sctp { ports, chunk })
    };
    passes(&mut rig, A, B, &sctp(0, 1, INIT));
    passes(&mut rig, B, A, &sctp(1, 0, INIT_ACK));
    passes(&mut rig, B, A, &sctp(1, 0, COOKIE_ACK));
    assert_eq!(flows(&rig)[0].state, "sctp-established");
    is_dropped(&mut rig, B, &sctp(1, 0, INIT), DropReason::InvalidState);
    passes(&mut rig, A, B, &sctp(0, 1, SHUTDOWN_COMPLETE));
    is_dropped(&mut rig, B, &sctp(1, 0, INIT), DropReason::PolicyEgress);
    passes(&mut rig, A, B, &sctp(0, 1, INIT));
}

#[test]
fn connections_that_two_pods_open_to_each_other_are_two_flows() {
    let mut rig = Rig::new(1, &Setting::open());
    let reversed = |spec: &Spec| Spec { src: spec.dst, dst: spec.src, ..spec.clone() };
    connect(&mut rig);
    passes(&mut rig, B, A, &reversed(&tcp(SYN, true)));
    passes(&mut rig, A, B, &reversed(&tcp(SYN | ACK, false)));
    passes(&mut rig, B, A, &reversed(&tcp(ACK, true)));
    let flows = flows(&rig);
    let openers: Vec<_> = flows.iter().map(|flow| (flow.key.src, &*flow.state)).collect();
    assert_eq!(openers, [(pod_address(0)[0], "established"), (pod_address(1)[0], "established")]);
}
