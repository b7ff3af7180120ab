//! Bandwidth of pods: a rate and a burst in each direction, kept by all workers together.

use std::time::Duration;

use palisade::dataplane::{Bandwidth, Bits, DropReason};
use palisade::ids::{AttachmentId, PortId};
use palisade::net::flow::Protocol;

use crate::rig::assertions::{A, B, C, connect, is_dropped, passes, serves, tcp, udp};
use crate::rig::model::ACK;
use crate::rig::{Rig, Setting, UPLINK, addressed, outside_address, pod_address};

/// Bits of a frame of [`udp`] in the counters.
fn frame_bits() -> u64 {
    8 * udp(0, 1, [1000, 53]).bytes().len() as u64
}

fn bandwidth(ingress: Option<[u64; 2]>, egress: Option<[u64; 2]>) -> Bandwidth {
    Bandwidth {
        ingress_rate: ingress.map(|[rate, _]| Bits(rate)),
        ingress_burst: ingress.map(|[_, burst]| Bits(burst)),
        egress_rate: egress.map(|[rate, _]| Bits(rate)),
        egress_burst: egress.map(|[_, burst]| Bits(burst)),
    }
}

/// Sends this number of datagrams in batches of ten, on the queues of the workers in turn. Returns the number that passes.
fn burst(rig: &mut Rig, from: usize, to: usize, packets: usize) -> usize {
    let port = PortId(from as u16);
    let frames = vec![addressed(port, &udp(from, to, [1000, 53])).bytes(); 10];
    let workers = rig.workers;
    (0..packets / 10).map(|batch| rig.send_on(batch % workers, port, &frames).len()).sum()
}

fn drops(rig: &Rig, port: PortId, reason: DropReason) -> u64 {
    rig.counters(port).drops.get(reason.name()).copied().unwrap_or_default()
}

#[test]
fn packets_beyond_the_rate_of_their_pod_are_dropped_by_name_in_each_direction() {
    for workers in [1, 2] {
        let ten = 10 * frame_bits();
        for (of, reason) in [(0, DropReason::BandwidthEgress), (1, DropReason::BandwidthIngress)] {
            let mut setting = Setting::open();
            let limit = Some([ten, ten]);
            setting.bandwidths[of] = if of == 0 { bandwidth(None, limit) } else { bandwidth(limit, None) };
            let mut rig = Rig::new(workers, &setting);
            rig.sim.now += Duration::from_secs(10);
            // A bucket may be put into debt by one packet.
            assert_eq!(burst(&mut rig, 0, 1, 60), 11, "{reason:?}");
            assert_eq!(drops(&rig, A, reason), 49);
            // Ten packets a second, less the debt.
            rig.sim.now += Duration::from_secs(1);
            assert_eq!(burst(&mut rig, 0, 1, 60), 10);
            rig.sim.now += Duration::from_millis(500);
            assert_eq!(burst(&mut rig, 0, 1, 60), 5);
            // The other direction, and other pods, have no limit.
            assert_eq!(burst(&mut rig, 1, 0, 60), 60);
            let other = 1 - of;
            assert_eq!(burst(&mut rig, other, 2, 60), 60);
        }
    }
}

#[test]
fn a_packet_that_policy_drops_takes_no_tokens() {
    let mut setting = Setting::open().with(1, serves(Protocol::TCP, 80));
    setting.bandwidths[0] = bandwidth(None, Some([1_000, 10 * frame_bits()]));
    let mut rig = Rig::new(1, &setting);
    assert_eq!(burst(&mut rig, 0, 1, 100), 0);
    assert_eq!(drops(&rig, A, DropReason::PolicyIngress), 100);
    assert_eq!(burst(&mut rig, 0, 2, 60), 11);
}

#[test]
fn established_flows_and_packets_to_the_outside_have_the_rate_of_their_pod() {
    let mut setting = Setting::open();
    let mut rig = Rig::new(1, &setting);
    connect(&mut rig);
    setting.bandwidths[0] = bandwidth(None, Some([1_000, 0]));
    rig.publish(&setting);
    passes(&mut rig, A, B, &tcp(ACK, true));
    is_dropped(&mut rig, A, &tcp(ACK, true), DropReason::BandwidthEgress);
    passes(&mut rig, B, A, &tcp(ACK, false));
    rig.sim.now += Duration::from_secs(10);
    let outside = crate::frames::Spec { dst: outside_address(1)[0], ..udp(0, 1, [1000, 53]) };
    passes(&mut rig, A, UPLINK, &outside);
    is_dropped(&mut rig, A, &outside, DropReason::BandwidthEgress);
    // The switch answers its pods without a limit: they go nowhere.
    assert_eq!(rig.send(A, &crate::frames::Spec { dst: pod_address(0)[0], ..outside.clone() }).len(), 0);
}

#[test]
fn tokens_outlast_other_changes_and_not_their_pod() {
    let mut setting = Setting::open();
    let limit = bandwidth(None, Some([1_000, 10 * frame_bits()]));
    setting.bandwidths[0] = limit;
    let mut rig = Rig::new(2, &setting);
    assert_eq!(burst(&mut rig, 0, 2, 60), 11);
    // Another pod's policy, attachment and bandwidth change.
    setting = setting.with(1, serves(Protocol::TCP, 80));
    rig.publish(&setting);
    setting.attachments[1] = Some(AttachmentId(7));
    setting.bandwidths[1] = limit;
    rig.publish(&setting);
    setting.draining.insert(C);
    rig.publish(&setting);
    setting.draining.clear();
    rig.publish(&setting);
    assert_eq!(burst(&mut rig, 0, 2, 60), 0);
    // Another limit begins with a full bucket, and so does another pod.
    setting.bandwidths[0] = bandwidth(None, Some([1_000, 20 * frame_bits()]));
    rig.publish(&setting);
    assert_eq!(burst(&mut rig, 0, 2, 60), 21);
    setting.attachments[0] = Some(AttachmentId(8));
    rig.publish(&setting);
    assert_eq!(burst(&mut rig, 0, 2, 60), 21);
    setting.bandwidths[0] = Bandwidth::default();
    rig.publish(&setting);
    assert_eq!(burst(&mut rig, 0, 2, 60), 60);
}
