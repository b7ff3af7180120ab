//! SCTP (RFC 9260): the common header and the type of the first chunk.

use super::{be16, be32};

/// Bytes of the common header.
pub const HEADER_BYTES: usize = 12;

/// Chunk types that open or end an association (RFC 9260 section 3.2).
pub mod chunk {
    /// INIT.
    pub const INIT: u8 = 1;
    /// ABORT.
    pub const ABORT: u8 = 6;
    /// SHUTDOWN.
    pub const SHUTDOWN: u8 = 7;
    /// COOKIE ACK.
    pub const COOKIE_ACK: u8 = 11;
    /// SHUTDOWN COMPLETE.
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// A view of the common header and the start of the first chunk.
#[derive(Debug, Clone, Copy)]
pub struct Sctp<'a>(&'a [u8; HEADER_BYTES + 4]);

impl<'a> Sctp<'a> {
    /// The header at the start of `packet`; `None` where it is too short for one chunk.
    #[inline]
    pub fn new(packet: &'a [u8]) -> Option<Sctp<'a>> {
        packet.first_chunk().map(Sctp)
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

    /// Verification tag: names the association to its receiver.
    #[inline]
    pub fn verification_tag(self) -> u32 {
        be32(self.0, 4)
    }

    /// Type of the first chunk.
    #[inline]
    pub fn chunk_type(self) -> u8 {
        self.0[HEADER_BYTES]
    }
}
