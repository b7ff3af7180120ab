//! One flow: 128 bytes, a cache line for the packets of each end.
//!
//! ```text
//!   line of the lower end     head  addresses  facts  seen  packets, bytes  TCP: what this end may send; else addresses
//!   line of the higher end    head  addresses  facts  seen  packets, bytes  TCP: what this end may send; else addresses
//! ```
//!
//! A UDP packet reads and writes the line of its own end, and no other: so the workers of the two directions share nothing. TCP
//! looks at both ends' windows and takes both lines; over IPv6 each of them then has its own end's address only, where those of
//! other protocols have both.

use std::sync::atomic::Ordering;

use super::parts::{AtomicU32, AtomicU64, PORTS_MAX};
use super::tcp::{TcpFlow, TcpSide};
use super::{Class, FlowState, Key};
use crate::dataplane::packet::Address;
use crate::ids::{Generation, PortId};
use crate::mem::{prefetch_read, prefetch_write};
use crate::net::flow::Protocol;

use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// In [`Line::head`]: the entry is a flow. The other bits are the key's word, and in the line of the lower end the quota owner,
/// [`Owner`]; in the line of the higher end, there, the key's check.
const READY: u64 = 1 << 63;
const CHARGE_SHIFT: u32 = 48;
const CHARGE: u64 = 0xfff << CHARGE_SHIFT;
const _: () = assert!(PORTS_MAX <= 1 << 12, "a port's number fits into CHARGE");
/// The class of the flow: [`Class`].
const CLASS_SHIFT: u32 = 60;
const OWNER: u64 = CHARGE | 0x3 << CLASS_SHIFT;
const KEY_WORD: u64 = !(READY | OWNER);

/// In [`FlowWord`]: the flow was opened by the higher end of its key.
const OPENED_BY_HIGH: u64 = 1 << 8;
/// In [`FlowWord`]: the lower end was a pod of this node when the flow was entered.
const LOW_IS_POD: u64 = 1 << 9;
/// In [`FlowWord`]: the higher end was.
const HIGH_IS_POD: u64 = 1 << 10;
/// In [`FlowWord`]: the window scale of the line's end, four bits.
const SCALE_SHIFT: u32 = 12;
/// In [`FlowWord`]: state, who opened, which ends were pods, scale.
const CONDITION: u64 = 0xffff;

/// In [`Line::more`], of TCP: what [`TcpSide`] has by these names.
const END: usize = 0;
const MAX_END: usize = 1;
const MAX_WINDOW: usize = 2;
const ACKNOWLEDGED: usize = 3;
/// In the word [`MAX_WINDOW`]: the end has sent its FIN. Windows end at 2^30 (RFC 7323 section 2.3), so the bit is free.
const FINISHED: u32 = 1 << 31;

/// In [`Line::bytes`]: bits of the number of bytes. Above stands the upper part of the number of packets.
const BYTES_BITS: u32 = 52;

/// What a packet of a known flow needs to know, in one word: generation that judged packets of this end, and under which
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
struct Line {
    head: AtomicU64,
    /// IPv4: lower and higher end's, in the first word. TCP over IPv6: this end's. Else over IPv6: the lower end's.
    address: [AtomicU64; 2],
    flow_word: AtomicU64,
    seen_ms: AtomicU32,
    /// The lower part of their number.
    packets: AtomicU32,
    bytes: AtomicU64,
    /// TCP: what the end has sent and may send. Else over IPv6: the higher end's address.
    more: [AtomicU32; 4],
}

/// A slot of the table: a line for the packets of the lower end of the key, one for those of the higher.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    lines: [Line; 2],
}

/// The port that a flow counts against, and as which kind of flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The port that the packet came from which made the flow.
    pub port: PortId,
    /// Whether it may be evicted.
    pub class: Class,
}

/// The two 32-bit numbers that lie in a word of memory, the first in front.
fn halves_in_memory(word: u64) -> [u32; 2] {
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
    pub charged: PortId,
    /// Generation that judged it.
    pub judged: Generation,
    /// Its first state.
    pub state: FlowState,
    /// Windows of a TCP connection; of other protocols there are none.
    pub tcp: Option<TcpFlow>,
    /// Hops that packets of the lower and of the higher end take under that generation, where they are known.
    pub hops: [Option<u16>; 2],
}

impl FlowWord {
    #[inline]
    fn new(judged: Generation, hop: Option<u16>, condition: u64) -> FlowWord {
        // The last number there is counts as none.
        let hop = hop.map_or(0, |hop| hop.wrapping_add(1));
        FlowWord(u64::from(judged.0) << 32 | u64::from(hop) << 16 | condition)
    }

    /// Generation that judged packets of this end last.
    #[inline]
    pub(crate) fn judged(self) -> Generation {
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

    /// Whether the lower and the higher end was a pod of this node when the flow was entered.
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

impl Line {
    #[inline]
    fn flow_word(&self) -> FlowWord {
        FlowWord(self.flow_word.load(Relaxed))
    }

    /// Changes the facts, unless `change` says no.
    fn change_facts(&self, change: impl Fn(FlowWord) -> Option<FlowWord>) {
        let _ =
            self.flow_word.fetch_update(Relaxed, Relaxed, |flow_word| Some(change(FlowWord(flow_word))?.0));
    }

    /// The IPv6 address that each line has.
    #[inline]
    fn address(&self) -> Address {
        u128::from(self.address[0].load(Relaxed)) << 64 | u128::from(self.address[1].load(Relaxed))
    }

    fn set_address(&self, [first, second]: [u64; 2]) {
        self.address[0].store(first, Relaxed);
        self.address[1].store(second, Relaxed);
    }

    /// The IPv6 address that a line without windows has besides.
    #[inline]
    fn more_address(&self) -> Address {
        let half = |at: usize| {
            u64::from(self.more[at].load(Relaxed)) << 32 | u64::from(self.more[at + 1].load(Relaxed))
        };
        u128::from(half(0)) << 64 | u128::from(half(2))
    }

    fn set_more_address(&self, address: Address) {
        for (word, shift) in self.more.iter().zip([96, 64, 32, 0]) {
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
        let idle = now_ms.wrapping_sub(self.seen_ms.load(Relaxed));
        if idle > u32::MAX / 2 { 0 } else { idle }
    }

    fn tcp(&self) -> TcpSide {
        let max_window = self.more[MAX_WINDOW].load(Relaxed);
        TcpSide {
            end: self.more[END].load(Relaxed),
            max_end: self.more[MAX_END].load(Relaxed),
            max_window: max_window & !FINISHED,
            acknowledged: self.more[ACKNOWLEDGED].load(Relaxed),
            finished: max_window & FINISHED != 0,
            scale: self.flow_word().scale(),
        }
    }

    fn set_tcp(&self, side: &TcpSide) {
        self.more[END].store(side.end, Relaxed);
        self.more[MAX_END].store(side.max_end, Relaxed);
        self.more[MAX_WINDOW].store(window_word(side), Relaxed);
        self.more[ACKNOWLEDGED].store(side.acknowledged, Relaxed);
    }
}

impl Line {
    fn from_words([head, first, second, flow_word, seen_and_packets, bytes, more @ ..]: [u64; 8]) -> Line {
        let [[seen_ms, packets], one, other] = [seen_and_packets, more[0], more[1]].map(halves_in_memory);
        Line {
            head: AtomicU64::new(head),
            address: [AtomicU64::new(first), AtomicU64::new(second)],
            flow_word: AtomicU64::new(flow_word),
            seen_ms: AtomicU32::new(seen_ms),
            packets: AtomicU32::new(packets),
            bytes: AtomicU64::new(bytes),
            more: [one[0], one[1], other[0], other[1]].map(AtomicU32::new),
        }
    }
}

/// Checks of entries that a process has left: see [`Conntrack::recover`](super::Conntrack::recover).
impl Entry {
    /// The entry that these words of memory are.
    pub(super) fn from_words(words: [u64; 16]) -> Entry {
        let line = |at: usize| Line::from_words(std::array::from_fn(|i| words[at + i]));
        Entry { lines: [line(0), line(8)] }
    }

    /// Makes the entry no flow, whatever it is.
    pub(super) fn clear(&self) {
        for line in &self.lines {
            line.head.store(0, Release);
        }
    }

    /// The key, if the entry is a flow that was entered whole, and judged by generation `newest` or before.
    pub(super) fn whole(&self, newest: Generation) -> Option<Key> {
        let key = self.key()?;
        let [low, high] = &self.lines;
        let says_the_same = high.head.load(Acquire) == key.word | READY | check_of(&key);
        let lines_agree =
            (low.flow_word().0 ^ high.flow_word().0) & (OPENED_BY_HIGH | LOW_IS_POD | HIGH_IS_POD) == 0
                && (spans_lines(key.protocol()) && !key.is_v4()
                    || low.address() == high.address()
                        && (key.is_v4() || low.more_address() == high.more_address()));
        let is_sound = |line: &Line| {
            let flow_word = line.flow_word();
            flow_word.judged() <= newest
                && flow_word.0 & 0xff == flow_word.state() as u64
                && flow_word.state().fits(key.protocol())
        };
        let is_whole = says_the_same
            && lines_agree
            && key.is_canonical()
            && self.owner().is_some_and(|owner| owner.port.index() < PORTS_MAX)
            && self.lines.iter().all(is_sound);
        is_whole.then_some(key)
    }

    /// Lets no packet have come later than now.
    pub(super) fn limit_seen(&self, now_ms: u32) {
        for line in &self.lines {
            if line.idle_ms(now_ms) == 0 {
                line.seen_ms.store(now_ms, Relaxed);
            }
        }
    }
}

impl Entry {
    #[inline]
    fn line(&self, is_low: bool) -> &Line {
        &self.lines[usize::from(!is_low)]
    }

    /// Lines of initiator and responder.
    #[inline]
    fn sides(&self) -> [&Line; 2] {
        let [low, high] = &self.lines;
        if self.sender(true) == Side::Initiator { [low, high] } else { [high, low] }
    }

    /// Starts to load the line for packets of one end, and the other one with `both`.
    #[inline]
    pub(crate) fn prefetch(&self, from_low: bool, both: bool) {
        prefetch_write(self.line(from_low));
        if both {
            prefetch_read(self.line(!from_low));
        }
    }

    /// Reads something of a line.
    #[inline]
    pub(super) fn read_line(&self, is_low: bool) -> u64 {
        self.line(is_low).head.load(Relaxed)
    }

    /// Whether the entry is the flow with this key, asked for a packet of one of its ends.
    ///
    /// It is compared with all of the key that is in the entry. A head that says that the line is a flow was stored after the
    /// addresses of that flow, those in the other line too, and from then on nothing writes to them until the slot is given to another
    /// flow: not before the batch of who asks is over. What does change, TCP's windows, is where a flow has no address.
    #[inline(always)]
    pub(crate) fn is(&self, key: &Key, from_low: bool) -> bool {
        let line = self.line(from_low);
        if line.head.load(Acquire) & !OWNER != key.word | READY {
            false
        } else if key.is_v4() {
            line.address[0].load(Relaxed) == key.addresses[0]
        } else if spans_lines(key.protocol()) {
            let [low, high] = &self.lines;
            low.address() == key.low() && high.address() == key.high()
        } else {
            line.address() == key.low() && line.more_address() == key.high()
        }
    }

    /// The key, if the entry is a flow.
    pub(crate) fn key(&self) -> Option<Key> {
        let head = self.lines[0].head.load(Acquire);
        let [low, high] = &self.lines;
        let [first, second] = halves(low.address());
        let mut key = Key { addresses: [first, second, 0, 0], word: head & KEY_WORD };
        if !key.is_v4() {
            let higher = if spans_lines(key.protocol()) { high.address() } else { low.more_address() };
            [key.addresses[2], key.addresses[3]] = halves(higher);
        }
        (head & READY != 0).then_some(key)
    }

    /// Whether the entry is a flow.
    pub(super) fn is_flow(&self) -> bool {
        self.lines[0].head.load(Acquire) & READY != 0
    }

    /// Makes the entry a flow. The caller has claimed the slot and nobody else writes to it.
    pub(super) fn publish(&self, key: &Key, flow: &NewFlow, now_ms: u32) {
        let (is_v4, spans_lines) = (key.is_v4(), spans_lines(key.protocol()));
        debug_assert!(flow.tcp.is_none() || spans_lines, "windows would take the place of an address");
        let [first, second, third, fourth] = key.addresses;
        for (line, own) in self.lines.iter().zip([[first, second], [third, fourth]]) {
            if is_v4 || !spans_lines {
                line.set_address([first, second]);
            } else {
                line.set_address(own);
            }
            if !is_v4 && !spans_lines {
                line.set_more_address(key.high());
            }
        }
        self.fill(flow, now_ms, |line, flow_word| line.flow_word.store(flow_word.0, Relaxed));
        let head = key.word | READY;
        self.lines[1].head.store(head | check_of(key), Release);
        // This one says whether the entry is a flow.
        self.lines[0].head.store(head | Owner::unassured(flow.charged).bits(), Release);
    }

    /// Starts the flow anew under the same key: a port pair is used again.
    pub(super) fn restart(&self, flow: &NewFlow, now_ms: u32) {
        // A swap: it comes after what another worker confirms of the flow before.
        self.fill(flow, now_ms, |line, flow_word| {
            line.flow_word.swap(flow_word.0, Relaxed);
        });
    }

    #[inline]
    fn fill(&self, flow: &NewFlow, now_ms: u32, set: impl Fn(&Line, FlowWord)) {
        let opened = if flow.opened_by_low { 0 } else { OPENED_BY_HIGH };
        let sides = if flow.opened_by_low { [0, 1] } else { [1, 0] };
        let pods = sides.map(|side| u64::from(flow.pods[side]));
        let common = u64::from(flow.state as u8) | opened | pods[0] * LOW_IS_POD | pods[1] * HIGH_IS_POD;
        for ((line, side), hop) in self.lines.iter().zip(sides).zip(flow.hops) {
            line.packets.store(0, Relaxed);
            line.bytes.store(0, Relaxed);
            line.seen_ms.store(now_ms, Relaxed);
            let mut condition = common;
            if let Some(tcp) = &flow.tcp {
                line.set_tcp(&tcp.sides[side]);
                condition |= u64::from(tcp.sides[side].scale) << SCALE_SHIFT;
            }
            set(line, FlowWord::new(flow.judged, hop, condition));
        }
    }

    /// Makes the entry no flow. If it was this call that did, its quota owner.
    pub(super) fn kill(&self) -> Option<Owner> {
        let [low, high] = &self.lines;
        let end = |head: u64| (head & READY != 0).then_some(0);
        let head = low.head.fetch_update(AcqRel, Acquire, end).ok()?;
        high.head.store(0, Release);
        Some(Owner::of(head))
    }

    /// Lets the flow count against another owner, and returns the one before. `None` where it has ended, or where `expected` is given
    /// and is not its owner.
    pub(super) fn change_owner(&self, expected: Option<Owner>, owner: Owner) -> Option<Owner> {
        let change = |head: u64| {
            let is_expected = expected.is_none_or(|expected| Owner::of(head) == expected);
            (head & READY != 0 && is_expected).then_some(head & !OWNER | owner.bits())
        };
        self.lines[0].head.fetch_update(AcqRel, Acquire, change).ok().map(Owner::of)
    }

    /// Its quota owner, if the entry is a flow.
    pub(crate) fn owner(&self) -> Option<Owner> {
        let head = self.lines[0].head.load(Acquire);
        (head & READY != 0).then_some(Owner::of(head))
    }

    /// What packets of one end need to know.
    #[inline]
    pub(crate) fn flow_word(&self, from_low: bool) -> FlowWord {
        self.line(from_low).flow_word()
    }

    /// Notes that this generation has judged packets of one end, and by which hop it lets them go: a hop that is not given
    /// is looked up again.
    ///
    /// Not where the flow has been opened anew since its facts were `seen`, by a worker that judges by an earlier generation than
    /// has judged what was seen, or from its other end, or between other ends: what has been judged is another flow.
    pub(crate) fn confirm(&self, from_low: bool, seen: FlowWord, judged: Generation, hop: Option<u16>) {
        let confirmed = |flow_word: FlowWord| {
            let is_the_same = (flow_word.0 ^ seen.0) & (OPENED_BY_HIGH | LOW_IS_POD | HIGH_IS_POD) == 0;
            (is_the_same && flow_word.judged() >= seen.judged()).then_some(FlowWord::new(
                judged,
                hop,
                flow_word.0 & CONDITION,
            ))
        };
        self.line(from_low).change_facts(confirmed);
    }

    /// Generation that judged it last.
    pub(crate) fn judged(&self) -> Generation {
        let [low, high] = &self.lines;
        low.flow_word().judged().max(high.flow_word().judged())
    }

    /// Whether it was judged by earlier generations only.
    #[inline]
    pub(crate) fn is_judged_before(&self, generation: Generation) -> bool {
        self.lines.iter().all(|line| line.flow_word().judged() < generation)
    }

    /// The side that a packet comes from, given whether it comes from the lower endpoint.
    #[inline]
    pub(crate) fn sender(&self, from_low: bool) -> Side {
        self.flow_word(from_low).side(from_low)
    }

    /// Its state.
    #[inline]
    pub(crate) fn state(&self) -> FlowState {
        self.lines[0].flow_word().state()
    }

    /// Sets the state, where it is still `old`.
    ///
    /// Both lines have it, so that a packet of a flow without windows need not look at the other end's: of these flows only UDP's
    /// and those of unknown protocols change, once, and a line that does not say so yet only has it said again. For the others the line
    /// of the lower end speaks.
    pub(crate) fn set_state(&self, old: FlowState, new: FlowState) {
        for line in &self.lines {
            // Two workers may both have moved on; the loser's next packet says it again.
            line.change_facts(|flow_word| (flow_word.state() == old).then(|| flow_word.with_state(new)));
        }
    }

    /// Counts a packet of one end and notes the time.
    #[inline]
    pub(crate) fn count(&self, from_low: bool, bytes: usize, now_ms: u32) {
        let line = self.line(from_low);
        let (packets, bytes) = add_packet(line.packets.load(Relaxed), line.bytes.load(Relaxed), bytes);
        line.packets.store(packets, Relaxed);
        line.bytes.store(bytes, Relaxed);
        line.seen_ms.store(now_ms, Relaxed);
    }

    /// Packets and bytes that initiator and responder sent.
    pub(crate) fn counts(&self) -> [(u64, u64); 2] {
        self.sides().map(Line::counts)
    }

    /// Milliseconds since its last packet.
    #[inline]
    pub(crate) fn idle_ms(&self, now_ms: u32) -> u32 {
        let [low, high] = &self.lines;
        low.idle_ms(now_ms).min(high.idle_ms(now_ms))
    }

    /// Whether its last packet is longer ago than this.
    #[inline]
    pub(crate) fn is_idle_for(&self, ms: u32, now_ms: u32) -> bool {
        self.lines.iter().all(|line| line.idle_ms(now_ms) > ms)
    }

    /// State and windows of a TCP connection.
    #[inline]
    pub(crate) fn load_tcp(&self) -> TcpFlow {
        TcpFlow { state: self.state(), sides: self.sides().map(Line::tcp) }
    }

    /// Stores what of a TCP connection differs from `before`, which was loaded: the workers of the two directions move
    /// different parts, and neither undoes what the other has moved since. Whether the state differs.
    #[inline]
    pub(crate) fn store_tcp(&self, before: &TcpFlow, flow: &TcpFlow) -> bool {
        for (side, line) in self.sides().into_iter().enumerate() {
            let (old, new) = (&before.sides[side], &flow.sides[side]);
            store_changed(&line.more[END], old.end, new.end);
            store_changed(&line.more[MAX_END], old.max_end, new.max_end);
            store_changed(&line.more[MAX_WINDOW], window_word(old), window_word(new));
            store_changed(&line.more[ACKNOWLEDGED], old.acknowledged, new.acknowledged);
            if old.scale != new.scale {
                let scale = u64::from(new.scale) << SCALE_SHIFT;
                line.change_facts(|flow_word| Some(FlowWord(flow_word.0 & !(0x0f << SCALE_SHIFT) | scale)));
            }
        }
        let is_another = before.state != flow.state;
        if is_another {
            self.set_state(before.state, flow.state);
        }
        is_another
    }
}

impl Owner {
    /// Of a flow that nobody has answered yet.
    pub(crate) fn unassured(port: PortId) -> Owner {
        Owner { port, class: Class::Unassured }
    }

    /// As [`Line::head`] has it.
    fn bits(self) -> u64 {
        u64::from(self.port.0) << CHARGE_SHIFT | (self.class as u64) << CLASS_SHIFT
    }

    fn of(head: u64) -> Owner {
        let class = match head >> CLASS_SHIFT & 0x3 {
            1 => Class::Assured,
            2 => Class::Ended,
            _ => Class::Unassured,
        };
        Owner { port: PortId(((head & CHARGE) >> CHARGE_SHIFT) as u16), class }
    }
}

#[inline]
fn store_changed(word: &AtomicU32, old: u32, new: u32) {
    if old != new {
        word.store(new, Relaxed);
    }
}

/// The window of a side, and whether it has finished, as [`Line::more`] has them.
#[inline]
fn window_word(side: &TcpSide) -> u32 {
    side.max_window | if side.finished { FINISHED } else { 0 }
}

/// Whether over IPv6 each line of a flow has the address of its own end alone: TCP's windows take the place of the other's.
#[inline]
pub(super) fn spans_lines(protocol: Protocol) -> bool {
    protocol == Protocol::TCP
}

fn halves(address: Address) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// Twelve bits of a key, where the line of the higher end has them: what tells a whole entry of a file from one that is not.
fn check_of(key: &Key) -> u64 {
    let mix = |mixed: u64, word: &u64| (mixed.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key.words().iter().fold(0, mix) >> 52 << CHARGE_SHIFT
}

/// [`Line::packets`] and [`Line::bytes`] with one packet of so many bytes more.
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
