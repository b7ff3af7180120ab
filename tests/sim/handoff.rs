//! Handoff between workers: ports with fewer queues than the switch has workers.

use std::time::Duration;

use palisade::dataplane::{Bandwidth, PodAttachment, PortKind, Settings};
use palisade::ids::{AttachmentId, PortId};

use crate::frames::{Spec, Transport};
use crate::rig::{Rig, Setting, addressed, forwarded, ip, pod_address, small_table};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const C: PortId = PortId(2);
/// Most frames that wait in the handoff queues of one port, and fewest that one worker may leave there
/// (limits.rs).
const PARCELS_MAX: usize = 512;
const PARCELS_MIN: usize = 64;

fn udp(from: usize, to: usize, number: u16) -> Spec {
    Spec::new(pod_address(from)[0], pod_address(to)[0], Transport::Udp { ports: [number, 53] })
}

fn frame(from: usize, to: usize, number: u16) -> Vec<u8> {
    addressed(PortId(from as u16), &udp(from, to, number)).bytes()
}

/// Starts a switch of these workers. Each has a queue of A; B and C have this number of queues.
fn rig(workers: usize, queues: usize) -> Rig {
    let settings = Settings {
        cores: vec![0; workers],
        frames_per_worker: 8192,
        huge_pages: false,
        conntrack: small_table(),
        ..Settings::default()
    };
    Rig::with_queues(&settings, &Setting::open(), [workers, queues, queues])
}

/// Injects frames for B on A's queue of one worker, which forwards them in batches. No other worker runs.
fn forward(rig: &mut Rig, worker: usize, frames: usize) {
    for number in 0..frames {
        assert!(rig.ports[A.index()].peers[worker].inject(&frame(0, 1, 1000)), "frame {number}");
        if number % 16 == 15 {
            rig.sim.step_worker(worker);
            rig.check();
        }
    }
    rig.sim.step_worker(worker);
    rig.check();
}

#[test]
fn what_a_worker_without_a_queue_forwards_leaves_by_the_queue_of_its_owner_unchanged_and_in_order() {
    for (workers, queues) in [(2, 1), (5, 2), (4, 3)] {
        let mut rig = rig(workers, queues);
        assert_eq!(rig.ports[B.index()].peers.len(), queues);
        for worker in 0..workers {
            for number in 0..10 {
                assert!(rig.ports[A.index()].peers[worker].inject(&frame(0, 1, 1000 + number)));
            }
            rig.sim.step_worker(worker);
            rig.check();
            let owner = worker % queues;
            if worker != owner {
                assert_eq!(rig.collect(), [], "only the owner touches its rings");
            }
            rig.sim.step_worker(owner);
            rig.check();
            let out = rig.ports[B.index()].peers[owner].collect();
            let expected: Vec<_> = (0..10).map(|number| forwarded(B, &udp(0, 1, 1000 + number))).collect();
            assert_eq!(out, expected, "{workers} workers, {queues} queues, worker {worker}");
        }
        let counters = rig.sim.counters();
        assert_eq!(counters.ports[&A].forwarded, 10 * workers as u64);
        assert_eq!(counters.ports[&B].transmitted, 10 * workers as u64);
        assert!(counters.ports[&A].drops.is_empty());
    }
}

#[test]
fn what_the_owner_does_not_take_in_time_is_dropped_by_name_and_what_was_forwarded_goes_out() {
    let mut rig = rig(2, 1);
    forward(&mut rig, 1, 600);
    let counters = rig.counters(A);
    assert_eq!((counters.forwarded, counters.drops["tx-full"]), (PARCELS_MAX as u64, 600 - 512));
    let mut out = 0;
    while rig.sim.step_worker(0) {
        rig.check();
        out += rig.collect().len();
    }
    assert_eq!(out, PARCELS_MAX);
    assert_eq!(rig.counters(B).transmitted, PARCELS_MAX as u64);
    forward(&mut rig, 1, 100);
    assert_eq!(rig.counters(A).forwarded, PARCELS_MAX as u64 + 100, "it goes on where there is room again");
}

#[test]
fn a_port_that_takes_nothing_holds_up_no_other_port_of_its_owner() {
    let mut rig = rig(2, 1);
    // Its tx ring and waiting frames fill first, then its handoff queue.
    for _ in 0..40 {
        forward(&mut rig, 1, 100);
        rig.sim.step_worker(0);
    }
    let before = rig.counters(A);
    assert!(before.drops["tx-full"] > 0);
    assert!(rig.ports[A.index()].peers[1].inject(&frame(0, 2, 7)));
    rig.sim.step_worker(1);
    rig.sim.step_worker(0);
    rig.check();
    assert_eq!(rig.ports[C.index()].peers[0].collect(), [forwarded(C, &udp(0, 2, 7))]);
    // Every frame that was counted as forwarded is transmitted in the end.
    let mut out = 1;
    for _ in 0..200 {
        out += rig.collect().len() as u64;
        rig.sim.step();
    }
    assert_eq!(out, rig.counters(A).forwarded);
}

#[test]
fn each_of_many_workers_has_its_own_share_of_the_lanes() {
    let mut rig = rig(17, 1);
    for worker in 1..17 {
        forward(&mut rig, worker, PARCELS_MIN);
    }
    assert_eq!(rig.counters(A).forwarded, 16 * PARCELS_MIN as u64, "nobody has taken another's places");
    let mut out = 0;
    while rig.sim.step_worker(0) {
        out += rig.collect().len();
    }
    assert_eq!(out, 16 * PARCELS_MIN);
}

#[test]
fn a_port_closed_while_frames_for_it_wait_loses_no_frame_and_its_number_can_be_used_again() {
    let mut rig = rig(3, 1);
    for round in 0..3 {
        forward(&mut rig, 1, 50);
        forward(&mut rig, 2, 50);
        rig.sim.close_port(B).unwrap();
        rig.check();
        forward(&mut rig, 1, 10);
        assert_eq!(rig.counters(A).drops["port-down"], 10 * (round + 1));
        rig.ports[B.index()] = rig.sim.open_port_with(PortKind::Pod, None, 1500, 1).unwrap();
        assert_eq!(rig.ports[B.index()].id, B);
        rig.sim.step();
        rig.check();
        assert!(rig.collect().is_empty(), "what waited is gone with the port");
        forward(&mut rig, 2, 5);
        rig.sim.step();
        assert_eq!(rig.collect().len(), 5);
    }
}

#[test]
fn the_question_for_a_pods_address_is_handed_over_too() {
    let mut rig = rig(2, 1);
    let mut desired = Setting::open().desired();
    let silent = ip("10.0.0.4");
    desired.pods.retain(|pod| pod.port != C);
    desired.pods.push(PodAttachment {
        id: AttachmentId(9),
        pod: crate::rig::pod_name(2),
        port: C,
        addresses: vec![silent],
        mac: None,
        bandwidth: Bandwidth::default(),
    });
    rig.sim.publish(desired);
    rig.sim.step();
    // The first worker solicits by itself, the second one when it needs the address.
    assert_eq!(rig.collect().len(), 1);
    rig.sim.now += Duration::from_millis(200);
    assert!(rig.ports[A.index()].peers[1].inject(&frame(0, 2, 7)));
    rig.sim.step_worker(1);
    rig.sim.step_worker(0);
    rig.check();
    let out = rig.collect();
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].0, &out[0].1[12..14]), (C, &[8, 6][..]), "an ARP request");
    assert_eq!(rig.counters(A).drops["unresolved"], 1);
}
