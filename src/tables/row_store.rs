//! Compiled rows: a decision by protocol and port in few loads, whatever the number of spans.
//!
//! A row has a head of four slots: TCP, UDP, SCTP, and everything else. A slot is the decision itself, or leads to a
//! tree of blocks, each one cache line. A block at the bottom holds up to eight port intervals (their last ports,
//! then their decisions); one above leads to up to sixteen blocks that lie side by side. The place in a block is the
//! number of intervals that end before the port: counted, not searched. Eight intervals take one block, 128 two,
//! 2,048 three.

use super::arena::{Arena, PAGE_WORDS, first_word};
use super::{Decision, PortSpan, Row};
use crate::ids::RowId;
use crate::limits::RULES_MAX;
use crate::net::flow::Protocol;

/// A decision (height 0), or the height of a block above the decisions and its place.
pub(super) type Slot = u32;

const HEIGHT_SHIFT: u32 = 28;
const UNIT_MASK: u32 = (1 << 26) - 1;

const _: () = assert!(RULES_MAX <= 1 << HEIGHT_SHIFT, "a decision leaves room for the height");

const BLOCK_WORDS: usize = 16;
const BLOCK_UNITS: u32 = 4;
const INTERVALS: usize = 8;
const CHILDREN: usize = 16;
/// Stands for "no further block" in place of a last port.
const NO_CHILD: u32 = i32::MAX as u32;

const HEAD_WORDS: usize = 4;
/// Place of each protocol in a head.
const HEAD_SLOT: [u8; 256] = {
    let mut slots = [3; 256];
    slots[Protocol::TCP.0 as usize] = 0;
    slots[Protocol::UDP.0 as usize] = 1;
    slots[Protocol::SCTP.0 as usize] = 2;
    slots
};

/// What a row that is not there decides: deny. Checked tables never get here; closed by default all the same.
const CLOSED: Slot = 1 << 31;

/// Intervals of ports that cover all of them: the last port of each, and what is decided there.
type Interval = (u16, Decision);

/// All rows, by id. A clone is cheap and shares what does not change.
#[derive(Clone)]
pub(super) struct RowStore {
    heads: Arena,
    blocks: Arena,
}

/// The place of a row's head for a protocol: known before the head is near.
///
/// The head of row 0 is the second: the first is for `NOWHERE`, the highest id, and decides what no row does.
#[inline(always)]
pub(super) fn head_word(row: RowId, protocol: Protocol) -> usize {
    first_head_word(row) + HEAD_SLOT[protocol.0 as usize] as usize
}

#[inline(always)]
fn first_head_word(row: RowId) -> usize {
    row.0.wrapping_add(1) as usize * HEAD_WORDS
}

/// The height of the blocks that a slot leads to; 0 where it is the decision.
#[inline(always)]
pub(super) fn height(slot: Slot) -> u32 {
    slot >> HEIGHT_SHIFT & 7
}

impl Default for RowStore {
    fn default() -> RowStore {
        let mut heads = Arena::default();
        heads.reserve_pages(PAGE_WORDS, CLOSED);
        RowStore { heads, blocks: Arena::default() }
    }
}

impl RowStore {
    /// Sets a row, or clears it.
    pub(super) fn set(&mut self, id: RowId, row: Option<&Row>) {
        let head = first_head_word(id);
        while self.heads.words() < head + HEAD_WORDS {
            self.heads.reserve_pages(PAGE_WORDS, CLOSED);
        }
        for word in head..head + HEAD_WORDS {
            self.free(self.heads.word(word));
        }
        let slots = match row {
            Some(row) => {
                let [tcp, udp, sctp] =
                    [&row.tcp, &row.udp, &row.sctp].map(|spans| self.slot(&intervals(spans, row.other)));
                [tcp, udp, sctp, row.other.to_bits()]
            }
            None => [CLOSED; HEAD_WORDS],
        };
        self.heads.write(head, &slots);
    }

    /// What row `id` decides on a flow.
    #[inline]
    pub(super) fn decide(&self, id: RowId, protocol: Protocol, dst_port: u16) -> Decision {
        let mut slot = self.head(head_word(id, protocol));
        while height(slot) > 0 {
            slot = self.step(slot, dst_port);
        }
        Decision::from_bits(slot)
    }

    /// The slot at a place that [`head_word`] gave.
    #[inline(always)]
    pub(super) fn head(&self, word: usize) -> Slot {
        self.heads.word(word)
    }

    /// The slot one block further, for a slot of some height.
    #[inline(always)]
    pub(super) fn step(&self, slot: Slot, dst_port: u16) -> Slot {
        if height(slot) == 1 { self.decision(slot, dst_port) } else { self.child(slot, dst_port) }
    }

    /// The decision in a block at the bottom.
    #[inline(always)]
    pub(super) fn decision(&self, slot: Slot, dst_port: u16) -> Slot {
        let words = self.blocks.block::<BLOCK_WORDS>(slot & UNIT_MASK);
        words[INTERVALS + ended_before::<{ INTERVALS - 1 }>(words, dst_port)]
    }

    /// The block below a block that is not at the bottom.
    #[inline(always)]
    pub(super) fn child(&self, slot: Slot, dst_port: u16) -> Slot {
        let words = self.blocks.block::<BLOCK_WORDS>(slot & UNIT_MASK);
        let child = ended_before::<{ CHILDREN - 1 }>(words, dst_port) as u32;
        (height(slot) - 1) << HEIGHT_SHIFT | words[CHILDREN - 1] + child * BLOCK_UNITS
    }

    /// Brings the block of a slot near.
    #[inline(always)]
    pub(super) fn prefetch(&self, slot: Slot) {
        self.blocks.prefetch(first_word(slot & UNIT_MASK));
    }

    fn slot(&mut self, intervals: &[Interval]) -> Slot {
        if let &[(_, decision)] = intervals {
            return decision.to_bits();
        }
        let height = (1..).find(|&height| intervals.len() <= capacity(height)).unwrap_or(1);
        let words = self.block(intervals, height);
        height << HEIGHT_SHIFT | self.blocks.put(&words)
    }

    /// The words of a block of some height; the blocks below it are in place.
    fn block(&mut self, intervals: &[Interval], height: u32) -> [u32; BLOCK_WORDS] {
        if height == 1 {
            let at = |i: usize| intervals[i.min(intervals.len() - 1)];
            return std::array::from_fn(|i| match i.checked_sub(INTERVALS) {
                None => u32::from(at(i).0),
                Some(i) => at(i).1.to_bits(),
            });
        }
        let mut words = [NO_CHILD; BLOCK_WORDS];
        let mut below = Vec::new();
        for (i, part) in intervals.chunks(capacity(height - 1)).enumerate() {
            if i > 0 {
                words[i - 1] = u32::from(intervals[i * capacity(height - 1) - 1].0);
            }
            below.extend(self.block(part, height - 1));
        }
        words[CHILDREN - 1] = self.blocks.put(&below);
        words
    }

    fn free(&mut self, slot: Slot) {
        if height(slot) > 0 {
            self.free_below(slot);
            self.blocks.free(slot & UNIT_MASK, BLOCK_WORDS);
        }
    }

    fn free_below(&mut self, slot: Slot) {
        if height(slot) == 1 {
            return;
        }
        let words: [u32; BLOCK_WORDS] = *self.blocks.block(slot & UNIT_MASK);
        let children = 1 + words[..CHILDREN - 1].iter().filter(|&&last| last != NO_CHILD).count();
        let first = words[CHILDREN - 1];
        for child in 0..children as u32 {
            self.free_below((height(slot) - 1) << HEIGHT_SHIFT | first + child * BLOCK_UNITS);
        }
        self.blocks.free(first, children * BLOCK_WORDS);
    }
}

/// How many of the first `N` words, last ports of intervals, are below `port`.
#[inline(always)]
fn ended_before<const N: usize>(words: &[u32; BLOCK_WORDS], port: u16) -> usize {
    // Signed, because that is what vector instructions compare.
    words[..N].iter().map(|&last| u32::from((last as i32) < i32::from(port))).sum::<u32>() as usize
}

/// Intervals that the blocks below one of some height hold.
fn capacity(height: u32) -> usize {
    INTERVALS * CHILDREN.pow(height - 1)
}

/// Spans and what is between them, as intervals without gaps.
fn intervals(spans: &[PortSpan], other: Decision) -> Vec<Interval> {
    let mut intervals = Vec::with_capacity(2 * spans.len() + 1);
    let mut next = 0;
    for span in spans {
        if u32::from(span.first) > next {
            intervals.push((span.first - 1, other));
        }
        intervals.push((span.last, span.decision));
        next = u32::from(span.last) + 1;
    }
    if next <= u32::from(u16::MAX) {
        intervals.push((u16::MAX, other));
    }
    intervals
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::ids::RuleId;
    use crate::tables::generate;

    fn agree(store: &RowStore, id: RowId, row: &Row, ports: impl Iterator<Item = u16>) {
        for port in ports {
            for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP] {
                assert_eq!(
                    store.decide(id, protocol, port),
                    row.decide(protocol, port),
                    "{protocol} {port} {row:?}"
                );
            }
        }
    }

    /// A row with `count` spans of one port, none touching the next.
    fn row_of(count: u16) -> Row {
        let decision = |port: u16| Decision::allow(RuleId(u32::from(port) + 1));
        let span = |port| PortSpan { first: port, last: port, decision: decision(port) };
        let spans: Vec<PortSpan> = (0..count).map(|i| span(2 * i + 1)).collect();
        Row { tcp: spans.clone(), udp: spans, sctp: Vec::new(), other: Decision::deny(RuleId(0)) }
    }

    proptest! {
        #[test]
        fn decides_what_a_look_at_every_span_decides(
            rows in vec((0..30_u32, prop::option::of(generate::row())), 1..40),
            ports in vec(generate::port(), 60),
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
        for count in [1, 3, 4, 7, 8, 63, 64, 1000, 1024, 16384, 32767] {
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
        let words = store.blocks.words();
        for count in (1..5000).step_by(97) {
            store.set(RowId(3), Some(&row_of(count)));
        }
        store.set(RowId(3), None);
        store.set(RowId(4), Some(&row_of(5000)));
        assert!(store.blocks.words() <= words + 7 * PAGE_WORDS, "{words} grew to {}", store.blocks.words());
    }
}
