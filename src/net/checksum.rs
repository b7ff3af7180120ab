//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! Sums are kept in native byte order, as RFC 1071 section 2 (B) allows: only the folded sum is swapped.

use std::net::IpAddr;

use super::address::Address;
use super::flow::Protocol;

/// Whether a sum of 16-bit words, in any byte order, is zero in ones' complement: a multiple of 0xffff, as
/// 2^16 is 1 modulo that.
#[inline(always)]
pub fn is_zero(sum: u64) -> bool {
    // 0xffff is odd, so it has an inverse modulo 2^64, which takes multiples of it, and only these, to the
    // small numbers.
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    const _: () = assert!(INVERSE.wrapping_mul(0xffff) == 1);
    sum.wrapping_mul(INVERSE) <= u64::MAX / 0xffff
}

/// Sum over the pseudo-header of IPv4, in native byte order.
#[inline]
pub(crate) fn pseudo_v4(src: u32, dst: u32, protocol: Protocol, transport_bytes: usize) -> u64 {
    u64::from(src.to_be()) + u64::from(dst.to_be()) + pseudo_rest(protocol, transport_bytes)
}

/// Sum over the pseudo-header of IPv6, in native byte order.
#[inline]
pub(crate) fn pseudo_v6(src: Address, dst: Address, protocol: Protocol, transport_bytes: usize) -> u64 {
    let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
    let words = |address: u128| halves((address as u64).to_be()) + halves(((address >> 64) as u64).to_be());
    words(src) + words(dst) + pseudo_rest(protocol, transport_bytes)
}

/// Sum over the part of the pseudo-header that both families have.
#[inline]
fn pseudo_rest(protocol: Protocol, transport_bytes: usize) -> u64 {
    u64::from(u16::from(protocol.0).to_be()) + u64::from((transport_bytes as u16).to_be())
}

/// Whether a checksum is the ones' complement sum `sum`, in native byte order, folded to 16 bits (RFC 1071).
/// A folded sum is never zero.
#[inline]
pub(crate) fn is_folded(checksum: u16, sum: u64) -> bool {
    (checksum != 0) & is_zero(sum + 0xffff - u64::from(checksum.to_be()))
}

/// A sum that is not folded yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes. An odd last byte is the high byte of a word.
    #[inline]
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Sum {
        // Four independent sums add in parallel. 32-bit words in 64-bit sums cannot overflow for a packet.
        let mut sums = [0u64; 4];
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
                *sum += halves(u64::from_ne_bytes(*word));
            }
        }
        let (words, rest) = rest.as_chunks::<8>();
        let mut sum = self.0 + sums.iter().sum::<u64>();
        sum += words.iter().map(|word| halves(u64::from_ne_bytes(*word))).sum::<u64>();
        let (half, rest) = rest.as_chunks::<4>();
        sum += half.iter().map(|half| u64::from(u32::from_ne_bytes(*half))).sum::<u64>();
        let (pair, last) = rest.as_chunks::<2>();
        sum += pair.iter().map(|pair| u64::from(u16::from_ne_bytes(*pair))).sum::<u64>();
        Sum(sum + last.iter().map(|last| u64::from(u16::from_ne_bytes([*last, 0]))).sum::<u64>())
    }

    /// Adds bytes that begin `at` bytes behind the beginning of the sum.
    #[inline]
    #[must_use]
    pub fn add_bytes_at(self, at: usize, bytes: &[u8]) -> Sum {
        if at.is_multiple_of(2) {
            return self.add_bytes(bytes);
        }
        // At an odd offset the sum has high and low bytes exchanged (RFC 1071 section 2 (B)).
        self.add_word(Sum::default().add_bytes(bytes).fold().swap_bytes())
    }

    /// Adds a 16-bit number in host order.
    #[inline]
    #[must_use]
    pub fn add_word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word.to_be()))
    }

    /// Adds another sum.
    #[inline]
    #[must_use]
    pub(crate) fn add(self, other: Sum) -> Sum {
        Sum(self.0 + other.0)
    }

    /// Folds the sum to 16 bits, ones' complement, in host order; not inverted.
    #[inline]
    pub fn fold(self) -> u16 {
        // Of a word and the same with its halves exchanged, the upper half of the sum has the carry of the lower one.
        let halves = (self.0.wrapping_add(self.0.rotate_left(32)) >> 32) as u32;
        u16::from_be((halves.wrapping_add(halves.rotate_left(16)) >> 16) as u16)
    }

    /// Returns the checksum: the inverted fold.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }
}

/// Adds the 32-bit halves of a word.
#[inline]
fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// Sums the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1): addresses, protocol, and the length
/// of the transport header with its payload.
#[inline]
pub fn pseudo_header(addresses: &[u8], protocol: Protocol, transport_bytes: usize) -> Sum {
    Sum::default().add_bytes(addresses).add_word(u16::from(protocol.0)).add_word(transport_bytes as u16)
}

/// Sums the pseudo-header of two addresses, see [`pseudo_header`].
pub fn pseudo_header_of(src: IpAddr, dst: IpAddr, protocol: Protocol, transport_bytes: usize) -> Sum {
    let sum = Sum::default().add_word(u16::from(protocol.0)).add_word(transport_bytes as u16);
    let add = |sum: Sum, address: IpAddr| match address {
        IpAddr::V4(address) => sum.add_bytes(&address.octets()),
        IpAddr::V6(address) => sum.add_bytes(&address.octets()),
    };
    add(add(sum, src), dst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sum of RFC 1071 by its text, a word at a time.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn example_of_rfc_1071() {
        assert_eq!(
            Sum::default().add_bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(),
            0xddf2
        );
    }

    #[test]
    fn zero_is_every_multiple_of_all_ones_and_no_other_sum() {
        assert!([0, 0xffff, 2 * 0xffff, 0xffff << 40, u64::MAX].into_iter().all(is_zero));
        assert!([1, 0x1_0000, (0xffff << 40) + 1, u64::MAX - 1].into_iter().all(|sum| !is_zero(sum)));
        assert!((1..0xffff).all(|sum| !is_zero(sum)));
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn zero_is_what_the_remainder_says(sum: u64, multiple in 0..=u64::MAX / 0xffff) {
            prop_assert_eq!(is_zero(sum), sum % 0xffff == 0);
            prop_assert!(is_zero(multiple * 0xffff));
        }

        #[test]
        fn the_sum_of_parts_is_the_sum_of_all(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 0usize..200,
        ) {
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            let sum = Sum::default().add_bytes(head).add_bytes_at(head.len(), tail).fold();
            // Zero has two representations in ones' complement; both are the same sum.
            prop_assert_eq!(sum % 0xffff, naive(&bytes) % 0xffff);
        }

        #[test]
        fn fast_sum_is_the_naive_sum(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(Sum::default().add_bytes(&bytes).fold(), naive(&bytes));
        }
    }
}
