//! Slots of the table of bindings, their keys and contents.

use std::sync::atomic::Ordering;

use super::cached_hop::CachedHop;
use super::parts::{AtomicU16, AtomicU64, SequenceLock};
use crate::dataplane::conntrack::Key;
use crate::dataplane::service::SourceChoice;
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
    /// From a fragmented datagram that goes back by the host port to the address of the node there.
    ReturnFragment = 7,
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

/// Values that the lookup of a packet to a virtual address compares.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BindingLookup {
    /// Hash of the key.
    pub hash: u64,
    pub(super) check: u64,
    pub(super) word: u64,
}

impl From<&BindingKey> for BindingLookup {
    #[inline(always)]
    fn from(key: &BindingKey) -> BindingLookup {
        BindingLookup { hash: key.hash, check: key.check(), word: key.word() }
    }
}

/// End that takes the place of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BindingEnd {
    /// Its address.
    pub address: Address,
    /// Its port.
    pub port: u16,
    /// Source port of the packets to it.
    pub source: SourceChoice,
}

/// A binding that a lookup has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding {
    /// End that takes the place of another one.
    pub to: BindingEnd,
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
    pub to: BindingEnd,
    /// Seconds of 1,024 ms since the binding was used.
    pub idle_seconds: u64,
    pub(super) owner: u64,
}

/// One slot: the check of the key and its last word, with the port, the source port, kind and direction in unused bits; the address; the cached
/// hop; and the word of version, time, revision and owner. The packets of flows whose hop is cached read no other memory.
#[derive(Default)]
#[repr(C, align(64))]
pub(in super::super) struct Slot {
    check: AtomicU64,
    last: AtomicU64,
    address: [AtomicU64; 2],
    pub(super) cached_hop: CachedHop,
    pub(super) meta: SequenceLock<VERSION_BITS>,
}

/// Addresses of an IPv6 key, beside the slot. The check of an IPv4 key is its addresses.
#[derive(Default)]
#[repr(C, align(32))]
pub(in super::super) struct Addresses([AtomicU64; 4]);

/// Content of a binding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Content {
    /// Key of the binding.
    pub key: BindingKey,
    /// End that takes the place of another one.
    pub to: BindingEnd,
}

/// Bits of the key's last word: ports and protocol, and the family at bit 62.
const KEY_BITS: u64 = 0xff_ffff_ffff | 1 << 62;
const PORT_SHIFT: u32 = 40;
const KIND_SHIFT: u32 = 56;
const KIND: u64 = 7;
const FROM_LOW: u64 = 1 << 59;
/// Two low bits of the number of the source port, and its high one.
const SOURCE_SHIFT: u32 = 60;
const SOURCE_HIGH: u64 = 1 << 63;
/// Bits of the last word that identify a binding: all but the port and the source port.
const IDENTITY: u64 = !(0xffff << PORT_SHIFT | 3 << SOURCE_SHIFT | SOURCE_HIGH);

/// Bits of the version of a slot, the low ones of its meta word.
const VERSION_BITS: u32 = 16;
const VERSION: u64 = SequenceLock::<VERSION_BITS>::VERSION;
const SECONDS_SHIFT: u32 = VERSION_BITS;
const SECONDS: u64 = 0xf_ffff;
const REVISION_SHIFT: u32 = 36;
const OWNER_SHIFT: u32 = 52;
const OWNER: u64 = 0xfff;

impl BindingKey {
    /// Last word of the key, with kind and direction.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        let [.., word] = self.key.words();
        let from_low = if self.from_low { FROM_LOW } else { 0 };
        word & KEY_BITS | (self.kind as u64) << KIND_SHIFT | from_low
    }

    /// The addresses of an IPv4 key; of another one its hash, in their place.
    #[inline(always)]
    pub(super) fn check(&self) -> u64 {
        let [first, ..] = self.key.words();
        if self.key.is_v4() { first } else { self.hash }
    }
}

/// Place of a binding as long as nothing is written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BindingPlace {
    /// Number of the slot.
    pub slot: u32,
    pub(super) version: u16,
}

impl Binding {
    /// Place of the binding.
    #[inline]
    pub(crate) fn place(&self) -> BindingPlace {
        BindingPlace { slot: self.slot as u32, version: self.meta as u16 }
    }

    /// Whether this port made the binding, and the binding was checked in this second, against this revision of the Services.
    #[inline(always)]
    pub(crate) fn is_checked(&self, now_ms: u32, revision: u16, port: PortId) -> bool {
        (self.meta ^ payload(now_ms, revision, port.0.into())) & !VERSION == 0
    }

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
    const ALL: [BindingKind; 6] = [
        BindingKind::Forward,
        BindingKind::Affinity,
        BindingKind::Fragment,
        BindingKind::ReplyFragment,
        BindingKind::Hairpin,
        BindingKind::ReturnFragment,
    ];
}

impl BindingEnd {
    /// An end to which packets go from the client's own port.
    pub(crate) fn new(address: Address, port: u16) -> BindingEnd {
        BindingEnd { address, port, source: SourceChoice::OWN }
    }
}

impl Held {
    /// The owner of a binding that a port makes, as the slot has it.
    pub(super) fn owner_of(port: PortId) -> u64 {
        u64::from(port.0) & OWNER
    }
}

/// The meta word without a version.
fn payload(now_ms: u32, revision: u16, owner: u64) -> u64 {
    (u64::from(now_ms >> 10) & SECONDS) << SECONDS_SHIFT
        | u64::from(revision) << REVISION_SHIFT
        | (owner & OWNER) << OWNER_SHIFT
}

impl Addresses {
    /// The addresses in these words of memory.
    pub(in super::super) fn from_words(words: [u64; 4]) -> Addresses {
        Addresses(words.map(AtomicU64::new))
    }

    #[inline]
    fn load(&self) -> [u64; 4] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

impl Slot {
    /// The slot in these words of memory.
    pub(in super::super) fn from_words([check, last, high, low, hop @ .., meta]: [u64; 8]) -> Slot {
        let [check, last, high, low] = [check, last, high, low].map(AtomicU64::new);
        let meta = SequenceLock::from_word(meta);
        Slot { check, last, address: [high, low], cached_hop: CachedHop::from_words(hop), meta }
    }

    /// Tag of the slot by its words: zero if it is free.
    pub(super) fn tag(&self) -> u16 {
        let (check, last) = (self.check.load(Ordering::Relaxed), self.last.load(Ordering::Relaxed));
        if last == 0 { 0 } else { tag_of(check, last & IDENTITY) }
    }

    /// Reads the binding whose key has this check and this last word. A binding over IPv6 may be that of another key.
    #[inline(always)]
    pub(super) fn read_checked(&self, slot: usize, check: u64, word: u64) -> Option<Binding> {
        self.read_where(slot, check, word, || true)
    }

    /// Reads the binding, if it is that of a key.
    #[inline]
    pub(super) fn read_if(&self, addresses: &Addresses, slot: usize, key: &BindingKey) -> Option<Binding> {
        self.read_where(slot, key.check(), key.word(), || {
            let [first, second, third, fourth, _] = key.key.words();
            // A comparison of arrays would go by memory, which the processor cannot forward in larger pieces than were stored.
            let [one, two, three, four] = if key.key.is_v4() { [first, 0, 0, 0] } else { addresses.load() };
            (one ^ first) | (two ^ second) | (three ^ third) | (four ^ fourth) == 0
        })
    }

    #[inline(always)]
    fn read_where(
        &self,
        slot: usize,
        check: u64,
        word: u64,
        is_its: impl FnOnce() -> bool,
    ) -> Option<Binding> {
        let (meta, to) = self.meta.read(|| {
            let last = self.last.load(Ordering::Relaxed);
            let differences = (last & IDENTITY ^ word) | (self.check.load(Ordering::Relaxed) ^ check);
            if differences != 0 || !is_its() {
                return None;
            }
            let [high, low] = self.address.each_ref().map(|half| u128::from(half.load(Ordering::Relaxed)));
            let address = high << 64 | low;
            Some(BindingEnd { address, port: (last >> PORT_SHIFT) as u16, source: source_of(last) })
        })?;
        Some(Binding { to, slot, meta })
    }

    /// The binding of the slot, whatever its key.
    pub(super) fn held(&self, addresses: &Addresses, now_ms: u32) -> Option<Held> {
        let (check, last) = (self.check.load(Ordering::Relaxed), self.last.load(Ordering::Relaxed));
        let is_v4 = Key::from_words([0, 0, 0, 0, last & KEY_BITS]).is_v4();
        let [first, second, third, fourth] = if is_v4 { [check, 0, 0, 0] } else { addresses.load() };
        let key = Key::from_words([first, second, third, fourth, last & KEY_BITS]);
        let binding = self.read_checked(0, check, last & IDENTITY)?;
        let kind = BindingKind::ALL.into_iter().find(|kind| *kind as u64 == last >> KIND_SHIFT & KIND)?;
        Some(Held {
            kind,
            key,
            from_low: last & FROM_LOW != 0,
            to: binding.to,
            idle_seconds: binding.idle_seconds(now_ms),
            owner: binding.meta >> OWNER_SHIFT,
        })
    }

    /// Writes a binding and its tag, unless another worker is writing there. Returns whether it has.
    pub(super) fn write(
        &self,
        addresses: &Addresses,
        Content { key, to }: &Content,
        now_ms: u32,
        revision: u16,
        owner: u64,
        tag: &AtomicU16,
    ) -> bool {
        self.meta.write(payload(now_ms, revision, owner), || {
            self.check.store(key.check(), Ordering::Relaxed);
            let last = key.word() | u64::from(to.port) << PORT_SHIFT | source_bits(to.source);
            self.last.store(last, Ordering::Relaxed);
            self.address[0].store((to.address >> 64) as u64, Ordering::Relaxed);
            self.address[1].store(to.address as u64, Ordering::Relaxed);
            if !key.key.is_v4() {
                let words = addresses.0.iter().zip(key.key.words());
                words.for_each(|(place, word)| place.store(word, Ordering::Relaxed));
            }
            self.cached_hop.clear();
            tag.store(key.tag(), Ordering::Relaxed);
        })
    }

    /// Removes the binding that was read here, and its tag. Returns false, and does nothing, if another worker is writing
    /// there, or has replaced the binding.
    pub(super) fn remove(&self, binding: &Binding, tag: &AtomicU16) -> bool {
        self.meta.write_over(binding.meta, 0, || {
            self.last.store(0, Ordering::Relaxed);
            self.cached_hop.clear();
            tag.store(0, Ordering::Relaxed);
        })
    }

    /// Notes that the binding that was read here is used, and checked against `revision`. Returns false, and does nothing, if
    /// another worker has replaced the binding.
    #[inline]
    pub(super) fn refresh(&self, version: u16, now_ms: u32, revision: u16) -> bool {
        self.meta.update(version.into(), |word| payload(now_ms, revision, word >> OWNER_SHIFT))
    }

    /// Empties a half-written slot, and ends hops of the process before, which had other numbers.
    pub(super) fn recover(&self) {
        if self.meta.word() & 1 != 0 {
            self.last.store(0, Ordering::Relaxed);
            self.meta.reset();
        }
        self.cached_hop.clear();
    }
}

impl BindingKey {
    /// Tag of a slot with this key. It is not zero.
    #[inline]
    pub(super) fn tag(&self) -> u16 {
        tag_of(self.check(), self.word())
    }
}

/// Bits of the last word that have a source port.
fn source_bits(source: SourceChoice) -> u64 {
    let bits = source.bits();
    (bits & 3) << SOURCE_SHIFT | (bits >> 2 & 1) << SOURCE_HIGH.trailing_zeros()
}

#[inline(always)]
fn source_of(last: u64) -> SourceChoice {
    SourceChoice::from_bits(last >> SOURCE_SHIFT & 3 | last >> SOURCE_HIGH.trailing_zeros() << 2)
}

#[inline]
fn tag_of(check: u64, word: u64) -> u16 {
    ((word ^ check).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16 | 1
}
