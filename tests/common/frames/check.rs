//! Checks of frames for tests, by etherparse.

use etherparse::{IpNumber, NetSlice, SlicedPacket, TransportSlice};

use super::checksum::{crc32c, ones_sum, pseudo_sum};
use super::describe::describe;

/// Checks every checksum of a frame with an IP packet, and that no byte follows the packet.
pub(crate) fn check(frame: &[u8]) -> Result<(), String> {
    let sliced = SlicedPacket::from_ethernet(frame).map_err(|error| format!("{error:?}"))?;
    let header = |what: &str| format!("{what} checksum is wrong in {}", describe(frame));
    let net = sliced.net.as_ref().ok_or("no IP packet")?;
    let tags: usize = sliced.link_exts.iter().map(etherparse::LinkExtSlice::header_len).sum();
    let (src, dst, ip_bytes): (Vec<u8>, Vec<u8>, usize) = match net {
        NetSlice::Ipv4(ip) => {
            let fields = ip.header().to_header();
            if fields.calc_header_checksum() != fields.header_checksum {
                return Err(header("IPv4"));
            }
            (fields.source.to_vec(), fields.destination.to_vec(), usize::from(fields.total_len))
        }
        NetSlice::Ipv6(ip) => {
            let fields = ip.header();
            let bytes = 40 + usize::from(fields.payload_length());
            (fields.source().to_vec(), fields.destination().to_vec(), bytes)
        }
        NetSlice::Arp(_) => return Err("ARP".into()),
    };
    if frame.len() != 14 + tags + ip_bytes {
        return Err(format!("{} bytes in a frame of a packet of {ip_bytes}", frame.len()));
    }
    let fits = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => pseudo_sum(&src, &dst, 6, tcp.slice()) == 0xffff,
        Some(TransportSlice::Udp(udp)) => {
            udp.checksum() == 0 || pseudo_sum(&src, &dst, 17, udp.slice()) == 0xffff
        }
        Some(TransportSlice::Icmpv4(icmp)) => ones_sum(icmp.slice()) == 0xffff,
        Some(TransportSlice::Icmpv6(icmp)) => {
            icmp.is_checksum_valid(src.try_into().unwrap(), dst.try_into().unwrap())
        }
        _ => match net.ip_payload_ref() {
            Some(payload) if payload.ip_number == IpNumber::SCTP && payload.payload.len() >= 12 => {
                let mut sctp = payload.payload.to_vec();
                sctp[8..12].fill(0);
                crc32c(&sctp).to_le_bytes() == payload.payload[8..12]
            }
            _ => true,
        },
    };
    if fits { Ok(()) } else { Err(header("transport")) }
}

/// Leaves the transport checksum of a TCP or UDP frame as Linux leaves it to the hardware
/// (`CHECKSUM_PARTIAL`): the sum over the pseudo-header alone.
pub(crate) fn unfinish(frame: &mut [u8]) {
    let (field, sum) = {
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        let l3 = 14 + sliced.link_exts.iter().map(etherparse::LinkExtSlice::header_len).sum::<usize>();
        let (addresses, l4) = match sliced.net {
            Some(NetSlice::Ipv4(ip)) => (l3 + 12..l3 + 20, l3 + ip.header().slice().len()),
            Some(NetSlice::Ipv6(_)) => (l3 + 8..l3 + 40, l3 + 40),
            _ => panic!("no IP packet"),
        };
        let (protocol, offset) = match sliced.transport {
            Some(TransportSlice::Tcp(_)) => (6, 16),
            Some(TransportSlice::Udp(_)) => (17, 6),
            _ => panic!("neither TCP nor UDP"),
        };
        let [high, low] = ((frame.len() - l4) as u16).to_be_bytes();
        let pseudo = [&frame[addresses], &[0, protocol, high, low]].concat();
        (l4 + offset..l4 + offset + 2, ones_sum(&pseudo))
    };
    frame[field].copy_from_slice(&sum.to_be_bytes());
}
