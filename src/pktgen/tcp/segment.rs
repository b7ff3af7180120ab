//! TCP segments of generated connections, written to frames and read from them.

use crate::net::checksum::pseudo_header;
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::net::tcp::{self, Tcp};
use crate::net::{ethernet, ipv4, ipv6};
use crate::pktgen::frames::payload_offset;
use crate::pktgen::traffic::flows::{Addresses, Tuple};

/// Bytes of the largest segment: Ethernet with a tag, IPv6, TCP without options.
pub(crate) const SEGMENT_BYTES_MAX: usize = 80;
/// Least bytes of a frame in memory, without frame check sequence.
const FRAME_BYTES_MIN: usize = 60;
const HOPS: u8 = 64;
const WINDOW: u16 = u16::MAX;

/// Link-layer addresses of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) src: Mac,
    pub(crate) dst: Mac,
    pub(crate) vlan: Option<u16>,
}

/// A segment without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) tuple: Tuple,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
}

impl Link {
    /// Returns the addresses of an answer to a frame.
    pub(crate) fn back(frame: &[u8], vlan: Option<u16>) -> Link {
        let (src, dst) = ethernet::parse(frame).map(|link| (link.dst, link.src)).unwrap_or_default();
        Link { src, dst, vlan }
    }
}

impl Tuple {
    /// Returns the tuple of the answers.
    pub(crate) fn reversed(self) -> Tuple {
        let addresses = match self.addresses {
            Addresses::V4(src, dst) => Addresses::V4(dst, src),
            Addresses::V6(src, dst) => Addresses::V6(dst, src),
        };
        Tuple { addresses, src_port: self.dst_port, dst_port: self.src_port }
    }
}

impl Segment {
    /// Writes the segment as a frame.
    pub(crate) fn write<'a>(&self, link: &Link, bytes: &'a mut [u8; SEGMENT_BYTES_MAX]) -> &'a [u8] {
        ethernet::set_addresses(bytes, link.dst, link.src);
        let ip = ethernet::bytes_with(link.vlan.unwrap_or(0));
        if let Some(vlan) = link.vlan {
            bytes[12..14].copy_from_slice(&ethernet::VLAN.to_be_bytes());
            bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
        }
        let (packet, header) = (&mut bytes[ip..], tcp::HEADER_BYTES);
        let (ethertype, transport, addresses) = match self.tuple.addresses {
            Addresses::V4(src, dst) => {
                ipv4::write(packet, src, dst, Protocol::TCP, header, HOPS);
                (ethernet::IPV4, ip + ipv4::HEADER_BYTES, ip + 12..ip + 20)
            }
            Addresses::V6(src, dst) => {
                ipv6::write(packet, src, dst, Protocol::TCP, header, HOPS);
                (ethernet::IPV6, ip + ipv6::HEADER_BYTES, ip + 8..ip + 40)
            }
        };
        let pseudo = pseudo_header(&bytes[addresses], Protocol::TCP, header);
        bytes[ip - 2..ip].copy_from_slice(&ethertype.to_be_bytes());
        let segment = &mut bytes[transport..transport + header];
        segment[..2].copy_from_slice(&self.tuple.src_port.to_be_bytes());
        segment[2..4].copy_from_slice(&self.tuple.dst_port.to_be_bytes());
        segment[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        segment[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        segment[12..14].copy_from_slice(&[(header as u8 / 4) << 4, self.flags]);
        segment[14..16].copy_from_slice(&WINDOW.to_be_bytes());
        let checksum = pseudo.add_bytes(segment).finish();
        segment[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
        &bytes[..(transport + header).max(FRAME_BYTES_MIN)]
    }

    /// Reads the segment of a frame; `None` for any other frame.
    pub(crate) fn read(frame: &[u8]) -> Option<Segment> {
        let (Protocol::TCP, transport) = payload_offset::transport(frame)? else { return None };
        let segment = Tcp::new(frame.get(transport..)?)?;
        let link = ethernet::parse(frame)?;
        let packet = &frame[link.header_bytes..];
        let addresses = if link.ethertype == ethernet::IPV6 {
            let header = ipv6::Ipv6::new(packet)?;
            Addresses::V6(header.src(), header.dst())
        } else {
            let header = ipv4::Ipv4::new(packet)?;
            Addresses::V4(header.src(), header.dst())
        };
        Some(Segment {
            tuple: Tuple { addresses, src_port: segment.src_port(), dst_port: segment.dst_port() },
            sequence: segment.sequence(),
            acknowledgement: segment.acknowledgement(),
            flags: segment.flags().0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_its_checksums_are_right() {
        let v6 = |last: u128| 0xfd00 << 112 | last;
        for addresses in [Addresses::V4(0x0a00_0001, 0x0a00_0002), Addresses::V6(v6(1), v6(2))] {
            for vlan in [None, Some(77)] {
                let link = Link { src: Mac([2, 0, 0, 0, 0, 1]), dst: Mac([2, 0, 0, 0, 0, 2]), vlan };
                let segment = Segment {
                    tuple: Tuple { addresses, src_port: 1024, dst_port: 80 },
                    sequence: 0xffff_fff0,
                    acknowledgement: 7,
                    flags: 0x12,
                };
                let mut bytes = [0; SEGMENT_BYTES_MAX];
                let frame = segment.write(&link, &mut bytes);
                assert_eq!(Segment::read(frame), Some(segment));
                assert!(frame.len() >= 60);
                let packet = etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap();
                let Some(etherparse::TransportHeader::Tcp(header)) = packet.transport else {
                    panic!("no TCP")
                };
                let expected = match packet.net.unwrap() {
                    etherparse::NetHeaders::Ipv4(ip, _) => {
                        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                        header.calc_checksum_ipv4(&ip, &[]).unwrap()
                    }
                    etherparse::NetHeaders::Ipv6(ip, _) => header.calc_checksum_ipv6(&ip, &[]).unwrap(),
                    arp @ etherparse::NetHeaders::Arp(_) => panic!("{arp:?}"),
                };
                assert_eq!(header.checksum, expected);
                let back = Link::back(frame, vlan);
                assert_eq!((back.src, back.dst), (link.dst, link.src));
            }
        }
    }
}
