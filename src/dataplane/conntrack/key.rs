//! The key of a flow: the same from both directions.

use std::hint::select_unpredictable;
use std::net::IpAddr;

use crate::dataplane::packet::Packet;
use crate::net::address::{Address, from_v4, is_v4, pack, unpack};
use crate::net::flow::{FlowKey, Protocol};
use crate::net::icmp::query;

/// The key of a flow: both endpoints in order, protocol, and for an ICMP query the type of the request and
/// the querying end.
///
/// Echo requests of both sides may carry the same identifier. If they were one flow, an answered request of
/// one side would let the other side's requests pass as its replies (GHSA-c66w-hq56-4q97); so the querying
/// end is part of the key. The type of the request is part of it too, so that only its own reply answers it.
/// ICMP that is no query has a key that no flow has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Key {
    /// IPv4: both endpoints' addresses in the first word, the lower endpoint's above. IPv6: two words each,
    /// from the high bits down.
    pub(super) addresses: [u64; 4],
    /// From the low bits up: port of the lower endpoint, port of the higher one, protocol, querying end, type
    /// of the request. At bit 62, whether the addresses are IPv6.
    pub(super) word: u64,
}

const ASKED_BY_LOW: u64 = 1 << 40;
const ASKED_BY_HIGH: u64 = 1 << 41;
/// The low six bits of the type of a request, in which the types of one family differ.
const REQUEST_SHIFT: u32 = 42;
const REQUEST: u8 = 0x3f;
const REQUESTS: u64 = (REQUEST as u64) << REQUEST_SHIFT;
/// The addresses are IPv6.
const IPV6: u64 = 1 << 62;

impl Key {
    /// Five-tuple in the direction of the end that opened the flow.
    pub(crate) fn flow(&self, opened_by_low: bool) -> FlowKey {
        let low = (unpack(self.low()), self.low_port());
        let high = (unpack(self.high()), self.high_port());
        let (src, dst) = if opened_by_low { (low, high) } else { (high, low) };
        FlowKey { src: src.0, dst: dst.0, protocol: self.protocol(), src_port: src.1, dst_port: dst.1 }
    }

    /// Makes a key of two addresses in order and the word of the other fields.
    pub(crate) fn new(low: Address, high: Address, word: u64) -> Key {
        if is_v4(low) && is_v4(high) {
            Key { addresses: [pair(low as u32, high as u32), 0, 0, 0], word }
        } else {
            Key::new_v6(low, high, word)
        }
    }

    #[inline(always)]
    fn new_v6(low: Address, high: Address, word: u64) -> Key {
        let addresses = [(low >> 64) as u64, low as u64, (high >> 64) as u64, high as u64];
        Key { addresses, word: word | IPV6 }
    }

    /// The key of a packet's flow, and whether the packet comes from the lower endpoint.
    #[inline(always)]
    pub(crate) fn of(packet: &Packet) -> (Key, bool) {
        if packet.is_v4 { Key::of_v4(packet) } else { Key::of_v6(packet) }
    }

    /// [`Key::of`] an IPv4 packet.
    #[inline(always)]
    pub(crate) fn of_v4(packet: &Packet) -> (Key, bool) {
        let Packet { src, dst, src_port, dst_port, .. } = *packet;
        let ordered = Key::ordered_v4([src as u32, dst as u32], [src_port, dst_port], packet.protocol);
        Key::asked(ordered, packet)
    }

    /// [`Key::of`] an IPv6 packet.
    #[inline(always)]
    pub(crate) fn of_v6(packet: &Packet) -> (Key, bool) {
        let Packet { src, dst, src_port, dst_port, .. } = *packet;
        Key::asked(Key::ordered([src, dst], [src_port, dst_port], packet.protocol), packet)
    }

    /// Adds the querying end and the type of the request, where the packet is an ICMP query.
    #[inline(always)]
    fn asked((mut key, from_low): (Key, bool), packet: &Packet) -> (Key, bool) {
        if matches!(packet.protocol, Protocol::ICMP | Protocol::ICMPV6) {
            key.word |= query_bits(packet, from_low);
        }
        (key, from_low)
    }

    /// The key of a flow that is no ICMP query, and whether the packets of this direction come from the lower
    /// endpoint.
    #[inline(always)]
    pub(crate) fn of_flow(flow: &FlowKey) -> (Key, bool) {
        let ports = [flow.src_port, flow.dst_port];
        match (&flow.src, &flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Key::ordered_v4([src.to_bits(), dst.to_bits()], ports, flow.protocol)
            }
            (src, dst) => Key::ordered([pack(*src), pack(*dst)], ports, flow.protocol),
        }
    }

    /// The key of two endpoints, put in order without a branch: their order is random, so that a branch on it
    /// would be unpredictable.
    #[inline(always)]
    fn ordered([src, dst]: [Address; 2], ports: [u16; 2], protocol: Protocol) -> (Key, bool) {
        let from_low = (src < dst) | ((src == dst) & (ports[0] <= ports[1]));
        let low = select_unpredictable(from_low, src, dst);
        let word = word(pair_of_ports(ports), from_low, protocol);
        (Key::new_v6(low, src ^ dst ^ low, word), from_low)
    }

    /// [`Key::ordered`] for IPv4: both addresses fit into one register.
    #[inline(always)]
    fn ordered_v4([src, dst]: [u32; 2], ports: [u16; 2], protocol: Protocol) -> (Key, bool) {
        let (there, back) = (pair(src, dst), pair(dst, src));
        let ports = pair_of_ports(ports);
        // The first port is in the low bits. Rotated, the ports compare in the order of the addresses.
        let wide = |addresses: u64, ports: u32| u128::from(addresses) << 64 | u128::from(ports);
        let from_low = wide(there, ports.rotate_left(16)) <= wide(back, ports);
        let word = word(ports, from_low, protocol);
        (Key { addresses: [there.min(back), 0, 0, 0], word }, from_low)
    }

    /// Whether the addresses are IPv4.
    #[inline]
    pub(crate) fn is_v4(&self) -> bool {
        self.word & IPV6 == 0
    }

    /// The lower endpoint's address.
    #[inline]
    pub(crate) fn low(&self) -> Address {
        let [first, second, ..] = self.addresses;
        if self.is_v4() { from_v4((first >> 32) as u32) } else { wide(first, second) }
    }

    /// The higher endpoint's address.
    #[inline]
    pub(crate) fn high(&self) -> Address {
        let [first, _, third, fourth] = self.addresses;
        if self.is_v4() { from_v4(first as u32) } else { wide(third, fourth) }
    }

    /// All words of the key.
    pub(crate) fn words(&self) -> [u64; 5] {
        let [first, second, third, fourth] = self.addresses;
        [first, second, third, fourth, self.word]
    }

    /// The key with these [`Key::words`].
    pub(crate) const fn from_words([first, second, third, fourth, word]: [u64; 5]) -> Key {
        Key { addresses: [first, second, third, fourth], word }
    }

    /// Whether a packet can have this key: its endpoints are in order, and unused bits are zero.
    pub(super) fn is_canonical(&self) -> bool {
        let ends = [(self.low(), self.low_port()), (self.high(), self.high_port())];
        let asked = self.word & (ASKED_BY_LOW | ASKED_BY_HIGH);
        let low_bits = (self.word >> REQUEST_SHIFT) as u8 & REQUEST;
        let is_request = |kind| query(self.protocol(), kind).is_some_and(|query| !query.is_reply);
        let asks = match self.protocol() {
            Protocol::ICMP | Protocol::ICMPV6 => {
                let mut requests =
                    (0..=u8::MAX >> REQUEST.count_ones()).map(|top| top << REQUEST.count_ones() | low_bits);
                asked.is_power_of_two() && requests.any(is_request)
            }
            _ => (asked, low_bits) == (0, 0),
        };
        ends[0] <= ends[1]
            && (!self.is_v4() || self.addresses[1..] == [0; 3])
            && asks
            && self.word & !(0xff_ffff_ffff | ASKED_BY_LOW | ASKED_BY_HIGH | REQUESTS | IPV6) == 0
    }

    /// Whether a packet of the flow reads the half of its other end too: of TCP over IPv6 it has the other address, and of
    /// SCTP the state is in the half of the lower end.
    #[inline]
    pub(super) fn needs_both_halves(&self) -> bool {
        match self.protocol() {
            Protocol::TCP => !self.is_v4(),
            protocol => protocol == Protocol::SCTP,
        }
    }

    /// Its protocol.
    #[inline]
    pub(crate) fn protocol(&self) -> Protocol {
        Protocol((self.word >> 32) as u8)
    }

    /// Port of the lower endpoint.
    #[inline]
    pub(crate) fn low_port(&self) -> u16 {
        self.word as u16
    }

    /// Port of the higher endpoint.
    #[inline]
    pub(crate) fn high_port(&self) -> u16 {
        (self.word >> 16) as u16
    }
}

/// Two IPv4 addresses in a word, the first in the high bits.
#[inline]
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) << 32 | u64::from(second)
}

/// Two ports in a word, the first in the low bits.
#[inline]
fn pair_of_ports([first, second]: [u16; 2]) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

/// [`Key::word`] of source and destination port.
#[inline(always)]
fn word(ports: u32, from_low: bool, protocol: Protocol) -> u64 {
    let ports = select_unpredictable(from_low, ports, ports.rotate_left(16));
    u64::from(ports) | u64::from(protocol.0) << 32
}

/// Fields of an ICMP query in [`Key::word`].
#[inline(never)]
fn query_bits(packet: &Packet, from_low: bool) -> u64 {
    let Some(query) = query(packet.protocol, packet.flags) else { return 0 };
    let asked_by = if from_low == query.is_reply { ASKED_BY_HIGH } else { ASKED_BY_LOW };
    asked_by | u64::from(query.request & REQUEST) << REQUEST_SHIFT
}

/// The address with these high and low halves.
#[inline]
fn wide(high: u64, low: u64) -> Address {
    u128::from(high) << 64 | u128::from(low)
}

/// Secrets of the key hash, drawn at start: a sender that does not know them cannot choose keys that collide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashSeed {
    secrets: [u64; 4],
    /// Hash of the address words that IPv4 leaves zero.
    of_v4: u64,
}

impl HashSeed {
    /// Draws a seed from the system's random numbers, by the standard library's hash maps.
    pub(crate) fn random() -> HashSeed {
        use std::hash::{BuildHasher, RandomState};
        HashSeed::of([0u64, 1, 2, 3].map(|i| RandomState::new().hash_one(i)))
    }

    /// The seed of these secrets.
    pub(super) fn of(secrets: [u64; 4]) -> HashSeed {
        HashSeed { secrets, of_v4: fold(secrets[2], secrets[3]) }
    }

    /// The secrets.
    pub(super) fn secrets(&self) -> [u64; 4] {
        self.secrets
    }

    /// 64 bits that depend on every bit of the key.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        let [a, b, c, d] = self.secrets;
        let [first, second, third, fourth] = key.addresses;
        let rest = if key.is_v4() { self.of_v4 } else { fold(third ^ c, fourth ^ d) };
        // Ports often count up in step with addresses: the multiplication spreads them over all bits first.
        let word = key.word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fold(fold(first ^ a, second ^ b) ^ c, word ^ rest)
    }
}

/// The two halves of a 128-bit product, folded.
#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests;
