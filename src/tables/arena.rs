//! Words in shared pages: the memory beneath every compiled table.
//!
//! A table of a next generation is a clone of the last with a few blocks rewritten. A clone copies no page, only
//! the list of them; the first write to a page that a reader still shares copies that page alone. Readers of the
//! earlier generation see nothing of it.
//!
//! Blocks have sizes of powers of two, from 4 words on. Those no larger than a page never cross one; each is as aligned as it
//! is large, so that a block of 16 words is one cache line. Larger ones are pages side by side.

use crate::mem::{SHARED_WORDS, SharedWords, prefetch_read};

/// Words of a page.
pub(super) const PAGE_WORDS: usize = SHARED_WORDS;
const PAGE_SHIFT: u32 = PAGE_WORDS.trailing_zeros();

const _: () = assert!(PAGE_WORDS.is_power_of_two());
/// Words of the smallest block; blocks are numbered in this unit.
pub(super) const UNIT_WORDS: u32 = 4;
/// Units of an arena: a unit's number leaves six bits of a word to others.
const UNITS_MAX: u32 = 1 << 26;

/// Sizes of blocks: 4, 8, 16 words and so on, up to the largest that an arena could hold.
const SIZES: usize = 25;

/// A block: where it starts, in units of four words. Below 2^26.
pub(super) type Unit = u32;

/// Words in pages that are copied when written.
#[derive(Clone, Default)]
pub(super) struct Arena {
    pages: Vec<SharedWords>,
    free: [Vec<Unit>; SIZES],
}

impl Arena {
    /// Adds whole pages for `words` words that hold `fill`, outside the blocks; gives the first word.
    pub(super) fn reserve_pages(&mut self, words: usize, fill: u32) -> usize {
        let first = self.pages.len();
        let page = SharedWords::new(fill);
        self.pages.extend(std::iter::repeat_n(page, words.div_ceil(PAGE_WORDS)));
        first * PAGE_WORDS
    }

    /// The word at `word`.
    #[inline]
    pub(super) fn word(&self, word: usize) -> u32 {
        self.pages[word >> PAGE_SHIFT][word & (PAGE_WORDS - 1)]
    }

    /// The `N` words of a block of at least that size.
    #[inline]
    pub(super) fn block<const N: usize>(&self, unit: Unit) -> &[u32; N] {
        self.block_at(first_word(unit))
    }

    /// `N` words, a power of two, at a multiple of `N`.
    #[inline]
    pub(super) fn block_at<const N: usize>(&self, word: usize) -> &[u32; N] {
        self.find_block(word).expect("a table speaks of pages that it has")
    }

    /// [`Arena::block_at`], if there is a page.
    #[inline]
    pub(super) fn find_block<const N: usize>(&self, word: usize) -> Option<&[u32; N]> {
        const { assert!(N.is_power_of_two() && N <= PAGE_WORDS) };
        let page = self.pages.get(word >> PAGE_SHIFT)?;
        // What the mask takes is zero; the compiler learns that the block lies in the page.
        let offset = word & (PAGE_WORDS - N);
        Some(page[offset..].first_chunk().expect("a page holds whole blocks"))
    }

    /// Brings the cache line of a word near.
    #[inline]
    pub(super) fn prefetch(&self, word: usize) {
        prefetch_read(&self.pages[word >> PAGE_SHIFT][word & (PAGE_WORDS - 1)]);
    }

    /// Sets one word.
    pub(super) fn set(&mut self, word: usize, value: u32) {
        self.pages[word >> PAGE_SHIFT].make_mut()[word & (PAGE_WORDS - 1)] = value;
    }

    /// Writes words that lie in one page.
    pub(super) fn write(&mut self, word: usize, values: &[u32]) {
        let offset = word & (PAGE_WORDS - 1);
        let page = self.pages[word >> PAGE_SHIFT].make_mut();
        page[offset..offset + values.len()].copy_from_slice(values);
    }

    /// A new block that holds `values`.
    pub(super) fn put(&mut self, values: &[u32]) -> Unit {
        let unit = self.allocate(values.len());
        self.write(first_word(unit), values);
        unit
    }

    /// Gives back a block made with `len` words.
    pub(super) fn free(&mut self, unit: Unit, len: usize) {
        self.free[size_class(len)].push(unit);
    }

    /// Number of words in all pages.
    pub(super) fn words(&self) -> usize {
        self.pages.len() * PAGE_WORDS
    }

    /// Bytes of all pages, shared or not.
    pub(super) fn bytes(&self) -> usize {
        self.words() * size_of::<u32>()
    }

    /// A block of at least `len` words that hold anything.
    pub(super) fn allocate(&mut self, len: usize) -> Unit {
        let class = size_class(len);
        if self.free[class].is_empty() {
            let units = 1 << class;
            let words = PAGE_WORDS.max(units * UNIT_WORDS as usize);
            let first = (self.reserve_pages(words, 0) / UNIT_WORDS as usize) as u32;
            let end = first + words as u32 / UNIT_WORDS;
            assert!(end <= UNITS_MAX, "a compiled table is above 1 GiB: the limits allow no such tables");
            // Popped from the end: the lowest block of the page goes out first.
            self.free[class].extend((first..end).step_by(units).rev());
        }
        self.free[class].pop().expect("a page was just added")
    }
}

/// The first word of a block.
#[inline]
pub(super) fn first_word(unit: Unit) -> usize {
    unit as usize * UNIT_WORDS as usize
}

fn size_class(len: usize) -> usize {
    (len.max(UNIT_WORDS as usize).next_power_of_two() / UNIT_WORDS as usize).trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_to_their_size_and_apart() {
        let mut arena = Arena::default();
        let mut taken = std::collections::BTreeSet::new();
        for len in [1, 4, 5, 16, 31, 64, 200, 256].into_iter().cycle().take(400) {
            let size = len.max(4usize).next_power_of_two();
            let word = first_word(arena.put(&vec![7; len]));
            assert_eq!(word % size, 0);
            assert!((word..word + size).all(|word| taken.insert(word)), "block of {len} overlaps");
        }
    }

    #[test]
    fn a_freed_block_is_used_again() {
        let mut arena = Arena::default();
        let unit = arena.put(&[1; 16]);
        arena.free(unit, 16);
        assert_eq!(arena.put(&[2; 9]), unit);
        assert_eq!(arena.block::<8>(unit), &[2; 8]);
    }

    #[test]
    fn a_clone_sees_no_later_write() {
        let mut arena = Arena::default();
        let unit = arena.put(&[1; 16]);
        let before = arena.clone();
        arena.set(first_word(unit), 9);
        assert_eq!(before.word(first_word(unit)), 1);
        assert_eq!(arena.word(first_word(unit)), 9);
    }
}
