//! One flow: 128 bytes, a cache line for the packets of each end.
//!
//! ```text
//!   half of the lower end     head  addresses  flow word  last seen  packets, bytes  TCP fields of this end, or addresses
//!   half of the higher end    head  addresses  flow word  last seen  packets, bytes  TCP fields of this end, or addresses
//! ```
//!
//! A UDP packet reads and writes the half of its own end, and no other: so the workers of the two directions
//! share no cache line. A segment of an established connection writes to the half of its own end alone, and reads
//! nothing of the other one if it acknowledges nothing new ([`TcpSide::take_in_order`]). Over IPv6 each half of a
//! connection has its own end's address only, where halves of other protocols have both.
//!
//! [`TcpSide::take_in_order`]: super::tcp::TcpSide::take_in_order

mod counters;
mod flow_word;
mod half;
mod head;
mod new_flow;
mod recovery;

pub(crate) use flow_word::FlowWord;
pub(super) use half::idle_ms;
pub(crate) use head::QuotaOwner;
pub(crate) use new_flow::NewFlow;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::forward_counts::ForwardCount;
use super::key::Key;
use super::state::{FlowState, Side};
use super::tcp::{Segment, TcpFlow};
use crate::ids::Generation;
use crate::mem::{prefetch_read, prefetch_write};
use crate::net::address::Address;
use crate::net::flow::Protocol;

use counters::add_packet;
use half::Half;
use head::{KEY_MASK, OWNER_MASK, READY, check_of};

/// The entry of a slot: a half for the packets of the lower end of the key, one for those of the higher end.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    halves: [Half; 2],
}

impl Entry {
    #[inline]
    fn half(&self, is_low: bool) -> &Half {
        &self.halves[usize::from(!is_low)]
    }

    /// Halves of initiator and responder.
    #[inline]
    fn sides(&self) -> [&Half; 2] {
        let [low, high] = &self.halves;
        if self.sender(true) == Side::Initiator { [low, high] } else { [high, low] }
    }

    /// Starts to load the half for packets of one end, and with `both` the other one.
    #[inline]
    pub(crate) fn prefetch(&self, from_low: bool, both: bool) {
        prefetch_write(self.half(from_low));
        if both {
            prefetch_read(self.half(!from_low));
        }
    }

    /// Reads something of a half, so that it is in the cache.
    #[inline]
    pub(super) fn touch_half(&self, is_low: bool) -> u64 {
        self.half(is_low).head.load(Relaxed)
    }

    /// Whether the entry holds the flow with this key. A packet of the lower or of the higher end asks, and
    /// reads its own half.
    ///
    /// The comparison covers the whole key. A worker stores the head that makes the half a flow's after the
    /// addresses of that flow, those in the other half too. From then on nothing writes to these words until
    /// the slot gets another flow, which is not before the batch of the caller ends. The fields that do
    /// change, those of TCP, lie where a flow has no address.
    #[inline(always)]
    pub(crate) fn matches(&self, key: &Key, from_low: bool) -> bool {
        let half = self.half(from_low);
        if half.head.load(Acquire) & !OWNER_MASK != key.word | READY {
            false
        } else if key.is_v4() {
            half.address[0].load(Relaxed) == key.addresses[0]
        } else if splits_addresses(key.protocol()) {
            let [low, high] = &self.halves;
            low.address() == key.low() && high.address() == key.high()
        } else {
            half.address() == key.low() && half.second_address() == key.high()
        }
    }

    /// The key, if the entry holds a flow.
    pub(crate) fn key(&self) -> Option<Key> {
        let head = self.halves[0].head.load(Acquire);
        let [low, high] = &self.halves;
        let [first, second] = address_words(low.address());
        let mut key = Key { addresses: [first, second, 0, 0], word: head & KEY_MASK };
        if !key.is_v4() {
            let higher = if splits_addresses(key.protocol()) { high.address() } else { low.second_address() };
            [key.addresses[2], key.addresses[3]] = address_words(higher);
        }
        (head & READY != 0).then_some(key)
    }

    /// Whether the entry holds a flow.
    pub(super) fn is_flow(&self) -> bool {
        self.halves[0].head.load(Acquire) & READY != 0
    }

    /// Fills the entry with a flow and makes it visible. The caller has claimed the slot, and no other worker
    /// writes to it.
    pub(super) fn publish(&self, key: &Key, flow: &NewFlow, now_ms: u32) {
        let (is_v4, splits_addresses) = (key.is_v4(), splits_addresses(key.protocol()));
        debug_assert!(
            flow.tcp.is_none() || splits_addresses,
            "TCP fields would take the place of an address"
        );
        let [first, second, third, fourth] = key.addresses;
        for (half, own) in self.halves.iter().zip([[first, second], [third, fourth]]) {
            if is_v4 || !splits_addresses {
                half.set_address([first, second]);
            } else {
                half.set_address(own);
            }
            if !is_v4 && !splits_addresses {
                half.set_second_address(key.high());
            }
        }
        self.fill(flow, now_ms, |half, flow_word| half.flow_word.store(flow_word.0, Relaxed));
        let head = key.word | READY;
        self.halves[1].head.store(head | check_of(key), Release);
        // The head of the lower half decides whether the entry holds a flow, so it is stored last.
        self.halves[0].head.store(head | QuotaOwner::unassured(flow.owner_port).bits(), Release);
    }

    /// Replaces the flow by another one under the same key, whose port pair is used again.
    pub(super) fn restart(&self, flow: &NewFlow, now_ms: u32) {
        // A swap orders the new word after whatever another worker has confirmed of the flow before.
        self.fill(flow, now_ms, |half, flow_word| {
            half.flow_word.swap(flow_word.0, Relaxed);
        });
    }

    #[inline]
    fn fill(&self, flow: &NewFlow, now_ms: u32, set: impl Fn(&Half, FlowWord)) {
        let sides = if flow.opened_by_low { [0, 1] } else { [1, 0] };
        let pods = sides.map(|side| flow.pods[side]);
        for ((half, side), hop) in self.halves.iter().zip(sides).zip(flow.hops) {
            half.packets.store(0, Relaxed);
            half.bytes.store(0, Relaxed);
            half.last_seen_ms.store(now_ms, Relaxed);
            let mut scale = 0;
            if let Some(tcp) = &flow.tcp {
                half.set_tcp(&tcp.sides[side]);
                scale = tcp.sides[side].scale;
            }
            let opener = (flow.opened_by_low, flow.by_node_socket);
            let status = FlowWord::status_of(flow.state, opener, pods, flow.virtual_end.is_some(), scale);
            set(half, FlowWord::new(flow.policy_epoch, hop, status));
        }
    }

    /// Ends the flow. Returns its quota owner if this call ended it, `None` if another worker has ended it
    /// before.
    pub(super) fn unpublish(&self) -> Option<QuotaOwner> {
        let [low, high] = &self.halves;
        let end = |head: u64| (head & READY != 0).then_some(0);
        let head = low.head.fetch_update(AcqRel, Acquire, end).ok()?;
        high.head.store(0, Release);
        Some(QuotaOwner::of(head))
    }

    /// Replaces the quota owner, and returns the one before. Returns `None` and replaces nothing where the
    /// flow has ended, or where `expected` is given and is not its owner.
    pub(super) fn replace_quota_owner(
        &self,
        expected: Option<QuotaOwner>,
        owner: QuotaOwner,
    ) -> Option<QuotaOwner> {
        let change = |head: u64| {
            let is_expected = expected.is_none_or(|expected| QuotaOwner::of(head) == expected);
            (head & READY != 0 && is_expected).then_some(head & !OWNER_MASK | owner.bits())
        };
        self.halves[0].head.fetch_update(AcqRel, Acquire, change).ok().map(QuotaOwner::of)
    }

    /// The quota owner, if the entry holds a flow.
    pub(crate) fn quota_owner(&self) -> Option<QuotaOwner> {
        let head = self.halves[0].head.load(Acquire);
        (head & READY != 0).then_some(QuotaOwner::of(head))
    }

    /// The flow word for packets of one end.
    #[inline]
    pub(crate) fn flow_word(&self, from_low: bool) -> FlowWord {
        self.half(from_low).flow_word()
    }

    /// Marks packets of one end as evaluated by this generation, and notes their hop under it; a packet looks
    /// up a hop that is not given.
    ///
    /// Marks nothing where the flow is not the one that was evaluated: it has been restarted since its flow
    /// word was `seen`, by a worker with an earlier generation than the word's, or from its other end, or
    /// between other pods.
    pub(crate) fn mark_current(
        &self,
        from_low: bool,
        seen: FlowWord,
        policy_epoch: Generation,
        hop: Option<u16>,
    ) {
        let marked = |flow_word: FlowWord| {
            let is_the_same =
                flow_word.has_same_ends(seen) && flow_word.policy_epoch() >= seen.policy_epoch();
            is_the_same.then(|| flow_word.revalidated(policy_epoch, hop))
        };
        self.half(from_low).update_flow_word(marked);
    }

    /// The latest generation that has evaluated it.
    pub(crate) fn policy_epoch(&self) -> Generation {
        let [low, high] = &self.halves;
        low.flow_word().policy_epoch().max(high.flow_word().policy_epoch())
    }

    /// Whether only earlier generations have evaluated it.
    #[inline]
    pub(crate) fn policy_epoch_is_before(&self, generation: Generation) -> bool {
        self.halves.iter().all(|half| half.flow_word().policy_epoch() < generation)
    }

    /// The side that a packet comes from, given whether it comes from the lower endpoint.
    #[inline]
    pub(crate) fn sender(&self, from_low: bool) -> Side {
        self.flow_word(from_low).side(from_low)
    }

    /// Its state.
    #[inline]
    pub(crate) fn state(&self) -> FlowState {
        self.halves[0].flow_word().state()
    }

    /// Sets the state, where it is still `old`.
    ///
    /// Both halves have the state, so that most packets do not read the other end's half. The state in the half of
    /// the lower end holds.
    pub(crate) fn set_state(&self, old: FlowState, new: FlowState) {
        let [low, high] = &self.halves;
        low.update_flow_word(|flow_word| (flow_word.state() == old).then(|| flow_word.with_state(new)));
        // Two workers may change the state at once: the later one finds what the other has left.
        loop {
            let state = low.flow_word().state();
            high.update_flow_word(|flow_word| {
                (flow_word.state() != state).then(|| flow_word.with_state(state))
            });
            if FlowWord(low.flow_word.load(SeqCst)).state() == state {
                return;
            }
        }
    }

    /// Counts a packet of one end and notes the time.
    #[inline]
    pub(crate) fn count(&self, from_low: bool, bytes: usize, now_ms: u32) {
        let half = self.half(from_low);
        let (packets, bytes) = add_packet(half.packets.load(Relaxed), half.bytes.load(Relaxed), bytes);
        half.packets.store(packets, Relaxed);
        half.bytes.store(bytes, Relaxed);
        half.last_seen_ms.store(now_ms, Relaxed);
    }

    /// Adds the count of packets of the initiator that lay beside its binding.
    pub(super) fn add_forward_count(&self, count: &ForwardCount) {
        if count.packets > 0 {
            let [half, _] = self.sides();
            half.add_count(count);
        }
    }

    /// Adds packets of one end that the kernel has forwarded, the last of them at a time if it is given.
    pub(super) fn add_offloaded(&self, is_low: bool, count: ForwardCount, now_ms: Option<u32>) {
        let half = self.half(is_low);
        let last_seen_ms = now_ms.unwrap_or_else(|| half.last_seen_ms.load(Relaxed));
        half.add_count(&ForwardCount { last_seen_ms, ..count });
    }

    /// Forgets the windows of a connection whose numbers its record has from now on. If the record is lost, at a restart, the
    /// connection is as one that was picked up.
    pub(crate) fn forget_windows(&self) {
        self.halves.iter().for_each(Half::forget_window);
    }

    /// Packets and bytes that initiator and responder have sent.
    pub(crate) fn counts(&self) -> [(u64, u64); 2] {
        self.sides().map(Half::counts)
    }

    /// Milliseconds since its last packet.
    #[inline]
    pub(crate) fn idle_ms(&self, now_ms: u32) -> u32 {
        let [low, high] = &self.halves;
        low.idle_ms(now_ms).min(high.idle_ms(now_ms))
    }

    /// Whether its last packet is more than `ms` milliseconds ago.
    #[inline]
    pub(crate) fn is_idle_for(&self, ms: u32, now_ms: u32) -> bool {
        self.halves.iter().all(|half| half.idle_ms(now_ms) > ms)
    }

    /// State and both sides of a TCP connection.
    #[inline]
    pub(crate) fn load_tcp(&self) -> TcpFlow {
        TcpFlow { state: self.state(), sides: self.sides().map(Half::tcp) }
    }

    /// Takes the numbers of a segment of one end, without SYN, RST and FIN, into an established connection, as
    /// [`TcpFlow::advance`] does.
    #[inline(always)]
    pub(crate) fn pass_segment(&self, from_low: bool, segment: &Segment) {
        let half = self.half(from_low);
        let before = half.tcp();
        let mut after = before;
        if after.take_in_order(segment, || self.half(!from_low).end()) {
            half.store_position(&before, &after);
        } else {
            self.pass_any_segment(from_low, segment);
        }
    }

    #[inline(never)]
    fn pass_any_segment(&self, from_low: bool, segment: &Segment) {
        let half = self.half(from_low);
        let before = half.tcp();
        let mut after = before;
        after.pass(&self.half(!from_low).tcp(), segment);
        half.store_tcp_changes(&before, &after);
    }

    /// Stores the fields of a TCP connection that differ from `before`, the values that were loaded. The
    /// workers of the two directions change different fields, and neither undoes a change of the other.
    /// Returns whether the state differs.
    #[inline]
    pub(crate) fn store_tcp(&self, before: &TcpFlow, flow: &TcpFlow) -> bool {
        for (side, half) in self.sides().into_iter().enumerate() {
            half.store_tcp_changes(&before.sides[side], &flow.sides[side]);
        }
        let is_another = before.state != flow.state;
        if is_another {
            self.set_state(before.state, flow.state);
        }
        is_another
    }
}

/// Whether over IPv6 each half of a flow has the address of its own end only: TCP fields take the place of
/// the other one.
#[inline]
fn splits_addresses(protocol: Protocol) -> bool {
    protocol == Protocol::TCP
}

fn address_words(address: Address) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}
