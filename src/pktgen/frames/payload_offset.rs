//! Offset of the payload in a received frame.

use crate::net::flow::Protocol;
use crate::net::{be16, ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};

use crate::pktgen::traffic::{SCTP_DATA_BYTES, SCTP_INIT_BYTES};

/// Returns the payload of a received frame; `None` for a frame of a kind that is not generated.
#[inline]
pub(crate) fn payload(frame: &[u8]) -> Option<&[u8]> {
    let (protocol, transport) = transport(frame)?;
    let segment = frame.get(transport..)?;
    let header = match protocol {
        Protocol::UDP => udp::HEADER_BYTES,
        Protocol::TCP => tcp::Tcp::new(segment)?.header_bytes(),
        Protocol::ICMP | Protocol::ICMPV6 => icmp::HEADER_BYTES,
        Protocol::SCTP if sctp::Sctp::new(segment)?.chunk_type() == sctp::chunk::INIT => {
            sctp::HEADER_BYTES + SCTP_INIT_BYTES + 4
        }
        Protocol::SCTP => sctp::HEADER_BYTES + SCTP_DATA_BYTES,
        _ => return None,
    };
    segment.get(header..)
}

/// Returns the protocol of an unfragmented packet without extension headers, and the offset of the transport
/// header.
#[inline]
pub(crate) fn transport(frame: &[u8]) -> Option<(Protocol, usize)> {
    let link = ethernet::parse(frame)?;
    let packet = &frame[link.header_bytes..];
    match link.ethertype {
        ethernet::IPV4 => {
            let header: &[u8; ipv4::HEADER_BYTES] = packet.first_chunk()?;
            let fragment = be16(header, 6) & 0x3fff;
            (fragment == 0)
                .then_some((Protocol(header[9]), link.header_bytes + usize::from(header[0] & 0x0f) * 4))
        }
        ethernet::IPV6 => {
            let header = ipv6::Ipv6::new(packet)?;
            Some((Protocol(header.next_header()), link.header_bytes + ipv6::HEADER_BYTES))
        }
        _ => None,
    }
}
