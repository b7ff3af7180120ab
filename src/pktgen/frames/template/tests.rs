use etherparse::{NetHeaders, PacketHeaders, TransportHeader};

use super::*;
use crate::net::mac::Mac;
use crate::pktgen::{Distribution, FlowSpace, FrameSize, frames::payload_offset};

fn traffic(kind: Kind, ipv6: bool, vlan: Option<u16>) -> Traffic {
    let network = |v4: &str, v6: &str| if ipv6 { v6.parse() } else { v4.parse() }.unwrap();
    let space = FlowSpace {
        src: network("10.200.0.0/24", "fd00:ffff::/120"),
        dst: network("10.201.255.0/24", "fd00:abcd::ff00/120"),
        src_ports: 1..=65535,
        dst_ports: 0..=65535,
    };
    let [src_mac, dst_mac] = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last]));
    Traffic { vlan, ..Traffic::new(kind, src_mac, dst_mac, space) }
}

const KINDS: [Kind; 5] = [Kind::Udp, Kind::Tcp(0x10), Kind::IcmpEcho, Kind::SctpData, Kind::SctpInit];

/// Every protocol, IP version and tagging.
fn all() -> impl Iterator<Item = Traffic> {
    KINDS.into_iter().flat_map(|kind| {
        [(false, None), (false, Some(5)), (true, None), (true, Some(4094))]
            .map(|(ipv6, vlan)| traffic(kind, ipv6, vlan))
    })
}

/// Whether a transport's checksum is what another implementation computes.
fn check_transport(packet: &PacketHeaders<'_>, transport: &[u8]) {
    let payload = packet.payload.slice();
    let ip = packet.net.as_ref().unwrap();
    match (&packet.transport, ip) {
        (Some(TransportHeader::Udp(header)), NetHeaders::Ipv4(ip, _)) => {
            assert_eq!(header.checksum, header.calc_checksum_ipv4(ip, payload).unwrap());
        }
        (Some(TransportHeader::Udp(header)), NetHeaders::Ipv6(ip, _)) => {
            assert_eq!(header.checksum, header.calc_checksum_ipv6(ip, payload).unwrap());
        }
        (Some(TransportHeader::Tcp(header)), NetHeaders::Ipv4(ip, _)) => {
            assert_eq!(header.checksum, header.calc_checksum_ipv4(ip, payload).unwrap());
        }
        (Some(TransportHeader::Tcp(header)), NetHeaders::Ipv6(ip, _)) => {
            assert_eq!(header.checksum, header.calc_checksum_ipv6(ip, payload).unwrap());
        }
        (Some(TransportHeader::Icmpv4(header)), _) => {
            assert_eq!(header.checksum, header.icmp_type.calc_checksum(payload));
        }
        (Some(TransportHeader::Icmpv6(header)), NetHeaders::Ipv6(ip, _)) => {
            let expected = header.icmp_type.calc_checksum(ip.source, ip.destination, payload).unwrap();
            assert_eq!(header.checksum, expected);
        }
        (None, _) => {
            let mut whole = transport.to_vec();
            sctp::finish(&mut whole);
            assert_eq!(whole, transport, "SCTP");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_parse_back_with_right_checksums_whatever_is_patched() {
    for traffic in all() {
        for size in [traffic.size_min(true), 128, 129, 594, 1518] {
            let mut template = Template::new(&traffic, size);
            for number in 0..60u32 {
                let flow = number.wrapping_mul(0x0107_3a5d);
                let tuple = traffic.tuples().of(flow);
                let stamp = Stamp { flow, sequence: !number, sent_ns: u64::from(flow) << 31 | 0xffff };
                let transport = template.transport;
                let frame = template.patch(tuple, stamp);
                assert_eq!(frame.len(), size - FCS_BYTES);
                let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
                assert_eq!(packet.vlan().is_some(), traffic.vlan.is_some());
                let (src, dst) = match packet.net.as_ref().unwrap() {
                    NetHeaders::Ipv4(ip, _) => {
                        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                        assert_eq!(usize::from(ip.total_len), frame.len() - template_ip(&traffic));
                        let word = |bytes| u128::from(u32::from_be_bytes(bytes));
                        (word(ip.source), word(ip.destination))
                    }
                    NetHeaders::Ipv6(ip, _) => {
                        (u128::from_be_bytes(ip.source), u128::from_be_bytes(ip.destination))
                    }
                    arp @ NetHeaders::Arp(_) => panic!("{arp:?}"),
                };
                let expected = match tuple.addresses {
                    Addresses::V4(src, dst) => (u128::from(src), u128::from(dst)),
                    Addresses::V6(src, dst) => (src, dst),
                };
                assert_eq!((src, dst), expected);
                check_transport(&packet, &frame[transport..]);
                assert_eq!(
                    payload_offset::payload(frame).and_then(Stamp::read),
                    Some(stamp),
                    "{traffic:?} {size}"
                );
            }
        }
    }
}

fn template_ip(traffic: &Traffic) -> usize {
    ethernet::bytes_with(traffic.vlan.unwrap_or(0))
}

#[test]
fn ports_and_flags_are_those_asked_for() {
    let tuple = Tuple { addresses: Addresses::V4(1, 2), src_port: 1025, dst_port: 443 };
    let stamp = Stamp { flow: 0, sequence: 3, sent_ns: 0 };
    let mut template = Template::new(&traffic(Kind::Tcp(0x02), false, None), 128);
    let packet = PacketHeaders::from_ethernet_slice(template.patch(tuple, stamp)).unwrap();
    let Some(TransportHeader::Tcp(header)) = packet.transport else { panic!("no TCP") };
    assert_eq!((header.source_port, header.destination_port, header.sequence_number), (1025, 443, 3));
    assert!(header.syn && !header.ack && !header.fin && !header.rst);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    let traffic = traffic(Kind::Udp, false, None);
    let mut template = Template::new(&traffic, 64);
    let stamp = Stamp { flow: 0, sequence: 0, sent_ns: 0 };
    let zero = (1..=u16::MAX).find(|port| {
        let tuple = Tuple { addresses: Addresses::V4(1, 2), src_port: *port, dst_port: 9 };
        template.patch(tuple, stamp)[40..42] == [0xff, 0xff]
    });
    assert!(zero.is_some(), "one port of all makes the sum zero, and none may send it so");
    for port in 1..=u16::MAX {
        let tuple = Tuple { addresses: Addresses::V4(1, 2), src_port: port, dst_port: 9 };
        assert_ne!(template.patch(tuple, stamp)[40..42], [0, 0]);
    }
}

#[test]
fn sixty_four_bytes_hold_a_stamp_in_ipv4_and_udp_and_the_error_tells_the_least_elsewhere() {
    let stamped = |traffic: Traffic| traffic.check(true).map_err(|error| error.to_string());
    assert_eq!(stamped(traffic(Kind::Udp, false, None)), Ok(()));
    assert_eq!(stamped(traffic(Kind::IcmpEcho, false, None)), Ok(()));
    let least = [
        (Kind::Udp, true, None, 84),
        (Kind::Udp, false, Some(1), 68),
        (Kind::Tcp(0x10), false, None, 76),
        (Kind::Tcp(0x10), true, None, 96),
        (Kind::SctpData, false, None, 84),
    ];
    for (kind, ipv6, vlan, size) in least {
        let mut wanted = traffic(kind, ipv6, vlan);
        assert_eq!(wanted.size_min(true), size);
        let error = stamped(wanted.clone()).unwrap_err();
        assert!(error.contains(&format!("{size}")), "{error}");
        wanted.size = FrameSize::Fixed(size);
        assert_eq!(stamped(wanted), Ok(()));
    }
    let mut bare = traffic(Kind::Tcp(0x10), false, None);
    assert!(bare.check(false).is_ok(), "without a stamp 64 bytes hold TCP");
    bare.size = FrameSize::Fixed(63);
    assert!(bare.check(false).is_err());
}

#[test]
fn traffic_that_cannot_be_is_refused_with_what_to_do() {
    let refusal = |edit: fn(&mut Traffic)| {
        let mut traffic = traffic(Kind::Udp, false, None);
        edit(&mut traffic);
        traffic.check(false).unwrap_err().to_string()
    };
    assert!(refusal(|traffic| traffic.flows = 0).contains("0 flows"));
    let few = refusal(|traffic| {
        traffic.flows = 11;
        traffic.space = FlowSpace {
            src: "10.0.0.1/32".parse().unwrap(),
            dst: "10.0.0.2/32".parse().unwrap(),
            src_ports: 1..=10,
            dst_ports: 1..=1,
        };
    });
    assert!(few.contains("make 10 different ones") && few.contains("--dst-ports"), "{few}");
    assert!(refusal(|traffic| traffic.vlan = Some(0)).contains("VLAN"));
    assert!(refusal(|traffic| traffic.distribution = Distribution::Zipf(-1.0)).contains("Zipf"));
    assert!(refusal(|traffic| traffic.size = FrameSize::Fixed(9000)).contains("--size is from 64"));
    assert!(refusal(|traffic| traffic.space.dst = "fd00::/64".parse().unwrap()).contains("IP version"));
}

#[test]
fn fields_that_are_not_patched_have_the_values_of_a_plain_packet() {
    let bytes = |kind, ipv6, vlan| Template::new(&traffic(kind, ipv6, vlan), 128).bytes;
    let v4 = bytes(Kind::Udp, false, None);
    // Version and length, type of service, total length, identification; "don't fragment"; time to live,
    // protocol (RFC 791).
    assert_eq!(v4[12..24], [0x08, 0x00, 0x45, 0, 0, 110, 0, 0, 0x40, 0, 64, 17]);
    assert_eq!(v4[34..44], [0, 0, 0, 0, 0, 90, 0, 0, 0x50, 0xa1]);
    let v6 = bytes(Kind::Tcp(0x12), true, Some(7));
    assert_eq!(v6[12..26], [0x81, 0x00, 0, 7, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 66, 6, 64]);
    assert_eq!(v6[58..80], [[0; 12].as_slice(), &[0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0, 0x50, 0xa1]].concat());
    assert_eq!(bytes(Kind::IcmpEcho, false, None)[34..42], [8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(Kind::IcmpEcho, true, None)[54..62], [128, 0, 0, 0, 0, 0, 0, 0]);
    let data = bytes(Kind::SctpData, false, None);
    assert_eq!(
        data[34..64],
        [[0; 12].as_slice(), &[0, 7, 0, 76, 0, 0, 0, 1], &[0; 8], &[0x50, 0xa1]].concat()
    );
    let init = bytes(Kind::SctpInit, false, None);
    let chunk = [1, 0, 0, 76, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0x8a, 0x11, 0, 56, 0x50, 0xa1];
    assert_eq!(init[34..72], [[0; 12].as_slice(), &chunk].concat());
}
