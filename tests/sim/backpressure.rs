//! Frame accounting under backpressure: no frame is lost, however slowly transmitted frames are taken.

use std::time::Duration;

use palisade::dataplane::{PortKind, Settings, SimulatedPort, Simulation};
use palisade::ids::PortId;
use proptest::prelude::*;

use crate::frames::{Spec, Transport};
use crate::rig::{PORTS, Rig, Setting, UPLINK, addressed, pod_address, small_table};

const A: PortId = PortId(0);
const B: PortId = PortId(1);

fn udp(port: u16) -> Vec<u8> {
    let spec = Spec::new(pod_address(0)[0], pod_address(1)[0], Transport::Udp { ports: [port, 53] });
    addressed(A, &spec).bytes()
}

fn gateway_arp() -> Vec<u8> {
    crate::frames::arp(1, (crate::rig::mac(A), [10, 0, 0, 2]), ([0; 6], [10, 0, 0, 1]), [0xff; 6])
}

/// Injects frames and leaves transmitted frames in the rings.
fn push(rig: &mut Rig, port: PortId, frames: impl IntoIterator<Item = Vec<u8>>) -> usize {
    let mut lost = 0;
    for (number, frame) in frames.into_iter().enumerate() {
        lost += usize::from(!rig.ports[port.index()].peers[0].inject(&frame));
        if number % 16 == 15 {
            rig.sim.step();
            rig.check();
        }
    }
    rig.sim.step();
    rig.check();
    lost
}

#[test]
fn a_port_that_takes_nothing_drops_by_name_and_keeps_no_frame() {
    let settings = Settings {
        frames_per_worker: 8192,
        huge_pages: false,
        conntrack: small_table(),
        ..Settings::default()
    };
    let mut rig = Rig::with_settings(&settings, &Setting::open());
    assert_eq!(push(&mut rig, A, (0..3000).map(|_| udp(1000))), 0);
    let counters = rig.counters(A);
    assert_eq!(counters.received, 3000);
    assert_eq!((counters.forwarded, counters.drops["tx-full"]), (2048, 952));
    let out = rig.collect();
    assert_eq!(out.len(), 2048);
    assert!(out.iter().all(|(port, _)| *port == B));
    rig.sim.step();
    push(&mut rig, A, (0..100).map(|_| udp(1000)));
    assert_eq!(rig.collect().len(), 100, "it goes on where there is room again");
    assert_eq!(rig.counters(B).transmitted, 2148);
}

#[test]
fn every_frame_counted_as_forwarded_goes_out_however_many_answers_wait_for_the_same_port() {
    let settings = Settings {
        frames_per_worker: 16384,
        huge_pages: false,
        conntrack: small_table(),
        ..Settings::default()
    };
    let mut rig = Rig::with_settings(&settings, &Setting::open());
    let datagram = Spec::new(pod_address(1)[0], pod_address(0)[0], Transport::Udp { ports: [53, 1000] });
    let datagram = addressed(B, &datagram).bytes();
    let is_datagram = |(port, frame): &(PortId, Vec<u8>)| *port == A && frame.len() == datagram.len();
    let mut gone_out = 0;
    for round in 0..12 {
        // A sends ARP requests and takes no reply. Then it takes all of them, and asks again while B sends to
        // it.
        push(&mut rig, A, (0..4000 + round * 8).map(|_| gateway_arp()));
        gone_out += rig.collect().iter().filter(|frame| is_datagram(frame)).count();
        rig.sim.step();
        for _ in 0..64 {
            rig.ports[A.index()].peers[0].inject(&gateway_arp());
            rig.ports[B.index()].peers[0].inject(&datagram);
        }
        for _ in 0..8 {
            rig.sim.step();
            rig.check();
            gone_out += rig.collect().iter().filter(|frame| is_datagram(frame)).count();
        }
    }
    let sender = rig.counters(B);
    assert_eq!(sender.forwarded, gone_out as u64);
    assert_eq!(sender.received, 12 * 64);
    assert!(sender.forwarded > 0);
}

#[test]
fn a_closed_port_gives_every_frame_back() {
    let mut rig = Rig::new(2, &Setting::open());
    push(&mut rig, A, (0..200).map(|_| udp(1000)));
    for port in [B, A, UPLINK] {
        rig.ports[port.index()].peers[1].inject(&udp(2000));
        rig.sim.close_port(port).unwrap();
        rig.check();
        for worker in 0..2 {
            assert!(!rig.ports[port.index()].peers[worker].inject(&udp(1)), "nothing goes in any more");
            assert!(rig.ports[port.index()].peers[worker].collect().is_empty(), "nothing comes out");
        }
        assert!(rig.sim.close_port(port).is_err());
    }
    let lent: Vec<usize> = (0..2).map(|worker| rig.sim.frames(worker).1).collect();
    assert!(lent.iter().all(|lent| *lent <= 2 * 64 * (PORTS - 3)), "{lent:?}");
    let mut ports: Vec<SimulatedPort> = Vec::new();
    for _ in 0..3 {
        ports.push(rig.sim.open_port(PortKind::Pod, None, 1500).unwrap());
        rig.check();
    }
    assert_eq!(ports.iter().map(|port| port.id).collect::<Vec<_>>(), [A, B, UPLINK]);
}

#[test]
fn every_port_has_frames_to_receive_into_however_many_there_are() {
    let settings = Settings {
        frames_per_worker: 4096,
        huge_pages: false,
        conntrack: small_table(),
        ..Settings::default()
    };
    let mut sim = Simulation::new(&settings).unwrap();
    let ports: Vec<_> = (0..300).map(|_| sim.open_port(PortKind::Pod, None, 1500).unwrap()).collect();
    sim.step();
    let (_, lent, held) = sim.frames(0);
    assert!(held >= 1000, "{lent} are lent and {held} are left for what goes out");
    assert!(ports.iter().all(|port| port.peers[0].inject(&udp(1))));
}

#[test]
fn a_port_that_is_busy_gets_more_frames_and_leaves_them_to_others_later() {
    let mut rig = Rig::new(1, &Setting::open());
    let burst = |rig: &mut Rig, port: PortId, frames: usize| {
        let peer = &rig.ports[port.index()].peers[0];
        let taken = (0..frames).take_while(|_| peer.inject(&udp(1000))).count();
        while rig.sim.step() {
            rig.collect();
        }
        rig.collect();
        rig.check();
        taken
    };
    let largest = |rig: &mut Rig, port: PortId| (0..10).map(|_| burst(rig, port, 1000)).max().unwrap();
    assert_eq!(burst(&mut rig, A, 1000), 64);
    // Half of the 1,024 frames, less what the other ports have.
    assert_eq!(largest(&mut rig, A), 512 - 64 * (PORTS - 1));
    assert_eq!(largest(&mut rig, B), 64);
    for _ in 0..10 {
        rig.wait(Duration::from_secs(2));
    }
    assert_eq!(largest(&mut rig, B), 512 - 64 * (PORTS - 1));
}

#[test]
fn among_few_ports_a_burst_after_a_long_quiet_while_the_worker_is_away_is_not_lost() {
    let settings = Settings { huge_pages: false, conntrack: small_table(), ..Settings::default() };
    let mut rig = Rig::with_settings(&settings, &Setting::open());
    for _ in 0..10 {
        rig.wait(Duration::from_secs(2));
    }
    for port in [A, B] {
        let peer = &rig.ports[port.index()].peers[0];
        assert_eq!((0..1024).filter(|_| peer.inject(&udp(1000))).count(), 1024);
    }
}

proptest! {
    #![proptest_config(crate::random::cases(16))]

    /// Checks random bytes at a random pace: each frame has one verdict, and every UMEM frame is accounted
    /// for.
    #[test]
    fn any_bytes_at_any_rate_keep_every_frame_accounted(
        workers in 1..4usize,
        queues in prop::array::uniform3(1..4usize),
        batches in prop::collection::vec(
            (0..PORTS, 0..2usize, prop::collection::vec(any_frame(), 1..30), any::<bool>()),
            1..30,
        ),
        closes in prop::option::of(0..PORTS),
    ) {
        let mut rig = Rig::new_with_queues(workers, &Setting::open(), queues);
        for (port, worker, frames, is_taken_away) in batches {
            for frame in frames {
                let peers = &rig.ports[port].peers;
                peers[worker % peers.len()].inject(&frame);
            }
            rig.sim.step();
            rig.check();
            if is_taken_away {
                rig.collect();
            }
        }
        if let Some(port) = closes {
            rig.sim.close_port(PortId(port as u16)).unwrap();
            rig.check();
        }
    }
}

/// Strategy for frames near to valid ones, and for random bytes.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let good = prop_oneof![(0..4u16).prop_map(udp), Just(gateway_arp()), large()];
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let damaged = (good, damage).prop_map(|(mut frame, damage)| {
        for (place, byte) in damage {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        frame
    });
    prop_oneof![4 => damaged, 1 => prop::collection::vec(any::<u8>(), 1..100)]
}

fn large() -> impl Strategy<Value = Vec<u8>> {
    (1..3500usize, 0..3u8, any::<bool>()).prop_map(|(bytes, ttl, v6)| {
        let [src, dst] = [0, 1].map(|pod| pod_address(pod)[usize::from(v6)]);
        let spec =
            Spec { ttl, payload: vec![0; bytes], ..Spec::new(src, dst, Transport::Udp { ports: [1, 2] }) };
        addressed(A, &spec).bytes()
    })
}

/// Steps until idle ports have given back their frames.
fn let_time_pass(sim: &mut Simulation) {
    for _ in 0..6 {
        sim.now += Duration::from_secs(2);
        sim.step();
    }
}

#[test]
fn ports_that_come_one_by_one_or_are_busy_in_turn_leave_each_other_frames_to_receive_into() {
    let settings = Settings { huge_pages: false, conntrack: small_table(), ..Settings::default() };
    let mut sim = Simulation::new(&settings).unwrap();
    let mut ports = Vec::new();
    let takes_eight = |sim: &mut Simulation, port: &SimulatedPort| {
        let taken = (0..8).filter(|_| port.peers[0].inject(&udp(1))).count();
        sim.step();
        taken == 8
    };
    let has_reserve = |sim: &Simulation| {
        let (total, lent, held) = sim.frames(0);
        assert_eq!(lent + held, total);
        held >= total / 16
    };
    for _ in 0..300 {
        ports.push(sim.open_port(PortKind::Pod, None, 1500).unwrap());
        let_time_pass(&mut sim);
    }
    assert!(has_reserve(&sim), "{:?}", sim.frames(0));
    assert!(ports.iter().all(|port| takes_eight(&mut sim, port)), "each port has its least");
    for port in ports.iter().step_by(6) {
        for _ in 0..60 {
            for _ in 0..64 {
                port.peers[0].inject(&udp(1));
            }
            sim.step();
        }
        let_time_pass(&mut sim);
        assert!(has_reserve(&sim), "{:?}", sim.frames(0));
    }
    assert!(ports.iter().all(|port| takes_eight(&mut sim, port)), "each port has its least still");
    // A busy port takes the frames that the others leave.
    let mut taken = Vec::new();
    for _ in 0..64 {
        taken.push((0..64).filter(|_| ports[0].peers[0].inject(&udp(1))).count());
        sim.step();
    }
    assert!(taken.iter().sum::<usize>() > 64 * 32, "half of a burst or more: {taken:?} {:?}", sim.frames(0));
}
