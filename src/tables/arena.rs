//! Arena: words in shared pages, the memory of every compiled table.
//!
//! The table of the next generation is a clone with some rewritten blocks. A clone copies the list of pages
//! only. The first write to a page that a reader shares copies that page (copy on write), so readers of the
//! earlier generation never see the change.
//!
//! Sizes of blocks are powers of two, from 4 words. A block within a page is aligned to its size, so a block
//! of 16 words is one cache line. Larger blocks are contiguous pages.

use std::ops::Range;

use crate::mem::{SHARED_WORDS, SharedWords, prefetch_read};

/// Number of words of a page.
pub(super) const PAGE_WORDS: usize = SHARED_WORDS;
const PAGE_SHIFT: u32 = PAGE_WORDS.trailing_zeros();

const _: () = assert!(PAGE_WORDS.is_power_of_two());
/// Number of words of the smallest block, which is the unit of addresses.
pub(super) const UNIT_WORDS: u32 = 4;
/// Maximum number of units. A unit leaves six bits of a word to other uses.
const UNITS_MAX: u32 = 1 << 26;

/// Number of block sizes: 4, 8, 16 words and so on, up to the largest that an arena can contain.
const SIZES: usize = 25;

/// Start of a block in units of four words. Below 2^26.
pub(super) type Unit = u32;

/// Words in copy-on-write pages.
#[derive(Clone, Default)]
pub(super) struct Arena {
    pages: Vec<SharedWords>,
    free: [Vec<Unit>; SIZES],
}

impl Arena {
    /// Adds pages for `words` words with value `fill`, outside of the blocks. Returns the first word.
    pub(super) fn reserve_pages(&mut self, words: usize, fill: u32) -> usize {
        let first = self.pages.len();
        let page = SharedWords::new(fill);
        self.pages.extend(std::iter::repeat_n(page, words.div_ceil(PAGE_WORDS)));
        first * PAGE_WORDS
    }

    /// Word at index `word`.
    #[inline]
    pub(super) fn word(&self, word: usize) -> u32 {
        self.pages[word >> PAGE_SHIFT][word & (PAGE_WORDS - 1)]
    }

    /// First `N` words of a block.
    #[inline]
    pub(super) fn block<const N: usize>(&self, unit: Unit) -> &[u32; N] {
        self.block_at(first_word(unit))
    }

    /// `N` words, a power of two, at a multiple of `N`.
    #[inline]
    pub(super) fn block_at<const N: usize>(&self, word: usize) -> &[u32; N] {
        self.find_block(word).expect("a table speaks of pages that it has")
    }

    /// Words like [`Arena::block_at`]; `None` if the page does not exist.
    #[inline]
    pub(super) fn find_block<const N: usize>(&self, word: usize) -> Option<&[u32; N]> {
        const { assert!(N.is_power_of_two() && N <= PAGE_WORDS) };
        let page = self.pages.get(word >> PAGE_SHIFT)?;
        // The masked bits are zero; the mask proves to the compiler that the block lies in the page.
        let offset = word & (PAGE_WORDS - N);
        Some(page[offset..].first_chunk().expect("a page holds whole blocks"))
    }

    /// Prefetches the cache line of a word.
    #[inline]
    pub(super) fn prefetch(&self, word: usize) {
        prefetch_read(&self.pages[word >> PAGE_SHIFT][word & (PAGE_WORDS - 1)]);
    }

    /// Sets one word.
    pub(super) fn set(&mut self, word: usize, value: u32) {
        self.pages[word >> PAGE_SHIFT].make_mut()[word & (PAGE_WORDS - 1)] = value;
    }

    /// Copy of `count` words from index `word` on.
    pub(super) fn words_at(&self, word: usize, count: usize) -> Vec<u32> {
        let mut words = Vec::with_capacity(count);
        for at in runs(word, count) {
            let offset = at.start & (PAGE_WORDS - 1);
            words.extend_from_slice(&self.pages[at.start >> PAGE_SHIFT][offset..offset + at.len()]);
        }
        words
    }

    /// Changes the words from index `word` on to these values. A page that has them already stays shared.
    pub(super) fn change(&mut self, word: usize, values: &[u32]) {
        for at in runs(word, values.len()) {
            let (offset, values) = (at.start & (PAGE_WORDS - 1), &values[at.start - word..at.end - word]);
            if self.pages[at.start >> PAGE_SHIFT][offset..offset + at.len()] != *values {
                self.write(at.start, values);
            }
        }
    }

    /// Writes words within one page.
    pub(super) fn write(&mut self, word: usize, values: &[u32]) {
        let offset = word & (PAGE_WORDS - 1);
        let page = self.pages[word >> PAGE_SHIFT].make_mut();
        page[offset..offset + values.len()].copy_from_slice(values);
    }

    /// Allocates a block for `values`.
    pub(super) fn put(&mut self, values: &[u32]) -> Unit {
        let unit = self.allocate(values.len());
        self.write(first_word(unit), values);
        unit
    }

    /// Frees a block of `len` words.
    pub(super) fn free(&mut self, unit: Unit, len: usize) {
        self.free[size_class(len)].push(unit);
    }

    /// Number of words in all pages.
    pub(super) fn words(&self) -> usize {
        self.pages.len() * PAGE_WORDS
    }

    /// Size of all pages in bytes, shared pages included.
    pub(super) fn bytes(&self) -> usize {
        self.words() * size_of::<u32>()
    }

    /// Allocates a block of at least `len` words with unspecified content.
    pub(super) fn allocate(&mut self, len: usize) -> Unit {
        let class = size_class(len);
        if self.free[class].is_empty() {
            let units = 1 << class;
            let words = PAGE_WORDS.max(units * UNIT_WORDS as usize);
            let first = (self.reserve_pages(words, 0) / UNIT_WORDS as usize) as u32;
            let end = first + words as u32 / UNIT_WORDS;
            assert!(end <= UNITS_MAX, "a compiled table is above 1 GiB: the limits allow no such tables");
            // Blocks are popped from the end: the lowest block of the page is allocated first.
            self.free[class].extend((first..end).step_by(units).rev());
        }
        self.free[class].pop().expect("a page was just added")
    }
}

/// Parts of a range of words that lie in one page each.
fn runs(word: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let end = word + count;
    let pages = (word >> PAGE_SHIFT)..end.div_ceil(PAGE_WORDS);
    pages.map(move |page| word.max(page * PAGE_WORDS)..end.min((page + 1) * PAGE_WORDS))
}

/// First word of a block.
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
    fn a_change_across_pages_is_read_back_and_copies_the_pages_that_differ() {
        let mut arena = Arena::default();
        let first = arena.reserve_pages(4 * PAGE_WORDS, 5);
        let before = arena.clone();
        let (from, count) = (first + PAGE_WORDS - 3, 2 * PAGE_WORDS + 7);
        let mut words = arena.words_at(from, count);
        assert_eq!(words, vec![5; count]);
        (words[0], words[count - 1]) = (1, 2);
        arena.change(from, &words);
        assert_eq!(arena.words_at(from, count), words);
        assert_eq!((arena.word(from - 1), arena.word(from + count)), (5, 5));
        let is_shared = |page: usize| arena.pages[page].as_ptr() == before.pages[page].as_ptr();
        assert_eq!([0, 1, 2, 3].map(is_shared), [false, true, true, false]);
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
