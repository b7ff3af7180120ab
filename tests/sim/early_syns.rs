//! Connections that a pod opens from the ports of one that it has just reset, with the reset and the SYN in the queues of two
//! workers.

use palisade::dataplane::ConntrackSettings;
use palisade::ids::PortId;
use palisade::limits::EARLY_SYNS_MAX;

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{A, B, C, connect, flows, passes, tcp};
use crate::rig::model::{ACK, RST, SYN};
use crate::rig::{EARLY_SYN_TIMEOUT, Rig, Setting, addressed, forwarded, pod_address};

fn rig(workers: usize) -> Rig {
    Rig::new(workers, &Setting::open())
}

/// Injects a frame on a worker's queue, and lets that worker run.
fn inject(rig: &mut Rig, worker: usize, port: PortId, spec: &Spec) -> Vec<(PortId, Vec<u8>)> {
    assert!(rig.ports[port.index()].peers[worker].inject(&addressed(port, spec).bytes()));
    run(rig, worker)
}

/// Lets all workers run until each has ended the batch in which a connection has ended.
fn run_all(rig: &mut Rig) -> Vec<(PortId, Vec<u8>)> {
    (0..4).for_each(|_| _ = rig.sim.step());
    rig.check();
    rig.collect()
}

fn run(rig: &mut Rig, worker: usize) -> Vec<(PortId, Vec<u8>)> {
    rig.sim.step_worker(worker);
    rig.check();
    rig.collect()
}

/// The SYN of the next connection on the ports of [`tcp`].
fn next_syn() -> Spec {
    let mut syn = tcp(SYN, true);
    if let Transport::Tcp { sequence, .. } = &mut syn.transport {
        *sequence = 70_000;
    }
    syn
}

#[test]
fn a_syn_waits_for_the_reset_in_the_queue_of_another_worker() {
    for (first, second) in [(0, 1), (1, 0)] {
        let mut rig = rig(2);
        connect(&mut rig);
        let (reset, syn) = (tcp(RST | ACK, true), next_syn());
        assert_eq!(inject(&mut rig, second, A, &syn), []);
        assert_eq!(run(&mut rig, second), [], "the connection is open");
        assert_eq!(inject(&mut rig, first, A, &reset), [(B, forwarded(B, &reset))]);
        assert_eq!(run(&mut rig, second), [], "the other worker may still send the reset");
        assert_eq!(run_all(&mut rig), [(B, forwarded(B, &syn))]);
        assert_eq!(flows(&rig)[0].state, "syn-sent");
        assert_eq!(rig.sim.early_syns(), 0);
    }
}

#[test]
fn a_syn_behind_a_reset_waits_until_the_reset_is_sent() {
    let mut rig = rig(2);
    connect(&mut rig);
    let (reset, syn) = (tcp(RST | ACK, true), next_syn());
    assert_eq!(inject(&mut rig, 0, A, &reset), [(B, forwarded(B, &reset))]);
    assert_eq!(inject(&mut rig, 1, A, &syn), [], "worker 0 may not have ended its batch");
    assert_eq!(run_all(&mut rig), [(B, forwarded(B, &syn))]);
}

#[test]
fn a_syn_on_a_connection_that_stays_open_passes_in_time() {
    let mut rig = rig(2);
    connect(&mut rig);
    let syn = next_syn();
    assert_eq!(inject(&mut rig, 1, A, &syn), []);
    rig.sim.now += EARLY_SYN_TIMEOUT / 2;
    assert_eq!(run(&mut rig, 1), []);
    rig.sim.now += EARLY_SYN_TIMEOUT / 2;
    assert_eq!(run(&mut rig, 1), [(B, forwarded(B, &syn))]);
    assert_eq!(flows(&rig)[0].state, "established", "its receiver answers it");
}

#[test]
fn a_syn_that_is_repeated_and_one_for_a_single_worker_do_not_wait() {
    let mut single = rig(1);
    connect(&mut single);
    assert_eq!(inject(&mut single, 0, A, &next_syn()).len(), 1);

    let mut rig = rig(2);
    passes(&mut rig, A, B, &tcp(SYN, true));
    assert_eq!(inject(&mut rig, 1, A, &tcp(SYN, true)).len(), 1, "without an answer");
    passes(&mut rig, B, A, &tcp(SYN | ACK, false));
    assert_eq!(inject(&mut rig, 1, A, &tcp(SYN, true)).len(), 1, "whose answer is lost");
}

#[test]
fn a_pod_with_many_early_syns_leaves_others_their_places() {
    let conntrack = ConntrackSettings { flows_max: 1024, ..ConntrackSettings::default() };
    let mut rig = Rig::with(2, conntrack, &Setting::open());
    connect(&mut rig);
    let between = |from: usize, ports: [u16; 2], flags: u8, numbers: [u32; 2]| {
        let [sequence, acknowledgement] = numbers;
        let transport = Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 };
        Spec::new(pod_address(from)[0], pod_address(if from == 2 { 1 } else { 2 })[0], transport)
    };
    let ports: Vec<u16> = (0..EARLY_SYNS_MAX as u16).map(|number| 2000 + number).collect();
    for port in &ports {
        rig.send(C, &between(2, [*port, 80], SYN, [1, 0]));
        rig.send(B, &between(1, [80, *port], SYN | ACK, [9, 2]));
        rig.send(C, &between(2, [*port, 80], ACK, [2, 10]));
    }
    let passed =
        ports.iter().map(|port| inject(&mut rig, 1, C, &between(2, [*port, 80], SYN, [9000, 0])).len());
    assert_eq!(passed.sum::<usize>(), EARLY_SYNS_MAX / 2, "half of the places are one pod's");
    let (reset, syn) = (tcp(RST | ACK, true), next_syn());
    assert_eq!(inject(&mut rig, 1, A, &syn), []);
    inject(&mut rig, 0, A, &reset);
    assert_eq!(run_all(&mut rig), [(B, forwarded(B, &syn))]);
    // The frames of a port that is closed return to the worker.
    rig.sim.close_port(C).unwrap();
    assert_eq!(rig.sim.early_syns(), 0);
    rig.check();
}
