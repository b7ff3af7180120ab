//! Transport checksums for tests, computed one word or one bit at a time.

/// Sums pseudo-header and segment in ones' complement.
pub(crate) fn pseudo_sum(src: &[u8], dst: &[u8], protocol: u8, segment: &[u8]) -> u16 {
    let [high, low] = (segment.len() as u16).to_be_bytes();
    ones_sum(&[src, dst, &[0, protocol, high, low], segment].concat())
}

/// Sums 16-bit words in ones' complement, with the end-around carry of RFC 1071.
pub(crate) fn ones_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    words.fold(0, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    }) as u16
}

/// Computes `CRC32c` one bit at a time (RFC 9260 appendix A).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
        }
    }
    !crc
}
