//! The compiled trie of one address family: longest match in few loads, however many prefixes.
//!
//! A root of 65,536 slots is indexed by the first two bytes of an address. A slot, there and below, is one word: the
//! value itself, or a node that looks at further bytes. What covers a slot is pushed down into it, so that nothing
//! has to be remembered on the way. Three kinds of nodes:
//!
//! - *dense*: 256 slots, indexed by the next byte. Two loads after the root decide an IPv4 address;
//! - *sparse*: skips bytes that all prefixes below have in common (and checks them), then takes one byte; slots that
//!   repeat their neighbour are stored once and found by counting bits. A million scattered IPv4 prefixes take 15 MiB;
//! - *leaf*: one prefix, compared whole. An IPv6 address does not walk 16 levels to reach it.
//!
//! Most IPv4 addresses need the root, then a leaf or a dense node, then perhaps a dense node below: a batch takes these three
//! steps without a branch, and each for all addresses before the next. What waits for a load is then that load alone, many at
//! a time; one address after the other, the processor's window would be full of the few chains of loads that fit into it.
//!
//! | node | words |
//! |---|---|
//! | dense | 256 slots |
//! | sparse | key (4), slot where the key differs, first unit of the slots, ranks (2), bitmap of 256 bits (8) |
//! | leaf | length, value, value where it differs, key (IPv4: 1, IPv6: 4) |

mod address;
mod build;

use std::hint::select_unpredictable;

use self::address::Address;
use super::arena::{Arena, Unit, first_word};
use super::prefix_set::{Entry, PrefixSet};
use crate::limits::BATCH_FRAMES_MAX;

pub(super) use self::address::{join, split};

/// Stands for "no prefix matches".
pub(super) const NO_MATCH: u32 = (1 << 30) - 1;

// In this order, so that one comparison tells dense nodes, and these and leaves, from all else.
const VALUE: u32 = 0;
const SPARSE: u32 = 1;
const LEAF: u32 = 2;
const DENSE: u32 = 3;

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
/// While a table has fewer dense nodes than this, every node is dense that can be and tells [`DENSE_WORTH`] things apart; and
/// of the first half every node that can be. So short tables, and networks full of pods in any, have the short way: one line
/// for each look-up where a sparse node is two, but 1 KiB of memory where a sparse node is some 100 bytes.
pub(super) const DENSE_NODES_MIN: usize = 4096;
const DENSE_WORTH: usize = 16;

/// A slot: a value, or the kind, the byte to look at, and the place of a node.
type Slot = u32;

fn node(kind: u32, depth: u32, unit: Unit) -> Slot {
    debug_assert!(unit <= UNIT_MASK && depth < 16);
    kind << KIND_SHIFT | depth << DEPTH_SHIFT | unit
}

#[inline]
fn kind(slot: Slot) -> u32 {
    slot >> KIND_SHIFT
}

#[inline]
fn depth(slot: Slot) -> u32 {
    slot >> DEPTH_SHIFT & 15
}

#[inline]
fn unit(slot: Slot) -> Unit {
    slot & UNIT_MASK
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
            trie.rebuild_root(0, 0);
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

    /// What this prefix leads to, or else the longest that covers it.
    pub(super) fn covering(&self, bits: u128, len: u8) -> Option<u32> {
        self.get(bits, len).or_else(|| self.prefixes.cover(bits, len))
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
        let mut slot = address.root(&self.arena);
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
        for (&address, found) in addresses.iter().zip(&mut *found) {
            *found = address.root(&self.arena);
        }
        for (&address, found) in addresses.iter().zip(&mut *found) {
            *found = address.step_2(&self.arena, *found);
        }
        let mut open = [0; BATCH_FRAMES_MAX];
        let mut count = 0;
        for (i, (&address, found)) in addresses.iter().zip(&mut *found).enumerate() {
            let slot = address.step_3(&self.arena, *found);
            *found = slot;
            open[count % BATCH_FRAMES_MAX] = i as u8;
            count += usize::from(kind(slot) != VALUE);
        }
        if count > 0 {
            self.find_remaining(addresses, found, &open[..count]);
        }
    }

    /// Takes the further steps of those addresses whose slot is not a value yet.
    #[inline(never)]
    fn find_remaining<A: Address>(&self, addresses: &[A], found: &mut [u32], open: &[u8]) {
        let mut lists = [[0; BATCH_FRAMES_MAX]; 3];
        let mut pending = PendingNodes::default();
        for &i in open {
            let slot = found[i as usize];
            pending.push(&mut lists, i, slot);
            self.prefetch(addresses[i as usize], slot);
        }
        while pending.dense + pending.sparse > 0 {
            // Lists are written no faster than they are read.
            for at in 0..std::mem::take(&mut pending.dense) {
                let i = lists[0][at % BATCH_FRAMES_MAX];
                let slot = self.dense(addresses[i as usize], found[i as usize]);
                found[i as usize] = slot;
                pending.push(&mut lists, i, slot);
            }
            for at in 0..std::mem::take(&mut pending.sparse) {
                let i = lists[1][at % BATCH_FRAMES_MAX];
                let slot = self.sparse(addresses[i as usize], found[i as usize]);
                found[i as usize] = slot;
                pending.push(&mut lists, i, slot);
                self.prefetch(addresses[i as usize], slot);
            }
        }
        for &i in &lists[2][..pending.leaf] {
            let i = i as usize;
            found[i] = addresses[i].leaf(&self.arena, unit(found[i]));
        }
    }

    /// Brings near what the next step of an address reads; of a value, something.
    #[inline]
    fn prefetch<A: Address>(&self, address: A, slot: Slot) {
        let offset = select_unpredictable(kind(slot) == DENSE, address.byte(depth(slot)), 0);
        let is_node = kind(slot) != VALUE;
        self.arena.prefetch(select_unpredictable(is_node, first_word(unit(slot)) + offset, 0));
    }

    #[inline]
    fn dense<A: Address>(&self, address: A, slot: Slot) -> Slot {
        self.arena.word(first_word(unit(slot)) + address.byte(depth(slot)))
    }

    #[inline]
    fn sparse<A: Address>(&self, address: A, slot: Slot) -> Slot {
        let &[a, b, c, d, miss, base, ranks_low, ranks_high, ref bitmap @ ..] =
            self.arena.block::<SPARSE_WORDS>(unit(slot));
        let byte = address.byte(depth(slot));
        let ranks = u64::from(ranks_high) << 32 | u64::from(ranks_low);
        let before = (ranks >> (byte / 32 * 8)) as usize & 0xff;
        // Bits up to and with this one; the first bit of the map is always set.
        let here = bitmap[(byte / 32) & 7] & (u32::MAX >> (31 - byte % 32));
        let found = self.arena.word(first_word(base) + before + here.count_ones() as usize - 1);
        if address.has_prefix([a, b, c, d], 8 * depth(slot)) { found } else { miss }
    }
}

/// How many addresses of a batch wait at each kind of node. Which ones stands in a list for each kind.
#[derive(Default)]
struct PendingNodes {
    dense: usize,
    sparse: usize,
    leaf: usize,
}

impl PendingNodes {
    /// Enters an address where its slot leads. Written to every list and counted in one: there is no branch to
    /// mispredict where kinds are mixed.
    #[inline]
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
