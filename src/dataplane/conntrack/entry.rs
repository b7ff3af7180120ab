//! One flow: 128 bytes, a cache line for the packets of each end.
//!
//! ```text
//!   half of the lower end     head  addresses  flow word  seen  packets, bytes  TCP: what this end may send; else addresses
//!   half of the higher end    head  addresses  flow word  seen  packets, bytes  TCP: what this end may send; else addresses
//! ```
//!
//! A UDP packet reads and writes the half of its own end, and no other: so the workers of the two directions share nothing. TCP
//! looks at both ends' windows and takes both halves; over IPv6 each of them then has its own end's address only, where those of
//! other protocols have both.

use std::sync::atomic::Ordering;

use super::parts::{AtomicU32, AtomicU64, PORTS_MAX};
use super::tcp::{TcpFlow, TcpSide};
use super::{FlowState, Key, QuotaClass};
use crate::dataplane::packet::Address;
use crate::ids::{Generation, PortId};
use crate::mem::{prefetch_read, prefetch_write};
use crate::net::flow::Protocol;

use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// In [`Half::head`]: the entry is a flow. The other bits are the key's word, and in the half of the lower end the quota owner,
/// [`QuotaOwner`]; in the half of the higher end, there, the key's check.
const READY: u64 = 1 << 63;
const OWNER_PORT_SHIFT: u32 = 48;
const OWNER_PORT: u64 = 0xfff << OWNER_PORT_SHIFT;
const _: () = assert!(PORTS_MAX <= 1 << 12, "a port's number fits into OWNER_PORT");
/// The class of the flow: [`QuotaClass`].
const OWNER_CLASS_SHIFT: u32 = 60;
const OWNER_MASK: u64 = OWNER_PORT | 0x3 << OWNER_CLASS_SHIFT;
const KEY_MASK: u64 = !(READY | OWNER_MASK);

/// In [`FlowWord`]: the flow was opened by the higher end of its key.
const OPENED_BY_HIGH: u64 = 1 << 8;
/// In [`FlowWord`]: the lower end was a pod of this node when the flow was inserted.
const LOW_IS_POD: u64 = 1 << 9;
/// In [`FlowWord`]: the higher end was.
const HIGH_IS_POD: u64 = 1 << 10;
/// In [`FlowWord`]: the window scale of the half's end, four bits.
const SCALE_SHIFT: u32 = 12;
/// In [`FlowWord`]: state, who opened, which ends were pods, scale.
const STATUS_MASK: u64 = 0xffff;

/// In [`Half::tcp_or_address`], of TCP: what [`TcpSide`] has by these names.
const END: usize = 0;
const MAX_END: usize = 1;
const MAX_WINDOW: usize = 2;
const ACKNOWLEDGED: usize = 3;
/// In the word [`MAX_WINDOW`]: the end has sent its FIN. Windows end at 2^30 (RFC 7323 section 2.3), so the bit is free.
const FINISHED: u32 = 1 << 31;

/// In [`Half::bytes`]: bits of the number of bytes. Above stands the upper part of the number of packets.
const BYTES_BITS: u32 = 52;

/// What a packet of a known flow needs to know, in one word: generation that policy_epoch packets of this end, and under which
/// their hop was noted; the hop, plus one, zero for none; the flow's state, who opened it, which of its ends were pods of this
/// node, the end's window scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowWord(u64);

/// What there is of a flow for the packets of one end.
///
/// An end's packets are one worker's in the normal case, so that its counters have one writer; where two workers write,
/// either value is right.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Half {
    head: AtomicU64,
    /// IPv4: lower and higher end's, in the first word. TCP over IPv6: this end's. Else over IPv6: the lower end's.
    address: [AtomicU64; 2],
    flow_word: AtomicU64,
    last_seen_ms: AtomicU32,
    /// The lower part of their number.
    packets: AtomicU32,
    bytes: AtomicU64,
    /// TCP: what the end has sent and may send. Else over IPv6: the higher end's address.
    tcp_or_address: [AtomicU32; 4],
}

/// A slot of the table: a half for the packets of the lower end of the key, one for those of the higher.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    halves: [Half; 2],
}

/// The port that a flow counts against, and as which kind of flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaOwner {
    /// The port that the packet came from which made the flow.
    pub port: PortId,
    /// Whether it may be evicted.
    pub class: QuotaClass,
}

/// The two 32-bit numbers that lie in a word of memory, the first in front.
fn u32s_in_memory(word: u64) -> [u32; 2] {
    let bytes = word.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i])))
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
    /// Whether initiator and responder are pods of this node.
    pub pods: [bool; 2],
    /// Port that it counts against: the one that the packet came from.
    pub owner_port: PortId,
    /// Generation that policy_epoch it.
    pub policy_epoch: Generation,
    /// Its first state.
    pub state: FlowState,
    /// Windows of a TCP connection; of other protocols there are none.
    pub tcp: Option<TcpFlow>,
    /// Hops that packets of the lower and of the higher end take under that generation, where they are known.
    pub hops: [Option<u16>; 2],
}

impl FlowWord {
    #[inline]
    fn new(policy_epoch: Generation, hop: Option<u16>, status: u64) -> FlowWord {
        // The last number there is counts as none.
        let hop = hop.map_or(0, |hop| hop.wrapping_add(1));
        FlowWord(u64::from(policy_epoch.0) << 32 | u64::from(hop) << 16 | status)
    }

    /// Generation that policy_epoch packets of this end last.
    #[inline]
    pub(crate) fn policy_epoch(self) -> Generation {
        Generation((self.0 >> 32) as u32)
    }

    /// The hop that they take, if it was noted under that generation.
    #[inline]
    pub(crate) fn hop(self) -> Option<u16> {
        ((self.0 >> 16) as u16).checked_sub(1)
    }

    /// The hop that packets of this end take, if the flow is one whose packets change nothing: UDP in both directions.
    #[inline]
    pub(crate) fn plain_hop(self) -> Option<u16> {
        if self.0 as u8 == FlowState::UdpTwoWay as u8 { self.hop() } else { None }
    }

    /// The state of a flow that is neither TCP nor SCTP: see [`Entry::set_state`].
    #[inline]
    pub(crate) fn state(self) -> FlowState {
        FlowState::from_number(self.0 as u8)
    }

    /// Which side the end is; `is_low` says which end.
    #[inline]
    pub(crate) fn side(self, is_low: bool) -> Side {
        if is_low == (self.0 & OPENED_BY_HIGH != 0) { Side::Responder } else { Side::Initiator }
    }

    /// Whether the lower and the higher end was a pod of this node when the flow was inserted.
    #[inline]
    pub(crate) fn pods(self) -> [bool; 2] {
        [LOW_IS_POD, HIGH_IS_POD].map(|bit| self.0 & bit != 0)
    }

    fn with_state(self, state: FlowState) -> FlowWord {
        FlowWord(self.0 & !0xff | u64::from(state as u8))
    }

    fn scale(self) -> u8 {
        (self.0 >> SCALE_SHIFT) as u8 & 0x0f
    }
}

impl Half {
    #[inline]
    fn flow_word(&self) -> FlowWord {
        FlowWord(self.flow_word.load(Relaxed))
    }

    /// Changes the flow word, unless `change` says no.
    fn update_flow_word(&self, change: impl Fn(FlowWord) -> Option<FlowWord>) {
        let _ =
            self.flow_word.fetch_update(Relaxed, Relaxed, |flow_word| Some(change(FlowWord(flow_word))?.0));
    }

    /// The IPv6 address that each half has.
    #[inline]
    fn address(&self) -> Address {
        u128::from(self.address[0].load(Relaxed)) << 64 | u128::from(self.address[1].load(Relaxed))
    }

    fn set_address(&self, [first, second]: [u64; 2]) {
        self.address[0].store(first, Relaxed);
        self.address[1].store(second, Relaxed);
    }

    /// The IPv6 address that a half without windows has besides.
    #[inline]
    fn second_address(&self) -> Address {
        let half = |at: usize| {
            u64::from(self.tcp_or_address[at].load(Relaxed)) << 32
                | u64::from(self.tcp_or_address[at + 1].load(Relaxed))
        };
        u128::from(half(0)) << 64 | u128::from(half(2))
    }

    fn set_second_address(&self, address: Address) {
        for (word, shift) in self.tcp_or_address.iter().zip([96, 64, 32, 0]) {
            word.store((address >> shift) as u32, Relaxed);
        }
    }

    fn counts(&self) -> (u64, u64) {
        packets_and_bytes(self.packets.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// Milliseconds since the last packet of this end.
    #[inline]
    fn idle_ms(&self, now_ms: u32) -> u32 {
        // The other worker may have noted a time that this one's clock has not reached: that is no idleness at all.
        let idle = now_ms.wrapping_sub(self.last_seen_ms.load(Relaxed));
        if idle > u32::MAX / 2 { 0 } else { idle }
    }

    fn tcp(&self) -> TcpSide {
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

    fn set_tcp(&self, side: &TcpSide) {
        self.tcp_or_address[END].store(side.end, Relaxed);
        self.tcp_or_address[MAX_END].store(side.max_end, Relaxed);
        self.tcp_or_address[MAX_WINDOW].store(window_word(side), Relaxed);
        self.tcp_or_address[ACKNOWLEDGED].store(side.acknowledged, Relaxed);
    }
}

impl Half {
    fn from_words([head, first, second, flow_word, seen_and_packets, bytes, tail @ ..]: [u64; 8]) -> Half {
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
}

/// Checks of entries that a process has left: see [`Conntrack::recover`](super::Conntrack::recover).
impl Entry {
    /// The entry that these words of memory are.
    pub(super) fn from_words(words: [u64; 16]) -> Entry {
        let half = |at: usize| Half::from_words(std::array::from_fn(|i| words[at + i]));
        Entry { halves: [half(0), half(8)] }
    }

    /// Makes the entry no flow, whatever it is.
    pub(super) fn clear(&self) {
        for half in &self.halves {
            half.head.store(0, Release);
        }
    }

    /// The key, if the entry is a flow that was inserted whole, and policy_epoch by generation `newest` or before.
    pub(super) fn intact_key(&self, newest: Generation) -> Option<Key> {
        let key = self.key()?;
        let [low, high] = &self.halves;
        let says_the_same = high.head.load(Acquire) == key.word | READY | check_of(&key);
        let lines_agree =
            (low.flow_word().0 ^ high.flow_word().0) & (OPENED_BY_HIGH | LOW_IS_POD | HIGH_IS_POD) == 0
                && (splits_addresses(key.protocol()) && !key.is_v4()
                    || low.address() == high.address()
                        && (key.is_v4() || low.second_address() == high.second_address()));
        let is_sound = |half: &Half| {
            let flow_word = half.flow_word();
            flow_word.policy_epoch() <= newest
                && flow_word.0 & 0xff == flow_word.state() as u64
                && flow_word.state().is_of(key.protocol())
        };
        let is_whole = says_the_same
            && lines_agree
            && key.is_canonical()
            && self.quota_owner().is_some_and(|owner| owner.port.index() < PORTS_MAX)
            && self.halves.iter().all(is_sound);
        is_whole.then_some(key)
    }

    /// Lets no packet have come later than now.
    pub(super) fn clamp_last_seen(&self, now_ms: u32) {
        for half in &self.halves {
            if half.idle_ms(now_ms) == 0 {
                half.last_seen_ms.store(now_ms, Relaxed);
            }
        }
    }
}

impl Entry {
    #[inline]
    fn half(&self, is_low: bool) -> &Half {
        &self.halves[usize::from(!is_low)]
    }

    /// Lines of initiator and responder.
    #[inline]
    fn sides(&self) -> [&Half; 2] {
        let [low, high] = &self.halves;
        if self.sender(true) == Side::Initiator { [low, high] } else { [high, low] }
    }

    /// Starts to load the half for packets of one end, and the other one with `both`.
    #[inline]
    pub(crate) fn prefetch(&self, from_low: bool, both: bool) {
        prefetch_write(self.half(from_low));
        if both {
            prefetch_read(self.half(!from_low));
        }
    }

    /// Reads something of a half.
    #[inline]
    pub(super) fn touch_half(&self, is_low: bool) -> u64 {
        self.half(is_low).head.load(Relaxed)
    }

    /// Whether the entry is the flow with this key, asked for a packet of one of its ends.
    ///
    /// It is compared with all of the key that is in the entry. A head that says that the half is a flow was stored after the
    /// addresses of that flow, those in the other half too, and from then on nothing writes to them until the slot is given to another
    /// flow: not before the batch of who asks is over. What does change, TCP's windows, is where a flow has no address.
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

    /// The key, if the entry is a flow.
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

    /// Whether the entry is a flow.
    pub(super) fn is_flow(&self) -> bool {
        self.halves[0].head.load(Acquire) & READY != 0
    }

    /// Makes the entry a flow. The caller has claimed the slot and nobody else writes to it.
    pub(super) fn publish(&self, key: &Key, flow: &NewFlow, now_ms: u32) {
        let (is_v4, splits_addresses) = (key.is_v4(), splits_addresses(key.protocol()));
        debug_assert!(flow.tcp.is_none() || splits_addresses, "windows would take the place of an address");
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
        // This one says whether the entry is a flow.
        self.halves[0].head.store(head | QuotaOwner::unassured(flow.owner_port).bits(), Release);
    }

    /// Starts the flow anew under the same key: a port pair is used again.
    pub(super) fn restart(&self, flow: &NewFlow, now_ms: u32) {
        // A swap: it comes after what another worker confirms of the flow before.
        self.fill(flow, now_ms, |half, flow_word| {
            half.flow_word.swap(flow_word.0, Relaxed);
        });
    }

    #[inline]
    fn fill(&self, flow: &NewFlow, now_ms: u32, set: impl Fn(&Half, FlowWord)) {
        let opened = if flow.opened_by_low { 0 } else { OPENED_BY_HIGH };
        let sides = if flow.opened_by_low { [0, 1] } else { [1, 0] };
        let pods = sides.map(|side| u64::from(flow.pods[side]));
        let common = u64::from(flow.state as u8) | opened | pods[0] * LOW_IS_POD | pods[1] * HIGH_IS_POD;
        for ((half, side), hop) in self.halves.iter().zip(sides).zip(flow.hops) {
            half.packets.store(0, Relaxed);
            half.bytes.store(0, Relaxed);
            half.last_seen_ms.store(now_ms, Relaxed);
            let mut status = common;
            if let Some(tcp) = &flow.tcp {
                half.set_tcp(&tcp.sides[side]);
                status |= u64::from(tcp.sides[side].scale) << SCALE_SHIFT;
            }
            set(half, FlowWord::new(flow.policy_epoch, hop, status));
        }
    }

    /// Makes the entry no flow. If it was this call that did, its quota owner.
    pub(super) fn unpublish(&self) -> Option<QuotaOwner> {
        let [low, high] = &self.halves;
        let end = |head: u64| (head & READY != 0).then_some(0);
        let head = low.head.fetch_update(AcqRel, Acquire, end).ok()?;
        high.head.store(0, Release);
        Some(QuotaOwner::of(head))
    }

    /// Lets the flow count against another owner, and returns the one before. `None` where it has ended, or where `expected` is given
    /// and is not its owner.
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

    /// Its quota owner, if the entry is a flow.
    pub(crate) fn quota_owner(&self) -> Option<QuotaOwner> {
        let head = self.halves[0].head.load(Acquire);
        (head & READY != 0).then_some(QuotaOwner::of(head))
    }

    /// What packets of one end need to know.
    #[inline]
    pub(crate) fn flow_word(&self, from_low: bool) -> FlowWord {
        self.half(from_low).flow_word()
    }

    /// Notes that this generation has policy_epoch packets of one end, and by which hop it lets them go: a hop that is not given
    /// is looked up again.
    ///
    /// Not where the flow has been opened anew since its flow word were `seen`, by a worker that judges by an earlier generation than
    /// has policy_epoch what was seen, or from its other end, or between other ends: what has been policy_epoch is another flow.
    pub(crate) fn mark_current(
        &self,
        from_low: bool,
        seen: FlowWord,
        policy_epoch: Generation,
        hop: Option<u16>,
    ) {
        let marked = |flow_word: FlowWord| {
            let is_the_same = (flow_word.0 ^ seen.0) & (OPENED_BY_HIGH | LOW_IS_POD | HIGH_IS_POD) == 0;
            (is_the_same && flow_word.policy_epoch() >= seen.policy_epoch()).then_some(FlowWord::new(
                policy_epoch,
                hop,
                flow_word.0 & STATUS_MASK,
            ))
        };
        self.half(from_low).update_flow_word(marked);
    }

    /// Generation that policy_epoch it last.
    pub(crate) fn policy_epoch(&self) -> Generation {
        let [low, high] = &self.halves;
        low.flow_word().policy_epoch().max(high.flow_word().policy_epoch())
    }

    /// Whether it was policy_epoch by earlier generations only.
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
    /// Both halves have it, so that a packet of a flow without windows need not look at the other end's: of these flows only UDP's
    /// and those of unknown protocols change, once, and a half that does not say so yet only has it said again. For the others the half
    /// of the lower end speaks.
    pub(crate) fn set_state(&self, old: FlowState, new: FlowState) {
        for half in &self.halves {
            // Two workers may both have moved on; the loser's next packet says it again.
            half.update_flow_word(|flow_word| (flow_word.state() == old).then(|| flow_word.with_state(new)));
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

    /// Packets and bytes that initiator and responder sent.
    pub(crate) fn counts(&self) -> [(u64, u64); 2] {
        self.sides().map(Half::counts)
    }

    /// Milliseconds since its last packet.
    #[inline]
    pub(crate) fn idle_ms(&self, now_ms: u32) -> u32 {
        let [low, high] = &self.halves;
        low.idle_ms(now_ms).min(high.idle_ms(now_ms))
    }

    /// Whether its last packet is longer ago than this.
    #[inline]
    pub(crate) fn is_idle_for(&self, ms: u32, now_ms: u32) -> bool {
        self.halves.iter().all(|half| half.idle_ms(now_ms) > ms)
    }

    /// State and windows of a TCP connection.
    #[inline]
    pub(crate) fn load_tcp(&self) -> TcpFlow {
        TcpFlow { state: self.state(), sides: self.sides().map(Half::tcp) }
    }

    /// Stores what of a TCP connection differs from `before`, which was loaded: the workers of the two directions move
    /// different parts, and neither undoes what the other has moved since. Whether the state differs.
    #[inline]
    pub(crate) fn store_tcp(&self, before: &TcpFlow, flow: &TcpFlow) -> bool {
        for (side, half) in self.sides().into_iter().enumerate() {
            let (old, new) = (&before.sides[side], &flow.sides[side]);
            store_changed(&half.tcp_or_address[END], old.end, new.end);
            store_changed(&half.tcp_or_address[MAX_END], old.max_end, new.max_end);
            store_changed(&half.tcp_or_address[MAX_WINDOW], window_word(old), window_word(new));
            store_changed(&half.tcp_or_address[ACKNOWLEDGED], old.acknowledged, new.acknowledged);
            if old.scale != new.scale {
                let scale = u64::from(new.scale) << SCALE_SHIFT;
                half.update_flow_word(|flow_word| {
                    Some(FlowWord(flow_word.0 & !(0x0f << SCALE_SHIFT) | scale))
                });
            }
        }
        let is_another = before.state != flow.state;
        if is_another {
            self.set_state(before.state, flow.state);
        }
        is_another
    }
}

impl QuotaOwner {
    /// Of a flow that nobody has answered yet.
    pub(crate) fn unassured(port: PortId) -> QuotaOwner {
        QuotaOwner { port, class: QuotaClass::Unassured }
    }

    /// As [`Half::head`] has it.
    fn bits(self) -> u64 {
        u64::from(self.port.0) << OWNER_PORT_SHIFT | (self.class as u64) << OWNER_CLASS_SHIFT
    }

    fn of(head: u64) -> QuotaOwner {
        let class = match head >> OWNER_CLASS_SHIFT & 0x3 {
            1 => QuotaClass::Assured,
            2 => QuotaClass::Ended,
            _ => QuotaClass::Unassured,
        };
        QuotaOwner { port: PortId(((head & OWNER_PORT) >> OWNER_PORT_SHIFT) as u16), class }
    }
}

#[inline]
fn store_changed(word: &AtomicU32, old: u32, new: u32) {
    if old != new {
        word.store(new, Relaxed);
    }
}

/// The window of a side, and whether it has finished, as [`Half::tcp_or_address`] has them.
#[inline]
fn window_word(side: &TcpSide) -> u32 {
    side.max_window | if side.finished { FINISHED } else { 0 }
}

/// Whether over IPv6 each half of a flow has the address of its own end alone: TCP's windows take the place of the other's.
#[inline]
pub(super) fn splits_addresses(protocol: Protocol) -> bool {
    protocol == Protocol::TCP
}

fn address_words(address: Address) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// Twelve bits of a key, where the half of the higher end has them: what tells a whole entry of a file from one that is not.
fn check_of(key: &Key) -> u64 {
    let mix = |mixed: u64, word: &u64| (mixed.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key.words().iter().fold(0, mix) >> 52 << OWNER_PORT_SHIFT
}

/// [`Half::packets`] and [`Half::bytes`] with one packet of so many bytes more.
#[inline]
fn add_packet(packets: u32, bytes: u64, more: usize) -> (u32, u64) {
    let packets = packets.wrapping_add(1);
    let carry = u64::from(packets == 0) << BYTES_BITS;
    (packets, bytes.wrapping_add(more as u64 + carry))
}

/// What they say.
fn packets_and_bytes(packets: u32, bytes: u64) -> (u64, u64) {
    (bytes >> BYTES_BITS << 32 | u64::from(packets), bytes & ((1 << BYTES_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_past_32_bits_and_bytes_beside_them() {
        let count = |(packets, bytes), _| add_packet(packets, bytes, 100);
        let (packets, bytes) = (0..3).fold((u32::MAX - 1, 0), count);
        assert_eq!(packets_and_bytes(packets, bytes), ((1 << 32) + 1, 300));
    }
}
