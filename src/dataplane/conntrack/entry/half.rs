//! One half of an entry: a cache line for the packets of one end.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::super::forward_counts::ForwardCount;
use super::super::parts::{AtomicU32, AtomicU64};
use super::super::tcp::TcpSide;
use super::counters::{packets_and_bytes, words_of};
use super::flow_word::FlowWord;
use crate::net::address::Address;

// Words of `tcp_or_address` that hold the fields of a `TcpSide` by these names.
const END: usize = 0;
const MAX_END: usize = 1;
const MAX_WINDOW: usize = 2;
const ACKNOWLEDGED: usize = 3;
/// In the word [`MAX_WINDOW`]: the end has sent its FIN. The bit is free: "the maximum window is guaranteed
/// to be < 2^30 if S <= 14" (RFC 7323 section 2.3).
const FINISHED: u32 = 1 << 31;

/// The half of an entry for the packets of one end.
///
/// Normally one worker receives all packets of an end, so that its counters have one writer. If two
/// workers write at once, either value stands.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Half {
    pub head: AtomicU64,
    /// IPv4: both ends' addresses in the first word, the lower end's above. TCP over IPv6: this end's
    /// address. Others over IPv6: the lower end's.
    pub address: [AtomicU64; 2],
    pub flow_word: AtomicU64,
    pub last_seen_ms: AtomicU32,
    /// The lower 32 bits of the number of packets.
    pub packets: AtomicU32,
    /// The number of bytes, and the upper bits of the number of packets.
    pub bytes: AtomicU64,
    /// TCP: sequence numbers and window of this end. Others over IPv6: the higher end's address.
    tcp_or_address: [AtomicU32; 4],
}

impl Half {
    /// The half in these words of memory.
    pub(super) fn from_words(
        [head, first, second, flow_word, seen_and_packets, bytes, tail @ ..]: [u64; 8],
    ) -> Half {
        let [[last_seen_ms, packets], one, other] = [seen_and_packets, tail[0], tail[1]].map(u32s_in_memory);
        Half {
            head: AtomicU64::new(head),
            address: [AtomicU64::new(first), AtomicU64::new(second)],
            flow_word: AtomicU64::new(flow_word),
            last_seen_ms: AtomicU32::new(last_seen_ms),
            packets: AtomicU32::new(packets),
            bytes: AtomicU64::new(bytes),
            tcp_or_address: [one[0], one[1], other[0], other[1]].map(AtomicU32::new),
        }
    }

    #[inline]
    pub(super) fn flow_word(&self) -> FlowWord {
        FlowWord(self.flow_word.load(Relaxed))
    }

    /// Replaces the flow word by the result of `change`, unless that is `None`.
    pub(super) fn update_flow_word(&self, change: impl Fn(FlowWord) -> Option<FlowWord>) {
        let _ =
            self.flow_word.fetch_update(SeqCst, Relaxed, |flow_word| Some(change(FlowWord(flow_word))?.0));
    }

    /// The IPv6 address that every half has.
    #[inline]
    pub(super) fn address(&self) -> Address {
        u128::from(self.address[0].load(Relaxed)) << 64 | u128::from(self.address[1].load(Relaxed))
    }

    pub(super) fn set_address(&self, [first, second]: [u64; 2]) {
        self.address[0].store(first, Relaxed);
        self.address[1].store(second, Relaxed);
    }

    /// The second IPv6 address of a half without TCP fields.
    #[inline]
    pub(super) fn second_address(&self) -> Address {
        let half = |at: usize| {
            u64::from(self.tcp_or_address[at].load(Relaxed)) << 32
                | u64::from(self.tcp_or_address[at + 1].load(Relaxed))
        };
        u128::from(half(0)) << 64 | u128::from(half(2))
    }

    pub(super) fn set_second_address(&self, address: Address) {
        for (word, shift) in self.tcp_or_address.iter().zip([96, 64, 32, 0]) {
            word.store((address >> shift) as u32, Relaxed);
        }
    }

    /// Number of packets and bytes.
    pub(super) fn counts(&self) -> (u64, u64) {
        packets_and_bytes(self.packets.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// Adds packets and bytes, the last of which came at a time that may be earlier than the half's own.
    pub(super) fn add_count(&self, count: &ForwardCount) {
        let (packets, bytes) = self.counts();
        let (packets, bytes) = words_of((packets + count.packets, bytes + count.bytes));
        self.packets.store(packets, Relaxed);
        self.bytes.store(bytes, Relaxed);
        let last_seen_ms = self.last_seen_ms.load(Relaxed);
        if idle_ms(last_seen_ms, count.last_seen_ms) > 0 {
            self.last_seen_ms.store(count.last_seen_ms, Relaxed);
        }
    }

    /// Milliseconds since the last packet of this end.
    #[inline]
    pub(super) fn idle_ms(&self, now_ms: u32) -> u32 {
        idle_ms(self.last_seen_ms.load(Relaxed), now_ms)
    }

    #[inline(always)]
    pub(super) fn tcp(&self) -> TcpSide {
        let max_window = self.tcp_or_address[MAX_WINDOW].load(Relaxed);
        TcpSide {
            end: self.tcp_or_address[END].load(Relaxed),
            max_end: self.tcp_or_address[MAX_END].load(Relaxed),
            max_window: max_window & !FINISHED,
            acknowledged: self.tcp_or_address[ACKNOWLEDGED].load(Relaxed),
            finished: max_window & FINISHED != 0,
            scale: self.flow_word().scale(),
        }
    }

    /// Stores all fields but the scale, which is part of the flow word.
    pub(super) fn set_tcp(&self, side: &TcpSide) {
        self.tcp_or_address[END].store(side.end, Relaxed);
        self.tcp_or_address[MAX_END].store(side.max_end, Relaxed);
        self.tcp_or_address[MAX_WINDOW].store(window_word(side), Relaxed);
        self.tcp_or_address[ACKNOWLEDGED].store(side.acknowledged, Relaxed);
    }

    /// Forgets the window of a side. Its sequence numbers have no meaning without one.
    pub(super) fn forget_window(&self) {
        store_changed(&self.tcp_or_address[MAX_WINDOW], self.tcp_or_address[MAX_WINDOW].load(Relaxed), 0);
    }

    /// The number behind the last byte that this end of a TCP connection has sent.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.tcp_or_address[END].load(Relaxed)
    }

    /// Stores the fields that [`TcpSide::take_in_order`] changes, where they differ.
    #[inline(always)]
    pub(super) fn store_position(&self, old: &TcpSide, new: &TcpSide) {
        store_changed(&self.tcp_or_address[END], old.end, new.end);
        store_changed(&self.tcp_or_address[ACKNOWLEDGED], old.acknowledged, new.acknowledged);
    }

    /// Stores the fields that differ.
    #[inline]
    pub(super) fn store_tcp_changes(&self, old: &TcpSide, new: &TcpSide) {
        store_changed(&self.tcp_or_address[END], old.end, new.end);
        store_changed(&self.tcp_or_address[MAX_END], old.max_end, new.max_end);
        store_changed(&self.tcp_or_address[MAX_WINDOW], window_word(old), window_word(new));
        store_changed(&self.tcp_or_address[ACKNOWLEDGED], old.acknowledged, new.acknowledged);
        if old.scale != new.scale {
            self.update_flow_word(|flow_word| Some(flow_word.with_scale(new.scale)));
        }
    }
}

/// Milliseconds since a packet.
#[inline]
pub(crate) fn idle_ms(last_seen_ms: u32, now_ms: u32) -> u32 {
    // Another worker may have stored a time that this one's clock has not reached: the idle time is zero
    // then.
    let idle = now_ms.wrapping_sub(last_seen_ms);
    if idle > u32::MAX / 2 { 0 } else { idle }
}

#[inline]
fn store_changed(word: &AtomicU32, old: u32, new: u32) {
    if old != new {
        word.store(new, Relaxed);
    }
}

/// The word [`MAX_WINDOW`] of a side.
#[inline]
fn window_word(side: &TcpSide) -> u32 {
    side.max_window | if side.finished { FINISHED } else { 0 }
}

/// The two 32-bit numbers in a word of memory, in the order of their addresses.
fn u32s_in_memory(word: u64) -> [u32; 2] {
    let [a, b, c, d, rest @ ..] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes(rest)]
}
