//! IPv6 and its extension headers (RFC 8200).

use super::flow::Protocol;
use super::{be16, be32};

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 40;
/// Offset of the source address, which the destination address follows to the end of the header.
pub const ADDRESSES_OFFSET: usize = 8;
/// Most extension headers of a packet; a packet with more is malformed.
pub const EXTENSIONS_MAX: usize = 8;

/// A view of the fixed header.
#[derive(Debug, Clone, Copy)]
pub struct Ipv6<'a>(&'a [u8; HEADER_BYTES]);

impl<'a> Ipv6<'a> {
    /// Views the header at the start of `packet`; `None` for a short one.
    #[inline]
    pub fn new(packet: &'a [u8]) -> Option<Ipv6<'a>> {
        packet.first_chunk().map(Ipv6)
    }

    /// Views the header in these bytes.
    #[inline]
    pub fn of(header: &'a [u8; HEADER_BYTES]) -> Ipv6<'a> {
        Ipv6(header)
    }

    /// Version, 6.
    #[inline]
    pub fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Bytes behind the fixed header.
    #[inline]
    pub fn payload_bytes(self) -> usize {
        usize::from(be16(self.0, 4))
    }

    /// Next header: a protocol or an extension header.
    #[inline]
    pub fn next_header(self) -> u8 {
        self.0[6]
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(self) -> u8 {
        self.0[7]
    }

    /// Source address.
    #[inline]
    pub fn src(self) -> u128 {
        address(self.0, 8)
    }

    /// Destination address.
    #[inline]
    pub fn dst(self) -> u128 {
        address(self.0, 24)
    }
}

#[inline]
fn address(bytes: &[u8; HEADER_BYTES], at: usize) -> u128 {
    let bytes: &[u8; 16] = bytes[at..].first_chunk().expect("an address ends within the header");
    u128::from_be_bytes(*bytes)
}

/// A fragment header (RFC 8200 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Offset, bytes.
    pub offset: usize,
    /// Whether more fragments follow.
    pub more: bool,
    /// Identification, which fragments of one packet share.
    pub identification: u32,
    /// Offset of the fragment's bytes from the start of the IPv6 header.
    pub start: usize,
}

/// Position and protocol of the payload behind the extension headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpperLayer {
    /// Protocol; of a fragment with an offset, the protocol in the fragment header.
    pub protocol: Protocol,
    /// Offset from the start of the IPv6 header.
    pub offset: usize,
    /// Fragment header; `None` without one.
    pub fragment: Option<Fragment>,
    /// Whether there is a routing header of type 0, which is deprecated (RFC 5095).
    pub has_routing_type_0: bool,
    /// Whether a routing header has segments left. The destination address then is neither the final one nor
    /// that of the pseudo-header (RFC 8200 sections 4.4 and 8.1).
    pub has_segments_left: bool,
}

/// Walks the extension headers of a packet; `None` if they do not end within the packet, are too many, or
/// have hop-by-hop options that are not first (RFC 8200 section 4.1).
#[inline]
pub fn upper_layer(packet: &[u8]) -> Option<UpperLayer> {
    let mut next = *packet.get(6)?;
    let mut offset = HEADER_BYTES;
    let mut fragment = None;
    let (mut has_routing_type_0, mut has_segments_left) = (false, false);
    for position in 0..=EXTENSIONS_MAX {
        let bytes = match next {
            0 if position != 0 => return None,
            43 => {
                let header: &[u8; 4] = packet.get(offset..)?.first_chunk()?;
                has_routing_type_0 |= header[2] == 0;
                has_segments_left |= header[3] != 0;
                usize::from(header[1]) * 8 + 8
            }
            // Hop-by-hop and destination options, as routing: length in units of 8 bytes, without the first
            // 8.
            0 | 60 => usize::from(*packet.get(offset + 1)?) * 8 + 8,
            44 => {
                let header: &[u8; 8] = packet.get(offset..)?.first_chunk()?;
                let found = Fragment {
                    offset: usize::from(be16(header, 2) & 0xfff8),
                    more: header[3] & 1 != 0,
                    identification: be32(header, 4),
                    start: offset + 8,
                };
                if fragment.replace(found).is_some() {
                    return None;
                }
                if found.offset != 0 {
                    let (protocol, offset) = (Protocol(header[0]), offset + 8);
                    return Some(UpperLayer {
                        protocol,
                        offset,
                        fragment,
                        has_routing_type_0,
                        has_segments_left,
                    });
                }
                8
            }
            // Authentication header (RFC 4302): length in units of 4 bytes, less 2.
            51 => usize::from(*packet.get(offset + 1)?) * 4 + 8,
            protocol => {
                let protocol = Protocol(protocol);
                return Some(UpperLayer {
                    protocol,
                    offset,
                    fragment,
                    has_routing_type_0,
                    has_segments_left,
                });
            }
        };
        next = *packet.get(offset)?;
        offset += bytes;
        if offset > packet.len() {
            return None;
        }
    }
    None
}

/// Decrements the hop limit.
#[inline]
pub fn decrement_hop_limit(packet: &mut [u8]) {
    if let Some(hop_limit) = packet.get_mut(7) {
        *hop_limit = hop_limit.wrapping_sub(1);
    }
}

/// Writes a fixed header.
pub fn write(
    packet: &mut [u8],
    src: u128,
    dst: u128,
    protocol: Protocol,
    payload_bytes: usize,
    hop_limit: u8,
) {
    let header = &mut packet[..HEADER_BYTES];
    header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
    header[4..6].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
    header[6] = protocol.0;
    header[7] = hop_limit;
    header[8..24].copy_from_slice(&src.to_be_bytes());
    header[24..40].copy_from_slice(&dst.to_be_bytes());
}
