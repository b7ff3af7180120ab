//! IPv4 (RFC 791).

use super::checksum::{Sum, update};
use super::flow::Protocol;
use super::{be16, be32};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Largest header.
pub const HEADER_BYTES_MAX: usize = 60;

/// A view of the fixed part of a header.
#[derive(Debug, Clone, Copy)]
pub struct Ipv4<'a>(&'a [u8; HEADER_BYTES]);

impl<'a> Ipv4<'a> {
    /// The header at the start of `packet`; `None` where it is too short.
    #[inline]
    pub fn new(packet: &'a [u8]) -> Option<Ipv4<'a>> {
        packet.first_chunk().map(Ipv4)
    }

    /// Version, 4.
    #[inline]
    pub fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_bytes(self) -> usize {
        usize::from(self.0[0] & 0x0f) * 4
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_bytes(self) -> usize {
        usize::from(be16(self.0, 2))
    }

    /// Identification, which fragments of one datagram share.
    #[inline]
    pub fn identification(self) -> u16 {
        be16(self.0, 4)
    }

    /// Don't Fragment.
    #[inline]
    pub fn dont_fragment(self) -> bool {
        self.0[6] & 0x40 != 0
    }

    /// More Fragments.
    #[inline]
    pub fn more_fragments(self) -> bool {
        self.0[6] & 0x20 != 0
    }

    /// Offset of a fragment, bytes.
    #[inline]
    pub fn fragment_offset(self) -> usize {
        usize::from(be16(self.0, 6) & 0x1fff) * 8
    }

    /// Time to live.
    #[inline]
    pub fn ttl(self) -> u8 {
        self.0[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(self) -> Protocol {
        Protocol(self.0[9])
    }

    /// Source address, host order.
    #[inline]
    pub fn src(self) -> u32 {
        be32(self.0, 12)
    }

    /// Destination address, host order.
    #[inline]
    pub fn dst(self) -> u32 {
        be32(self.0, 16)
    }
}

/// Whether the checksum over `header`, options included, is right.
#[inline]
pub fn checksum_holds(header: &[u8]) -> bool {
    match header.first_chunk::<HEADER_BYTES>() {
        // Nearly every header: of a length that the compiler knows.
        Some(fixed) if header.len() == HEADER_BYTES => Sum::default().add_bytes(fixed).fold() == 0xffff,
        _ => Sum::default().add_bytes(header).fold() == 0xffff,
    }
}

/// Takes one off the TTL and updates the checksum (RFC 1812 section 5.3.1, RFC 1624).
#[inline]
pub fn decrement_ttl(packet: &mut [u8]) {
    if let Some(header) = packet.first_chunk_mut::<HEADER_BYTES>() {
        // The word of TTL and protocol, changed in a register: a byte written and read again as part of a word would
        // have to wait for the cache.
        let old = be16(header, 8);
        let new = old.wrapping_sub(1 << 8);
        let checksum = update(be16(header, 10), old, new);
        header[8..10].copy_from_slice(&new.to_be_bytes());
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Writes a header without options and its checksum.
pub fn write(packet: &mut [u8], src: u32, dst: u32, protocol: Protocol, payload_bytes: usize, ttl: u8) {
    let header = &mut packet[..HEADER_BYTES];
    header.fill(0);
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((HEADER_BYTES + payload_bytes) as u16).to_be_bytes());
    header[6] = 0x40;
    header[8] = ttl;
    header[9] = protocol.0;
    header[12..16].copy_from_slice(&src.to_be_bytes());
    header[16..20].copy_from_slice(&dst.to_be_bytes());
    let checksum = Sum::default().add_bytes(header).finish();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}
