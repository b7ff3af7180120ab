//! Times of the workers, and samples of the frames that they dropped.

use std::fs;

use super::Core;
use crate::dataplane::stats::{DropSampler, FlowEventQueue, PARTS, WorkerStats};
use crate::dataplane::worker::mailbox::Mailbox;
use crate::dataplane::{DropSamples, FlowEvent, FlowEvents, StageTime, WorkerTimes};
use crate::ids::WorkerId;
use crate::limits::FLOW_EVENTS_WAITING_MAX;

impl Core {
    /// Milliseconds since the start.
    pub(in crate::dataplane) fn clock_ms(&self) -> u32 {
        self.shared.start.elapsed().as_millis() as u32
    }

    /// Work and times of each worker since the start.
    pub(in crate::dataplane) fn worker_times(&self) -> Vec<WorkerTimes> {
        let workers = self.shared.mailboxes.iter().zip(&self.cores).enumerate();
        let times = |(worker, (mailbox, core)): (usize, (&Mailbox, &usize))| {
            let stats = &mailbox.stats;
            let stages = PARTS.iter().zip(&stats.stages.nanos);
            WorkerTimes {
                worker: WorkerId(worker as u16),
                core: *core,
                clock_ns: self.started.elapsed().as_nanos() as u64,
                received: stats.received.get(),
                batches: stats.batches.get(),
                turns: stats.turns.get(),
                sleeps: stats.sleeps.get(),
                busy_ns: stats.busy_nanos.get(),
                waited_ns: waited_ns(stats),
                stages: stages
                    .map(|(stage, ns)| StageTime { stage: (*stage).to_owned(), ns: ns.get() })
                    .collect(),
                stage_frames: stats.stages.frames.get(),
                latency: stats.latency.counts(),
                turn_times: stats.turn_times.counts(),
            }
        };
        workers.map(times).collect()
    }

    /// Takes the events of flows that wait.
    pub(in crate::dataplane) fn take_flow_events(&self) -> FlowEvents {
        let queues = || self.shared.flow_events.all();
        let waiting = |queue: &'_ FlowEventQueue| -> Vec<FlowEvent> {
            (0..FLOW_EVENTS_WAITING_MAX).map_while(|_| queue.take()).collect()
        };
        FlowEvents {
            events: queues().flat_map(waiting).collect(),
            now_ms: self.clock_ms(),
            lost: queues().map(FlowEventQueue::lost).sum(),
        }
    }

    /// Takes the samples of dropped frames that wait.
    pub(in crate::dataplane) fn take_drop_samples(&self) -> DropSamples {
        let samplers = || self.shared.mailboxes.iter().map(|mailbox| &mailbox.stats.drop_samples);
        DropSamples {
            samples: samplers().flat_map(|sampler| std::iter::from_fn(|| sampler.take())).collect(),
            now_ms: self.clock_ms(),
            lost: samplers().map(DropSampler::lost).sum(),
        }
    }
}

/// Time that the worker's thread has waited for its core.
fn waited_ns(stats: &WorkerStats) -> Option<u64> {
    let thread = Some(stats.thread.get()).filter(|thread| *thread != 0)?;
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}
