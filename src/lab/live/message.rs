//! Messages of clients and responders, for protocols that the kernel does not implement. Pure.

use crate::net::sctp::{self, chunk};

/// Request of a client, by UDP and by protocols without ports.
pub(super) const REQUEST: &[u8] = b"palisade?";
/// Response. It differs from the request, so that no responder answers a response.
pub(super) const RESPONSE: &[u8] = b"palisade!";

/// Bytes of the fixed part of INIT and INIT ACK (RFC 9260 sections 3.3.2 and 3.3.3).
const INIT_BYTES: u16 = 20;
/// Parameter "State Cookie" of four bytes, which an INIT ACK must have (RFC 9260 section 3.3.3).
const COOKIE: [u8; 8] = [0, 7, 0, 8, b'l', b'i', b'v', b'e'];

/// Builds an SCTP packet with an INIT, which asks for an association. `tag` is not 0.
pub(super) fn sctp_init(src_port: u16, dst_port: u16, tag: u32) -> Vec<u8> {
    // "The sender MUST set the Verification Tag of the packet to 0" (RFC 9260 section 8.5.1).
    sctp_packet(src_port, dst_port, 0, chunk::INIT, tag, &[])
}

/// Builds the INIT ACK for a packet; `None` unless it is an INIT.
pub(super) fn sctp_response(packet: &[u8]) -> Option<Vec<u8>> {
    let init = sctp::Sctp::new(packet)?;
    let tag: &[u8; 4] = packet.get(sctp::HEADER_BYTES + 4..)?.first_chunk()?;
    if init.chunk_type() != chunk::INIT {
        return None;
    }
    let tag = u32::from_be_bytes(*tag);
    Some(sctp_packet(init.dst_port(), init.src_port(), tag, chunk::INIT_ACK, !tag | 1, &COOKIE))
}

/// Whether a packet answers [`sctp_init`] with these ports: an INIT ACK, or an ABORT of a kernel with SCTP.
pub(super) fn is_sctp_response(packet: &[u8], src_port: u16, dst_port: u16) -> bool {
    sctp::Sctp::new(packet).is_some_and(|answer| {
        (answer.src_port(), answer.dst_port()) == (dst_port, src_port)
            && matches!(answer.chunk_type(), chunk::INIT_ACK | chunk::ABORT)
    })
}

fn sctp_packet(src_port: u16, dst_port: u16, tag: u32, kind: u8, own_tag: u32, parameters: &[u8]) -> Vec<u8> {
    let length = INIT_BYTES + parameters.len() as u16;
    let mut packet = [src_port.to_be_bytes(), dst_port.to_be_bytes()].concat();
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend([kind, 0]);
    packet.extend(length.to_be_bytes());
    packet.extend(own_tag.to_be_bytes());
    // a_rwnd of 64 KiB, one outbound and one inbound stream; then the Initial TSN.
    packet.extend([0, 1, 0, 0, 0, 1, 0, 1]);
    packet.extend(own_tag.to_be_bytes());
    packet.extend(parameters);
    sctp::finish(&mut packet);
    packet
}

/// Returns the payload of a packet from a raw socket. An IPv4 socket delivers the IP header as well (raw(7)),
/// an IPv6 one does not.
pub(super) fn raw_payload(received: &[u8], is_v4: bool) -> &[u8] {
    let header = match received.first() {
        Some(first) if is_v4 => usize::from(first & 0xf) * 4,
        _ => 0,
    };
    received.get(header..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_init_is_answered_and_an_answer_is_not() {
        let init = sctp_init(40_000, 80, 0x0102_0304);
        assert_eq!((init.len(), &init[..4]), (32, &[0x9c, 0x40, 0, 80][..]));
        let answer = sctp_response(&init).unwrap();
        assert_eq!(answer[4..8], [1, 2, 3, 4], "the verification tag is the initiator's");
        assert!(is_sctp_response(&answer, 40_000, 80));
        assert!(!is_sctp_response(&answer, 40_001, 80) && !is_sctp_response(&init, 40_000, 80));
        assert_eq!(sctp_response(&answer), None);
        assert_eq!(sctp_response(&init[..15]), None);
    }

    #[test]
    fn checksums_hold_over_the_packet() {
        let packet = sctp_init(1, 2, 3);
        let mut again = packet.clone();
        sctp::finish(&mut again);
        assert_eq!(packet, again);
        assert_ne!(packet[8..12], [0; 4]);
    }

    #[test]
    fn an_ipv4_header_with_options_is_stepped_over() {
        let mut packet = vec![0x46; 24];
        packet.extend(REQUEST);
        assert_eq!(raw_payload(&packet, true), REQUEST);
        assert_eq!(raw_payload(REQUEST, false), REQUEST);
        assert_eq!(raw_payload(&[0x4f], true), &[] as &[u8]);
    }
}
