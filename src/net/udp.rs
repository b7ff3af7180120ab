//! UDP (RFC 768).

use super::be16;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 6;

/// A view of the header.
#[derive(Debug, Clone, Copy)]
pub struct Udp<'a>(&'a [u8; HEADER_BYTES]);

impl<'a> Udp<'a> {
    /// Views the header at the start of `datagram`; `None` for a short one.
    #[inline]
    pub fn new(datagram: &'a [u8]) -> Option<Udp<'a>> {
        datagram.first_chunk().map(Udp)
    }

    /// Source port.
    #[inline]
    pub fn src_port(self) -> u16 {
        be16(self.0, 0)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(self) -> u16 {
        be16(self.0, 2)
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn bytes(self) -> usize {
        usize::from(be16(self.0, 4))
    }
}
