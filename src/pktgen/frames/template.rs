//! Frames built beforehand: what differs from one to the next is written in place, and the checksums follow from sums
//! over the rest (RFC 1071: the sum of the parts is the sum of the whole).

use crate::net::checksum::{Sum, pseudo_header};
use crate::net::flow::Protocol;
use crate::net::{ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};
use crate::pktgen::traffic::flows::{Addresses, Tuple};
use crate::pktgen::traffic::frame_size::FCS_BYTES;
use crate::pktgen::traffic::stamp::{MAGIC, STAMP_BYTES, Stamp};
use crate::pktgen::traffic::{Kind, SCTP_DATA_BYTES, SCTP_INIT_BYTES, Traffic};

/// Hops that a frame may take.
const TTL: u8 = 64;

/// A frame, and the sums over what stays the same in it.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    kind: Kind,
    ipv6: bool,
    ip: usize,
    transport: usize,
    payload: usize,
    stamped: bool,
    ip_sum: u64,
    transport_sum: u64,
}

impl Template {
    /// A frame of `size` bytes, those of the frame check sequence counted. Frames with no room for a stamp have none.
    pub(crate) fn new(traffic: &Traffic, size: usize) -> Template {
        let bytes = size - FCS_BYTES;
        let ip = ethernet::bytes_with(traffic.vlan.unwrap_or(0));
        let transport = ip + if traffic.is_ipv6() { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
        let payload = transport + traffic.kind.header_bytes();
        let mut template = Template {
            bytes: vec![0; bytes],
            kind: traffic.kind,
            ipv6: traffic.is_ipv6(),
            ip,
            transport,
            payload,
            stamped: bytes >= payload + STAMP_BYTES,
            ip_sum: 0,
            transport_sum: 0,
        };
        template.write_link(traffic);
        template.write_network();
        template.write_transport();
        template.sum();
        template
    }

    fn protocol(&self) -> Protocol {
        match self.kind {
            Kind::Udp => Protocol::UDP,
            Kind::Tcp(_) => Protocol::TCP,
            Kind::IcmpEcho if self.ipv6 => Protocol::ICMPV6,
            Kind::IcmpEcho => Protocol::ICMP,
            Kind::SctpData | Kind::SctpInit => Protocol::SCTP,
        }
    }

    fn write_link(&mut self, traffic: &Traffic) {
        ethernet::set_addresses(&mut self.bytes, traffic.dst_mac, traffic.src_mac);
        let ethertype = if self.ipv6 { ethernet::IPV6 } else { ethernet::IPV4 };
        if let Some(vlan) = traffic.vlan {
            self.bytes[12..14].copy_from_slice(&ethernet::VLAN.to_be_bytes());
            self.bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
        }
        self.bytes[self.ip - 2..self.ip].copy_from_slice(&ethertype.to_be_bytes());
    }

    fn write_network(&mut self) {
        let (protocol, payload) = (self.protocol(), self.bytes.len() - self.transport);
        let packet = &mut self.bytes[self.ip..];
        if self.ipv6 {
            ipv6::write(packet, 0, 0, protocol, payload, TTL);
        } else {
            ipv4::write(packet, 0, 0, protocol, payload, TTL);
        }
    }

    fn write_transport(&mut self) {
        let segment = &mut self.bytes[self.transport..];
        let length = segment.len();
        match self.kind {
            Kind::Udp => segment[4..6].copy_from_slice(&(length as u16).to_be_bytes()),
            Kind::Tcp(flags) => {
                segment[12] = (tcp::HEADER_BYTES as u8 / 4) << 4;
                segment[13] = flags;
                segment[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
            }
            Kind::IcmpEcho => {
                segment[0] = if self.ipv6 { icmp::v6::ECHO_REQUEST } else { icmp::v4::ECHO_REQUEST };
            }
            Kind::SctpData => write_sctp_data(segment),
            Kind::SctpInit => write_sctp_init(segment),
        }
        if self.stamped {
            self.bytes[self.payload..][..2].copy_from_slice(&MAGIC.to_be_bytes());
        }
    }

    fn sum(&mut self) {
        if !self.ipv6 {
            self.bytes[self.ip + 10..self.ip + 12].fill(0);
            self.ip_sum = u64::from(Sum::default().add_bytes(&self.bytes[self.ip..self.transport]).fold());
        }
        let segment = &self.bytes[self.transport..];
        let pseudo = match self.protocol() {
            Protocol::ICMP => Sum::default(),
            protocol => pseudo_header(&[], protocol, segment.len()),
        };
        self.transport_sum = u64::from(pseudo.add_bytes(segment).fold());
    }

    /// The frame of a flow, with its stamp.
    #[inline]
    pub(crate) fn patch(&mut self, tuple: Tuple, stamp: Stamp) -> &[u8] {
        let addresses = self.patch_addresses(tuple.addresses);
        let mut sum = self.transport_sum;
        if self.stamped {
            stamp.write(&mut self.bytes[self.payload..]);
            sum += stamp.sum();
        }
        sum += match self.kind {
            Kind::IcmpEcho if !self.ipv6 => 0,
            _ => addresses,
        };
        self.patch_transport(tuple, stamp.sequence, sum);
        &self.bytes
    }

    /// Writes the addresses, and gives their sum.
    #[inline]
    fn patch_addresses(&mut self, addresses: Addresses) -> u64 {
        match addresses {
            Addresses::V4(src, dst) => {
                let header = &mut self.bytes[self.ip..self.ip + ipv4::HEADER_BYTES];
                header[12..16].copy_from_slice(&src.to_be_bytes());
                header[16..20].copy_from_slice(&dst.to_be_bytes());
                let addresses = halves(src) + halves(dst);
                header[10..12].copy_from_slice(&finish(self.ip_sum + addresses).to_be_bytes());
                addresses
            }
            Addresses::V6(src, dst) => {
                let header = &mut self.bytes[self.ip..self.ip + ipv6::HEADER_BYTES];
                header[8..24].copy_from_slice(&src.to_be_bytes());
                header[24..40].copy_from_slice(&dst.to_be_bytes());
                words(src) + words(dst)
            }
        }
    }

    #[inline]
    fn patch_transport(&mut self, tuple: Tuple, sequence: u32, sum: u64) {
        let segment = &mut self.bytes[self.transport..];
        let (src, dst) = (tuple.src_port, tuple.dst_port);
        let ports = u64::from(src) + u64::from(dst);
        match self.kind {
            Kind::Udp => {
                write_ports(segment, src, dst);
                // Zero is no checksum (RFC 768), which IPv6 forbids.
                let checksum = match finish(sum + ports) {
                    0 => u16::MAX,
                    checksum => checksum,
                };
                segment[udp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
            }
            Kind::Tcp(_) => {
                write_ports(segment, src, dst);
                segment[4..8].copy_from_slice(&sequence.to_be_bytes());
                let checksum = finish(sum + ports + halves(sequence));
                segment[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
            }
            Kind::IcmpEcho => {
                let number = sequence as u16;
                segment[4..6].copy_from_slice(&src.to_be_bytes());
                segment[6..8].copy_from_slice(&number.to_be_bytes());
                let checksum = finish(sum + u64::from(src) + u64::from(number));
                segment[2..4].copy_from_slice(&checksum.to_be_bytes());
            }
            Kind::SctpData | Kind::SctpInit => {
                write_ports(segment, src, dst);
                sctp::finish(segment);
            }
        }
    }
}

/// A DATA chunk, whole and unordered, that fills the packet but for its padding.
fn write_sctp_data(packet: &mut [u8]) {
    let chunk = &mut packet[sctp::HEADER_BYTES..];
    let length = (chunk.len() & !3) as u16;
    // Flags: unordered, beginning and end (RFC 9260 section 3.3.1).
    chunk[..2].copy_from_slice(&[0, 0x07]);
    chunk[2..4].copy_from_slice(&length.to_be_bytes());
    chunk[4..8].copy_from_slice(&1u32.to_be_bytes());
    debug_assert!(chunk.len() >= SCTP_DATA_BYTES);
}

/// An INIT chunk with one parameter that fills the packet but for its padding.
fn write_sctp_init(packet: &mut [u8]) {
    let chunk = &mut packet[sctp::HEADER_BYTES..];
    let length = (chunk.len() & !3) as u16;
    chunk[0] = sctp::chunk::INIT;
    chunk[2..4].copy_from_slice(&length.to_be_bytes());
    // Initiate tag, receiver window, streams out and in, first transmission number.
    chunk[4..8].copy_from_slice(&1u32.to_be_bytes());
    chunk[8..12].copy_from_slice(&0x1_0000u32.to_be_bytes());
    chunk[12..16].copy_from_slice(&[0, 1, 0, 1]);
    chunk[16..20].copy_from_slice(&1u32.to_be_bytes());
    // A parameter type with the highest bit set and the next one clear: skip it, and do not report it.
    let parameter = length - SCTP_INIT_BYTES as u16;
    chunk[20..22].copy_from_slice(&0x8a11u16.to_be_bytes());
    chunk[22..24].copy_from_slice(&parameter.to_be_bytes());
}

#[inline]
fn write_ports(segment: &mut [u8], src: u16, dst: u16) {
    segment[..2].copy_from_slice(&src.to_be_bytes());
    segment[2..4].copy_from_slice(&dst.to_be_bytes());
}

#[inline]
fn halves(number: u32) -> u64 {
    u64::from(number >> 16) + u64::from(number & 0xffff)
}

#[inline]
fn words(number: u128) -> u64 {
    [96, 64, 32, 0].iter().map(|shift| halves((number >> shift) as u32)).sum()
}

/// The checksum of a sum of words in host order.
#[inline]
fn finish(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests {
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
}
