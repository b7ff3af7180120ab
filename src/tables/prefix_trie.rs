//! The compiled trie of one address family: longest match in few loads, however many prefixes.
//!
//! A root of 65,536 slots is indexed by the first two bytes of an address. A slot, there and below, is one word: the
//! value itself, or a node that looks at further bytes. What covers a slot is pushed down into it, so that nothing
//! has to be remembered on the way. Three kinds of nodes:
//!
//! - *dense*: 256 slots, indexed by the next byte. Two loads after the root decide any IPv4 address;
//! - *sparse*: skips bytes that all prefixes below have in common (and checks them), then takes one byte; slots that
//!   repeat their neighbour are stored once and found by counting bits. A million scattered prefixes fit the cache;
//! - *leaf*: one prefix, compared whole. An IPv6 address does not walk 16 levels to reach it.
//!
//! | node | words |
//! |---|---|
//! | dense | 256 slots |
//! | sparse | key (4), slot where the key differs, first unit of the slots, ranks (2), bitmap of 256 bits (8) |
//! | leaf | length, value, value where it differs, key (IPv4: 1, IPv6: 4) |

use std::hint::select_unpredictable;

use super::arena::{Arena, Unit, first_word};
use super::prefix_set::{Entry, PrefixSet, mask};
use crate::limits::BATCH_FRAMES_MAX;

/// Stands for "no prefix matches".
pub(super) const NO_MATCH: u32 = (1 << 30) - 1;

const VALUE: u32 = 0;
const DENSE: u32 = 1;
const SPARSE: u32 = 2;
const LEAF: u32 = 3;

const KIND_SHIFT: u32 = 30;
const DEPTH_SHIFT: u32 = 26;
const UNIT_MASK: u32 = (1 << DEPTH_SHIFT) - 1;

/// Bits of an address that the root takes.
const ROOT_BITS: u8 = 16;
const ROOT_SLOTS: usize = 1 << ROOT_BITS;
const NODE_SLOTS: usize = 256;
const SPARSE_WORDS: usize = 16;
/// A node with more distinct neighbours than this is dense: it would be nearly as large as a sparse one.
const SPARSE_RUNS_MAX: usize = 64;
/// While a table has fewer dense nodes than this, every node that can be is dense: short tables have the short way.
/// 256 KiB of them stay in a second-level cache.
pub(super) const DENSE_NODES_MIN: usize = 256;

/// A slot: a value, or the kind, the byte to look at, and the place of a node.
type Slot = u32;

fn node(kind: u32, depth: u32, unit: Unit) -> Slot {
    debug_assert!(unit <= UNIT_MASK && depth < 16);
    kind << KIND_SHIFT | depth << DEPTH_SHIFT | unit
}

#[inline(always)]
fn kind(slot: Slot) -> u32 {
    slot >> KIND_SHIFT
}

#[inline(always)]
fn depth(slot: Slot) -> u32 {
    slot >> DEPTH_SHIFT & 15
}

#[inline(always)]
fn unit(slot: Slot) -> Unit {
    slot & UNIT_MASK
}

/// An address as the trie reads it: host byte order, first byte on top.
pub(super) trait Address: Copy {
    /// Dense nodes that a look-up passes in its first step, without asking whether it has to.
    const DENSE_STEPS: u32;
    /// Its first two bytes.
    fn root(self) -> usize;
    /// Its byte number `depth`.
    fn byte(self, depth: u32) -> usize;
    /// Whether its first `len` bits are those of a sparse node's key.
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool;
    /// The slot that a leaf gives it.
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot;
}

impl Address for u32 {
    const DENSE_STEPS: u32 = 2;

    #[inline(always)]
    fn root(self) -> usize {
        (self >> 16) as usize
    }

    #[inline(always)]
    fn byte(self, depth: u32) -> usize {
        (self >> (24_u32.wrapping_sub(8 * depth) & 31)) as usize & 0xff
    }

    #[inline(always)]
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool {
        (self ^ key[3]) >> (32 - len & 31) == 0
    }

    #[inline(always)]
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot {
        let &[len, value, miss, key] = arena.block(unit);
        if self.has_prefix([0, 0, 0, key], len) { value } else { miss }
    }
}

impl Address for u128 {
    const DENSE_STEPS: u32 = 0;

    #[inline(always)]
    fn root(self) -> usize {
        (self >> 112) as usize
    }

    #[inline(always)]
    fn byte(self, depth: u32) -> usize {
        let half = if depth < 8 { (self >> 64) as u64 } else { self as u64 };
        (half >> (56 - 8 * (depth & 7))) as usize & 0xff
    }

    #[inline(always)]
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool {
        (self ^ join(key)) >> (128 - len & 127) == 0
    }

    #[inline(always)]
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot {
        let &[len, value, miss, a, b, c, d, _] = arena.block(unit);
        if self.has_prefix([a, b, c, d], len) { value } else { miss }
    }
}

/// The inverse of [`split`].
#[inline(always)]
pub(super) fn join([a, b, c, d]: [u32; 4]) -> u128 {
    u128::from(u64::from(d) << 32 | u64::from(c)) << 64 | u128::from(u64::from(b) << 32 | u64::from(a))
}

/// Lowest word first: two of them are one load where the processor is little-endian.
pub(super) fn split(bits: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (bits >> shift) as u32)
}

/// The compiled trie, and the prefixes that it was compiled from. A clone is cheap and shares all pages.
#[derive(Clone)]
pub(super) struct PrefixTrie {
    arena: Arena,
    prefixes: PrefixSet,
    /// Words of a leaf: the key is as long as an address.
    leaf_words: usize,
    dense_nodes: usize,
    dense_nodes_min: usize,
    default: u32,
}

impl PrefixTrie {
    /// The trie of `prefixes`, for addresses of `address_bits`; `default` is what matches no prefix.
    ///
    /// Nodes are dense where they can be while there are fewer than `dense_nodes_min` ([`DENSE_NODES_MIN`]).
    pub(super) fn new(
        address_bits: u32,
        prefixes: PrefixSet,
        default: u32,
        dense_nodes_min: usize,
    ) -> PrefixTrie {
        let mut arena = Arena::default();
        arena.reserve_pages(ROOT_SLOTS, default);
        let leaf_words = 3 + address_bits as usize / 32;
        let mut trie = PrefixTrie { arena, prefixes, leaf_words, dense_nodes: 0, dense_nodes_min, default };
        if trie.prefixes.len() > 0 {
            trie.repaint_root(0, 0);
        }
        trie
    }

    /// Number of prefixes.
    pub(super) fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Bytes of the compiled form.
    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// What exactly this prefix leads to.
    pub(super) fn get(&self, bits: u128, len: u8) -> Option<u32> {
        self.prefixes.get(bits, len)
    }

    /// Adds or replaces a prefix; gives what it led to before.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<u32> {
        let before = self.prefixes.insert(entry);
        if before != Some(entry.value) {
            self.refresh(entry.bits, entry.len);
        }
        before
    }

    /// Removes a prefix; gives what it led to.
    pub(super) fn remove(&mut self, bits: u128, len: u8) -> Option<u32> {
        let before = self.prefixes.remove(bits, len)?;
        self.refresh(bits, len);
        Some(before)
    }
}

/// Look-up.
impl PrefixTrie {
    /// What the longest prefix that covers `address` leads to, or the default.
    #[inline]
    pub(super) fn find<A: Address>(&self, address: A) -> u32 {
        let mut slot = self.arena.word(address.root());
        loop {
            slot = match kind(slot) {
                VALUE => return slot,
                DENSE => self.dense(address, slot),
                SPARSE => self.sparse(address, slot),
                _ => address.leaf(&self.arena, unit(slot)),
            };
        }
    }

    /// [`PrefixTrie::find`] of each address: all take one step before any takes the next, so that loads overlap.
    pub(super) fn find_batch<A: Address>(&self, addresses: &[A], found: &mut [u32]) {
        assert_eq!(addresses.len(), found.len(), "one result for each address");
        let chunks = addresses.chunks(BATCH_FRAMES_MAX).zip(found.chunks_mut(BATCH_FRAMES_MAX));
        chunks.for_each(|(addresses, found)| self.find_chunk(addresses, found));
    }

    fn find_chunk<A: Address>(&self, addresses: &[A], found: &mut [u32]) {
        let mut open = [0; BATCH_FRAMES_MAX];
        let mut count = 0;
        for (i, (&address, found)) in addresses.iter().zip(&mut *found).enumerate() {
            let mut slot = self.arena.word(address.root());
            for step in 0..A::DENSE_STEPS {
                slot = self.dense_if(address, slot, u32::from(ROOT_BITS) / 8 + step);
            }
            *found = slot;
            open[count % BATCH_FRAMES_MAX] = i as u8;
            count += usize::from(kind(slot) != VALUE);
        }
        if count > 0 {
            self.find_rest(addresses, found, &open[..count]);
        }
    }

    /// Takes the further steps of those addresses whose slot is not a value yet.
    #[inline(never)]
    fn find_rest<A: Address>(&self, addresses: &[A], found: &mut [u32], open: &[u8]) {
        let mut lists = [[0; BATCH_FRAMES_MAX]; 3];
        let mut waiting = Waiting::default();
        for &i in open {
            waiting.push(&mut lists, i, found[i as usize]);
            self.prefetch(addresses[i as usize], found[i as usize]);
        }
        while waiting.dense + waiting.sparse > 0 {
            // Lists are written no faster than they are read.
            for at in 0..std::mem::take(&mut waiting.dense) {
                let i = lists[0][at % BATCH_FRAMES_MAX];
                let slot = self.dense(addresses[i as usize], found[i as usize]);
                found[i as usize] = slot;
                waiting.push(&mut lists, i, slot);
            }
            for at in 0..std::mem::take(&mut waiting.sparse) {
                let i = lists[1][at % BATCH_FRAMES_MAX];
                let slot = self.sparse(addresses[i as usize], found[i as usize]);
                found[i as usize] = slot;
                waiting.push(&mut lists, i, slot);
                self.prefetch(addresses[i as usize], slot);
            }
        }
        for &i in &lists[2][..waiting.leaf] {
            let i = i as usize;
            found[i] = addresses[i].leaf(&self.arena, unit(found[i]));
        }
    }

    /// [`PrefixTrie::dense`] at a depth that is known, or the slot itself where it leads to no dense node; without a
    /// branch.
    #[inline(always)]
    fn dense_if<A: Address>(&self, address: A, slot: Slot, depth: u32) -> Slot {
        let leads = kind(slot) == DENSE;
        let word = first_word(unit(slot)) + address.byte(depth);
        let next = self.arena.word(select_unpredictable(leads, word, 0));
        select_unpredictable(leads, next, slot)
    }

    /// Brings near what the next step of an address reads; of a value, something.
    #[inline(always)]
    fn prefetch<A: Address>(&self, address: A, slot: Slot) {
        let offset = select_unpredictable(kind(slot) == DENSE, address.byte(depth(slot)), 0);
        let is_node = kind(slot) != VALUE;
        self.arena.prefetch(select_unpredictable(is_node, first_word(unit(slot)) + offset, 0));
    }

    #[inline(always)]
    fn dense<A: Address>(&self, address: A, slot: Slot) -> Slot {
        self.arena.word(first_word(unit(slot)) + address.byte(depth(slot)))
    }

    #[inline(always)]
    fn sparse<A: Address>(&self, address: A, slot: Slot) -> Slot {
        let &[a, b, c, d, miss, base, ranks_low, ranks_high, ref bitmap @ ..] =
            self.arena.block::<SPARSE_WORDS>(unit(slot));
        let byte = address.byte(depth(slot));
        let ranks = u64::from(ranks_high) << 32 | u64::from(ranks_low);
        let before = (ranks >> (byte / 32 * 8)) as usize & 0xff;
        // Bits up to and with this one; the first bit of the map is always set.
        let here = bitmap[byte / 32 & 7] & (u32::MAX >> (31 - byte % 32));
        let found = self.arena.word(first_word(base) + before + here.count_ones() as usize - 1);
        if address.has_prefix([a, b, c, d], 8 * depth(slot)) { found } else { miss }
    }
}

/// How many addresses of a batch wait at each kind of node. Which ones stands in a list for each kind.
#[derive(Default)]
struct Waiting {
    dense: usize,
    sparse: usize,
    leaf: usize,
}

impl Waiting {
    /// Enters an address where its slot leads. Written to every list and counted in one: there is no branch to
    /// mispredict where kinds are mixed.
    #[inline(always)]
    fn push(&mut self, lists: &mut [[u8; BATCH_FRAMES_MAX]; 3], i: u8, slot: Slot) {
        lists[0][self.dense % BATCH_FRAMES_MAX] = i;
        lists[1][self.sparse % BATCH_FRAMES_MAX] = i;
        lists[2][self.leaf % BATCH_FRAMES_MAX] = i;
        self.dense += usize::from(kind(slot) == DENSE);
        self.sparse += usize::from(kind(slot) == SPARSE);
        self.leaf += usize::from(kind(slot) == LEAF);
    }
}

const _: () = assert!(BATCH_FRAMES_MAX <= 1 << u8::BITS, "a place in a batch is one byte");

/// Building, whole and in part.
impl PrefixTrie {
    /// Builds what lies inside `bits/len` anew, from the prefixes as they are.
    fn refresh(&mut self, bits: u128, len: u8) {
        if len <= ROOT_BITS {
            return self.repaint_root(bits, len);
        }
        let at = (bits >> (128 - ROOT_BITS)) as usize;
        let before = self.arena.word(at);
        let after = self.refresh_slot(before, u32::from(ROOT_BITS) / 8, bits, len);
        if after != before {
            self.arena.set(at, after);
        }
    }

    /// Builds the root's slots inside `bits/len` anew.
    fn repaint_root(&mut self, bits: u128, len: u8) {
        let first = (bits >> (128 - ROOT_BITS)) as usize;
        let count = 1 << (ROOT_BITS - len);
        let mut slots: Vec<Slot> = (first..first + count).map(|at| self.arena.word(at)).collect();
        let before = slots.clone();
        self.repaint(&mut slots, ROOT_BITS, bits, len);
        for (at, (after, before)) in (first..).zip(slots.into_iter().zip(before)) {
            if after != before {
                self.arena.set(at, after);
            }
        }
    }

    /// The slot for the first `depth` bytes of `bits`, with what lies inside `bits/len` (longer than that) built anew.
    fn refresh_slot(&mut self, slot: Slot, at_depth: u32, bits: u128, len: u8) -> Slot {
        let node_depth = depth(slot);
        let inside = u32::from(len) > 8 * node_depth;
        match kind(slot) {
            DENSE => {
                let start = first_word(unit(slot));
                let mut slots: [Slot; NODE_SLOTS] = *self.arena.block(unit(slot));
                let before = slots;
                self.refresh_slots(&mut slots, node_depth, bits, len);
                if kind(slots[0]) == VALUE && slots.iter().all(|&other| other == slots[0]) {
                    self.arena.free(unit(slot), NODE_SLOTS);
                    self.dense_nodes -= 1;
                    return slots[0];
                }
                for i in (0..NODE_SLOTS).filter(|&i| slots[i] != before[i]) {
                    self.arena.set(start + i, slots[i]);
                }
                slot
            }
            SPARSE if inside && self.sparse_key(slot) == bits & mask(8 * node_depth as u8) => {
                let (mut slots, miss) = self.expand(slot);
                self.refresh_slots(&mut slots, node_depth, bits, len);
                self.free_sparse(slot);
                self.encode(&slots, node_depth, at_depth, bits, miss)
            }
            _ => {
                self.free_subtree(slot);
                let slot_len = 8 * at_depth as u8;
                let bits = bits & mask(slot_len);
                let mut entries = self.prefixes.within(bits, slot_len);
                entries.retain(|entry| entry.len > slot_len);
                let inherited = self.prefixes.cover(bits, slot_len + 1).unwrap_or(self.default);
                self.build(&entries, at_depth, inherited)
            }
        }
    }

    /// Builds what lies inside `bits/len` anew, in the slots of a node that takes byte `depth`.
    fn refresh_slots(&mut self, slots: &mut [Slot; NODE_SLOTS], depth: u32, bits: u128, len: u8) {
        let slot_len = 8 * (depth as u8 + 1);
        let at = (bits >> (128 - u32::from(slot_len))) as usize % NODE_SLOTS;
        if len <= slot_len {
            self.repaint(&mut slots[at..at + (1 << (slot_len - len))], slot_len, bits, len);
        } else {
            slots[at] = self.refresh_slot(slots[at], depth + 1, bits, len);
        }
    }

    /// Builds the slots that are all of `bits/len` anew. Each slot is for `slot_len` bits.
    fn repaint(&mut self, slots: &mut [Slot], slot_len: u8, bits: u128, len: u8) {
        slots.iter().for_each(|&slot| self.free_subtree(slot));
        let entries = self.prefixes.within(bits, len);
        slots.fill(self.prefixes.cover(bits, len).unwrap_or(self.default));
        self.paint(slots, slot_len, bits, &entries);
    }

    /// Lays sorted prefixes over slots that hold what covers them; the first slot is that of `bits`.
    fn paint(&mut self, slots: &mut [Slot], slot_len: u8, bits: u128, entries: &[Entry]) {
        let shift = 128 - u32::from(slot_len);
        let mut rest = entries;
        while let Some(&first) = rest.first() {
            let at = ((first.bits >> shift) - (bits >> shift)) as usize;
            if first.len <= slot_len {
                slots[at..at + (1 << (slot_len - first.len))].fill(first.value);
                rest = &rest[1..];
            } else {
                let same = rest.iter().take_while(|entry| entry.bits >> shift == first.bits >> shift).count();
                let (inside, after) = rest.split_at(same);
                slots[at] = self.build(inside, u32::from(slot_len) / 8, slots[at]);
                rest = after;
            }
        }
    }

    /// The slot for prefixes that have their first `depth` bytes in common and are longer.
    fn build(&mut self, entries: &[Entry], at_depth: u32, inherited: u32) -> Slot {
        let short_way = self.is_ipv4() && self.dense_nodes < self.dense_nodes_min;
        let (first, last) = match entries {
            [] => return inherited,
            [only] if !short_way => return self.leaf(only, at_depth, inherited),
            [first, ..] => (first, &entries[entries.len() - 1]),
        };
        // A prefix that covers all the others stands first: the node must not skip past its end.
        let common = (first.bits ^ last.bits).leading_zeros().min(u32::from(first.len) - 1) / 8;
        let node_depth = if short_way { at_depth } else { common };
        let mut slots = [inherited; NODE_SLOTS];
        let start = first.bits & mask(8 * node_depth as u8);
        self.paint(&mut slots, 8 * (node_depth as u8 + 1), start, entries);
        self.encode(&slots, node_depth, at_depth, first.bits, inherited)
    }

    fn leaf(&mut self, only: &Entry, at_depth: u32, inherited: u32) -> Slot {
        let mut words = vec![u32::from(only.len), only.value, inherited];
        words.extend(&split(only.bits)[7 - self.leaf_words..]);
        let unit = self.arena.put(&words);
        node(LEAF, at_depth, unit)
    }

    /// The slot of a node with these slots, which takes byte `depth` of addresses that begin like `bits`.
    fn encode(&mut self, slots: &[Slot; 256], depth: u32, at_depth: u32, bits: u128, miss: u32) -> Slot {
        let runs: Vec<Slot> = slots.chunk_by(|a, b| a == b).map(|run| run[0]).collect();
        let skips = depth > at_depth;
        if let &[value] = &runs[..]
            && kind(value) == VALUE
            && (!skips || value == miss)
        {
            return value;
        }
        if !skips && (self.dense_nodes < self.dense_nodes_min || runs.len() > SPARSE_RUNS_MAX) {
            self.dense_nodes += 1;
            return node(DENSE, depth, self.arena.put(slots));
        }
        let mut words = [0; SPARSE_WORDS];
        words[..4].copy_from_slice(&split(bits & mask(8 * depth as u8)));
        words[4] = miss;
        words[5] = self.arena.put(&runs);
        let mut count = 0;
        for i in 0..NODE_SLOTS {
            if i % 32 == 0 {
                words[6 + i / 128] |= count << (i / 32 % 4 * 8);
            }
            if i == 0 || slots[i] != slots[i - 1] {
                words[8 + i / 32] |= 1 << (i % 32);
                count += 1;
            }
        }
        node(SPARSE, depth, self.arena.put(&words))
    }

    fn is_ipv4(&self) -> bool {
        self.leaf_words == 4
    }

    fn sparse_key(&self, slot: Slot) -> u128 {
        join(*self.arena.block(unit(slot)))
    }

    /// The slots of a sparse node, and the slot where its key differs.
    fn expand(&self, slot: Slot) -> ([Slot; NODE_SLOTS], Slot) {
        let words: &[u32; SPARSE_WORDS] = self.arena.block(unit(slot));
        let mut next = first_word(words[5]);
        let mut current = 0;
        let slots = std::array::from_fn(|i| {
            if words[8 + i / 32] >> (i % 32) & 1 == 1 {
                current = self.arena.word(next);
                next += 1;
            }
            current
        });
        (slots, words[4])
    }

    /// Gives back a sparse node, not what is below; gives its distinct slots.
    fn free_sparse(&mut self, slot: Slot) -> Vec<Slot> {
        let words: [u32; SPARSE_WORDS] = *self.arena.block(unit(slot));
        let count = words[8..].iter().map(|bits| bits.count_ones() as usize).sum();
        let first = first_word(words[5]);
        let slots = (first..first + count).map(|word| self.arena.word(word)).collect();
        self.arena.free(words[5], count);
        self.arena.free(unit(slot), SPARSE_WORDS);
        slots
    }

    fn free_subtree(&mut self, slot: Slot) {
        match kind(slot) {
            DENSE => {
                let slots: [Slot; NODE_SLOTS] = *self.arena.block(unit(slot));
                slots.iter().for_each(|&below| self.free_subtree(below));
                self.arena.free(unit(slot), NODE_SLOTS);
                self.dense_nodes -= 1;
            }
            SPARSE => self.free_sparse(slot).into_iter().for_each(|below| self.free_subtree(below)),
            LEAF => self.arena.free(unit(slot), self.leaf_words),
            _ => {}
        }
    }
}
