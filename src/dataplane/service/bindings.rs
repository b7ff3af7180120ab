//! Bindings of translated flows to their backends, shared by all workers, never locked.
//!
//! A set-associative table of fixed size. Each slot is one cache line and a sequence lock: a writer makes the version odd,
//! writes, and makes it even again; a reader that sees an odd or a changed version has read nothing. Nobody waits: a writer
//! that finds a slot in use skips it. The cached hop of a slot is no part of that: it names the version that it belongs to.
//!
//! A key has two sets. Its binding lies in the first one, and in the second one where that is crowded. Two full sets evict a
//! binding whose flow conntrack would evict too, or none, in the set with fewer assured flows. Conntrack assures three quarters
//! of its flows, which take at most half of the slots here: two full sets of theirs are not met.

mod cached_hop;
mod parts;
mod slot;
mod victim;

#[cfg(test)]
mod loom_tests;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use self::cached_hop::CachedHop;
use self::slot::Content;
pub(super) use self::slot::{Addresses, Slot};
pub(crate) use self::slot::{
    Binding, BindingEnd, BindingKey, BindingKind, BindingLookup, BindingPlace, Held,
};
use crate::dataplane::conntrack::{ForwardCount, ForwardCounts, QuotaClass};
use crate::ids::{Generation, PortId};
use crate::limits::AWAITED_PODS_MS;
use crate::mem::{HugeArray, prefetch_read, prefetch_write};

/// Slots of a set.
const WAYS: usize = 8;
/// Free slots of a first set below which a binding may lie in its second one.
const SPARE_SLOTS: usize = 3;
/// Fewest slots.
const SLOTS_MIN: usize = 1 << 10;
/// Values of [`Bindings::awaits_services`] that are no time.
const AWAITS_NONE: u64 = u64::MAX;
const AWAITS: u64 = u64::MAX - 1;
/// Attempts to write a binding while other workers write.
const WRITES: usize = 3;

/// Tag of a free slot.
const FREE: u16 = 0;

const _: () = assert!(size_of::<Slot>() == 64);

/// Tags of the slots of a set: one says which keys a slot cannot have, without a look at the slot.
#[derive(Default)]
#[repr(align(16))]
struct Tags([AtomicU16; WAYS]);

/// The bindings.
pub(crate) struct Bindings {
    slots: HugeArray<Slot>,
    /// By slot.
    addresses: HugeArray<Addresses>,
    /// By set.
    tags: Box<[Tags]>,
    /// One bit a set: whether a key whose first set this is may lie in its second one. A bit that is set stays.
    overflown: Box<[AtomicU64]>,
    /// Whether a pod may have been bound to itself.
    has_hairpins: AtomicBool,
    /// Whether a fragmented datagram may have been bound.
    has_fragments: AtomicBool,
    /// Whether a flow to no virtual address may have been bound to another source port.
    has_replaced_ports: AtomicBool,
    /// Whether bindings of the process before are there, and no Services have been loaded since: [`AWAITS`] until the first
    /// question, then the millisecond until which they are awaited, or [`AWAITS_NONE`].
    awaits_services: AtomicU64,
}

impl Bindings {
    /// Number of slots for so many flows: one and a half for each.
    pub(super) fn slots_for(flows: usize) -> usize {
        (flows + flows / 2).next_multiple_of(WAYS).max(SLOTS_MIN)
    }

    /// The table in these slots, which a process may have left. Empties those that it has left half written.
    pub(super) fn of(slots: HugeArray<Slot>, addresses: HugeArray<Addresses>) -> Bindings {
        let mut is_used = false;
        let tags = slots.chunks(WAYS).map(|set| {
            let tags = Tags::default();
            for (slot, tag) in set.iter().zip(&tags.0) {
                slot.recover();
                let slot_tag = slot.tag();
                tag.store(slot_tag, Ordering::Relaxed);
                is_used |= slot_tag != 0;
            }
            tags
        });
        let tags: Box<[Tags]> = tags.collect();
        let overflown = if is_used { u64::MAX } else { 0 };
        Bindings {
            slots,
            addresses,
            overflown: (0..tags.len().div_ceil(64)).map(|_| overflown.into()).collect(),
            tags,
            has_hairpins: is_used.into(),
            has_fragments: is_used.into(),
            has_replaced_ports: is_used.into(),
            awaits_services: if is_used { AWAITS } else { AWAITS_NONE }.into(),
        }
    }

    /// Makes an empty table for so many flows, in huge pages if requested and available.
    pub(crate) fn new(flows: usize, huge_pages: bool) -> std::io::Result<Bindings> {
        let slots = Bindings::slots_for(flows);
        Ok(Bindings::of(HugeArray::new(slots, huge_pages)?, HugeArray::new(slots, huge_pages)?))
    }

    /// Whether a pod may have been bound to itself.
    #[inline]
    pub(crate) fn has_hairpins(&self) -> bool {
        self.has_hairpins.load(Ordering::Relaxed)
    }

    /// Notes that a pod is bound to itself.
    pub(crate) fn note_hairpin(&self) {
        self.has_hairpins.store(true, Ordering::Relaxed);
    }

    /// Whether a fragmented datagram may have been bound.
    #[inline]
    pub(crate) fn has_fragments(&self) -> bool {
        self.has_fragments.load(Ordering::Relaxed)
    }

    /// Notes that a fragmented datagram is bound.
    pub(crate) fn note_fragments(&self) {
        self.has_fragments.store(true, Ordering::Relaxed);
    }

    /// Whether a flow to no virtual address may have been bound to another source port.
    #[inline]
    pub(crate) fn has_replaced_ports(&self) -> bool {
        self.has_replaced_ports.load(Ordering::Relaxed)
    }

    /// Notes that a flow to no virtual address is bound to another source port.
    pub(crate) fn note_replaced_port(&self) {
        self.has_replaced_ports.store(true, Ordering::Relaxed);
    }

    /// Whether flows of the process before are translated though no Services have been loaded yet.
    #[inline]
    pub(crate) fn awaits_services(&self, now_ms: u32) -> bool {
        self.awaits_services.load(Ordering::Relaxed) != AWAITS_NONE && self.still_awaits_services(now_ms)
    }

    #[cold]
    fn still_awaits_services(&self, now_ms: u32) -> bool {
        let until = match self.awaits_services.load(Ordering::Relaxed) {
            AWAITS_NONE => return false,
            AWAITS => {
                let until = u64::from(now_ms.wrapping_add(AWAITED_PODS_MS));
                self.replace_awaited(AWAITS, until);
                return true;
            }
            until => until,
        };
        let is_over = (now_ms.wrapping_sub(until as u32) as i32) >= 0;
        if is_over {
            self.replace_awaited(until, AWAITS_NONE);
        }
        !is_over
    }

    fn replace_awaited(&self, old: u64, new: u64) {
        // Services may have been loaded meanwhile.
        let _ = self.awaits_services.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that Services have been loaded.
    pub(crate) fn note_services(&self) {
        self.awaits_services.store(AWAITS_NONE, Ordering::Relaxed);
    }

    /// First set of a hash, and the preferred slot in it.
    #[inline]
    fn place(&self, hash: u64) -> (usize, usize) {
        let set = ((hash >> 32) * self.tags.len() as u64 >> 32) as usize;
        (set, set * WAYS + hash as usize % WAYS)
    }

    /// Second set of a hash, another one than the first.
    fn second_set(&self, hash: u64) -> usize {
        let sets = self.tags.len();
        let (first, _) = self.place(hash);
        let distance = 1 + ((hash & 0xffff_ffff) * (sets as u64 - 1) >> 32) as usize;
        (first + distance) % sets
    }

    /// One bit for each slot of a set that has this tag, without a branch.
    #[inline]
    fn ways_tagged(&self, set: usize, tag: u16) -> u8 {
        let is_tagged = |way: usize| u8::from(self.tags[set].0[way].load(Ordering::Relaxed) == tag) << way;
        (0..WAYS).fold(0, |ways, way| ways | is_tagged(way))
    }

    /// Slots of a set that have this tag, those from the preferred way of a hash on first.
    #[inline]
    fn tagged(&self, set: usize, hash: u64, tag: u16) -> impl Iterator<Item = usize> + use<> {
        let first = hash as usize % WAYS;
        let mut ways = self.ways_tagged(set, tag).rotate_right(first as u32);
        std::iter::from_fn(move || {
            let way = (ways != 0).then(|| (first + ways.trailing_zeros() as usize) % WAYS)?;
            ways &= ways - 1;
            Some(set * WAYS + way)
        })
    }

    /// Whether a key whose first set this is may lie in its second one.
    #[inline]
    fn is_overflown(&self, set: usize) -> bool {
        self.overflown[set / 64].load(Ordering::Relaxed) >> (set % 64) & 1 != 0
    }

    fn note_overflown(&self, set: usize) {
        self.overflown[set / 64].fetch_or(1 << (set % 64), Ordering::Relaxed);
    }

    /// Starts to load the preferred slot of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_write(&self.slots[self.place(hash).1]);
    }

    /// Starts to load the tags of the set of a hash.
    #[inline]
    pub(crate) fn prefetch_tags(&self, hash: u64) {
        prefetch_read(&self.tags[self.place(hash).0]);
    }

    /// Starts to load the slot that a binding of a hash takes, if its first set has a free one.
    #[inline]
    pub(crate) fn prefetch_free(&self, hash: u64, is_v4: bool) {
        if let Some(slot) = self.tagged(self.place(hash).0, hash, FREE).next() {
            prefetch_write(&self.slots[slot]);
            if !is_v4 {
                prefetch_write(&self.addresses[slot]);
            }
        }
    }

    /// Finds a binding.
    #[inline]
    pub(crate) fn find(&self, key: &BindingKey) -> Option<Binding> {
        self.find_preferred(key).or_else(|| self.find_by_tag(key))
    }

    /// Finds a binding in its preferred slot, where nearly all are.
    #[inline]
    pub(crate) fn find_preferred(&self, key: &BindingKey) -> Option<Binding> {
        self.read_if(self.place(key.hash).1, key)
    }

    /// The same by check and last word alone. A binding over IPv6 may be that of another key with the same hash.
    #[inline(always)]
    pub(crate) fn find_checked(&self, lookup: &BindingLookup) -> Option<Binding> {
        let (_, preferred) = self.place(lookup.hash);
        self.slots[preferred].read_checked(preferred, lookup.check, lookup.word)
    }

    /// Finds a binding by the tags of its sets. Fast for a key that has none.
    #[inline(never)]
    pub(crate) fn find_by_tag(&self, key: &BindingKey) -> Option<Binding> {
        let (first, _) = self.place(key.hash);
        self.find_in(first, key).or_else(|| {
            let second = self.is_overflown(first).then(|| self.second_set(key.hash))?;
            self.find_in(second, key)
        })
    }

    #[inline]
    fn find_in(&self, set: usize, key: &BindingKey) -> Option<Binding> {
        self.tagged(set, key.hash, key.tag()).find_map(|slot| self.read_if(slot, key))
    }

    #[inline]
    fn read_if(&self, slot: usize, key: &BindingKey) -> Option<Binding> {
        self.slots[slot].read_if(&self.addresses[slot], slot, key)
    }

    /// Notes that a binding is used, and checked against `revision`. Stores nothing if that is known.
    #[inline]
    pub(crate) fn refresh(&self, binding: &Binding, now_ms: u32, revision: u16) {
        if binding.is_of(revision, now_ms) && binding.idle_seconds(now_ms) == 0 {
            return;
        }
        self.confirm(binding.place(), now_ms, revision);
    }

    /// Notes that the binding at a place is used, and checked against `revision`. Returns false if it has changed.
    pub(crate) fn confirm(&self, place: BindingPlace, now_ms: u32, revision: u16) -> bool {
        self.slots[place.slot as usize].refresh(place.version, now_ms, revision)
    }

    /// Policy epoch and hop that are cached for a binding.
    #[inline(always)]
    pub(crate) fn cached_hop(&self, place: BindingPlace) -> Option<(Generation, u16)> {
        self.slots[place.slot as usize].cached_hop.get(place.version)
    }

    /// The conntrack slot of the flow whose hop was cached last. It may have another flow now.
    #[inline]
    pub(crate) fn cached_flow(&self, place: BindingPlace) -> Option<u32> {
        self.slots[place.slot as usize].cached_hop.flow()
    }

    /// Caches policy epoch and hop of the flow of a binding, which has the conntrack slot of this number.
    pub(crate) fn cache_hop(&self, place: BindingPlace, hop: (Generation, u16), flow: u32) {
        self.slots[place.slot as usize].cached_hop.set(place.version, hop, flow);
    }

    /// Counts a packet that has taken the cached hop of a binding.
    #[inline(always)]
    pub(crate) fn count(&self, place: BindingPlace, bytes: usize, now_ms: u32) {
        self.slots[place.slot as usize].cached_hop.count(bytes, now_ms);
    }

    /// Binds `key` to the end `to`, for a flow from the port `owner`. Replaces the binding of the key, if there is
    /// one. `class_of` tells the class of the flow that another binding belongs to. Returns false if there is no slot for
    /// the binding.
    pub(crate) fn bind(
        &self,
        key: &BindingKey,
        to: BindingEnd,
        owner: PortId,
        now_ms: u32,
        revision: u16,
        class_of: impl Fn(&Held) -> QuotaClass,
    ) -> bool {
        let content = Content { key: *key, to };
        for _ in 0..WRITES {
            let same = self.find_by_tag(key).map(|binding| binding.slot);
            let slot = same.or_else(|| self.slot_for(key.hash, owner, now_ms, &class_of));
            let Some(slot) = slot else { return false };
            if self.write(slot, &content, now_ms, revision, owner) {
                break;
            }
        }
        // A binding that other workers have kept from being written is missed by the flow's next packet.
        true
    }

    /// Removes a binding.
    pub(crate) fn remove(&self, key: &BindingKey) {
        if let Some(binding) = self.find(key) {
            self.slots[binding.slot].remove(&binding, self.tag(binding.slot));
        }
    }

    fn write(&self, slot: usize, content: &Content, now_ms: u32, revision: u16, owner: PortId) -> bool {
        let owner = u64::from(owner.0);
        self.slots[slot].write(&self.addresses[slot], content, now_ms, revision, owner, self.tag(slot))
    }

    /// The cached hop in a slot, if there is such a slot.
    fn cached_hop_of(&self, binding: u32) -> Option<&CachedHop> {
        Some(&self.slots.get(binding as usize)?.cached_hop)
    }

    fn tag(&self, slot: usize) -> &AtomicU16 {
        &self.tags[slot / WAYS].0[slot % WAYS]
    }
}

impl ForwardCounts for Bindings {
    fn count_of(&self, binding: u32, flow: u32) -> ForwardCount {
        self.cached_hop_of(binding).map(|cached_hop| cached_hop.count_of(flow)).unwrap_or_default()
    }

    fn take_count(&self, binding: u32, flow: u32) -> ForwardCount {
        self.cached_hop_of(binding).map(|cached_hop| cached_hop.take_count(flow)).unwrap_or_default()
    }

    fn end_hop(&self, binding: u32, flow: u32) {
        if let Some(cached_hop) = self.cached_hop_of(binding).filter(|cached_hop| cached_hop.is_of(flow)) {
            cached_hop.clear();
        }
    }
}

#[cfg(test)]
mod tests;
