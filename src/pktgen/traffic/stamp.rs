//! Stamp of a generated frame, behind its headers: flow, sequence number and time, by which a receiver
//! measures.
//!
//! ```text
//! offset  bytes  field
//!      0      2  magic, 0x50a1
//!      2      4  flow
//!      6      4  sequence number within the flow, from 0
//!     10      8  time of sending: CLOCK_MONOTONIC of the sending host, nanoseconds
//! ```
//!
//! Numbers are in network byte order. The stamp fills the 18 bytes that IPv4 and UDP leave in a frame of 64
//! bytes.

use crate::net::be16;

/// Bytes of a stamp.
pub const STAMP_BYTES: usize = 18;
/// First field of a stamp.
pub const MAGIC: u16 = 0x50a1;

/// Stamp of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the flow.
    pub flow: u32,
    /// Sequence number within the flow.
    pub sequence: u32,
    /// Time of sending, nanoseconds of the sender's `CLOCK_MONOTONIC`.
    pub sent_ns: u64,
}

impl Stamp {
    /// Reads the stamp at the start of a payload; `None` without one.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Stamp> {
        let bytes: &[u8; STAMP_BYTES] = payload.first_chunk()?;
        let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        (be16(bytes, 0) == MAGIC).then(|| Stamp {
            flow: number(2),
            sequence: number(6),
            sent_ns: u64::from(number(10)) << 32 | u64::from(number(14)),
        })
    }

    /// Writes the stamp to the start of a payload of at least [`STAMP_BYTES`].
    #[inline]
    pub fn write(self, payload: &mut [u8]) {
        payload[..2].copy_from_slice(&MAGIC.to_be_bytes());
        payload[2..6].copy_from_slice(&self.flow.to_be_bytes());
        payload[6..10].copy_from_slice(&self.sequence.to_be_bytes());
        payload[10..18].copy_from_slice(&self.sent_ns.to_be_bytes());
    }

    /// Returns its share of an Internet checksum, without the magic number, for a payload at an even offset.
    #[inline]
    pub(crate) fn sum(self) -> u64 {
        let halves = |number: u32| u64::from(number >> 16) + u64::from(number & 0xffff);
        halves(self.flow)
            + halves(self.sequence)
            + halves((self.sent_ns >> 32) as u32)
            + halves(self.sent_ns as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_anything_else_is_not() {
        let stamp = Stamp { flow: 0x0102_0304, sequence: u32::MAX, sent_ns: 0x1122_3344_5566_7788 };
        let mut payload = [0; STAMP_BYTES + 3];
        stamp.write(&mut payload);
        assert_eq!(Stamp::read(&payload), Some(stamp));
        assert_eq!(Stamp::read(&payload[..STAMP_BYTES - 1]), None);
        payload[0] ^= 1;
        assert_eq!(Stamp::read(&payload), None);
    }
}
