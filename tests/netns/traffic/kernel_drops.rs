//! Counters of frames that the kernel drops before a worker receives them, each counted once.

use std::fs;

use palisade::dataplane::{Gateway, PortCounters};
use palisade::lab::{POD_INTERFACE, Pod, PodPorts};
use rustix::process::{Pid, Signal, kill_process};

use super::rig_of;
use crate::support::packet_socket::PacketSocket;
use crate::support::{Rig, assert_accounted, assert_pings, eventually, isolated};

const FRAMES: u64 = 5000;

/// Frames that a pod's own kernel may send in a test (neighbour discovery, multicast reports), at most. One that
/// comes before the worker has filled the ring of a new port is lost, and counted.
const KERNEL_FRAMES: u64 = 20;

fn port(rig: &Rig, pod: &Pod) -> PortCounters {
    rig.counters().ports[&pod.plan().host_interface].clone()
}

fn lost(port: &PortCounters) -> u64 {
    port.lost.values().sum()
}

/// Whether every thread of a process is stopped: a signal stops a thread when that runs.
fn is_stopped(process: u32) -> bool {
    fs::read_dir(format!("/proc/{process}/task")).unwrap().all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    })
}

/// Sends frames while the switch is stopped by SIGSTOP. Returns the counters once they account for all
/// frames.
fn flood_of_a_standing_switch(rig: &Rig, from: &Pod, to: &Pod) -> PortCounters {
    let before = port(rig, from);
    let socket = from.run(|| PacketSocket::open(POD_INTERFACE)).unwrap().unwrap();
    let (src_mac, dst_mac) = (from.plan().mac.0, Gateway::default().mac.0);
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2(src_mac, dst_mac)
        .ipv4(from.v4().octets(), to.v4().octets(), 64)
        .udp(40_000, 40_001)
        .write(&mut frame, b"0123456789")
        .unwrap();
    let switch = Pid::from_raw(rig.switch.pid() as i32).unwrap();
    kill_process(switch, Signal::STOP).unwrap();
    eventually("the switch stands", || is_stopped(rig.switch.pid()));
    (0..FRAMES).for_each(|_| socket.send(&frame).unwrap());
    kill_process(switch, Signal::CONT).unwrap();
    let accounted = |port: &PortCounters| port.received + lost(port) - before.received - lost(&before);
    eventually("every frame is received or lost", || accounted(&port(rig, from)) >= FRAMES);
    // A later packet has passed, and the kernel's counters are read once more: a frame that is counted twice appears.
    assert_pings(from, to.v4().into());
    let after = port(rig, from);
    let more = accounted(&after) - FRAMES;
    assert!(more < KERNEL_FRAMES, "{FRAMES} frames: {before:?}, then {after:?}");
    after
}

#[test]
fn frames_that_a_worker_is_too_slow_for_are_counted_once_and_never_less() {
    let Some(_isolated) = isolated() else { return };
    counted_once(PodPorts::Veth);
}

pub(super) fn counted_once(ports: PodPorts) {
    let rig = rig_of(ports, &["one", "two"], 1, "");
    let (one, two) = (rig.pod("one"), rig.pod("two"));
    assert!(lost(&port(&rig, &one)) < KERNEL_FRAMES, "{:?}", port(&rig, &one));
    let first = flood_of_a_standing_switch(&rig, &one, &two);
    assert!(lost(&first) > FRAMES / 4, "{first:?}");
    let second = flood_of_a_standing_switch(&rig, &one, &two);
    assert!(
        second.lost.iter().all(|(place, frames)| frames >= first.lost.get(place).unwrap_or(&0)),
        "{second:?}"
    );
    assert!(lost(&port(&rig, &two)) < KERNEL_FRAMES, "the other port has lost: {:?}", port(&rig, &two));
    assert_accounted(&rig.counters());
    // A port that is attached again counts from zero, without its interface's earlier drops.
    rig.switch.detach(&one).unwrap();
    rig.switch.attach(&one).unwrap();
    assert!(lost(&port(&rig, &one)) < KERNEL_FRAMES, "{:?}", port(&rig, &one));
}
