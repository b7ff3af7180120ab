//! The table: found by hash, shared by all workers, never locked.
//!
//! ```text
//!   tags      [16 tags of 8 bits] [16 tags] [16 tags] ...      one bucket: 16 bytes, two atomic words
//!                 |
//!   entries   [16 x 128 bytes   ] [       ] [       ] ...      the slot of a tag has its entry
//! ```
//!
//! A key has a home: the slot that its hash names. Nearly every flow of a table that is not nearly full lives there, and is found with
//! no look at the tags.
//!
//! Where another has the slot, the key takes another one of its bucket, or of its second bucket where the first is crowded and the
//! second is less so. A look-up compares the tags of a bucket in a few instructions and touches entries whose tag fits; a count
//! of the keys that went on to their second bucket stands in the top bits of the first one's tags, so that the second bucket is
//! read only where it must.
//!
//! **Claiming and publishing.** A worker claims a slot by writing its tag with compare-and-swap, fills the
//! entry, and makes it visible by storing its head. Two workers may publish the same key at once: each then looks for
//! the other's; the one that comes first in look-up order stays, the other goes.
//!
//! **Giving back.** A slot that one worker frees may still be in another one's hands until the end of its batch. So its
//! tag turns into a tombstone, and only when every worker has started a batch since does the slot become free
//! (quiescent-state reclamation). Within a batch a slot number therefore always means the same flow.
//!
//! **Evicting.** For the same reason a slot cannot be evicted and filled at once. So flows are evicted ahead: a flow that finds few
//! free slots in the two buckets of its key has another one evicted, whose slot is free a few batches later. The victim is one that has
//! ended, or an unassured flow (see [`super::quota`]) of the port that has most of them: the longest idle one. It is never one of a port
//! that has fewer than the port of the flow that comes; where all unassured flows of the two buckets are of such ports, the new flow
//! is refused. So a port keeps what it has as long as others have more, and a flood evicts or is refused, but takes nobody's place.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::sync::atomic::Ordering;

use super::entry::{Entry, NewFlow, QuotaOwner};
use super::key::HashSeed;
use super::parts::{AtomicU64, WORKERS_MAX, fence};
use super::quota::Quotas;
use super::timeouts::timeouts_ms;
use super::{FlowState, Key, QuotaClass};
use crate::dataplane::ConntrackSettings;
use crate::ids::{PortId, WorkerId};
use crate::limits::RETIRED_FLOWS_MAX;
use crate::mem::{HugeArray, bytes_equal, prefetch_read};

use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Tags in a bucket.
pub(super) const BUCKET_SLOTS: usize = 16;
/// A bucket with so few free slots leaves them to keys whose second bucket is as full.
const CROWDED_FREE_SLOTS: usize = 4;
/// A flow that finds no more free slots in the two buckets of its key has another one evicted.
const SPARE_SLOTS: u32 = 4;
const _: () =
    assert!(SPARE_SLOTS as usize <= CROWDED_FREE_SLOTS, "a bucket that is not crowded has slots to spare");
const TAG_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;
pub(super) const FREE: u8 = 0;
pub(super) const TOMBSTONE: u8 = 1;

/// A slot's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(pub(super) u32);

impl Slot {
    /// No slot.
    pub(crate) const NONE: Slot = Slot(u32::MAX);
}

/// What tags say of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// The first slot whose tag fits.
    Slot(Slot),
    /// The second bucket has to be asked.
    SecondBucket,
    /// There is no such flow; a new one would take this slot, if that was asked for.
    Absent(Slot),
}

/// A half of an entry: twice its slot, and one more for the half of the higher end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HalfId(u32);

impl HalfId {
    /// Half 0.
    pub(crate) const FIRST: HalfId = HalfId(0);

    #[inline]
    pub(crate) fn new(slot: Slot, is_low: bool) -> HalfId {
        HalfId(slot.0 << 1 | u32::from(!is_low))
    }

    /// The other half of the entry.
    #[inline]
    pub(crate) fn other(self) -> HalfId {
        HalfId(self.0 ^ 1)
    }

    #[inline]
    fn slot(self) -> Slot {
        Slot(self.0 >> 1)
    }

    #[inline]
    fn is_low(self) -> bool {
        self.0 & 1 == 0
    }
}

/// What became of a wish to insert a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// It has a slot.
    Inserted(Slot),
    /// Another worker has inserted it a moment ago.
    Exists(Slot),
    /// The table has no place for it.
    Full,
}

/// The tags of a bucket.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub(super) struct BucketTags([AtomicU64; 2]);

impl BucketTags {
    /// The bucket that these words of memory are.
    pub(super) fn from_words(words: [u64; 2]) -> BucketTags {
        BucketTags(words.map(AtomicU64::new))
    }
}

/// The table.
pub(crate) struct Conntrack {
    buckets: HugeArray<BucketTags>,
    entries: HugeArray<Entry>,
    seed: HashSeed,
    timeouts_ms: Vec<u32>,
    pub(super) quotas: Quotas,
    /// Grows when every worker has seen the last value.
    reclaim_epoch: AtomicU64,
    /// The epoch that each worker has seen; [`u64::MAX`] while it sleeps or does not exist.
    seen_epochs: Box<[AtomicU64]>,
    tcp_pickup: bool,
}

/// A worker's part in the table: what it has freed, and where it is in looking for idle flows.
pub(crate) struct WorkerState {
    worker: usize,
    workers: usize,
    retired: VecDeque<(u64, Slot)>,
    cursor: usize,
    /// Flows that this worker inserted.
    pub inserted: u64,
    /// Flows that this worker ended.
    pub ended: u64,
    /// Of those, evicted before their time.
    pub evicted: u64,
}

impl Conntrack {
    /// An empty table, on huge pages if they are wanted and there are any; fails when there is no memory for it.
    pub(crate) fn new(settings: &ConntrackSettings, huge_pages: bool) -> io::Result<Conntrack> {
        let buckets = Conntrack::buckets_for(settings);
        let entries = HugeArray::new(buckets * BUCKET_SLOTS, huge_pages)?;
        Ok(Conntrack::of(HugeArray::new(buckets, huge_pages)?, entries, HashSeed::random(), settings))
    }

    /// Groups of a table with these settings.
    pub(super) fn buckets_for(settings: &ConntrackSettings) -> usize {
        settings.flows_max.div_ceil(BUCKET_SLOTS).max(2)
    }

    /// A table of these buckets and their entries: empty, or still to be [recovered](Conntrack::recover).
    pub(super) fn of(
        buckets: HugeArray<BucketTags>,
        entries: HugeArray<Entry>,
        seed: HashSeed,
        settings: &ConntrackSettings,
    ) -> Conntrack {
        let quotas = Quotas::new(entries.len(), settings.pod_quota_percent);
        Conntrack {
            buckets,
            entries,
            seed,
            timeouts_ms: timeouts_ms(&settings.timeouts),
            quotas,
            reclaim_epoch: AtomicU64::new(0),
            seen_epochs: (0..WORKERS_MAX).map(|_| AtomicU64::new(u64::MAX)).collect(),
            tcp_pickup: settings.tcp_pickup,
        }
    }

    /// Whether a TCP connection may be inserted on a packet in its middle.
    pub(crate) fn tcp_pickup(&self) -> bool {
        self.tcp_pickup
    }

    /// The hash of a key: what the other questions take.
    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.seed.hash(key)
    }

    /// The slot that a hash names.
    #[inline]
    pub(crate) fn primary_slot(&self, hash: u64) -> Slot {
        Slot((((hash & 0xffff_ffff) * self.entries.len() as u64) >> 32) as u32)
    }

    /// Loads halves into the cache.
    ///
    /// By reading them, one right after the other, so that the processor waits for all at once: prefetches are hints, and of many
    /// with little to do in between, processors drop most (docs/decisions/conntrack-primary-slot.md).
    #[inline]
    pub(crate) fn load_halves(&self, halves: &[HalfId]) {
        black_box(
            halves.iter().fold(0, |read, half| read | self.entry(half.slot()).touch_half(half.is_low())),
        );
    }

    /// The slot of a key, if it is the one that its hash names: as the packet path looks for it first.
    #[cfg(test)]
    pub(super) fn at_primary_slot(&self, key: &Key, from_low: bool) -> Option<Slot> {
        let primary_slot = self.primary_slot(self.hash(key));
        self.entry(primary_slot).matches(key, from_low).then_some(primary_slot)
    }

    /// Starts to load the tags that the look-up of a key needs that is not at home.
    #[inline]
    pub(crate) fn prefetch_tags(&self, hash: u64) {
        prefetch_read(&self.buckets[self.first_bucket(hash)]);
    }

    /// Loads the tags into the cache that the look-up of keys needs that are not at home, as [`Conntrack::load_halves`] does.
    #[inline]
    pub(crate) fn load_tags(&self, hashes: impl Iterator<Item = u64>) {
        self.load_buckets(hashes.map(|hash| self.first_bucket(hash)));
    }

    /// Loads the tags that [`Conntrack::candidate_in_second_bucket`] needs.
    #[inline]
    pub(crate) fn load_second_bucket_tags(&self, hashes: impl Iterator<Item = u64>) {
        self.load_buckets(hashes.map(|hash| self.second_bucket(hash)));
    }

    #[inline]
    fn load_buckets(&self, buckets: impl Iterator<Item = usize>) {
        black_box(buckets.fold(0, |read, bucket| read | self.buckets[bucket].0[0].load(Relaxed)));
    }

    /// What the tags of its first bucket say of a key, and of its home before others. `enters` asks for the place, too, that a new
    /// flow would take.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64, enters: bool) -> Candidate {
        let bucket = self.first_bucket(hash);
        let [low, high] = self.words(bucket);
        let tags = [low & TAG_BITS, high & TAG_BITS];
        let fits = bytes_equal(tags, tag_of(hash));
        if fits != 0 {
            let at = position_of(self.primary_slot(hash));
            let behind = fits.rotate_right(at as u32).trailing_zeros() as usize;
            return Candidate::Slot(slot_of(bucket, (at + behind) % BUCKET_SLOTS));
        }
        if low & !TAG_BITS != 0 {
            return Candidate::SecondBucket; // Something has gone on from here to another bucket.
        }
        if !enters {
            return Candidate::Absent(Slot::NONE);
        }
        let free = bytes_equal(tags, FREE);
        if is_crowded(free) {
            Candidate::SecondBucket
        } else {
            Candidate::Absent(self.free_slot(bucket, hash, free))
        }
    }

    /// What the tags of both buckets say of a key for which [`Conntrack::candidate`] said [`Candidate::SecondBucket`].
    #[inline(always)]
    pub(crate) fn candidate_in_second_bucket(&self, hash: u64) -> Candidate {
        let (first, second) = (self.first_bucket(hash), self.second_bucket(hash));
        if let Some(slot) = self.slots_tagged(second, tag_of(hash)).next() {
            return Candidate::Slot(slot);
        }
        let bucket = if self.is_crowded_beside(first, second) { second } else { first };
        Candidate::Absent(self.free_slot(bucket, hash, self.free_in(bucket)))
    }

    /// Where a key is, as far as tags know; some entry, where they know of no such key.
    #[inline(always)]
    pub(crate) fn probable_entry(&self, hash: u64) -> &Entry {
        let candidate = match self.candidate(hash, false) {
            Candidate::SecondBucket => self.candidate_in_second_bucket(hash),
            candidate => candidate,
        };
        let slot = if let Candidate::Slot(slot) = candidate { slot } else { self.primary_slot(hash) };
        self.entry(slot)
    }

    /// The slot of a bucket that a new flow would take, as [`Conntrack::claim`] will choose.
    #[inline(always)]
    fn free_slot(&self, bucket: usize, hash: u64, free: u16) -> Slot {
        let at = position_of(self.primary_slot(hash));
        let beside = free & 0xff << (at & 8);
        let first = if beside != 0 { beside } else { free }.trailing_zeros() as usize;
        slot_of(bucket, if free == 0 || free >> at & 1 != 0 { at } else { first })
    }

    /// Starts to load the entry that a new flow would take, if its place was asked for.
    #[inline]
    pub(crate) fn prefetch_insert_slot(&self, place: Slot) {
        if let Some(entry) = self.entries.get(place.0 as usize) {
            entry.prefetch(true, true);
        }
    }

    /// The slot of a key, asked for a packet of one of its ends; `candidate` is the one that tags named in this batch.
    #[inline(always)]
    pub(crate) fn find(&self, key: &Key, from_low: bool, candidate: Slot) -> Option<Slot> {
        if self.entries.get(candidate.0 as usize).is_some_and(|entry| entry.matches(key, from_low)) {
            return Some(candidate);
        }
        self.look_up(key, self.hash(key))
    }

    /// The slot of a key.
    pub(crate) fn look_up(&self, key: &Key, hash: u64) -> Option<Slot> {
        let first = self.first_bucket(hash);
        let found = self.find_in_bucket(first, key, hash);
        if found.is_some() || self.overflow(first) == 0 {
            return found;
        }
        self.find_in_bucket(self.second_bucket(hash), key, hash)
    }

    /// The entry in a slot.
    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.entries[slot.0 as usize]
    }

    /// Enters a flow that [`Conntrack::find`] did not find in this batch.
    pub(crate) fn insert(
        &self,
        key: &Key,
        hash: u64,
        flow: &NewFlow,
        now_ms: u32,
        by: &mut WorkerState,
    ) -> InsertOutcome {
        let (first, second) = (self.first_bucket(hash), self.second_bucket(hash));
        let mut buckets = [first, second];
        // Tags of the second bucket are another cache line: they are read only where the first one has no slots to spare.
        if is_crowded(self.free_in(first)) {
            if self.is_crowded_beside(first, second) {
                buckets.reverse();
            }
            let free = self.free_in(first).count_ones() + self.free_in(second).count_ones();
            if free <= SPARE_SLOTS && !self.evict_in_either(buckets, flow.owner_port, now_ms, by) {
                return InsertOutcome::Full;
            }
        }
        let [preferred, other] = buckets;
        let at = position_of(self.primary_slot(hash));
        let claimed = self.claim(preferred, at, tag_of(hash)).or_else(|| self.claim(other, at, tag_of(hash)));
        let Some(slot) = claimed else {
            self.evict(other, flow.owner_port, now_ms, by);
            return InsertOutcome::Full;
        };
        if bucket_of(slot) == second {
            self.add_overflow(first, 1);
        }
        self.quotas.add(QuotaOwner::unassured(flow.owner_port));
        self.entry(slot).publish(key, flow, now_ms);
        by.inserted += 1;
        // A worker alone has asked for the key, and nobody else has published it since.
        if by.workers == 1 {
            InsertOutcome::Inserted(slot)
        } else {
            self.resolve_duplicate(key, hash, slot, by)
        }
    }

    /// Whether a key goes to its second bucket although the first has a place: it has few, and the second has more. So
    /// buckets fill up evenly, and nearly all slots of the table are taken before a key finds none.
    fn is_crowded_beside(&self, first: usize, second: usize) -> bool {
        let free = self.free_in(first);
        is_crowded(free) && free.count_ones() < self.free_in(second).count_ones()
    }

    /// Starts the flow in a slot anew, policy_epoch anew: its port pair is used again, perhaps by its other side.
    pub(crate) fn restart(&self, slot: Slot, flow: &NewFlow, now_ms: u32) {
        let entry = self.entry(slot);
        let owner = QuotaOwner::unassured(flow.owner_port);
        self.quotas.add(owner);
        // Where another worker has ended it meanwhile, it counts against nobody.
        self.quotas.remove(entry.replace_quota_owner(None, owner).unwrap_or(owner));
        entry.restart(flow, now_ms);
    }

    /// Follows a change of a flow's state: one that has been answered becomes assured, one that has ended ceases to be.
    #[inline]
    pub(crate) fn on_state_change(&self, slot: Slot, old: FlowState, new: FlowState) {
        if old.class() != new.class() {
            self.update_class(self.entry(slot));
        }
    }

    /// Gives a flow the class that its state and its port's quota say. The worker that changes the owner in the entry counts it, so
    /// that the counts are exact whatever two workers do at once.
    fn update_class(&self, entry: &Entry) {
        let Some(old) = entry.quota_owner() else { return };
        let new = QuotaOwner { class: entry.state().class(), ..old };
        if new == old || (new.class == QuotaClass::Assured && !self.quotas.may_assure(new.port)) {
            return;
        }
        self.move_quota(entry, old, new);
    }

    /// Lets a flow count against this port: the port of its originator has another number than when the flow was inserted.
    pub(crate) fn set_owner_port(&self, slot: Slot, port: PortId) {
        let entry = self.entry(slot);
        if let Some(old) = entry.quota_owner().filter(|owner| owner.port != port) {
            self.move_quota(entry, old, QuotaOwner { port, ..old });
        }
    }

    fn move_quota(&self, entry: &Entry, old: QuotaOwner, new: QuotaOwner) {
        self.quotas.add(new);
        let changed = entry.replace_quota_owner(Some(old), new);
        self.quotas.remove(changed.unwrap_or(new));
    }

    /// Flows of a class that count against a port.
    pub(crate) fn flows_of(&self, port: PortId, class: QuotaClass) -> u32 {
        self.quotas.flows(port, class)
    }

    /// After publishing: one entry a key.
    fn resolve_duplicate(&self, key: &Key, hash: u64, ours: Slot, by: &mut WorkerState) -> InsertOutcome {
        // Between our publishing and our look: of two workers that publish at once, at least one sees the other's flow.
        fence(SeqCst);
        let mut before = None;
        let mut passed_ours = false;
        for bucket in [self.first_bucket(hash), self.second_bucket(hash)] {
            for slot in self.slots_tagged(bucket, tag_of(hash)) {
                if slot == ours {
                    passed_ours = true;
                } else if self.entry(slot).matches(key, true) {
                    if passed_ours {
                        self.remove(slot, by);
                    } else {
                        before = Some(slot);
                    }
                }
            }
        }
        match before {
            None => InsertOutcome::Inserted(ours),
            Some(theirs) => {
                self.remove(ours, by);
                InsertOutcome::Exists(theirs)
            }
        }
    }

    /// Ends the flow in a slot.
    pub(crate) fn remove(&self, slot: Slot, by: &mut WorkerState) {
        let entry = self.entry(slot);
        if by.retired.len() == RETIRED_FLOWS_MAX {
            return; // Ended by the sweep a little later: its time has run out by then, or its policy speaks again.
        }
        let Some(key) = entry.key() else { return };
        let Some(owner) = entry.unpublish() else { return };
        self.quotas.remove(owner);
        let first = self.first_bucket(self.hash(&key));
        if bucket_of(slot) != first {
            self.add_overflow(first, -1);
        }
        self.set_tag(slot, TOMBSTONE);
        // Whose batch does not yet show the end of the flow has let its beginning be seen: see `start_batch`.
        fence(SeqCst);
        by.retired.push_back((self.reclaim_epoch.load(Acquire), slot));
        by.ended += 1;
    }

    /// To be called by a worker before each batch.
    #[inline]
    pub(crate) fn start_batch(&self, by: &mut WorkerState) {
        let epoch = self.reclaim_epoch.load(Acquire);
        self.seen_epochs[by.worker].store(epoch, SeqCst);
        // No slot number is read for this batch before the others can see that it has begun.
        fence(SeqCst);
        if by.retired.is_empty() {
            return;
        }
        if self.seen_epochs[..by.workers].iter().all(|seen| seen.load(SeqCst) >= epoch) {
            let _ = self.reclaim_epoch.compare_exchange(epoch, epoch + 1, SeqCst, Relaxed);
        }
        while let Some(&(retired, slot)) = by.retired.front()
            && retired + 2 <= epoch
        {
            self.set_tag(slot, FREE);
            by.retired.pop_front();
        }
    }

    /// To be called by a worker that goes to sleep, with no slot number in its hands.
    pub(crate) fn offline(&self, by: &WorkerState) {
        self.seen_epochs[by.worker].store(u64::MAX, Release);
    }

    /// Ends flows that are idle, or that `is_ended` says are, in the next `buckets` buckets of this worker's share. Answered flows that
    /// were beyond their port's quota become assured where it allows them by then.
    pub(crate) fn sweep(
        &self,
        buckets: usize,
        now_ms: u32,
        by: &mut WorkerState,
        is_ended: impl Fn(&Entry) -> bool,
    ) {
        for _ in 0..buckets {
            if by.cursor >= self.buckets.len() {
                by.cursor = by.worker;
                if by.cursor >= self.buckets.len() {
                    return;
                }
            }
            let next = by.cursor + by.workers;
            for position in 0..BUCKET_SLOTS {
                // The place of the next bucket, while there is this one to be looked at: else each entry is waited for.
                if next < self.buckets.len() && self.tag(slot_of(next, position)) > TOMBSTONE {
                    self.entry(slot_of(next, position)).prefetch(true, true);
                }
                let slot = slot_of(by.cursor, position);
                if !self.holds_flow(slot) {
                    continue;
                }
                if self.is_idle(slot, now_ms) || is_ended(self.entry(slot)) {
                    self.remove(slot, by);
                } else {
                    self.update_class(self.entry(slot));
                }
            }
            by.cursor = next;
        }
    }

    /// Number of buckets that each of the workers looks after.
    pub(crate) fn buckets_per_worker(&self, by: &WorkerState) -> usize {
        self.buckets.len().div_ceil(by.workers)
    }

    /// Calls `see` for each flow until it says stop. For the control side: flows that come and go meanwhile may be missed.
    pub(crate) fn for_each(&self, mut see: impl FnMut(&Key, &Entry) -> bool) {
        for entry in &*self.entries {
            if let Some(key) = entry.key()
                && entry.key() == Some(key)
                && !see(&key, entry)
            {
                return;
            }
        }
    }

    /// All slots.
    pub(super) fn all_slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.entries.len() as u32).map(Slot)
    }

    /// Flows in the table.
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().filter(|entry| entry.key().is_some()).count()
    }

    /// Bytes of tags and entries.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.entries)
    }

    pub(super) fn is_idle(&self, slot: Slot, now_ms: u32) -> bool {
        let entry = self.entry(slot);
        entry.is_idle_for(self.timeouts_ms[entry.state() as usize], now_ms)
    }

    #[inline]
    pub(super) fn first_bucket(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    pub(super) fn second_bucket(&self, hash: u64) -> usize {
        // Other bits of the hash than the first bucket's and the tag's decide; never the first bucket again.
        let others = self.buckets.len() as u64 - 1;
        let step = 1 + (((hash >> 24 & 0xffff_ffff) * others) >> 32) as usize;
        let bucket = self.first_bucket(hash) + step;
        if bucket >= self.buckets.len() { bucket - self.buckets.len() } else { bucket }
    }

    #[inline]
    fn words(&self, bucket: usize) -> [u64; 2] {
        let [low, high] = &self.buckets[bucket].0;
        [low.load(Acquire), high.load(Acquire)]
    }

    /// Slots of a bucket whose tag is `tag`.
    #[inline]
    fn slots_tagged(&self, bucket: usize, tag: u8) -> impl Iterator<Item = Slot> + use<> {
        // One bit a slot: which half of the bucket a slot is in must not be a branch, for nobody can predict it.
        let mut hits = bytes_equal(self.words(bucket).map(|word| word & TAG_BITS), tag);
        let base = (bucket * BUCKET_SLOTS) as u32;
        std::iter::from_fn(move || {
            let slot = (hits != 0).then(|| Slot(base + hits.trailing_zeros()));
            hits &= hits.wrapping_sub(1);
            slot
        })
    }

    /// Slots of a bucket that hold a flow.
    pub(super) fn slots(&self, bucket: usize) -> impl Iterator<Item = Slot> + '_ {
        (0..BUCKET_SLOTS).map(move |position| slot_of(bucket, position)).filter(|slot| self.holds_flow(*slot))
    }

    /// Whether a slot holds a flow. One that is claimed holds none yet, and what its entry says is another flow's.
    pub(super) fn holds_flow(&self, slot: Slot) -> bool {
        self.tag(slot) > TOMBSTONE && self.entry(slot).is_flow()
    }

    #[inline]
    fn find_in_bucket(&self, bucket: usize, key: &Key, hash: u64) -> Option<Slot> {
        self.slots_tagged(bucket, tag_of(hash)).find(|slot| self.entry(*slot).matches(key, true))
    }

    pub(super) fn tag(&self, slot: Slot) -> u8 {
        let (word, shift) = self.tag_word(slot);
        (word.load(Acquire) >> shift) as u8 & 0x7f
    }

    /// Lets no key have gone on from any bucket.
    pub(super) fn clear_overflow(&self) {
        for word in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            word.fetch_and(TAG_BITS, AcqRel);
        }
    }

    fn tag_word(&self, slot: Slot) -> (&AtomicU64, u32) {
        let position = position_of(slot);
        (&self.buckets[bucket_of(slot)].0[position / 8], position as u32 % 8 * 8)
    }

    pub(super) fn set_tag(&self, slot: Slot, tag: u8) {
        let (word, shift) = self.tag_word(slot);
        let set = |old: u64| Some(old & !(0x7f << shift) | u64::from(tag) << shift);
        let _ = word.fetch_update(AcqRel, Relaxed, set);
    }

    /// The free slots of a bucket, a bit each.
    #[inline]
    fn free_in(&self, bucket: usize) -> u16 {
        bytes_equal(self.words(bucket).map(|word| word & TAG_BITS), FREE)
    }

    /// Writes `tag` into a free slot of a bucket: the one at this position, if it can be had.
    fn claim(&self, bucket: usize, at: usize, tag: u8) -> Option<Slot> {
        let first = at / 8;
        for half in [first, 1 - first] {
            let word = &self.buckets[bucket].0[half];
            let mut old = word.load(Acquire);
            loop {
                let free = zero_bytes(old & TAG_BITS);
                if free == 0 {
                    break;
                }
                let wanted = 0x80 << (at % 8 * 8);
                let takes = if half == first && free & wanted != 0 { wanted } else { free };
                let position = takes.trailing_zeros() / 8;
                let new = old | u64::from(tag) << (8 * position);
                match word.compare_exchange_weak(old, new, AcqRel, Acquire) {
                    Ok(_) => return Some(Slot((bucket * BUCKET_SLOTS + half * 8) as u32 + position)),
                    Err(found) => old = found,
                }
            }
        }
        None
    }

    /// Keys that went on from this bucket to their second: eight bits, the top ones of the first word's tags. At 255 it
    /// stays: then a look-up always reads both buckets.
    #[inline]
    pub(super) fn overflow(&self, bucket: usize) -> u64 {
        self.buckets[bucket].0[0].load(Acquire) & !TAG_BITS
    }

    pub(super) fn add_overflow(&self, bucket: usize, change: i16) {
        let add = |old: u64| {
            let count = gather_top_bits(old);
            let new = if count == 255 { 255 } else { (i16::from(count) + change).clamp(0, 255) as u8 };
            Some(old & TAG_BITS | scatter_top_bits(new))
        };
        let _ = self.buckets[bucket].0[0].fetch_update(AcqRel, Relaxed, add);
    }
}

impl WorkerState {
    /// The part of worker `worker` of `workers`.
    pub(crate) fn new(worker: WorkerId, workers: usize) -> WorkerState {
        WorkerState {
            worker: worker.index(),
            workers,
            retired: VecDeque::with_capacity(RETIRED_FLOWS_MAX),
            cursor: worker.index(),
            inserted: 0,
            ended: 0,
            evicted: 0,
        }
    }
}

/// Whether there are no more than [`CROWDED_FREE_SLOTS`] among the free slots of a bucket.
#[inline]
fn is_crowded(free: u16) -> bool {
    // Counting bits takes longer, on processors of which nothing is known.
    (0..CROWDED_FREE_SLOTS).fold(free, |rest, _| rest & rest.wrapping_sub(1)) == 0
}

/// The slot at a place of a bucket.
#[inline]
pub(super) fn slot_of(bucket: usize, position: usize) -> Slot {
    Slot((bucket * BUCKET_SLOTS + position) as u32)
}

/// The place of a slot in its bucket.
#[inline]
fn position_of(slot: Slot) -> usize {
    slot.0 as usize % BUCKET_SLOTS
}

/// The bucket that a slot is in.
#[inline]
pub(super) fn bucket_of(slot: Slot) -> usize {
    slot.0 as usize / BUCKET_SLOTS
}

/// The tag of a hash: seven bits that choose no bucket, neither free nor tombstone.
#[inline]
pub(super) fn tag_of(hash: u64) -> u8 {
    ((hash >> 57) as u8).max(TOMBSTONE + 1)
}

/// A set top bit for each byte of `word` that is zero; all bytes are below 0x80.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    !(word + TAG_BITS) & !TAG_BITS
}

/// The top bits of the bytes of `word`, that of the lowest byte first.
#[inline]
fn gather_top_bits(word: u64) -> u8 {
    // Each bit is moved to a place of its own in the highest byte of the product; no two meet on the way there.
    ((word >> 7 & LOW_BITS).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

fn scatter_top_bits(bits: u8) -> u64 {
    (0..8).fold(0, |word, i| word | u64::from(bits >> i & 1) << (8 * i + 7))
}

/// States are numbered as their time-outs are listed.
const _: () = assert!(FlowState::SynSent as u8 == 0);
