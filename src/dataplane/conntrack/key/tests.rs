use super::*;
use crate::net::icmp::v4::{ECHO_REPLY, ECHO_REQUEST};
use crate::net::icmp::{v4, v6};

fn echo(src: u32, dst: u32, flags: u8) -> Packet {
    Packet {
        is_v4: true,
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

/// Checks that of all types of a family only a request and its own reply share a key.
fn queries_share_keys_with_their_own_replies_alone(
    pairs: &[(u8, u8)],
    message: impl Fn(u8, u8, u8) -> Packet,
) {
    let mut seen = Vec::new();
    for kind in 0..=255 {
        for other in 0..=255 {
            let (there, back) = (Key::of(&message(1, 2, kind)).0, Key::of(&message(2, 1, other)).0);
            if there == back && query(message(1, 2, 0).protocol, kind).is_some() {
                seen.push((kind, other));
            }
        }
    }
    let both_ways = pairs.iter().flat_map(|(request, reply)| [(*request, *reply), (*reply, *request)]);
    let mut expected: Vec<_> = both_ways.collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[test]
fn a_reply_has_the_key_of_its_own_kind_of_request_and_of_no_other_message() {
    let pairs = [
        (v4::ECHO_REQUEST, v4::ECHO_REPLY),
        (v4::TIMESTAMP_REQUEST, v4::TIMESTAMP_REPLY),
        (v4::INFORMATION_REQUEST, v4::INFORMATION_REPLY),
        (v4::ADDRESS_MASK_REQUEST, v4::ADDRESS_MASK_REPLY),
    ];
    queries_share_keys_with_their_own_replies_alone(&pairs, |src, dst, kind| {
        echo(src.into(), dst.into(), kind)
    });
    let pairs =
        [(v6::ECHO_REQUEST, v6::ECHO_REPLY), (v6::NODE_INFORMATION_QUERY, v6::NODE_INFORMATION_REPLY)];
    queries_share_keys_with_their_own_replies_alone(&pairs, |src, dst, kind| Packet {
        is_v4: false,
        protocol: Protocol::ICMPV6,
        src: src.into(),
        dst: dst.into(),
        ..echo(1, 2, kind)
    });
}

#[test]
fn endpoints_of_ipv4_are_ordered_alike_in_a_register_and_in_full() {
    for (src, dst, src_port, dst_port) in
        [(1, 2, 9, 8), (2, 1, 9, 8), (1, 1, 9, 8), (1, 1, 8, 9), (u32::MAX, 0, 1, 1)]
    {
        let (ports, protocol) = ([src_port, dst_port], Protocol::UDP);
        let (in_full, from_low) = Key::ordered([from_v4(src), from_v4(dst)], ports, protocol);
        let of_parts = Key::new(in_full.low(), in_full.high(), in_full.word & !IPV6);
        assert_eq!(Key::ordered_v4([src, dst], ports, protocol), (of_parts, from_low));
    }
}

#[test]
fn hash_depends_on_every_field() {
    let seed = HashSeed::random();
    for address in [from_v4, |bits| u128::from(bits) << 64, u128::from] {
        let key = |low, high, word| seed.hash(&Key::new(address(low), address(high), word));
        let others = [key(3, 2, 3), key(1, 3, 3), key(1, 2, 4), key(2, 1, 3)];
        assert!(others.iter().all(|other| *other != key(1, 2, 3)));
    }
}
