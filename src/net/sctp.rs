//! SCTP (RFC 9260): the common header and the type of the first chunk.

use super::{be16, be32};

/// Bytes of the common header.
pub const HEADER_BYTES: usize = 12;
/// Offset of the checksum, four bytes.
pub const CHECKSUM_OFFSET: usize = 8;

/// Chunk types (RFC 9260 section 3.2): data, and those that open, answer or end an association.
pub mod chunk {
    /// DATA.
    pub const DATA: u8 = 0;
    /// INIT.
    pub const INIT: u8 = 1;
    /// INIT ACK.
    pub const INIT_ACK: u8 = 2;
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
    /// Views the header at the start of `packet`; `None` for a packet too short for one chunk.
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

    /// Verification tag, by which the receiver identifies the association.
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

/// Writes the checksum of a packet, which has a common header at least.
pub fn finish(packet: &mut [u8]) {
    let field = CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4;
    packet[field.clone()].fill(0);
    let checksum = checksum([&*packet]);
    packet[field].copy_from_slice(&checksum);
}

/// Computes the checksum of a packet in parts, as its field holds it: `CRC32c` (RFC 9260 appendix A), low
/// byte first. The field must be zero.
pub fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 4] {
    (!parts.into_iter().fold(!0, crc32c)).to_le_bytes()
}

/// Adds bytes to a `CRC32c`, eight at a time ("slicing by eight"), since a sender chooses the length of the
/// packets that the switch sums.
fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let crc = words.iter().fold(crc, |crc, word| {
        let word = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
        word.iter().zip(CRC32C.iter().rev()).fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| crc >> 8 ^ CRC32C[0][usize::from(crc as u8 ^ byte)])
}

/// Remainders of every byte with none to seven zeros behind it, by the reversed Castagnoli polynomial.
static CRC32C: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 64 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
            bit += 1;
            if bit % 8 == 0 {
                tables[bit / 8 - 1][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_rfc_3720() {
        assert_eq!(checksum([&[0; 32][..]]), 0x8a91_36aa_u32.to_le_bytes());
        assert_eq!(checksum([&[0xff; 32][..]]), 0x62a8_ab43_u32.to_le_bytes());
        assert_eq!(checksum([&b"1234"[..], b"", b"56789"]), 0xe306_9283_u32.to_le_bytes());
        let rising: [u8; 32] = std::array::from_fn(|i| i as u8);
        for cut in 0..=32 {
            let parts = [&rising[..cut], &rising[cut..]];
            assert_eq!(checksum(parts), 0x46dd_794e_u32.to_le_bytes(), "RFC 3720, cut at {cut}");
        }
    }
}
