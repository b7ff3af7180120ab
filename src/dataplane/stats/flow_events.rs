//! Events of flows, and flows that have ended, on their way from the workers to the control side. Workers collect neither
//! unless somebody wants them.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam::queue::ArrayQueue;

use super::counter::Counter;
use crate::dataplane::{EndedFlow, FlowEvent};
use crate::ids::WorkerId;
use crate::limits::{ENDED_FLOWS_WAITING_MAX, FLOW_EVENTS_WAITING_MAX};

/// Bit of the wanted things: events.
const EVENTS: u8 = 1;
/// Bit of the wanted things: ended flows.
const ENDED: u8 = 2;

/// Events and ended flows of one worker. The worker adds them, and the control side takes them. Neither waits.
pub(crate) struct FlowEventQueue {
    now_ms: AtomicU32,
    events: ArrayQueue<FlowEvent>,
    /// Events that found no place.
    lost: Counter,
    ended: ArrayQueue<EndedFlow>,
    /// Ended flows that found no place.
    lost_ended: Counter,
    wanted: Arc<AtomicU8>,
}

impl FlowEventQueue {
    fn new(wanted: Arc<AtomicU8>) -> FlowEventQueue {
        FlowEventQueue {
            now_ms: AtomicU32::new(0),
            events: ArrayQueue::new(FLOW_EVENTS_WAITING_MAX),
            lost: Counter::new(),
            ended: ArrayQueue::new(ENDED_FLOWS_WAITING_MAX),
            lost_ended: Counter::new(),
            wanted,
        }
    }

    /// Sets the time of the next events. Only the worker calls this.
    pub(crate) fn set_now(&self, now_ms: u32) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Adds an event at the time of the batch. Only the worker calls this.
    #[cold]
    #[inline(never)]
    pub(crate) fn add(&self, event: FlowEvent) {
        let at_ms = self.now_ms();
        if self.wants(EVENTS) && self.events.push(FlowEvent { at_ms, ..event }).is_err() {
            self.lost.add(1);
        }
    }

    /// Adds a flow that has ended. Only the worker calls this.
    #[cold]
    #[inline(never)]
    pub(crate) fn add_ended(&self, flow: EndedFlow) {
        if self.wants(ENDED) && self.ended.push(flow).is_err() {
            self.lost_ended.add(1);
        }
    }

    /// Time of the batch, milliseconds since the start.
    pub(crate) fn now_ms(&self) -> u32 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn wants(&self, bit: u8) -> bool {
        self.wanted.load(Ordering::Relaxed) & bit != 0
    }

    /// Takes the oldest event.
    pub(crate) fn take(&self) -> Option<FlowEvent> {
        self.events.pop()
    }

    /// Events that found no place since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Takes the flow that ended first.
    pub(crate) fn take_ended(&self) -> Option<EndedFlow> {
        self.ended.pop()
    }

    /// Ended flows that found no place since the start.
    pub(crate) fn lost_ended(&self) -> u64 {
        self.lost_ended.get()
    }
}

/// Queues of all workers. They are made when somebody wants their content for the first time, and stay.
pub(crate) struct FlowEventQueues {
    wanted: Arc<AtomicU8>,
    workers: usize,
    queues: OnceLock<Vec<Arc<FlowEventQueue>>>,
}

impl FlowEventQueues {
    pub(crate) fn new(workers: usize) -> FlowEventQueues {
        FlowEventQueues { wanted: Arc::default(), workers, queues: OnceLock::new() }
    }

    /// Starts or ends the collection of events, from the workers' next batches on.
    pub(crate) fn follow(&self, is_followed: bool) {
        self.want(EVENTS, is_followed);
    }

    /// Starts or ends the collection of ended flows, from the workers' next batches on.
    pub(crate) fn follow_ended(&self, is_followed: bool) {
        self.want(ENDED, is_followed);
    }

    fn want(&self, bit: u8, is_wanted: bool) {
        if is_wanted {
            let queue = |_| Arc::new(FlowEventQueue::new(self.wanted.clone()));
            self.queues.get_or_init(|| (0..self.workers).map(queue).collect());
            self.wanted.fetch_or(bit, Ordering::Release);
        } else {
            self.wanted.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Queue of a worker, if somebody wants its content.
    #[inline]
    pub(crate) fn of(&self, worker: WorkerId) -> Option<&Arc<FlowEventQueue>> {
        if self.wanted.load(Ordering::Acquire) != 0 {
            self.queues.get().and_then(|queues| queues.get(worker.index()))
        } else {
            None
        }
    }

    /// All queues, wanted or not.
    pub(crate) fn all(&self) -> impl Iterator<Item = &FlowEventQueue> {
        self.queues.get().into_iter().flatten().map(|queue| &**queue)
    }
}
