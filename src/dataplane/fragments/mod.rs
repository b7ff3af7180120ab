//! Fragments: policy holds for each of them, though only the first says between which ports.
//!
//! The first fragment of a datagram goes through the stages like any packet, and what becomes of it is remembered. Later ones
//! follow it; those that come before it wait, in a bounded store, and go through the stages when it has come. What of a
//! datagram has come is kept, so that no fragment replaces a part of another (RFC 1858, RFC 3128, RFC 5722): one that
//! repeats what has come is dropped, and where it repeats only some of it so are all others that follow. Nothing is
//! reassembled.
//!
//! Each worker has its own datagrams. The kernel may give the fragments of one to several queues, so workers tell each other what
//! became of first fragments, and how far those reach: no transport header is replaced by way of another worker.
//!
//! A datagram is forgotten when all of it has come, for its identification may come again soon.

mod coverage;
mod datagrams;
mod first_fragment_table;
mod first_verdict;
mod fragment_info;
mod waiting;

pub(crate) use first_fragment_table::FirstFragmentTable;

use coverage::Overlap;
use datagrams::{Datagram, Datagrams, is_past};
use first_verdict::{FirstRecord, FirstVerdict};
use fragment_info::FragmentInfo;
use waiting::Waiting;

use super::DropReason;
use super::conntrack::{LookupBatch, Side};
use super::neighbor::solicit::RateLimits;
use super::pipeline::batch::{Batch, Verdict};
use super::pipeline::context::Context;
use super::pipeline::flow::init::flow_of;
use super::pipeline::route::route;
use crate::ids::PortId;
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::flow::Protocol;
use crate::xdp::Frame;

/// What one worker knows of fragmented datagrams, and the fragments that wait.
pub(crate) struct Fragments {
    datagrams: Datagrams,
    waiting: Waiting,
    /// Whether something has become of a datagram of which fragments wait.
    dirty: bool,
    /// What had been record on the shared when the fragments that wait were last looked at.
    shared_version: u32,
    /// When that was.
    checked_ms: u32,
}

impl Fragments {
    /// For a worker with so many frames.
    pub(crate) fn new(frames_total: usize) -> Fragments {
        let (datagrams, waiting) = (Datagrams::new(), Waiting::new(frames_total));
        Fragments { datagrams, waiting, dirty: false, shared_version: 0, checked_ms: 0 }
    }

    /// Number of fragments that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of frames that they lie in.
    pub(crate) fn frames(&self) -> usize {
        self.waiting.frames()
    }

    /// Takes in a frame that the stages have left held; in the order in which they did.
    pub(crate) fn hold(&mut self, frame: Frame) {
        self.waiting.fill(frame);
    }

    /// Gives back the frames of a port that is closed.
    pub(crate) fn close_port(&mut self, port: PortId, mut free: impl FnMut(Frame)) {
        let is_of_port = |waiter: &waiting::Waiter| (waiter.port == port).then_some(());
        self.waiting.take(usize::MAX, is_of_port, |frame, _, ()| free(frame));
    }

    /// Adds to a batch the fragments that need wait no longer: their first has come, or will not.
    #[inline]
    pub(crate) fn resume(&mut self, batch: &mut Batch, shared: &FirstFragmentTable, now_ms: u32) {
        if self.waiting.len() == 0 {
            return;
        }
        let version = shared.version();
        if self.dirty || version != self.shared_version || now_ms != self.checked_ms {
            (self.dirty, self.shared_version, self.checked_ms) = (false, version, now_ms);
            self.resume_ready(batch, shared, now_ms);
        }
    }

    fn resume_ready(&mut self, batch: &mut Batch, shared: &FirstFragmentTable, now_ms: u32) {
        let datagrams = &mut self.datagrams;
        let verdict = |waiter: &waiting::Waiter| {
            if is_past(waiter.until_ms, now_ms) {
                return Some(Verdict::Dropped(DropReason::FragmentTimeout));
            }
            let Some(datagram) = datagrams.find(&waiter.key, waiter.hash, now_ms) else {
                return Some(Verdict::Dropped(DropReason::FragmentStoreFull));
            };
            let is_known = datagram.first != FirstVerdict::Unknown
                || shared.find(&waiter.key, waiter.hash, now_ms).is_some();
            is_known.then_some(Verdict::Pending)
        };
        let room = BATCH_FRAMES_MAX - batch.len();
        self.waiting.take(room, verdict, |frame, port, verdict| batch.resume(frame, port, verdict));
    }

    /// Notes what became of a first fragment; why it is dropped where others came before it that it overlaps.
    fn record_first(
        &mut self,
        info: &FragmentInfo,
        hash: u64,
        port: PortId,
        first: FirstVerdict,
        shared: &FirstFragmentTable,
        now_ms: u32,
    ) -> Option<DropReason> {
        let datagram = self.datagrams.find_or_insert(&info.key, hash, port, now_ms);
        let overlap = datagram.mark(info);
        if overlap && datagram.first != FirstVerdict::Denied(DropReason::FragmentOverlap) {
            return Some(DropReason::FragmentOverlap); // The same once more.
        }
        if datagram.first == FirstVerdict::Unknown {
            datagram.first = first;
        }
        self.dirty |= datagram.waiting > 0;
        shared.publish(
            &info.key,
            hash,
            &FirstRecord { first: datagram.first, end_unit: info.end_unit },
            now_ms,
        );
        let denied = datagram.first != first;
        if datagram.is_done() {
            datagram.remove();
            shared.remove(&info.key, hash, now_ms);
        }
        denied.then_some(DropReason::FragmentOverlap)
    }

    /// What becomes of a later fragment.
    fn classify_later(
        &mut self,
        info: &FragmentInfo,
        hash: u64,
        port: PortId,
        waited: bool,
        context: &Surroundings<'_>,
    ) -> Verdict {
        let now_ms = context.now_ms;
        let datagram = if waited {
            let Some(datagram) = self.datagrams.find(&info.key, hash, now_ms) else {
                return Verdict::Dropped(DropReason::FragmentStoreFull);
            };
            datagram.waiting -= 1;
            datagram
        } else {
            let datagram = self.datagrams.find_or_insert(&info.key, hash, port, now_ms);
            if datagram.mark(info) {
                self.dirty |= datagram.waiting > 0;
                return Verdict::Dropped(DropReason::FragmentOverlap);
            }
            datagram
        };
        if datagram.first == FirstVerdict::Unknown
            && let Some(record) = context.shared.find(&info.key, hash, now_ms)
        {
            datagram.apply_record(&record);
        }
        datagram.first.revalidate(context.snapshot, context.worker);
        let verdict = match datagram.first {
            FirstVerdict::Allowed(..) => Verdict::Pending,
            FirstVerdict::Denied(reason) => Verdict::Dropped(reason),
            FirstVerdict::Unknown if self.waiting.reserve(port, &info.key, hash, datagram.until_ms) => {
                datagram.waiting += 1;
                Verdict::Held
            }
            FirstVerdict::Unknown => Verdict::Dropped(DropReason::FragmentStoreFull),
        };
        if datagram.is_done() {
            datagram.remove();
            context.shared.remove(&info.key, hash, now_ms);
        }
        verdict
    }
}

/// What of its context the judgement of a later fragment needs.
struct Surroundings<'a> {
    shared: &'a FirstFragmentTable,
    snapshot: &'a super::fib::snapshot::Snapshot,
    worker: usize,
    now_ms: u32,
}

impl Datagram {
    /// Notes that a fragment has come. Whether it repeats what came before; where it repeats only some of that, the whole
    /// datagram is discarded.
    fn mark(&mut self, info: &FragmentInfo) -> bool {
        let seen = self.coverage.mark(info.first_unit, info.end_unit);
        if seen == Overlap::Partial {
            self.first = FirstVerdict::Denied(DropReason::FragmentOverlap);
        }
        seen != Overlap::None
    }

    /// Takes over what another worker tells of the first fragment.
    fn apply_record(&mut self, record: &FirstRecord) {
        self.first = record.first;
        if self.coverage.mark(0, record.end_unit) != Overlap::None {
            self.first = FirstVerdict::Denied(DropReason::FragmentOverlap);
        }
    }
}

/// Remembers what has become of first fragments, and decides on later ones.
#[cold]
pub(crate) fn classify_fragments(
    batch: &mut Batch,
    context: &Context<'_>,
    lookups: &LookupBatch,
    fragments: &mut Fragments,
    rate_limits: &mut RateLimits,
) {
    for i in 0..batch.len() {
        match batch.verdicts[i] {
            Verdict::Held => later(batch, i, context, fragments, rate_limits),
            Verdict::Pending if batch.packets[i].first_fragment => {
                first(batch, i, context, lookups, fragments)
            }
            Verdict::Dropped(reason)
                if batch.packets[i].first_fragment && !batch.answers[i] && binds_later_fragments(reason) =>
            {
                first(batch, i, context, lookups, fragments);
            }
            _ => {}
        }
    }
}

/// Whether a first fragment that was dropped so has been read, and was from who may speak: then later ones follow it.
fn binds_later_fragments(reason: DropReason) -> bool {
    use DropReason as R;
    !matches!(
        reason,
        R::Truncated
            | R::Oversized
            | R::Malformed
            | R::BadIpChecksum
            | R::SourceRoute
            | R::IpOption
            | R::UnknownEthertype
            | R::NotForUs
            | R::Vlan
            | R::Spoofed
            | R::Multicast
            | R::FragmentTimeout
            | R::FragmentStoreFull
    )
}

fn first(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    lookups: &LookupBatch,
    fragments: &mut Fragments,
) {
    let (packet, port) = (&batch.packets[i], batch.in_ports[i]);
    let Some(info) = FragmentInfo::of(context.umem.data(&batch.frames[i]), packet, port) else {
        return drop_pending(batch, i, DropReason::Fragment);
    };
    let hash = context.conntrack.hash(&info.key);
    let first = if let Verdict::Dropped(reason) = batch.verdicts[i] {
        FirstVerdict::Denied(reason)
    } else {
        let flow = lookups.flow(i);
        // Policy has evaluated a packet without a flow as one of the initiator.
        let slot = context.conntrack.look_up(&flow.key, flow.hash);
        let sender = slot.map(|slot| context.conntrack.entry(slot).sender(flow.from_low));
        let by_initiator = sender.is_none_or(|sender| sender == Side::Initiator);
        FirstVerdict::Allowed(context.snapshot.generation, flow_of(&flow.key, flow.from_low == by_initiator))
    };
    let overlap = fragments.record_first(&info, hash, port, first, context.first_fragments, context.now_ms);
    if let Some(reason) = overlap {
        drop_pending(batch, i, reason);
    }
}

/// What has its reason keeps it.
fn drop_pending(batch: &mut Batch, i: usize, reason: DropReason) {
    if batch.is_pending(i) {
        batch.drop(i, reason);
    }
}

fn later(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    fragments: &mut Fragments,
    rate_limits: &mut RateLimits,
) {
    let (packet, port) = (&batch.packets[i], batch.in_ports[i]);
    let Some(info) = FragmentInfo::of(context.umem.data(&batch.frames[i]), packet, port) else {
        return batch.drop(i, DropReason::Fragment);
    };
    // It would replace the control bits, whatever the first one said of them (RFC 1858 section 4.2, RFC 3128).
    if info.protocol == Protocol::TCP && info.first_unit == 1 {
        return batch.drop(i, DropReason::FragmentTiny);
    }
    // What leads nowhere need not wait.
    batch.verdicts[i] = Verdict::Pending;
    route(batch, i, context, rate_limits);
    if !batch.is_pending(i) {
        return;
    }
    let hash = context.conntrack.hash(&info.key);
    let surroundings = Surroundings {
        shared: context.first_fragments,
        snapshot: context.snapshot,
        worker: context.worker,
        now_ms: context.now_ms,
    };
    batch.verdicts[i] = fragments.classify_later(&info, hash, port, batch.waited[i], &surroundings);
}

#[cfg(test)]
mod tests;
