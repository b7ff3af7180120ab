//! Construction and updates of the trie. A change rebuilds the changed prefix only, from the sorted prefixes.

use super::address::{join, split};
use super::slot::{
    DENSE, DENSE_WORTH, LEAF, NODE_SLOTS, ROOT_BITS, ROOT_SLOTS, SPARSE, SPARSE_RUNS_MAX, SPARSE_WORDS, Slot,
    VALUE, depth, kind, node, unit,
};
use super::trie::PrefixTrie;
use crate::tables::arena::{Arena, first_word};
use crate::tables::prefix_set::{Entry, PrefixSet, mask};

impl PrefixTrie {
    /// Trie of `prefixes`, for addresses of `address_bits`; `default` is the value without a match.
    ///
    /// Nodes are dense if possible while there are fewer than `dense_nodes_min` ([`DENSE_NODES_MIN`]).
    pub(in crate::tables) fn new(
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
            trie.rebuild_root(0, 0);
        }
        trie
    }

    /// Adds or replaces a prefix. Returns the previous value.
    pub(in crate::tables) fn insert(&mut self, entry: Entry) -> Option<u32> {
        let before = self.prefixes.insert(entry);
        if before != Some(entry.value) {
            self.refresh(entry.bits, entry.len);
        }
        before
    }

    /// Removes a prefix. Returns its value.
    pub(in crate::tables) fn remove(&mut self, bits: u128, len: u8) -> Option<u32> {
        let before = self.prefixes.remove(bits, len)?;
        self.refresh(bits, len);
        Some(before)
    }

    /// Rebuilds the range of `bits/len`.
    fn refresh(&mut self, bits: u128, len: u8) {
        if len <= ROOT_BITS {
            return self.rebuild_root(bits, len);
        }
        let at = (bits >> (128 - ROOT_BITS)) as usize;
        let before = self.arena.word(at);
        let after = self.refresh_slot(before, u32::from(ROOT_BITS) / 8, bits, len);
        if after != before {
            self.arena.set(at, after);
        }
    }

    /// Rebuilds the slots of the root within `bits/len`.
    fn rebuild_root(&mut self, bits: u128, len: u8) {
        let first = (bits >> (128 - ROOT_BITS)) as usize;
        let mut slots = self.arena.words_at(first, 1 << (ROOT_BITS - len));
        self.rebuild(&mut slots, ROOT_BITS, bits, len);
        self.arena.change(first, &slots);
    }

    /// Rebuilds `bits/len`, which is longer than `depth` bytes, within the slot for the first `depth` bytes
    /// of `bits`.
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

    /// Rebuilds `bits/len` within the slots of a node for byte `depth`.
    fn refresh_slots(&mut self, slots: &mut [Slot; NODE_SLOTS], depth: u32, bits: u128, len: u8) {
        let slot_len = 8 * (depth as u8 + 1);
        let at = (bits >> (128 - u32::from(slot_len))) as usize % NODE_SLOTS;
        if len <= slot_len {
            self.rebuild(&mut slots[at..at + (1 << (slot_len - len))], slot_len, bits, len);
        } else {
            slots[at] = self.refresh_slot(slots[at], depth + 1, bits, len);
        }
    }

    /// Rebuilds the slots of `bits/len`. Each slot covers `slot_len` bits.
    fn rebuild(&mut self, slots: &mut [Slot], slot_len: u8, bits: u128, len: u8) {
        for &slot in slots.iter().filter(|&&slot| kind(slot) != VALUE) {
            self.free_subtree(slot);
        }
        let entries = self.prefixes.within(bits, len);
        slots.fill(self.prefixes.cover(bits, len).unwrap_or(self.default));
        self.fill_slots(slots, slot_len, bits, &entries);
    }

    /// Writes sorted prefixes over slots that contain the value of their parent. The first slot is that of
    /// `bits`.
    fn fill_slots(&mut self, slots: &mut [Slot], slot_len: u8, bits: u128, entries: &[Entry]) {
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

    /// Builds the slot of prefixes with equal first `depth` bytes.
    fn build(&mut self, entries: &[Entry], at_depth: u32, inherited: u32) -> Slot {
        let prefers_dense = self.is_ipv4() && self.is_dense_worth(entries.len());
        // Directly below the root a leaf takes as few loads as a dense node.
        let step_2 = at_depth == u32::from(ROOT_BITS) / 8;
        let (first, last) = match entries {
            [] => return inherited,
            [only] if !prefers_dense || step_2 => return self.leaf(only, at_depth, inherited),
            [first, ..] => (first, &entries[entries.len() - 1]),
        };
        // A prefix that contains all others comes first: the node must not skip past its end.
        let common = (first.bits ^ last.bits).leading_zeros().min(u32::from(first.len) - 1) / 8;
        let node_depth = if prefers_dense { at_depth } else { common };
        let mut slots = [inherited; NODE_SLOTS];
        let start = first.bits & mask(8 * node_depth as u8);
        self.fill_slots(&mut slots, 8 * (node_depth as u8 + 1), start, entries);
        self.encode(&slots, node_depth, at_depth, first.bits, inherited)
    }

    fn leaf(&mut self, only: &Entry, at_depth: u32, inherited: u32) -> Slot {
        let mut words = vec![u32::from(only.len), only.value, inherited];
        words.extend(&split(only.bits)[7 - self.leaf_words..]);
        let unit = self.arena.put(&words);
        node(LEAF, at_depth, unit)
    }

    /// Builds the node with these slots for byte `depth` of addresses that start like `bits`.
    fn encode(&mut self, slots: &[Slot; 256], depth: u32, at_depth: u32, bits: u128, miss: u32) -> Slot {
        let runs: Vec<Slot> = slots.chunk_by(|a, b| a == b).map(|run| run[0]).collect();
        let skips = depth > at_depth;
        if let &[value] = &runs[..]
            && kind(value) == VALUE
            && (!skips || value == miss)
        {
            return value;
        }
        if !skips && (self.is_dense_worth(runs.len()) || runs.len() > SPARSE_RUNS_MAX) {
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

    /// Tests whether a node with `count` distinct entries is dense although a sparse one would be smaller.
    fn is_dense_worth(&self, count: usize) -> bool {
        let few = if count < DENSE_WORTH { self.dense_nodes_min.div_ceil(2) } else { self.dense_nodes_min };
        self.dense_nodes < few
    }

    fn is_ipv4(&self) -> bool {
        self.leaf_words == 4
    }

    fn sparse_key(&self, slot: Slot) -> u128 {
        join(*self.arena.block(unit(slot)))
    }

    /// Slots of a sparse node, and its slot for other keys.
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

    /// Frees a sparse node without its children. Returns its distinct slots.
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
                for &below in &slots {
                    self.free_subtree(below);
                }
                self.arena.free(unit(slot), NODE_SLOTS);
                self.dense_nodes -= 1;
            }
            SPARSE => self.free_sparse(slot).into_iter().for_each(|below| self.free_subtree(below)),
            LEAF => self.arena.free(unit(slot), self.leaf_words),
            _ => {}
        }
    }
}
