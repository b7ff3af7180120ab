//! Counters of a half: packets past 32 bits in the space of one 32-bit and one 64-bit word.

/// Bits of the number of bytes in its word. The upper bits of the number of packets stand above them.
const BYTES_BITS: u32 = 52;

/// The two words after one more packet of `len` bytes.
#[inline]
pub(super) fn add_packet(packets: u32, bytes: u64, len: usize) -> (u32, u64) {
    let packets = packets.wrapping_add(1);
    let carry = u64::from(packets == 0) << BYTES_BITS;
    (packets, bytes.wrapping_add(len as u64 + carry))
}

/// Number of packets and bytes in the two words.
pub(super) fn packets_and_bytes(packets: u32, bytes: u64) -> (u64, u64) {
    (bytes >> BYTES_BITS << 32 | u64::from(packets), bytes & ((1 << BYTES_BITS) - 1))
}

/// The two words of a number of packets and bytes.
pub(super) fn words_of((packets, bytes): (u64, u64)) -> (u32, u64) {
    (packets as u32, packets >> 32 << BYTES_BITS | bytes & ((1 << BYTES_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_past_32_bits_and_bytes_beside_them() {
        let count = |(packets, bytes), _| add_packet(packets, bytes, 100);
        let (packets, bytes) = (0..3).fold((u32::MAX - 1, 0), count);
        assert_eq!(packets_and_bytes(packets, bytes), ((1 << 32) + 1, 300));
        assert_eq!(words_of(packets_and_bytes(packets, bytes)), (packets, bytes));
    }
}
