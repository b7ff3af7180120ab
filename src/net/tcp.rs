//! TCP (RFC 9293).

use super::{be16, be32};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 16;

/// Control bits (RFC 9293 section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronize sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Deliver the data at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement field is significant.
    pub const ACK: u8 = 0x10;

    /// Whether all of these bits are set.
    #[inline]
    pub fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    /// Whether any of these bits is set.
    #[inline]
    pub fn has_any(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    /// Whether SYN is set with FIN or RST, which no segment of a connection has.
    #[inline]
    pub fn is_invalid(self) -> bool {
        self.has(Flags::SYN | Flags::FIN) || self.has(Flags::SYN | Flags::RST)
    }
}

/// A view of the fixed part of a header.
#[derive(Debug, Clone, Copy)]
pub struct Tcp<'a>(&'a [u8; HEADER_BYTES]);

impl<'a> Tcp<'a> {
    /// Views the header at the start of `segment`; `None` for a short one.
    #[inline]
    pub fn new(segment: &'a [u8]) -> Option<Tcp<'a>> {
        segment.first_chunk().map(Tcp)
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

    /// Sequence number of the first byte.
    #[inline]
    pub fn sequence(self) -> u32 {
        be32(self.0, 4)
    }

    /// Next sequence number that the sender expects.
    #[inline]
    pub fn acknowledgement(self) -> u32 {
        be32(self.0, 8)
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_bytes(self) -> usize {
        usize::from(self.0[12] >> 4) * 4
    }

    /// Control bits.
    #[inline]
    pub fn flags(self) -> Flags {
        Flags(self.0[13])
    }

    /// Window, not scaled.
    #[inline]
    pub fn window(self) -> u16 {
        be16(self.0, 14)
    }
}

/// Writes a header without options, window and checksum, into `header`. `ports` are source and destination.
pub fn write(header: &mut [u8], ports: [u16; 2], sequence: u32, acknowledgement: u32, flags: Flags) {
    header[..HEADER_BYTES].fill(0);
    header[..2].copy_from_slice(&ports[0].to_be_bytes());
    header[2..4].copy_from_slice(&ports[1].to_be_bytes());
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    header[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    header[12] = (HEADER_BYTES as u8 / 4) << 4;
    header[13] = flags.0;
}

/// Returns the shift of the window scale option among `options`, at most 14 (RFC 7323 section 2.3); `None`
/// without one.
pub fn window_scale(mut options: &[u8]) -> Option<u8> {
    loop {
        match *options {
            [0, ..] | [] => return None,
            [1, ref rest @ ..] => options = rest,
            [3, 3, shift, ..] => return Some(shift.min(14)),
            [_, length, ..] if length >= 2 => options = options.get(usize::from(length)..)?,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_scale_is_found_behind_other_options() {
        assert_eq!(window_scale(&[2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 7]), Some(7));
        assert_eq!(window_scale(&[3, 3, 200]), Some(14));
        assert_eq!(window_scale(&[2, 0, 3, 3, 7]), None, "a length of zero ends the list");
        assert_eq!(window_scale(&[0, 3, 3, 7]), None);
        assert_eq!(window_scale(&[3]), None);
    }
}
