//! Comparisons of several small integers at once, with SSE2 on x86-64.

#![allow(unsafe_code)]

/// Compares the sixteen bytes of two words with `byte`. Bit 0 of the result belongs to the lowest byte of the
/// first word.
#[inline(always)]
#[allow(clippy::inline_always)] // Four instructions.
pub(crate) fn bytes_equal(words: [u64; 2], byte: u8) -> u16 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
        // SAFETY: SSE2 is part of every x86-64.
        unsafe {
            let bytes = _mm_set_epi64x(words[1].cast_signed(), words[0].cast_signed());
            _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte.cast_signed()))) as u16
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    bytes_equal_anywhere(words, byte)
}

/// Portable [`bytes_equal`].
#[cfg(any(test, not(target_arch = "x86_64")))]
fn bytes_equal_anywhere(words: [u64; 2], byte: u8) -> u16 {
    let is_equal = |i: usize| (words[i / 8] >> (8 * (i % 8))) as u8 == byte;
    (0..16).fold(0, |bits, i| bits | u16::from(is_equal(i)) << i)
}

/// Counts which of eight ascending words are below `bound`, all taken as signed.
#[inline(always)]
#[allow(clippy::inline_always)] // Ten instructions.
pub(crate) fn count_below(words: &[u32; 8], bound: u32) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_cmpgt_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi32, _mm_set1_epi32,
        };
        // SAFETY: SSE2 is part of every x86-64. The unaligned loads stay within the eight words.
        let below = unsafe {
            let bound = _mm_set1_epi32(bound.cast_signed());
            let halves = [0, 4].map(|at| _mm_loadu_si128(words.as_ptr().add(at).cast()));
            let [low, high] = halves.map(|half| _mm_cmpgt_epi32(bound, half));
            _mm_movemask_epi8(_mm_packs_epi32(low, high))
        };
        // Each word has two bits, and those of the lower words come first.
        (!below).trailing_zeros() as usize / 2
    }
    #[cfg(not(target_arch = "x86_64"))]
    count_below_anywhere(words, bound)
}

/// Portable [`count_below`].
#[cfg(any(test, not(target_arch = "x86_64")))]
fn count_below_anywhere(words: &[u32; 8], bound: u32) -> usize {
    words.iter().filter(|word| word.cast_signed() < bound.cast_signed()).count()
}

/// Finds the first index of a word among four, or returns 4.
#[inline(always)]
#[allow(clippy::inline_always)] // Six instructions.
pub(crate) fn place_of(words: &[u32; 4], word: u32) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_ps, _mm_set1_epi32,
        };
        // SAFETY: SSE2 is part of every x86-64. The unaligned load stays within the four words.
        let equal = unsafe {
            let words = _mm_loadu_si128(words.as_ptr().cast());
            _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(words, _mm_set1_epi32(word.cast_signed()))))
        };
        (equal | 1 << words.len()).trailing_zeros() as usize
    }
    #[cfg(not(target_arch = "x86_64"))]
    place_of_anywhere(words, word)
}

/// Portable [`place_of`].
#[cfg(any(test, not(target_arch = "x86_64")))]
fn place_of_anywhere(words: &[u32; 4], word: u32) -> usize {
    words.iter().position(|&at| at == word).unwrap_or(words.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn bytes_are_compared_alike_by_one_instruction_and_one_by_one(
            bytes in prop::array::uniform16(0u8..4),
            byte in 0u8..4,
        ) {
            let words = [0, 8].map(|at| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap()));
            let naive = bytes.iter().rev().fold(0, |bits, one| bits << 1 | u16::from(*one == byte));
            prop_assert_eq!(bytes_equal(words, byte), naive);
            prop_assert_eq!(bytes_equal_anywhere(words, byte), naive);
        }
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn a_word_is_found_alike_by_vectors_and_one_by_one(
            words in prop::array::uniform4(prop_oneof![0..5_u32, any::<u32>()]),
            word in 0..5_u32,
        ) {
            for word in words.into_iter().chain([word]) {
                prop_assert_eq!(place_of(&words, word), place_of_anywhere(&words, word));
            }
        }

        #[test]
        fn words_are_counted_alike_by_vectors_and_one_by_one(
            mut words in prop::array::uniform8(prop_oneof![0..9_u32, 0..=i32::MAX as u32, any::<u32>()]),
            bound in prop_oneof![0..9_u32, any::<u32>()],
        ) {
            words.sort_unstable_by_key(|word| word.cast_signed());
            for bound in words.into_iter().chain([bound]) {
                prop_assert_eq!(count_below(&words, bound), count_below_anywhere(&words, bound));
            }
        }
    }
}
