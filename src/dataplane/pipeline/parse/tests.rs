use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::dataplane::frames::{Spec, Transport, ether_type, ethernet};
use crate::net::address::unpack;
use crate::net::tcp::Flags;

const TCP: Transport =
    Transport::Tcp { ports: [1000, 80], flags: Flags::SYN, sequence: 7, acknowledgement: 8, window: 9 };

fn addresses() -> [[IpAddr; 2]; 2] {
    [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]].map(|pair| pair.map(|text| text.parse().unwrap()))
}

fn specs() -> Vec<Spec> {
    let transports = [
        TCP,
        Transport::Udp { ports: [1000, 53] },
        Transport::Sctp { ports: [1000, 9], chunk: 1 },
        Transport::Echo { request: true, identifier: 5 },
        Transport::Echo { request: false, identifier: 5 },
        Transport::Other(47),
    ];
    let vlans = [None, Some(7)];
    let mut specs = Vec::new();
    for ([src, dst], transport) in addresses().into_iter().flat_map(|pair| transports.map(|t| (pair, t))) {
        specs.extend(vlans.map(|vlan| Spec { vlan, ..Spec::new(src, dst, transport) }));
    }
    specs
}

fn parsed(frame: &[u8]) -> Result<Packet, DropReason> {
    let mut packet = Packet::default();
    parse_frame(frame, frame.len(), &mut packet).map_or(Ok(packet), Err)
}

/// A frame with this IP packet.
fn framed(ip: &[u8], src: IpAddr) -> Vec<u8> {
    ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], None, ether_type(src), ip)
}

/// An IPv6 packet with these extension headers before its segment: number and bytes of each.
fn extended(headers: &[(u8, Vec<u8>)], last: u8, segment: &[u8]) -> Result<Packet, DropReason> {
    let [_, [src, dst]] = addresses();
    let mut bytes = Vec::new();
    for (i, (_, header)) in headers.iter().enumerate() {
        let next = headers.get(i + 1).map_or(last, |(number, _)| *number);
        bytes.push(next);
        bytes.extend(&header[1..]);
    }
    bytes.extend(segment);
    let first = headers.first().map_or(last, |(number, _)| *number);
    parsed(&framed(&Spec::new(src, dst, TCP).raw(first, &bytes), src))
}

fn tcp_segment() -> Vec<u8> {
    let [_, [src, dst]] = addresses();
    Spec::new(src, dst, TCP).ip()[40..].to_vec()
}

/// Options of 8 bytes, padded.
fn options() -> Vec<u8> {
    vec![0, 0, 1, 4, 0, 0, 0, 0]
}

/// A routing header of a type, with so many segments left.
fn routing(kind: u8, segments_left: u8) -> Vec<u8> {
    vec![0, 0, kind, segments_left, 0, 0, 0, 0]
}

fn fragment(offset: u16, more: bool) -> Vec<u8> {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    vec![0, 0, high, low, 0, 0, 0, 9]
}

#[test]
fn every_field_is_where_the_sender_put_it() {
    for spec in specs() {
        let frame = spec.bytes();
        let packet = parsed(&frame).unwrap_or_else(|reason| panic!("{spec:?}: {reason:?}"));
        assert_eq!((unpack(packet.src), unpack(packet.dst)), (spec.src, spec.dst));
        assert_eq!((packet.src_mac().0, packet.dst_mac().0), (spec.src_mac, spec.dst_mac));
        assert_eq!(packet.vlan, spec.vlan.unwrap_or(0));
        assert_eq!((packet.kind, packet.ttl, packet.whole), (Kind::Flow, 64, true));
        assert_eq!(usize::from(packet.end), frame.len());
        let ports = match spec.transport {
            Transport::Tcp { ports, .. } | Transport::Udp { ports } | Transport::Sctp { ports, .. } => ports,
            Transport::Echo { identifier, .. } => [identifier; 2],
            _ => [0; 2],
        };
        assert_eq!([packet.src_port, packet.dst_port], ports, "{spec:?}");
        if spec.transport == TCP {
            assert_eq!((packet.sequence, packet.acknowledgement, packet.window), (7, 8, 9));
            assert_eq!((packet.flags, packet.tcp_payload_bytes()), (Flags::SYN, 10));
        }
    }
}

#[test]
fn a_frame_cut_at_any_length_is_truncated() {
    for spec in specs() {
        let frame = spec.bytes();
        for len in 0..frame.len() {
            assert_eq!(parsed(&frame[..len]).unwrap_err(), DropReason::Truncated, "{spec:?} at {len}");
        }
    }
}

#[test]
fn padding_behind_the_packet_is_not_of_the_packet() {
    for spec in specs() {
        let frame = spec.bytes();
        let padded = [&frame[..], &[0xee; 30]].concat();
        assert_eq!(usize::from(parsed(&padded).unwrap().end), frame.len());
    }
}

#[test]
fn a_packet_that_ends_within_its_transport_header_is_dropped() {
    for [src, dst] in addresses() {
        for (transport, protocol, header_bytes) in [
            (TCP, 6, 20),
            (Transport::Udp { ports: [1, 2] }, 17, 8),
            (Transport::Sctp { ports: [1, 2], chunk: 0 }, 132, 16),
        ] {
            let spec = Spec::new(src, dst, transport);
            let segment = spec.ip()[if src.is_ipv4() { 20 } else { 40 }..].to_vec();
            for len in 0..header_bytes {
                let frame = framed(&spec.raw(protocol, &segment[..len]), src);
                assert_eq!(parsed(&frame).unwrap_err(), DropReason::Truncated, "{transport:?} at {len}");
            }
        }
    }
}

#[test]
fn a_header_that_contradicts_itself_is_malformed() {
    let [[src, dst], _] = addresses();
    let wrong = |change: &dyn Fn(&mut [u8])| {
        let mut frame = Spec::new(src, dst, TCP).bytes();
        change(&mut frame);
        let header: &mut [u8; 20] = frame[14..].first_chunk_mut().unwrap();
        header[10..12].fill(0);
        let sum = crate::net::checksum::Sum::default().add_bytes(header).finish();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        parsed(&frame).unwrap_err()
    };
    assert_eq!(wrong(&|frame| frame[14] = 0x65), DropReason::Malformed, "version");
    assert_eq!(wrong(&|frame| frame[14] = 0x44), DropReason::Malformed, "header length");
    assert_eq!(wrong(&|frame| frame[16..18].fill(0)), DropReason::Malformed, "total length");
    assert_eq!(wrong(&|frame| frame[34 + 12] = 0x40), DropReason::Malformed, "data offset");
    assert_eq!(wrong(&|frame| frame[34 + 12] = 0xf0), DropReason::Truncated, "data offset");
    for flags in [Flags::SYN | Flags::FIN, Flags::SYN | Flags::RST] {
        assert_eq!(wrong(&|frame| frame[34 + 13] = flags), DropReason::Malformed, "flags");
    }
}

#[test]
fn a_wrong_ip_checksum_is_named() {
    let [[src, dst], _] = addresses();
    let mut frame = Spec::new(src, dst, TCP).bytes();
    frame[24] ^= 1;
    assert_eq!(parsed(&frame).unwrap_err(), DropReason::BadIpChecksum);
}

#[test]
fn the_transport_is_found_behind_extension_headers() {
    let headers = [
        (0, options()),
        (60, options()),
        (43, routing(2, 0)),
        (51, vec![0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for len in 0..=headers.len() {
        let packet = extended(&headers[..len], 6, &tcp_segment()).unwrap();
        assert_eq!((packet.protocol, packet.dst_port, packet.whole), (Protocol::TCP, 80, true));
    }
}

#[test]
fn extension_headers_out_of_order_too_many_or_out_of_the_packet_are_malformed() {
    let malformed = Err(DropReason::Malformed);
    let reason = |headers: &[(u8, Vec<u8>)], segment: &[u8]| extended(headers, 6, segment).map(|_| ());
    assert_eq!(reason(&[(60, options()), (0, options())], &tcp_segment()), malformed);
    assert_eq!(reason(&vec![(60, options()); 9], &tcp_segment()), malformed);
    assert!(reason(&vec![(60, options()); 8], &tcp_segment()).is_ok());
    assert_eq!(reason(&[(60, vec![0, 200, 0, 0, 0, 0, 0, 0])], &tcp_segment()), malformed);
    assert_eq!(reason(&[(60, options()), (44, vec![0])], &[]), malformed);
    assert_eq!(reason(&[(44, fragment(0, true)), (44, fragment(0, true))], &tcp_segment()), malformed);
}

#[test]
fn routing_headers_of_type_0_are_refused_and_others_pass_with_an_unknown_checksum_while_they_have_segments_left()
 {
    for segments_left in [0, 1, 255] {
        for behind in [vec![], vec![(60, options()), (43, routing(4, 0))]] {
            let headers = [vec![(60, options()), (43, routing(0, segments_left))], behind].concat();
            assert_eq!(extended(&headers, 6, &tcp_segment()), Err(DropReason::SourceRoute));
        }
        // In fragments, too: later ones have the header before the fragment header.
        for word in [fragment(0, true), fragment(8, true)] {
            let headers = [(43, routing(0, segments_left)), (44, word)];
            assert_eq!(extended(&headers, 6, &tcp_segment()), Err(DropReason::SourceRoute));
        }
        for kind in [1, 2, 3, 4, 253] {
            let packet = extended(&[(43, routing(kind, segments_left))], 6, &tcp_segment()).unwrap();
            assert_eq!(
                (packet.whole, packet.first_fragment, packet.dst_port),
                (segments_left == 0, false, 80)
            );
        }
    }
}

#[test]
fn ipv4_options_that_say_or_ask_for_the_way_are_refused_by_name() {
    let [[src, dst], _] = addresses();
    let with = |options: &[u8], word: u16| {
        let mut ip = Spec::new(src, dst, TCP).ip();
        ip.splice(20..20, options.iter().copied());
        ip[0] = 0x40 | (5 + options.len() as u8 / 4);
        let total = (ip.len() as u16).to_be_bytes();
        ip[2..4].copy_from_slice(&total);
        ip[6..8].copy_from_slice(&word.to_be_bytes());
        ip[10..12].fill(0);
        let sum = crate::net::checksum::Sum::default().add_bytes(&ip[..20 + options.len()]).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        parsed(&framed(&ip, src)).map(|packet| packet.dst_port)
    };
    for (options, outcome) in [
        (&[131, 7, 4, 10, 0, 0, 9, 0][..], Err(DropReason::SourceRoute)),
        (&[1, 137, 7, 4, 10, 0, 0, 9], Err(DropReason::SourceRoute)),
        (&[148, 4, 0, 0, 131, 3, 4, 0], Err(DropReason::SourceRoute)),
        (&[7, 7, 4, 0, 0, 0, 0, 0], Err(DropReason::IpOption)),
        (&[68, 8, 5, 0, 0, 0, 0, 0], Err(DropReason::IpOption)),
        (&[131, 9, 4, 0, 0, 0, 0, 0], Err(DropReason::Malformed)),
        (&[148, 4, 0, 0], Ok(80)),
        (&[1, 1, 1, 0], Ok(80)),
        (&[0, 131, 3, 4], Ok(80)),
    ] {
        assert_eq!(with(options, 0x4000), outcome, "{options:?}");
        // A later fragment has no ports, and the same options.
        assert_eq!(with(options, 0x0002), outcome.map(|_| 0), "{options:?} in a fragment");
    }
}

#[test]
fn fragments_of_ipv6_are_told_apart() {
    let first = extended(&[(44, fragment(0, true))], 6, &tcp_segment()).unwrap();
    assert_eq!((first.kind, first.whole, first.dst_port), (Kind::Flow, false, 80));
    let atomic = extended(&[(44, fragment(0, false))], 6, &tcp_segment()).unwrap();
    assert_eq!((atomic.kind, atomic.whole, atomic.dst_port), (Kind::Flow, true, 80));
    let later = extended(&[(44, fragment(8, false))], 6, &[0; 4]).unwrap();
    assert_eq!((later.kind, later.whole, later.dst_port), (Kind::LaterFragment, false, 0));
}

#[test]
fn fragments_of_ipv4_are_told_apart_and_a_first_one_without_its_header_is_dropped() {
    let [[src, dst], _] = addresses();
    let fragment = |word: u16, bytes: usize| {
        let mut ip = Spec::new(src, dst, TCP).ip();
        ip.truncate(bytes);
        let total = (ip.len() as u16).to_be_bytes();
        ip[2..4].copy_from_slice(&total);
        ip[6..8].copy_from_slice(&word.to_be_bytes());
        ip[10..12].fill(0);
        let sum = crate::net::checksum::Sum::default().add_bytes(&ip[..20]).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        parsed(&framed(&ip, src))
    };
    let first = fragment(0x2000, 50).unwrap();
    assert_eq!((first.kind, first.whole, first.dst_port), (Kind::Flow, false, 80));
    assert_eq!(fragment(0x2001, 50).unwrap().kind, Kind::LaterFragment);
    assert_eq!(fragment(0x0001, 50).unwrap().kind, Kind::LaterFragment);
    assert_eq!(fragment(0x2000, 28).unwrap_err(), DropReason::FragmentTiny, "ports only: RFC 1858");
    assert_eq!(fragment(0x1fff, 50).unwrap_err(), DropReason::Malformed, "ends behind 65,535");
}

#[test]
fn ipv6_addresses_that_stand_for_ipv4_are_malformed() {
    let [_, [src, dst]] = addresses();
    let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
    for (src, dst) in [(mapped, dst), (src, mapped)] {
        assert_eq!(parsed(&Spec::new(src, dst, TCP).bytes()).unwrap_err(), DropReason::Malformed);
    }
}

#[test]
fn a_second_tag_and_other_ethertypes_are_unknown() {
    let [[src, dst], _] = addresses();
    let ip = Spec::new(src, dst, TCP).ip();
    for ether_type in [0x8100, 0x88a8, 0x8863, 0x0600] {
        let frame = ethernet([2; 6], [2; 6], Some(5), etherparse::EtherType(ether_type), &ip);
        assert_eq!(parsed(&frame).unwrap_err(), DropReason::UnknownEthertype);
    }
}

#[test]
fn icmp_errors_echoes_and_link_local_messages_are_different_kinds() {
    let kind = |pair: [IpAddr; 2], kind: u8| {
        let message = Transport::Icmp { kind, code: 0, rest: [0; 4] };
        parsed(&Spec::new(pair[0], pair[1], message).bytes()).map(|packet| packet.kind)
    };
    let [v4, v6] = addresses();
    assert_eq!([3, 11, 12].map(|error| kind(v4, error)), [Ok(Kind::IcmpError); 3]);
    assert_eq!([1, 2, 3, 4].map(|error| kind(v6, error)), [Ok(Kind::IcmpError); 4]);
    assert_eq!([0, 8, 13].map(|message| kind(v4, message)), [Ok(Kind::Flow); 3]);
    assert_eq!([128, 129].map(|echo| kind(v6, echo)), [Ok(Kind::Flow); 2]);
    assert_eq!([130, 133, 135, 136, 137, 143].map(|on_link| kind(v6, on_link)), [Ok(Kind::LinkLocal); 6]);
    assert_eq!([4, 5].map(|dangerous| kind(v4, dangerous)), [Err(DropReason::InvalidState); 2]);
}

#[test]
fn a_quote_needs_the_ports_and_nothing_more() {
    for spec in specs().into_iter().filter(|spec| spec.vlan.is_none()) {
        let ip = spec.ip();
        let header_bytes = if spec.src.is_ipv4() { 20 } else { 40 };
        let mut quoted = Packet::default();
        for len in 0..ip.len() {
            assert_eq!(parse_quoted(&ip[..len], &mut quoted), len >= header_bytes + 8, "{spec:?} at {len}");
        }
        let packet = parsed(&spec.bytes()).unwrap();
        let key =
            |packet: &Packet| (packet.src, packet.dst, packet.protocol, packet.src_port, packet.dst_port);
        assert_eq!(key(&quoted), key(&packet));
    }
}

#[test]
fn a_quote_of_ipv6_does_not_stand_for_ipv4() {
    let mapped = ["::ffff:10.0.0.1", "::ffff:10.0.0.2"].map(|text| text.parse().unwrap());
    let ip = Spec::new(mapped[0], mapped[1], TCP).ip();
    assert!(!parse_quoted(&ip, &mut Packet::default()));
}

/// Invariants of a parsed packet that the stages rely on when they slice frames.
fn check_offsets(frame: &[u8], packet: &Packet) {
    let [l3, l4, end] = [u16::from(packet.l3), packet.l4, packet.end].map(usize::from);
    assert!(l3 <= frame.len());
    if packet.kind != Kind::Arp {
        assert!(l3 < l4 && l4 <= end && end <= frame.len(), "{l3} {l4} {end} {}", frame.len());
    }
}

/// Writes the sum over the pseudo-header into the checksum field.
fn leave_unfinished(frame: &mut [u8]) {
    let mut packet = Packet::default();
    if parse_frame(frame, frame.len(), &mut packet).is_some()
        || !packet.whole
        || packet.protocol == Protocol::ICMP
    {
        return;
    }
    let (l4, end) = (usize::from(packet.l4), usize::from(packet.end));
    let offset = if packet.protocol == Protocol::TCP { 16 } else { 6 };
    let (src, dst) = (unpack(packet.src), unpack(packet.dst));
    let pseudo = crate::net::checksum::pseudo_header_of(src, dst, packet.protocol, end - l4).fold();
    if let Some(field) = frame[l4..end].get_mut(offset..offset + 2) {
        field.copy_from_slice(&pseudo.to_be_bytes());
    }
}

#[test]
fn the_short_cut_takes_what_it_is_for() {
    for spec in specs() {
        let is_plain =
            spec.vlan.is_none() && matches!(spec.transport, Transport::Tcp { .. } | Transport::Udp { .. });
        let mut frame = spec.bytes();
        assert_eq!(parse_fast(&frame, frame.len(), &mut Packet::default()), is_plain, "{spec:?}");
        leave_unfinished(&mut frame);
        let mut packet = Packet::default();
        assert_eq!(parse_fast(&frame, frame.len(), &mut packet), is_plain, "{spec:?}");
        assert_eq!(packet.unfinished, is_plain, "{spec:?}");
    }
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut packet = Packet::default();
        if parse_frame(&bytes, bytes.len(), &mut packet).is_none() {
            check_offsets(&bytes, &packet);
        }
        parse_quoted(&bytes, &mut packet);
    }

    #[test]
    fn the_short_cut_says_what_the_long_way_says(
        which in 0..specs().len(),
        unfinished in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        padding in 0..8usize,
    ) {
        let mut frame = specs()[which].bytes();
        for (place, byte) in damage {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        if unfinished {
            leave_unfinished(&mut frame);
        }
        frame.extend(vec![0; padding]);
        let (mut short, mut long) = (Packet::default(), Packet::default());
        if parse_fast(&frame, frame.len(), &mut short) {
            prop_assert_eq!(parse_frame(&frame, frame.len(), &mut long), None);
            prop_assert_eq!(short, long);
        }
    }

    #[test]
    fn damaged_frames_never_panic(
        which in 0..specs().len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        keep in any::<bool>(),
    ) {
        let mut frame = specs()[which].bytes();
        for (place, byte) in damage {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        if !keep {
            frame.truncate(cut.index(frame.len()));
        }
        let mut packet = Packet::default();
        if parse_frame(&frame, frame.len(), &mut packet).is_none() {
            check_offsets(&frame, &packet);
        }
        if let Some(quote) = frame.get(14..) {
            parse_quoted(quote, &mut packet);
        }
    }
}
