//! Compiled rows: a decision by protocol and port in few loads, whatever the number of spans. ACL tables
//! contain the decisions of short rows ([`RowStore::form`]); the other rows are looked up here.
//!
//! Protocol and port form one number, the service: the ports of TCP, then UDP, then SCTP, then one number for
//! everything else. A row divides the services into intervals. It is stored as a tree of blocks, each one
//! cache line: the last services of up to eight intervals, then a slot for each, which is a decision or an
//! inner block. The slot is found without a branch, by counting the intervals that end before the service.
//! The id of a row gives the position of its first block. Eight intervals take one block, 64 two levels, 512
//! three, 4,096 four.

use super::arena::{Arena, PAGE_WORDS};
use super::document::{Decision, PortSpan, Row};
use crate::ids::RowId;
use crate::limits::{ROWS_MAX, RULES_MAX};
use crate::mem::count_below;
use crate::net::flow::Protocol;

/// Decision; or an inner block, marked with [`BLOCK`]; or, in an ACL table, a row, marked with [`ROW`].
pub(super) type Slot = u32;

const MARK: Slot = 1 << 30;
/// Mark of an inner block. As a decision it would deny.
const BLOCK: Slot = DENY_ALL | MARK;
/// Mark of a row in an ACL table.
pub(super) const ROW: Slot = BLOCK;
const UNIT_MASK: u32 = (1 << 26) - 1;

const _: () = assert!(RULES_MAX <= MARK as usize, "a decision leaves the mark alone");
const _: () = assert!(ROWS_MAX < MARK as usize, "and so does the id of a row");

const BLOCK_WORDS: usize = 16;

/// Last services of the intervals, then their slots.
type Block = [u32; BLOCK_WORDS];

const INTERVALS: usize = 8;

const _: () = assert!(2 * INTERVALS == BLOCK_WORDS);

/// Decision of an absent row: deny. Checked tables contain no such row; the default is closed nevertheless.
pub(super) const DENY_ALL: Slot = 1 << 31;

/// Number of ports of a protocol.
const PORTS: u32 = 1 << 16;
/// Service of every protocol without ports.
const OTHER: u32 = 3 * PORTS;

/// End of the last interval.
const LAST: u32 = u32::MAX >> 1;

/// First service of each protocol.
static FIRST_SERVICE: [u32; 256] = {
    let mut first = [OTHER; 256];
    first[Protocol::TCP.0 as usize] = 0;
    first[Protocol::UDP.0 as usize] = PORTS;
    first[Protocol::SCTP.0 as usize] = 2 * PORTS;
    first
};

/// Protocol and destination port of a flow as one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service(u32);

impl Service {
    /// Service of protocols without ports.
    pub const OTHER: Service = Service(OTHER);

    /// Service of a flow; `dst_port` is zero if its protocol has no ports.
    #[inline]
    pub fn new(protocol: Protocol, dst_port: u16) -> Service {
        // All services from `OTHER` on are equivalent.
        Service(FIRST_SERVICE[protocol.0 as usize] + u32::from(dst_port))
    }

    /// Number of the service. Services of a protocol are consecutive, in the order of their ports.
    #[inline(always)]
    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// Form of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowForm {
    /// Row with one decision for everything.
    Uniform(Decision),
    /// Row with one decision for services from `first` to `first + last_offset`, and `other` for all else.
    Span { first: u32, last_offset: u32, decision: Decision, other: Decision },
    /// Any other row.
    Long,
}

/// Last service of an interval, and its decision.
type Interval = (u32, Decision);

/// All rows, by id. A clone is cheap and shares unchanged pages.
#[derive(Clone, Default)]
pub(super) struct RowStore {
    /// First blocks, by id.
    first: Arena,
    inner_blocks: Arena,
}

/// Lookup.
impl RowStore {
    /// Decision for a service, from the slot of an ACL table.
    #[inline]
    pub(super) fn decide(&self, mut slot: Slot, service: Service) -> Decision {
        if is_block(slot) {
            slot = self.slot_of_row(slot, service);
        }
        while is_block(slot) {
            slot = self.next_slot(slot, service);
        }
        Decision::from_bits(slot)
    }

    /// Slot in the first block of a row marked with [`ROW`].
    #[inline(always)]
    pub(super) fn slot_of_row(&self, row: Slot, service: Service) -> Slot {
        slot_in(self.first_block(RowId(row - ROW)), service)
    }

    /// First block of a row.
    #[inline(always)]
    fn first_block(&self, id: RowId) -> &Block {
        self.first.block_at(first_word_of(id))
    }

    /// Slot in an inner block.
    #[inline]
    pub(super) fn next_slot(&self, slot: Slot, service: Service) -> Slot {
        slot_in(self.inner_blocks.block(slot & UNIT_MASK), service)
    }
}

/// Slot of a service in a block: its index is the number of intervals that end before it.
#[inline(always)]
fn slot_in(block: &Block, service: Service) -> Slot {
    let (lasts, slots) = block.split_first_chunk().expect("a block is longer than its first half");
    slots[count_below(lasts, service.0) % INTERVALS]
}

/// Tests whether a slot is a block or a row rather than a decision.
#[inline]
pub(super) fn is_block(slot: Slot) -> bool {
    slot & MARK != 0
}

#[inline]
fn first_word_of(id: RowId) -> usize {
    id.index() * BLOCK_WORDS
}

/// Updates.
impl RowStore {
    /// Tests whether row `id` exists.
    pub(super) fn is_set(&self, id: RowId) -> bool {
        let block: Option<&Block> = self.first.find_block(first_word_of(id));
        block.is_some_and(|block| *block != [DENY_ALL; BLOCK_WORDS])
    }

    /// Form of an existing row.
    pub(super) fn form(&self, id: RowId) -> RowForm {
        let (lasts, slots) = self.first_block(id).split_at(INTERVALS);
        let decide = |i: usize| Decision::from_bits(slots[i]);
        let span = |first: u32, i: usize, other: usize| RowForm::Span {
            first,
            last_offset: lasts[i] - first,
            decision: decide(i),
            other: decide(other),
        };
        match lasts.iter().position(|&last| last == LAST) {
            _ if slots.iter().any(|&slot| is_block(slot)) => RowForm::Long,
            Some(0) => RowForm::Uniform(decide(0)),
            // The second of two intervals contains all services without ports.
            Some(1) => span(0, 0, 1),
            Some(2) if slots[0] == slots[2] => span(lasts[0] + 1, 1, 0),
            _ => RowForm::Long,
        }
    }

    /// Sets or removes a row.
    pub(super) fn set(&mut self, id: RowId, row: Option<&Row>) {
        let at = first_word_of(id);
        while self.first.words() < at + BLOCK_WORDS {
            self.first.reserve_pages(PAGE_WORDS, DENY_ALL);
        }
        self.free_below(*self.first.block_at(at));
        let block = row.map_or([DENY_ALL; BLOCK_WORDS], |row| self.block(&intervals(row)));
        self.first.write(at, &block);
    }

    /// Builds the tree over intervals and returns its first block.
    fn block(&mut self, intervals: &[Interval]) -> [u32; BLOCK_WORDS] {
        let mut share = 1;
        while share * INTERVALS < intervals.len() {
            share *= INTERVALS;
        }
        let mut block = [OTHER; BLOCK_WORDS];
        for (i, part) in intervals.chunks(share).enumerate() {
            let (last, decision) = part[part.len() - 1];
            let slot = if part.len() == 1 {
                decision.to_bits()
            } else {
                let below = self.block(part);
                BLOCK | self.inner_blocks.put(&below)
            };
            // The last slot fills the unused positions, which no lookup reaches.
            block[i] = last;
            block[INTERVALS + i..].fill(slot);
        }
        block
    }

    fn free_below(&mut self, block: [u32; BLOCK_WORDS]) {
        let mut slots = block[INTERVALS..].to_vec();
        slots.dedup();
        for slot in slots.into_iter().filter(|&slot| is_block(slot)) {
            self.free_below(*self.inner_blocks.block(slot & UNIT_MASK));
            self.inner_blocks.free(slot & UNIT_MASK, BLOCK_WORDS);
        }
    }
}

/// Intervals of a row without gaps; adjacent ones differ in their decision.
fn intervals(row: &Row) -> Vec<Interval> {
    let mut intervals: Vec<Interval> = Vec::new();
    let mut push = |last: u32, decision: Decision| match intervals.last_mut() {
        Some(before) if before.1 == decision => before.0 = last,
        _ => intervals.push((last, decision)),
    };
    for (base, spans) in [(0, &row.tcp), (PORTS, &row.udp), (2 * PORTS, &row.sctp)] {
        let mut next = base;
        for &PortSpan { first, last, decision } in spans {
            if base + u32::from(first) > next {
                push(base + u32::from(first) - 1, row.other);
            }
            push(base + u32::from(last), decision);
            next = base + u32::from(last) + 1;
        }
        if next < base + PORTS {
            push(base + PORTS - 1, row.other);
        }
    }
    push(LAST, row.other);
    intervals
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::ids::RuleId;
    use crate::tables::tests::arbitrary;

    fn agree(store: &RowStore, id: RowId, row: &Row, ports: impl Iterator<Item = u16>) {
        for port in ports {
            for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP] {
                assert_eq!(
                    store.decide(ROW | id.0, Service::new(protocol, port)),
                    row.decide(protocol, port),
                    "{protocol} {port} {row:?}"
                );
            }
        }
    }

    /// Row with `count` spans of one port, none adjacent to another.
    fn row_of(count: u16) -> Row {
        let decision = |port: u16| Decision::allow(RuleId(u32::from(port) + 1));
        let span = |port| PortSpan { first: port, last: port, decision: decision(port) };
        let spans: Vec<PortSpan> = (0..count).map(|i| span(2 * i + 1)).collect();
        Row { tcp: spans.clone(), udp: spans, sctp: Vec::new(), other: Decision::deny(RuleId(0)) }
    }

    proptest! {
        #![proptest_config(crate::random::cases(100))]

        #[test]
        fn decides_what_a_look_at_every_span_decides(
            rows in vec((0..9_u32, prop::option::of(arbitrary::row(100))), 1..12),
            ports in vec(arbitrary::port(), 60),
        ) {
            let (mut store, mut naive) = (RowStore::default(), std::collections::BTreeMap::new());
            for (id, row) in rows {
                store.set(RowId(id), row.as_ref());
                naive.insert(RowId(id), row);
            }
            for (&id, row) in &naive {
                let closed = Row::uniform(Decision::deny(RuleId(0)));
                agree(&store, id, row.as_ref().unwrap_or(&closed), ports.iter().copied());
            }
        }
    }

    #[test]
    fn every_height_of_tree_decides_every_port_right() {
        for count in [1, 3, 4, 7, 8, 63, 64, 1000, 1024, 4000] {
            let mut store = RowStore::default();
            let row = row_of(count);
            store.set(RowId(0), Some(&row));
            let step = if count > 1000 { 251 } else { 31 };
            let ports = (0..=u16::MAX).step_by(step).chain([1, 2, 2 * count - 1, u16::MAX]);
            agree(&store, RowId(0), &row, ports);
        }
    }

    #[test]
    fn memory_of_a_replaced_row_is_used_again() {
        let mut store = RowStore::default();
        store.set(RowId(3), Some(&row_of(5000)));
        let words = store.inner_blocks.words();
        for count in (1..5000).step_by(97) {
            store.set(RowId(3), Some(&row_of(count)));
        }
        store.set(RowId(3), None);
        store.set(RowId(4), Some(&row_of(5000)));
        assert!(
            store.inner_blocks.words() <= words + PAGE_WORDS,
            "{words} grew to {}",
            store.inner_blocks.words()
        );
    }
}
