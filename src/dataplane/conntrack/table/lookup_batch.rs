//! Lookup of a batch of packets in two passes, so that no packet waits alone for memory.
//!
//! [`Conntrack::start_lookup`] hashes the key of a packet and starts to load its primary entry.
//! [`Conntrack::lookup_batch`] then compares the keys. Packets whose flow is not in its primary slot come
//! last: their tags are compared together, and the entries that these name are loaded together. All packets
//! of a flow are among these, or none, so that the packets of a flow keep their order.
//!
//! While most packets of the last batch missed their primary slot, those of new flows above all, a batch
//! compares tags first and leaves primary entries alone: for a new flow a primary entry is a cache line read
//! in vain. docs/decisions has the measurements.

use std::hint::black_box;

use super::super::entry::Entry;
use super::super::key::Key;
use super::half_list::{HalfId, HalfList};
use super::layout::Conntrack;
use super::lookup::TagMatch;
use super::slot::Slot;
use crate::limits::BATCH_FRAMES_MAX;

/// The flow that a packet belongs to, known or not.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct PacketFlow {
    /// Key of the flow.
    pub key: Key,
    /// Hash of the key.
    pub hash: u64,
    /// The slot that a pass names for the next one.
    pub(crate) candidate: Slot,
    /// Whether the packet comes from the lower endpoint of the key.
    pub from_low: bool,
}

/// State of one worker's lookups: the keys of the batch, and lists that the passes hand on. It allocates when
/// it is made.
pub(crate) struct LookupBatch {
    flows: Box<[PacketFlow; BATCH_FRAMES_MAX]>,
    /// Halves of entries to be loaded into the cache.
    halves: HalfList,
    /// Packets whose flow is looked for by tags.
    misses: Vec<u16>,
    /// Of those, packets for which a tag names a slot.
    candidates: Vec<u16>,
    /// Of those, packets whose second bucket has to be searched.
    second_bucket: Vec<u16>,
    /// Whether most packets of the last batch missed their primary slot.
    miss_heavy: bool,
}

/// A packet's flow in the table.
#[derive(Clone, Copy)]
pub(crate) struct Hit<'a> {
    /// The flow that the packet belongs to.
    pub flow: &'a PacketFlow,
    /// Its entry.
    pub entry: &'a Entry,
}

impl Hit<'_> {
    /// The slot of the flow.
    #[inline]
    pub(crate) fn slot(&self) -> Slot {
        self.flow.candidate
    }
}

/// Receiver of the results of a lookup, one for each packet.
pub(crate) trait LookupVisitor {
    /// Whether packet `i` is to be looked up. It is one of those whose lookup was started.
    fn is_pending(&self, i: usize) -> bool;

    /// Takes packet `i`, whose flow is in the table.
    fn hit(&mut self, i: usize, hit: Hit<'_>);

    /// Takes packet `i`, whose flow is not in the table. Its candidate is the slot that an insertion takes, if that is known.
    fn miss(&mut self, i: usize, flow: &PacketFlow);
}

impl LookupBatch {
    pub(crate) fn new() -> LookupBatch {
        let none = PacketFlow { key: Key::default(), hash: 0, candidate: Slot::NONE, from_low: false };
        LookupBatch {
            flows: Box::new([none; BATCH_FRAMES_MAX]),
            halves: HalfList::new(),
            misses: Vec::with_capacity(BATCH_FRAMES_MAX),
            candidates: Vec::with_capacity(BATCH_FRAMES_MAX),
            second_bucket: Vec::with_capacity(BATCH_FRAMES_MAX),
            miss_heavy: false,
        }
    }

    /// Begins a batch.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.misses.clear();
    }

    /// The flow of packet `i`, whose lookup was started in this batch.
    #[inline]
    pub(crate) fn flow(&self, i: usize) -> &PacketFlow {
        &self.flows[i]
    }

    /// Hashes of the flows of these packets.
    fn hashes_of(&self, packets: &[u16]) -> impl Iterator<Item = u64> {
        packets.iter().map(|i| self.flows[usize::from(*i)].hash)
    }
}

impl Conntrack {
    /// The slot of a packet's flow after the lookup of its batch, also of a flow that the batch has inserted.
    pub(crate) fn slot_of(&self, flow: &PacketFlow) -> Option<Slot> {
        self.find(&flow.key, flow.from_low, flow.candidate)
    }

    /// Looks the flow of packet `i` up again, which has got another key.
    #[cold]
    pub(crate) fn look_up_again(
        &self,
        lookups: &mut LookupBatch,
        i: usize,
        (key, from_low): (Key, bool),
    ) -> Option<Slot> {
        let hash = self.hash(&key);
        let slot = self.look_up(&key, hash);
        let candidate = slot.unwrap_or(Slot::NONE);
        lookups.flows[i] = PacketFlow { key, hash, candidate, from_low };
        slot
    }

    /// Starts the lookup of packet `i`, which has this key and comes from its lower endpoint or not.
    #[inline(always)]
    pub(crate) fn start_lookup(&self, lookups: &mut LookupBatch, i: usize, (key, from_low): (Key, bool)) {
        let hash = self.hash(&key);
        let flow = &mut lookups.flows[i];
        (flow.key, flow.hash, flow.from_low) = (key, hash, from_low);
        if lookups.miss_heavy {
            self.prefetch_tags(hash);
            lookups.misses.push(i as u16);
        } else {
            flow.candidate = self.primary_slot(hash);
            self.entry(flow.candidate).prefetch(from_low, key.needs_both_halves());
        }
    }

    /// Looks up the pending packets among the first `len` ones, and hands each to `visitor` once, with its
    /// flow or as a miss. With `for_insert`, the slots that new flows will take are loaded too: callers that
    /// drop most misses leave them alone.
    #[inline(always)]
    pub(crate) fn lookup_batch(
        &self,
        lookups: &mut LookupBatch,
        len: usize,
        for_insert: bool,
        mut visitor: impl LookupVisitor,
    ) {
        let last = if lookups.miss_heavy { 0 } else { len };
        for i in 0..last {
            if visitor.is_pending(i) {
                let flow = &lookups.flows[i];
                let entry = self.entry(flow.candidate);
                if entry.matches(&flow.key, flow.from_low) {
                    visitor.hit(i, Hit { flow, entry });
                } else {
                    lookups.misses.push(i as u16);
                }
            }
        }
        let misses =
            if lookups.misses.is_empty() { 0 } else { self.lookup_misses(lookups, for_insert, visitor) };
        lookups.miss_heavy = 2 * misses > len;
    }

    /// Looks up packets by tags. Returns how many of them are of flows that are not in their primary slots.
    #[inline(never)]
    fn lookup_misses(
        &self,
        lookups: &mut LookupBatch,
        for_insert: bool,
        mut visitor: impl LookupVisitor,
    ) -> usize {
        let mut misses = lookups.misses.len();
        if !lookups.miss_heavy {
            self.load_tags(lookups.hashes_of(&lookups.misses).map(|hash| self.first_bucket(hash)));
        }
        lookups.halves.clear();
        lookups.candidates.clear();
        lookups.second_bucket.clear();
        for n in 0..lookups.misses.len() {
            let i = usize::from(lookups.misses[n]);
            let found = self.match_tags(lookups.flows[i].hash, for_insert);
            self.note_match(lookups, i, found, &mut visitor);
        }
        if !lookups.second_bucket.is_empty() {
            self.load_tags(lookups.hashes_of(&lookups.second_bucket).map(|hash| self.second_bucket(hash)));
            for n in 0..lookups.second_bucket.len() {
                let i = usize::from(lookups.second_bucket[n]);
                let found = self.match_second_bucket(lookups.flows[i].hash);
                self.note_match(lookups, i, found, &mut visitor);
            }
        }
        self.load_halves(lookups.halves.as_slice());
        for n in 0..lookups.candidates.len() {
            let i = usize::from(lookups.candidates[n]);
            let flow = &mut lookups.flows[i];
            match self.find(&flow.key, flow.from_low, flow.candidate) {
                Some(slot) => {
                    flow.candidate = slot;
                    misses -= usize::from(slot == self.primary_slot(flow.hash));
                    visitor.hit(i, Hit { flow, entry: self.entry(slot) });
                }
                None => visitor.miss(i, flow),
            }
        }
        misses
    }

    /// Hands a packet without a matching tag on as a miss; leaves the others to the next passes.
    #[inline(always)]
    fn note_match(
        &self,
        lookups: &mut LookupBatch,
        i: usize,
        found: TagMatch,
        visitor: &mut impl LookupVisitor,
    ) {
        let flow = &mut lookups.flows[i];
        match found {
            TagMatch::None(insert_slot) => {
                flow.candidate = insert_slot;
                // The visitor's work lies between this prefetch and the next: processors drop many prefetches
                // in a row.
                self.prefetch_insert_slot(insert_slot);
                visitor.miss(i, flow);
            }
            TagMatch::SecondBucket => lookups.second_bucket.push(i as u16),
            TagMatch::Slot(slot) => {
                flow.candidate = slot;
                lookups.halves.add(HalfId::new(slot, flow.from_low), flow.key.needs_both_halves());
                lookups.candidates.push(i as u16);
            }
        }
    }

    #[inline]
    fn prefetch_insert_slot(&self, slot: Slot) {
        if let Some(entry) = self.entries.get(slot.0 as usize) {
            entry.prefetch(true, true);
        }
    }

    /// Loads the tags of buckets into the cache, as [`Conntrack::load_halves`] does.
    #[inline]
    fn load_tags(&self, buckets: impl Iterator<Item = usize>) {
        black_box(buckets.fold(0, |read, bucket| read | self.buckets[bucket].touch()));
    }

    /// Loads halves of entries into the cache.
    ///
    /// It reads them, one right after the other, so that the processor waits for all at once. Prefetches are
    /// hints: of many with little to do in between, processors drop most.
    #[inline]
    fn load_halves(&self, halves: &[HalfId]) {
        black_box(
            halves.iter().fold(0, |read, half| read | self.entry(half.slot()).touch_half(half.is_low())),
        );
    }
}
