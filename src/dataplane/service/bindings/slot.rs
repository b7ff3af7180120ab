//! Slots of the table of bindings, their keys and contents.

use std::sync::atomic::Ordering;

use super::parts::{AtomicU16, AtomicU64, fence};
use crate::dataplane::conntrack::Key;
use crate::ids::PortId;
use crate::net::address::Address;

/// Seconds of 1,024 ms after its last use for which a binding counts as checked.
const CHECKED_SECONDS: u64 = 1;

/// Use of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BindingKind {
    /// From client and virtual address to the backend.
    Forward = 1,
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
    pub(super) slot: usize,
    pub(super) meta: u64,
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
    pub(super) owner: u64,
}

/// One slot: five words of the key, with the port, kind and direction in unused bits of the last one; the address; and the
/// word of version, time, revision and owner.
#[derive(Default)]
#[repr(C, align(64))]
pub(in super::super) struct Slot {
    words: [AtomicU64; 7],
    pub(super) meta: AtomicU64,
}

/// Bits of the key's last word: ports and protocol, and the family at bit 62.
const KEY_BITS: u64 = 0xff_ffff_ffff | 1 << 62;
pub(super) const PORT_SHIFT: u32 = 40;
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

impl BindingKey {
    pub(super) fn word(&self) -> u64 {
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

impl BindingKind {
    const ALL: [BindingKind; 5] = [
        BindingKind::Forward,
        BindingKind::Affinity,
        BindingKind::Fragment,
        BindingKind::ReplyFragment,
        BindingKind::Hairpin,
    ];
}

impl Held {
    /// The owner of a binding that a port makes, as the slot has it.
    pub(super) fn owner_of(port: PortId) -> u64 {
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
    pub(in super::super) fn from_words(words: [u64; 8]) -> Slot {
        let [words @ .., meta] = words.map(AtomicU64::new);
        Slot { words, meta }
    }

    /// Tag of the slot by its words: zero if it is free.
    pub(super) fn tag(&self) -> u16 {
        let [first, second, third, fourth, last] =
            std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        let key = Key::from_words([first, second, third, fourth, last & KEY_BITS]);
        if last == 0 { 0 } else { tag_of(&key, last & IDENTITY) }
    }

    /// Reads the binding, if it is that of a key.
    #[inline]
    pub(super) fn read_if(&self, slot: usize, key: &Key, word: u64) -> Option<Binding> {
        let before = self.meta.load(Ordering::Acquire);
        let [first, second, third, fourth, _] = key.words();
        let [one, two, three, four, last, high, low] =
            std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        // A comparison of arrays would go by memory, which the processor cannot forward in larger pieces than were stored.
        let differences =
            (last & IDENTITY ^ word) | (one ^ first) | (two ^ second) | (three ^ third) | (four ^ fourth);
        if differences != 0 {
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
    pub(super) fn held(&self, now_ms: u32) -> Option<Held> {
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
    pub(super) fn write(
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

    /// Notes that the binding that was read here is used, and checked against `revision`. Has no effect if it has changed.
    #[inline]
    pub(super) fn refresh(&self, binding: &Binding, now_ms: u32, revision: u16) {
        let owner = binding.meta >> OWNER_SHIFT;
        let meta = meta(binding.meta & VERSION, now_ms, revision, owner);
        // Another worker may have replaced the binding.
        let _ = self.meta.compare_exchange(binding.meta, meta, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Empties a half-written slot.
    pub(super) fn recover(&self) {
        let meta = self.meta.load(Ordering::Relaxed);
        if meta & 1 != 0 {
            self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.meta.store(0, Ordering::Relaxed);
        }
    }
}

/// Tag of a slot with this key and last word. It is not zero.
#[inline]
pub(super) fn tag_of(key: &Key, word: u64) -> u16 {
    let [first, second, third, fourth, _] = key.words();
    let rest = first ^ second.rotate_left(16) ^ third.rotate_left(32) ^ fourth.rotate_left(48);
    ((word ^ rest).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16 | 1
}
