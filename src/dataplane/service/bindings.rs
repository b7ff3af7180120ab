//! Bindings of translated flows to their backends, shared by all workers, never locked.
//!
//! A set-associative table of fixed size. Each slot is one cache line and a seqlock: a writer makes the version odd,
//! writes, and makes it even again; a reader that sees an odd or a changed version has read nothing. Nobody waits: a writer
//! that finds a slot in use skips it. A full set evicts a binding whose flow conntrack would evict too, or none.

mod victim;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering, fence};

use crate::dataplane::conntrack::{Key, QuotaClass};
use crate::ids::PortId;
use crate::limits::AWAITED_PODS_MS;
use crate::mem::{HugeArray, prefetch_read};
use crate::net::address::Address;

/// Slots of a set.
const WAYS: usize = 8;
/// Seconds of 1,024 ms after its last use for which a binding counts as checked.
const CHECKED_SECONDS: u64 = 1;
/// Values of [`Bindings::awaits_services`] that are no time.
const AWAITS_NONE: u64 = u64::MAX;
const AWAITS: u64 = u64::MAX - 1;
/// Attempts to write a binding while other workers write.
const WRITES: usize = 3;

/// Use of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BindingKind {
    /// From client and virtual address to the backend.
    Forward = 1,
    /// From client and backend to the virtual address.
    Reverse = 2,
    /// From client and virtual address, without the client's port, to the backend of its next flow.
    Affinity = 3,
    /// From the datagram of a client's first fragment to the backend.
    Fragment = 4,
    /// From the datagram of a backend's first fragment to the virtual address.
    ReplyFragment = 5,
    /// From a pod's target port and the virtual address by which the pod reaches itself to that address's port.
    Hairpin = 6,
}

/// Key of a binding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BindingKey {
    /// Use of the binding.
    pub kind: BindingKind,
    /// Both ends, as in the key of a flow.
    pub key: Key,
    /// Whether the client, or the sender of a fragment, is the lower end.
    pub from_low: bool,
    /// Hash of the key.
    pub hash: u64,
}

/// A binding that a lookup has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Address of the end that takes the place of another one.
    pub address: Address,
    /// Its port.
    pub port: u16,
    slot: usize,
    meta: u64,
}

/// A binding that a set holds, which another one may take the place of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// Use of the binding.
    pub kind: BindingKind,
    /// Both ends.
    pub key: Key,
    /// Whether the client, or the sender of a fragment, is the lower end.
    pub from_low: bool,
    /// End that takes the place of another one.
    pub to: (Address, u16),
    /// Seconds of 1,024 ms since the binding was used.
    pub idle_seconds: u64,
    owner: u64,
}

/// One slot: five words of the key, with the port, kind and direction in unused bits of the last one; the address; and the
/// word of version, time, revision and owner.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    words: [AtomicU64; 7],
    meta: AtomicU64,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// Bits of the key's last word: ports and protocol, and the family at bit 62.
const KEY_BITS: u64 = 0xff_ffff_ffff | 1 << 62;
const PORT_SHIFT: u32 = 40;
const KIND_SHIFT: u32 = 56;
const KIND: u64 = 7;
const FROM_LOW: u64 = 1 << 59;
/// Bits of the last word that identify a binding: all but the port.
const IDENTITY: u64 = !(0xffff << PORT_SHIFT);

/// Version of a slot, in the low bits of its meta word.
const VERSION: u64 = 0xffff;
const SECONDS_SHIFT: u32 = 16;
const SECONDS: u64 = 0xf_ffff;
const REVISION_SHIFT: u32 = 36;
const OWNER_SHIFT: u32 = 52;
const OWNER: u64 = 0xfff;

/// Tags of the slots of a set: one says which keys a slot cannot have, without a look at the slot. Zero for a free slot.
#[derive(Default)]
#[repr(align(16))]
struct Tags([AtomicU16; WAYS]);

/// The bindings.
pub(crate) struct Bindings {
    slots: HugeArray<Slot>,
    /// By set.
    tags: Box<[Tags]>,
    /// Whether a pod may have been bound to itself.
    has_hairpins: AtomicBool,
    /// Whether a fragmented datagram may have been bound.
    has_fragments: AtomicBool,
    /// Whether bindings of the process before are there, and no Services have been loaded since: [`AWAITS`] until the first
    /// question, then the millisecond until which they are awaited, or [`AWAITS_NONE`].
    awaits_services: AtomicU64,
}

impl BindingKey {
    /// Key of the virtual address of a flow, whose client is the lower end or not.
    pub(crate) fn reverse(key: &Key, client_is_low: bool, hash: u64) -> BindingKey {
        BindingKey { kind: BindingKind::Reverse, key: *key, from_low: client_is_low, hash }
    }

    fn word(&self) -> u64 {
        let [.., word] = self.key.words();
        let from_low = if self.from_low { FROM_LOW } else { 0 };
        word & KEY_BITS | (self.kind as u64) << KIND_SHIFT | from_low
    }
}

impl Binding {
    /// Whether the binding was checked against this revision of the Services. A revision returns after 65,536 generations.
    /// The workers take each of these, which lasts longer than an unused binding counts as checked.
    #[inline]
    pub(crate) fn is_of(&self, revision: u16, now_ms: u32) -> bool {
        (self.meta >> REVISION_SHIFT) as u16 == revision && self.idle_seconds(now_ms) <= CHECKED_SECONDS
    }

    /// Seconds of 1,024 ms since the binding was used.
    #[inline]
    pub(crate) fn idle_seconds(&self, now_ms: u32) -> u64 {
        (u64::from(now_ms >> 10)).wrapping_sub(self.meta >> SECONDS_SHIFT) & SECONDS
    }
}

impl Bindings {
    /// Number of slots for so many flows, each of which takes two.
    pub(super) fn slots_for(flows: usize) -> usize {
        const SLOTS: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 19;
        (2 * flows).next_power_of_two().clamp(*SLOTS.start(), *SLOTS.end())
    }

    /// The table in these slots, which a process may have left. Empties those that it has left half written.
    pub(super) fn of(slots: HugeArray<Slot>) -> Bindings {
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
        let tags = tags.collect();
        Bindings {
            slots,
            tags,
            has_hairpins: is_used.into(),
            has_fragments: is_used.into(),
            awaits_services: if is_used { AWAITS } else { AWAITS_NONE }.into(),
        }
    }

    /// Makes an empty table for so many flows, in huge pages if requested and available.
    pub(super) fn new(flows: usize, huge_pages: bool) -> std::io::Result<Bindings> {
        Ok(Bindings::of(HugeArray::new(Bindings::slots_for(flows), huge_pages)?))
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

    /// Set of a hash, and the preferred slot in it.
    #[inline]
    fn place(&self, hash: u64) -> (usize, usize) {
        let set = ((hash >> 32) * self.tags.len() as u64 >> 32) as usize;
        (set, set * WAYS + hash as usize % WAYS)
    }

    /// Slots of the set of a hash, the preferred one first, with their tags.
    #[inline]
    fn set(&self, hash: u64) -> impl Iterator<Item = (usize, &AtomicU16)> {
        let (set, preferred) = self.place(hash);
        (0..WAYS)
            .map(move |n| (preferred + n) % WAYS)
            .map(move |way| (set * WAYS + way, &self.tags[set].0[way]))
    }

    /// Starts to load the preferred slot of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_read(&self.slots[self.place(hash).1]);
    }

    /// Starts to load the tags of the set of a hash.
    #[inline]
    pub(crate) fn prefetch_tags(&self, hash: u64) {
        prefetch_read(&self.tags[self.place(hash).0]);
    }

    /// Finds a binding.
    #[inline]
    pub(crate) fn find(&self, key: &BindingKey) -> Option<Binding> {
        self.find_preferred(key).or_else(|| self.find_by_tag(key))
    }

    /// Finds a binding in its preferred slot, where nearly all are.
    #[inline]
    pub(crate) fn find_preferred(&self, key: &BindingKey) -> Option<Binding> {
        let (_, preferred) = self.place(key.hash);
        self.slots[preferred].read_if(preferred, &key.key, key.word())
    }

    /// Finds a binding by the tags of its set. Fast for a key that has none.
    #[inline(never)]
    pub(crate) fn find_by_tag(&self, key: &BindingKey) -> Option<Binding> {
        let word = key.word();
        let tag = tag_of(&key.key, word);
        self.set(key.hash)
            .filter(|(_, other)| other.load(Ordering::Relaxed) == tag)
            .find_map(|(slot, _)| self.slots[slot].read_if(slot, &key.key, word))
    }

    /// Notes that a binding is used, and checked against `revision`. Stores nothing if that is known.
    #[inline]
    pub(crate) fn refresh(&self, binding: &Binding, now_ms: u32, revision: u16) {
        if binding.is_of(revision, now_ms) && binding.idle_seconds(now_ms) == 0 {
            return;
        }
        let owner = binding.meta >> OWNER_SHIFT;
        let meta = meta(binding.meta & VERSION, now_ms, revision, owner);
        // Another worker may have replaced the binding.
        let slot = &self.slots[binding.slot].meta;
        let _ = slot.compare_exchange(binding.meta, meta, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Binds `key` to `address` and `port`, for a flow from the port `owner`. Replaces the binding of the key, if there is
    /// one. `class_of` tells the class of the flow that another binding belongs to. Returns false if there is no slot for
    /// the binding.
    pub(crate) fn bind(
        &self,
        key: &BindingKey,
        (address, port): (Address, u16),
        owner: PortId,
        now_ms: u32,
        revision: u16,
        class_of: impl Fn(&Held) -> QuotaClass,
    ) -> bool {
        let word = key.word();
        let [first, second, third, fourth, _] = key.key.words();
        let words = [
            first,
            second,
            third,
            fourth,
            word | u64::from(port) << PORT_SHIFT,
            (address >> 64) as u64,
            address as u64,
        ];
        let tag = tag_of(&key.key, word);
        for _ in 0..WRITES {
            let same = self.find_by_tag(key).map(|binding| binding.slot);
            let slot = same.or_else(|| self.victim(key.hash, owner, now_ms, &class_of));
            let Some(slot) = slot else { return false };
            if self.slots[slot].write(words, now_ms, revision, u64::from(owner.0), (self.tag(slot), tag)) {
                break;
            }
        }
        // A binding that other workers have kept from being written is missed by the flow's next packet.
        true
    }

    /// Removes a binding.
    pub(crate) fn remove(&self, key: &BindingKey) {
        if let Some(Binding { slot, .. }) = self.find(key) {
            self.slots[slot].write([0; 7], 0, 0, 0, (self.tag(slot), 0));
        }
    }

    fn tag(&self, slot: usize) -> &AtomicU16 {
        &self.tags[slot / WAYS].0[slot % WAYS]
    }
}

/// Tag of a slot with this key and last word. It is not zero.
#[inline]
fn tag_of(key: &Key, word: u64) -> u16 {
    let [first, second, third, fourth, _] = key.words();
    let rest = first ^ second.rotate_left(16) ^ third.rotate_left(32) ^ fourth.rotate_left(48);
    ((word ^ rest).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16 | 1
}

impl BindingKind {
    const ALL: [BindingKind; 6] = [
        BindingKind::Forward,
        BindingKind::Reverse,
        BindingKind::Affinity,
        BindingKind::Fragment,
        BindingKind::ReplyFragment,
        BindingKind::Hairpin,
    ];
}

impl Held {
    /// The owner of a binding that a port makes, as the slot has it.
    fn owner_of(port: PortId) -> u64 {
        u64::from(port.0) & OWNER
    }
}

fn meta(version: u64, now_ms: u32, revision: u16, owner: u64) -> u64 {
    version & VERSION
        | (u64::from(now_ms >> 10) & SECONDS) << SECONDS_SHIFT
        | u64::from(revision) << REVISION_SHIFT
        | (owner & OWNER) << OWNER_SHIFT
}

impl Slot {
    /// The slot in these words of memory.
    pub(super) fn from_words(words: [u64; 8]) -> Slot {
        let [words @ .., meta] = words.map(AtomicU64::new);
        Slot { words, meta }
    }

    /// Tag of the slot by its words: zero if it is free.
    fn tag(&self) -> u16 {
        let [first, second, third, fourth, last] =
            std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        let key = Key::from_words([first, second, third, fourth, last & KEY_BITS]);
        if last == 0 { 0 } else { tag_of(&key, last & IDENTITY) }
    }

    /// Reads the binding, if it is that of a key.
    #[inline]
    fn read_if(&self, slot: usize, key: &Key, word: u64) -> Option<Binding> {
        let before = self.meta.load(Ordering::Acquire);
        let [first, second, third, fourth, _] = key.words();
        let [one, two, three, four, last, high, low] =
            std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        let is_same = last & IDENTITY == word && [one, two, three, four] == [first, second, third, fourth];
        if !is_same {
            return None;
        }
        fence(Ordering::Acquire);
        let after = self.meta.load(Ordering::Relaxed);
        if (before ^ after) & VERSION != 0 || before & 1 != 0 {
            return None;
        }
        let address = u128::from(high) << 64 | u128::from(low);
        Some(Binding { address, port: (last >> PORT_SHIFT) as u16, slot, meta: after })
    }

    /// The binding of the slot, whatever its key.
    fn held(&self, now_ms: u32) -> Option<Held> {
        let [first, second, third, fourth, last] =
            std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        let key = Key::from_words([first, second, third, fourth, last & KEY_BITS]);
        let binding = self.read_if(0, &key, last & IDENTITY)?;
        let kind = BindingKind::ALL.into_iter().find(|kind| *kind as u64 == last >> KIND_SHIFT & KIND)?;
        Some(Held {
            kind,
            key,
            from_low: last & FROM_LOW != 0,
            to: (binding.address, binding.port),
            idle_seconds: binding.idle_seconds(now_ms),
            owner: binding.meta >> OWNER_SHIFT,
        })
    }

    /// Writes a binding and its tag, unless another worker is writing there. Returns whether it has.
    fn write(
        &self,
        words: [u64; 7],
        now_ms: u32,
        revision: u16,
        owner: u64,
        (tag, value): (&AtomicU16, u16),
    ) -> bool {
        let before = self.meta.load(Ordering::Relaxed);
        let odd = before & !VERSION | before.wrapping_add(1) & VERSION;
        if before & 1 != 0
            || self.meta.compare_exchange(before, odd, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        tag.store(value, Ordering::Relaxed);
        self.meta.store(meta(odd.wrapping_add(1), now_ms, revision, owner), Ordering::Release);
        true
    }

    /// Empties a half-written slot.
    fn recover(&self) {
        let meta = self.meta.load(Ordering::Relaxed);
        if meta & 1 != 0 {
            self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.meta.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
