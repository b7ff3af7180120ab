//! The key of a flow: the same from both directions.

use std::hint::select_unpredictable;

use crate::dataplane::packet::{Address, Packet, from_v4, is_echo, is_echo_reply};
use crate::net::flow::Protocol;

/// Two endpoints in order, protocol, and for an echo who asked.
///
/// Echo requests of both sides may carry the same identifier. Were they one flow, an answered request of one side would
/// let the other side's requests pass as its replies (GHSA-c66w-hq56-4q97); so the asking side is part of the key. An
/// echo with identifier zero is not the flow of the ICMP messages that have no identifier either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Key {
    /// The lower endpoint's address.
    pub low: Address,
    /// The higher endpoint's address.
    pub high: Address,
    /// Port of the lower endpoint, port of the higher one, protocol, who asks in an echo: from the low bits up.
    pub word: u64,
}

const ASKED_BY_LOW: u64 = 1 << 40;
const ASKED_BY_HIGH: u64 = 1 << 41;

impl Key {
    /// The key of a packet's flow, and whether the packet comes from the lower endpoint.
    #[inline(always)]
    pub(crate) fn of(packet: &Packet) -> (Key, bool) {
        let (mut key, from_low) = if packet.is_v4 { Key::ordered_v4(packet) } else { Key::ordered(packet) };
        key.word |= u64::from(packet.protocol.0) << 32;
        if is_echo(packet.protocol, packet.flags) {
            let by_low = from_low != is_echo_reply(packet.protocol, packet.flags);
            key.word |= if by_low { ASKED_BY_LOW } else { ASKED_BY_HIGH };
        }
        (key, from_low)
    }

    /// Endpoints in order. Which one is the lower is as good as random: a branch on it nobody could predict.
    #[inline(always)]
    fn ordered(packet: &Packet) -> (Key, bool) {
        let Packet { src, dst, src_port, dst_port, .. } = *packet;
        let from_low = (src < dst) | ((src == dst) & (src_port <= dst_port));
        let ports = u32::from(src_port) | u32::from(dst_port) << 16;
        let word = u64::from(select_unpredictable(from_low, ports, ports.rotate_left(16)));
        let low = select_unpredictable(from_low, src, dst);
        (Key { low, high: src ^ dst ^ low, word }, from_low)
    }

    /// [`Key::ordered`] of IPv4, whose endpoints fit into a register each.
    #[inline(always)]
    fn ordered_v4(packet: &Packet) -> (Key, bool) {
        let endpoint = |address: Address, port: u16| u64::from(address as u32) << 16 | u64::from(port);
        let (src, dst) = (endpoint(packet.src, packet.src_port), endpoint(packet.dst, packet.dst_port));
        let (low, high) = (src.min(dst), src.max(dst));
        let address = |endpoint: u64| from_v4((endpoint >> 16) as u32);
        let word = low & 0xffff | (high & 0xffff) << 16;
        (Key { low: address(low), high: address(high), word }, src <= dst)
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

/// Secrets of a key hash, drawn at start: who does not know them cannot choose keys that collide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashSeed {
    secrets: [u64; 4],
    /// What the upper halves of two IPv4 addresses come to.
    of_v4: u64,
}

impl HashSeed {
    /// Draws a seed from the system's source of randomness, by way of the standard library's hash maps.
    pub(crate) fn random() -> HashSeed {
        use std::hash::{BuildHasher, RandomState};
        let secrets = [0u64, 1, 2, 3].map(|i| RandomState::new().hash_one(i));
        HashSeed { secrets, of_v4: fold(secrets[2], secrets[3]) }
    }

    /// 64 bits that depend on every bit of the key.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        let [a, b, c, d] = self.secrets;
        let (low, high) = ((key.low >> 64) as u64, (key.high >> 64) as u64);
        let upper = if low | high == 0 { self.of_v4 } else { fold(low ^ c, high ^ d) };
        // Ports count up: they are spread over all bits before they meet the addresses, or they would stay in step.
        let word = key.word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fold(fold(key.low as u64 ^ a, key.high as u64 ^ b) ^ c, word ^ upper)
    }
}

/// The two halves of a 128-bit product, folded.
#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::icmp::v4::{ECHO_REPLY, ECHO_REQUEST};

    fn echo(src: u32, dst: u32, flags: u8) -> Packet {
        Packet {
            protocol: Protocol::ICMP,
            flags,
            src: from_v4(src),
            dst: from_v4(dst),
            src_port: 7,
            dst_port: 7,
            ..Packet::default()
        }
    }

    #[test]
    fn an_echo_and_its_reply_share_a_key_and_the_reverse_echo_does_not() {
        for (a, b) in [(1, 2), (2, 1)] {
            let (request, from_low) = Key::of(&echo(a, b, ECHO_REQUEST));
            let (reply, reply_from_low) = Key::of(&echo(b, a, ECHO_REPLY));
            let (reverse, _) = Key::of(&echo(b, a, ECHO_REQUEST));
            assert_eq!(request, reply);
            assert_ne!(from_low, reply_from_low);
            assert_ne!(request, reverse);
        }
    }

    #[test]
    fn an_echo_with_identifier_zero_is_not_the_flow_of_other_icmp_messages() {
        let other = Packet { src_port: 0, dst_port: 0, ..echo(1, 2, 13) };
        for (src, dst) in [(1, 2), (2, 1)] {
            for kind in [ECHO_REQUEST, ECHO_REPLY] {
                let zero = Packet { src_port: 0, dst_port: 0, ..echo(src, dst, kind) };
                assert_ne!(Key::of(&zero).0, Key::of(&other).0);
            }
        }
    }

    #[test]
    fn endpoints_of_ipv4_are_ordered_alike_in_a_register_and_in_full() {
        for (src, dst, src_port, dst_port) in
            [(1, 2, 9, 8), (2, 1, 9, 8), (1, 1, 9, 8), (1, 1, 8, 9), (u32::MAX, 0, 1, 1)]
        {
            let packet = Packet { is_v4: true, src_port, dst_port, ..echo(src, dst, ECHO_REQUEST) };
            assert_eq!(Key::ordered_v4(&packet), Key::ordered(&packet));
        }
    }

    #[test]
    fn hash_depends_on_every_field() {
        let seed = HashSeed::random();
        let key = Key { low: from_v4(1), high: from_v4(2), word: 3 };
        let others = [
            Key { low: from_v4(3), ..key },
            Key { high: from_v4(3), ..key },
            Key { word: 4, ..key },
            Key { low: key.high, high: key.low, ..key },
        ];
        assert!(others.iter().all(|other| seed.hash(other) != seed.hash(&key)));
    }
}
