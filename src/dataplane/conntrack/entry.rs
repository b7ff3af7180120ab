//! One flow: 128 bytes, two cache lines, the first of which is all that a look-up reads.

use std::sync::atomic::Ordering;

use super::parts::{AtomicU32, AtomicU64};
use super::tcp::{TcpFlow, TcpSide};
use super::{FlowState, Key};
use crate::dataplane::packet::Address;
use crate::ids::{AttachmentId, Generation, PortId};
use crate::mem::{prefetch_read, prefetch_write};

use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// In [`Entry::head`]: the entry is a flow. The other bits are the key's word.
const READY: u64 = 1 << 63;

/// In [`Entry::state`]: the flow was opened by the higher endpoint of its key.
const OPENED_BY_HIGH: u32 = 1 << 8;
/// In [`Entry::state`]: shift of the window scale of the initiator, four bits; the responder's stands above.
const SCALE_SHIFT: u32 = 12;

/// How exact the time of a flow's last packet is. The key stands in the same cache line, which workers of both directions read:
/// it stays with both of them as long as neither writes.
const SEEN_EVERY_MS: u32 = 16;

/// In `max_window`: the side has sent its FIN. Windows end at 2^30 (RFC 7323 section 2.3), so the bit is free.
const FINISHED: u32 = 1 << 31;

/// What is known of a flow's packets in one direction.
#[derive(Debug, Default)]
#[repr(C)]
struct Counts {
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// [`TcpSide`] in atomics.
#[derive(Debug, Default)]
#[repr(C)]
struct AtomicTcpSide {
    end: AtomicU32,
    max_end: AtomicU32,
    max_window: AtomicU32,
}

/// A slot of the table.
///
/// Each direction of a flow is one worker's in the normal case, so that its counters have one writer; where both
/// directions' workers write (state, time), either value is right.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    head: AtomicU64,
    low: [AtomicU64; 2],
    high: [AtomicU64; 2],
    judged: AtomicU32,
    seen_ms: AtomicU32,
    state: AtomicU32,
    /// Number of the port whose quota it counts against, plus one; zero is none.
    charged: AtomicU32,
    attachments: [AtomicU32; 2],
    counts: [Counts; 2],
    tcp: [AtomicTcpSide; 2],
    /// Where each side's packets go: generation, then hops of initiator and responder, each plus one, zero for none.
    hops: AtomicU64,
}

/// The two sides of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Side {
    /// Who sent the first packet.
    Initiator = 0,
    /// Who answers.
    Responder = 1,
}

/// What a flow starts with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFlow {
    /// Whether the lower endpoint of the key opened it.
    pub opened_by_low: bool,
    /// Attachments of initiator and responder.
    pub attachments: [AttachmentId; 2],
    /// Port whose quota it counts against.
    pub charged: PortId,
    /// Generation that judged it.
    pub judged: Generation,
    /// Its first state.
    pub state: FlowState,
    /// Windows of a TCP connection.
    pub tcp: Option<TcpFlow>,
}

impl Entry {
    /// Starts to load both cache lines: a look-up reads the first one, and a packet is counted in the second.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_read(self);
        prefetch_write(&self.counts);
    }

    /// Whether the entry is the flow with this key.
    #[inline]
    pub(crate) fn is(&self, key: &Key) -> bool {
        self.head.load(Acquire) == key.word | READY
            && load_address(&self.low) == key.low
            && load_address(&self.high) == key.high
    }

    /// The key, if the entry is a flow.
    pub(crate) fn key(&self) -> Option<Key> {
        let head = self.head.load(Acquire);
        let key = Key { low: load_address(&self.low), high: load_address(&self.high), word: head & !READY };
        (head & READY != 0).then_some(key)
    }

    /// Whether the entry is a flow.
    pub(super) fn is_flow(&self) -> bool {
        self.head.load(Acquire) & READY != 0
    }

    /// Makes the entry a flow. The caller has claimed the slot and nobody else writes to it.
    pub(super) fn publish(&self, key: &Key, flow: &NewFlow, now_ms: u32) {
        store_address(&self.low, key.low);
        store_address(&self.high, key.high);
        self.restart(flow, now_ms);
        self.charged.store(charge_of(flow.charged), Relaxed);
        self.head.store(key.word | READY, Release);
    }

    /// Starts the flow anew under the same key: a port pair is used again.
    pub(super) fn restart(&self, flow: &NewFlow, now_ms: u32) {
        for counts in &self.counts {
            counts.packets.store(0, Relaxed);
            counts.bytes.store(0, Relaxed);
        }
        self.judged.store(flow.judged.0, Relaxed);
        self.seen_ms.store(now_ms, Relaxed);
        for (ours, given) in self.attachments.iter().zip(flow.attachments) {
            ours.store(given.0, Relaxed);
        }
        let opened = if flow.opened_by_low { 0 } else { OPENED_BY_HIGH };
        let tcp = flow.tcp.unwrap_or(TcpFlow { state: flow.state, sides: [TcpSide::default(); 2] });
        for (ours, given) in self.tcp.iter().zip(&tcp.sides) {
            ours.end.store(given.end, Relaxed);
            ours.max_end.store(given.max_end, Relaxed);
            ours.max_window.store(window_word(given), Relaxed);
        }
        self.state.store(opened | state_word(&tcp), Relaxed);
        self.hops.store(0, Relaxed);
    }

    /// Makes the entry no flow; whether it was this call that did.
    pub(super) fn kill(&self) -> bool {
        let head = self.head.load(Acquire);
        head & READY != 0 && self.head.compare_exchange(head, 0, Release, Relaxed).is_ok()
    }

    /// Generation that judged it last.
    #[inline]
    pub(crate) fn judged(&self) -> Generation {
        Generation(self.judged.load(Relaxed))
    }

    /// Notes the generation that judged it.
    #[inline]
    pub(crate) fn set_judged(&self, generation: Generation) {
        self.judged.store(generation.0, Relaxed);
    }

    /// The side that a packet comes from, given whether it comes from the lower endpoint.
    #[inline]
    pub(crate) fn sender(&self, from_low: bool) -> Side {
        let opened_by_high = self.state.load(Relaxed) & OPENED_BY_HIGH != 0;
        if from_low == opened_by_high { Side::Responder } else { Side::Initiator }
    }

    /// The hop that packets of `sender` take, if this generation has told.
    #[inline]
    pub(crate) fn hop(&self, sender: Side, generation: Generation) -> Option<u16> {
        let word = self.hops.load(Relaxed);
        let hop = (word >> (32 + 16 * sender as u32)) as u16;
        if word as u32 == generation.0 { hop.checked_sub(1) } else { None }
    }

    /// Notes the hop that packets of `sender` take. It is a hint: of two workers that write at once one may be forgotten, but
    /// the generation stands in the same word, so that no hop of one counts for another.
    #[inline]
    pub(crate) fn remember_hop(&self, sender: Side, hop: u16, generation: Generation) {
        let shift = 32 + 16 * sender as u32;
        let word = self.hops.load(Relaxed);
        let others =
            if word as u32 == generation.0 { word & !(0xffff << shift) } else { u64::from(generation.0) };
        if let Some(hop) = hop.checked_add(1) {
            self.hops.store(others | u64::from(hop) << shift, Relaxed);
        }
    }

    /// Attachments of initiator and responder.
    #[inline]
    pub(crate) fn attachments(&self) -> [AttachmentId; 2] {
        [0, 1].map(|side: usize| AttachmentId(self.attachments[side].load(Relaxed)))
    }

    /// Port whose quota it counts against.
    pub(super) fn charged(&self) -> Option<PortId> {
        self.charged.load(Relaxed).checked_sub(1).map(|port| PortId(port as u16))
    }

    /// Lets it count against the quota of `port`, or of none; the port that it counted against before. Who takes it from a worker
    /// that has ended the flow sees that it has ended.
    pub(super) fn charge(&self, port: Option<PortId>) -> Option<PortId> {
        let before = self.charged.swap(port.map_or(0, charge_of), AcqRel);
        before.checked_sub(1).map(|port| PortId(port as u16))
    }

    /// Its state.
    #[inline]
    pub(crate) fn state(&self) -> FlowState {
        FlowState::from_number(self.state.load(Relaxed) as u8)
    }

    /// Sets the state.
    #[inline]
    pub(crate) fn set_state(&self, state: FlowState) {
        let old = self.state.load(Relaxed);
        let new = old & !0xff | u32::from(state as u8);
        if new != old {
            // Two workers may both have moved on; the loser's next packet says it again.
            let _ = self.state.compare_exchange(old, new, Relaxed, Relaxed);
        }
    }

    /// Counts a packet and notes the time.
    #[inline]
    pub(crate) fn count(&self, sender: Side, bytes: usize, now_ms: u32) {
        let counts = &self.counts[sender as usize];
        counts.packets.store(counts.packets.load(Relaxed) + 1, Relaxed);
        counts.bytes.store(counts.bytes.load(Relaxed) + bytes as u64, Relaxed);
        if now_ms.wrapping_sub(self.seen_ms.load(Relaxed)) >= SEEN_EVERY_MS {
            self.seen_ms.store(now_ms, Relaxed);
        }
    }

    /// Packets and bytes that a side sent.
    pub(crate) fn counts(&self, sender: Side) -> (u64, u64) {
        let counts = &self.counts[sender as usize];
        (counts.packets.load(Relaxed), counts.bytes.load(Relaxed))
    }

    /// Milliseconds since its last packet.
    #[inline]
    pub(crate) fn idle_ms(&self, now_ms: u32) -> u32 {
        // The other worker may have noted a time that this one's clock has not reached: that is no idleness at all.
        let idle = now_ms.wrapping_sub(self.seen_ms.load(Relaxed));
        if idle > u32::MAX / 2 { 0 } else { idle }
    }

    /// State and windows of a TCP connection.
    #[inline]
    pub(crate) fn load_tcp(&self) -> TcpFlow {
        let word = self.state.load(Relaxed);
        TcpFlow {
            state: FlowState::from_number(word as u8),
            sides: [0, 1].map(|side: usize| TcpSide {
                end: self.tcp[side].end.load(Relaxed),
                max_end: self.tcp[side].max_end.load(Relaxed),
                max_window: self.tcp[side].max_window.load(Relaxed) & !FINISHED,
                finished: self.tcp[side].max_window.load(Relaxed) & FINISHED != 0,
                scale: (word >> (SCALE_SHIFT + 4 * side as u32)) as u8 & 0x0f,
            }),
        }
    }

    /// Stores what of a TCP connection differs from `before`, which was loaded: the workers of the two directions move
    /// different parts, and neither undoes what the other has moved since.
    #[inline]
    pub(crate) fn store_tcp(&self, before: &TcpFlow, flow: &TcpFlow) {
        for (side, ours) in self.tcp.iter().enumerate() {
            let (old, new) = (&before.sides[side], &flow.sides[side]);
            store_changed(&ours.end, old.end, new.end);
            store_changed(&ours.max_end, old.max_end, new.max_end);
            store_changed(&ours.max_window, window_word(old), window_word(new));
        }
        let (old, new) = (state_word(before), state_word(flow));
        if old != new {
            let opened = self.state.load(Relaxed) & OPENED_BY_HIGH;
            // The other worker may have moved on in the meantime: its state stands, and the next packet says it again.
            let _ = self.state.compare_exchange(opened | old, opened | new, Relaxed, Relaxed);
        }
    }
}

#[inline]
fn store_changed(word: &AtomicU32, old: u32, new: u32) {
    if old != new {
        word.store(new, Relaxed);
    }
}

/// The window of a side, and whether it has finished, as [`AtomicTcpSide`] has them.
#[inline]
fn window_word(side: &TcpSide) -> u32 {
    side.max_window | if side.finished { FINISHED } else { 0 }
}

/// State and scales of a connection, as [`Entry::state`] has them.
#[inline]
fn state_word(flow: &TcpFlow) -> u32 {
    let scale = |side: usize| u32::from(flow.sides[side].scale & 0x0f) << (SCALE_SHIFT + 4 * side as u32);
    u32::from(flow.state as u8) | scale(0) | scale(1)
}

/// In `charged`: a port; zero is none.
fn charge_of(port: PortId) -> u32 {
    u32::from(port.0) + 1
}

#[inline]
fn load_address(words: &[AtomicU64; 2]) -> Address {
    u128::from(words[0].load(Relaxed)) << 64 | u128::from(words[1].load(Relaxed))
}

fn store_address(words: &[AtomicU64; 2], address: Address) {
    words[0].store((address >> 64) as u64, Relaxed);
    words[1].store(address as u64, Relaxed);
}
