//! Checksums of transport headers, computed the slow way.

/// The ones' complement sum over pseudo-header and segment.
pub(crate) fn pseudo_sum(src: &[u8], dst: &[u8], protocol: u8, segment: &[u8]) -> u16 {
    let [high, low] = (segment.len() as u16).to_be_bytes();
    ones_sum(&[src, dst, &[0, protocol, high, low], segment].concat())
}

/// A ones' complement sum, a word at a time as RFC 1071 says it.
pub(crate) fn ones_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    words.fold(0, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    }) as u16
}

/// `CRC32c` a bit at a time (RFC 9260 appendix A).
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
