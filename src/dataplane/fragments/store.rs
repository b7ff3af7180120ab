//! The datagrams that one worker knows, and its waiting fragments.

use super::coverage::Overlap;
use super::datagrams::{Datagram, Datagrams, is_past};
use super::first_fragment_table::FirstFragmentTable;
use super::first_verdict::{FirstRecord, FirstVerdict};
use super::fragment_info::FragmentInfo;
use crate::dataplane::DropReason;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::waiting::{Waiter, Waiting};
use crate::ids::PortId;
use crate::limits::FRAGMENTS_WAITING_MAX;
use crate::xdp::Frame;

/// Fragmented datagrams of one worker.
pub(crate) struct Fragments {
    datagrams: Datagrams,
    waiting: Waiting,
    /// Whether a datagram with waiting fragments has changed since these were last checked.
    dirty: bool,
    /// Version of the shared table when waiting fragments were last checked.
    shared_version: u32,
    /// Time of that check.
    checked_ms: u32,
}

/// The state outside of one worker's fragments that decides on them.
pub(crate) struct Environment<'a> {
    /// Verdicts on first fragments of all workers.
    pub shared: &'a FirstFragmentTable,
    /// The snapshot that the batch is evaluated by.
    pub snapshot: &'a Snapshot,
    /// Number of the worker, for rule counters.
    pub worker: usize,
    /// Time of the batch.
    pub now_ms: u32,
}

/// Verdict on a later fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaterVerdict {
    /// It follows its first fragment, which has passed.
    Pass,
    /// It waits for its first fragment. The caller hands its frame to [`Fragments::hold`].
    Hold,
    /// It is dropped.
    Drop(DropReason),
}

impl Fragments {
    /// Makes the store of a worker with this many frames.
    pub(crate) fn new(frames_total: usize) -> Fragments {
        let (datagrams, waiting) =
            (Datagrams::new(), Waiting::new(FRAGMENTS_WAITING_MAX.min(frames_total / 16)));
        Fragments { datagrams, waiting, dirty: false, shared_version: 0, checked_ms: 0 }
    }

    /// Number of waiting fragments.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of frames of waiting fragments.
    pub(crate) fn frames(&self) -> usize {
        self.waiting.frames()
    }

    /// Takes a frame whose verdict is to wait. The caller hands over frames in the order of their verdicts.
    pub(crate) fn hold(&mut self, frame: Frame) {
        self.waiting.fill(frame);
    }

    /// Gives the waiting frames of a closed port to `free`.
    pub(crate) fn close_port(&mut self, port: PortId, free: impl FnMut(Frame)) {
        self.waiting.close_port(port, free);
    }

    /// Hands at most `max` fragments that need not wait any longer to `resume`, each with the reason to drop
    /// it, if any: its first fragment has come, or its time is over.
    #[inline]
    pub(crate) fn resume(
        &mut self,
        max: usize,
        shared: &FirstFragmentTable,
        now_ms: u32,
        resume: impl FnMut(Frame, PortId, Option<DropReason>),
    ) {
        if self.waiting.len() == 0 {
            return;
        }
        let version = shared.version();
        if self.dirty || version != self.shared_version || now_ms != self.checked_ms {
            (self.dirty, self.shared_version, self.checked_ms) = (false, version, now_ms);
            self.resume_ready(max, shared, now_ms, resume);
        }
    }

    fn resume_ready(
        &mut self,
        max: usize,
        shared: &FirstFragmentTable,
        now_ms: u32,
        resume: impl FnMut(Frame, PortId, Option<DropReason>),
    ) {
        let datagrams = &mut self.datagrams;
        let verdict = |waiter: &mut Waiter| {
            if is_past(waiter.until_ms, now_ms) {
                return Some(Some(DropReason::FragmentTimeout));
            }
            let Some(datagram) = datagrams.find(&waiter.key, waiter.hash, now_ms) else {
                return Some(Some(DropReason::FragmentStoreFull));
            };
            let is_known = datagram.first != FirstVerdict::Unknown
                || shared.find(&waiter.key, waiter.hash, now_ms).is_some();
            is_known.then_some(None)
        };
        self.waiting.take(max, verdict, resume);
    }

    /// Records the verdict on a first fragment. Returns the reason to drop it where it overlaps fragments
    /// that came before it.
    pub(crate) fn record_first(
        &mut self,
        info: &FragmentInfo,
        hash: u64,
        port: PortId,
        first: FirstVerdict,
        environment: &Environment<'_>,
    ) -> Option<DropReason> {
        let (shared, now_ms) = (environment.shared, environment.now_ms);
        let datagram = self.datagrams.find_or_insert(&info.key, hash, port, now_ms);
        let overlap = datagram.mark(info);
        if overlap && datagram.first != FirstVerdict::Denied(DropReason::FragmentOverlap) {
            return Some(DropReason::FragmentOverlap); // A repetition, which changes nothing for the other fragments.
        }
        if datagram.first == FirstVerdict::Unknown {
            datagram.first = first;
        }
        self.dirty |= datagram.waiting > 0;
        let record = FirstRecord { first: datagram.first, end_unit: info.end_unit };
        shared.publish(&info.key, hash, &record, now_ms);
        let denied = datagram.first != first;
        if datagram.is_done() {
            datagram.remove();
            shared.remove(&info.key, hash, now_ms);
        }
        denied.then_some(DropReason::FragmentOverlap)
    }

    /// Decides on a later fragment. `waited`: it has waited before.
    pub(crate) fn classify_later(
        &mut self,
        info: &FragmentInfo,
        hash: u64,
        port: PortId,
        waited: bool,
        environment: &Environment<'_>,
    ) -> LaterVerdict {
        let (shared, now_ms) = (environment.shared, environment.now_ms);
        let datagram = if waited {
            let Some(datagram) = self.datagrams.find(&info.key, hash, now_ms) else {
                return LaterVerdict::Drop(DropReason::FragmentStoreFull);
            };
            datagram.waiting -= 1;
            datagram
        } else {
            let datagram = self.datagrams.find_or_insert(&info.key, hash, port, now_ms);
            if datagram.mark(info) {
                self.dirty |= datagram.waiting > 0;
                return LaterVerdict::Drop(DropReason::FragmentOverlap);
            }
            datagram
        };
        if datagram.first == FirstVerdict::Unknown
            && let Some(record) = shared.find(&info.key, hash, now_ms)
        {
            datagram.apply_record(&record);
        }
        datagram.first.revalidate(environment.snapshot, environment.worker);
        let verdict = match datagram.first {
            FirstVerdict::Allowed(..) => LaterVerdict::Pass,
            FirstVerdict::Denied(reason) => LaterVerdict::Drop(reason),
            FirstVerdict::Unknown if self.waiting.reserve(port, &info.key, hash, datagram.until_ms) => {
                datagram.waiting += 1;
                LaterVerdict::Hold
            }
            FirstVerdict::Unknown => LaterVerdict::Drop(DropReason::FragmentStoreFull),
        };
        if datagram.is_done() {
            datagram.remove();
            shared.remove(&info.key, hash, now_ms);
        }
        verdict
    }
}

impl Datagram {
    /// Marks the part of a fragment as seen. Returns whether it repeats earlier parts. If it repeats only
    /// some of its part, the datagram is denied as a whole: "the entire datagram [...] MUST be silently
    /// discarded" (RFC 5722 section 4).
    fn mark(&mut self, info: &FragmentInfo) -> bool {
        let overlap = self.coverage.mark(info.first_unit, info.end_unit);
        if overlap == Overlap::Partial {
            self.first = FirstVerdict::Denied(DropReason::FragmentOverlap);
        }
        overlap != Overlap::None
    }

    /// Takes over another worker's record of the first fragment.
    fn apply_record(&mut self, record: &FirstRecord) {
        self.first = record.first;
        if self.coverage.mark(0, record.end_unit) != Overlap::None {
            self.first = FirstVerdict::Denied(DropReason::FragmentOverlap);
        }
    }
}
