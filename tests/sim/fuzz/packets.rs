//! Fuzz target of the whole packet path.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bolero::TypeGenerator;
use palisade::ids::PortId;

use super::seeds;
use crate::fuzz_input::{Edit, TIME_MAX};
use crate::rig::{PORTS, Rig, Setting};

/// Step of an input.
#[derive(Debug, Clone, TypeGenerator)]
enum Step {
    /// Frames arrive on a port, in one batch.
    Frames { worker: bool, port: u8, edits: Vec<Edit> },
    /// Random bytes arrive on a port.
    Noise { worker: bool, port: u8, bytes: Vec<u8> },
    /// The clock advances by two seconds and these.
    Wait(u8),
}

#[test]
fn every_frame_has_one_verdict_and_none_is_lost_whatever_is_in_it() {
    let frames = seeds::frames();
    let forwarded = AtomicU64::new(0);
    bolero::check!().with_iterations(40).with_test_time(TIME_MAX).with_type::<Vec<Step>>().for_each(
        |steps| {
            // The rig checks after each step that verdicts add up and that no frame of the UMEM is missing.
            let mut rig = Rig::new(2, &Setting::open());
            let mut received = [0; PORTS];
            let mut send = |rig: &mut Rig, worker: bool, port: u8, frames: &[Vec<u8>]| {
                // Most frames arrive on the port of the pod that the seeds are from.
                let port = PortId(u16::from(port / 64) * u16::from(port) % PORTS as u16);
                received[port.index()] += frames.len() as u64;
                rig.send_on(usize::from(worker), port, frames);
            };
            for step in steps {
                match step {
                    Step::Frames { worker, port, edits } => {
                        let frames: Vec<_> = edits.iter().map(|edit| edit.of(&frames)).collect();
                        send(&mut rig, *worker, *port, &frames);
                    }
                    Step::Noise { worker, port, bytes } => {
                        send(&mut rig, *worker, *port, std::slice::from_ref(bytes));
                    }
                    Step::Wait(seconds) => rig.wait(Duration::from_secs(2 + u64::from(*seconds))),
                }
            }
            // The timeout of waiting fragments has passed.
            rig.wait(Duration::from_secs(31));
            rig.sim.step();
            for (port, received) in received.into_iter().enumerate() {
                assert_eq!(rig.counters(PortId(port as u16)).received, received, "port {port}");
            }
            forwarded.fetch_add(rig.sim.counters().ports.values().map(|port| port.forwarded).sum(), Relaxed);
            assert!(rig.sim.counters().workers.values().all(|worker| worker.fragments_waiting == 0));
        },
    );
    // Forty random inputs forward several hundred, and rarely fewer than a hundred.
    assert!(forwarded.load(Relaxed) >= 10, "{} frames were forwarded", forwarded.load(Relaxed));
}
