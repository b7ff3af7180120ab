//! Memory primitives: prefetch, pages (huge ones where there are any), aligned arrays.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page of x86-64 and of arm64 with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Smallest page, and so the least alignment of [`Pages`].
const PAGE_BYTES: usize = 4096;

/// Asks the processor to bring the cache line of `value` in, for reading. Changes nothing.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would cost more than the instruction.
pub fn prefetch_read<T>(value: &T) {
    prefetch_address(ptr::from_ref(value).cast());
}

/// [`prefetch_read`] of the line at an address, which need not be one of anything.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would cost more than the instruction.
pub(crate) fn prefetch_address(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint: it neither reads nor faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks the processor to bring the cache line of `value` in, for writing. Changes nothing.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would cost more than the instruction.
pub fn prefetch_write<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch is a hint: it neither reads nor faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Which of the sixteen bytes of two words, the lowest of the first word first, are `byte`: a bit each.
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

/// [`bytes_equal`] on any machine.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn bytes_equal_anywhere(words: [u64; 2], byte: u8) -> u16 {
    let is_equal = |i: usize| (words[i / 8] >> (8 * (i % 8))) as u8 == byte;
    (0..16).fold(0, |bits, i| bits | u16::from(is_equal(i)) << i)
}

/// How many of eight words in ascending order are below `bound`, all taken as signed.
#[inline(always)]
#[allow(clippy::inline_always)] // Ten instructions.
pub(crate) fn count_below(words: &[u32; 8], bound: u32) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_cmpgt_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi32, _mm_set1_epi32,
        };
        // SAFETY: SSE2 is part of every x86-64, and the loads are of the eight words, aligned or not.
        let below = unsafe {
            let bound = _mm_set1_epi32(bound.cast_signed());
            let halves = [0, 4].map(|at| _mm_loadu_si128(words.as_ptr().add(at).cast()));
            let [low, high] = halves.map(|half| _mm_cmpgt_epi32(bound, half));
            _mm_movemask_epi8(_mm_packs_epi32(low, high))
        };
        // Two bits a word, and those of the lower words first.
        (!below).trailing_zeros() as usize / 2
    }
    #[cfg(not(target_arch = "x86_64"))]
    count_below_anywhere(words, bound)
}

/// [`count_below`] on any machine.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn count_below_anywhere(words: &[u32; 8], bound: u32) -> usize {
    words.iter().filter(|word| word.cast_signed() < bound.cast_signed()).count()
}

/// Zeroed memory straight from the kernel, aligned to a page.
pub(crate) struct Pages {
    base: NonNull<u8>,
    bytes: usize,
    huge: bool,
}

impl Pages {
    /// Maps at least `bytes`. With `want_huge`, in huge pages when the system has enough of them reserved; otherwise
    /// in ordinary ones, which the kernel is advised to join into huge ones on its own.
    pub(crate) fn new(bytes: usize, want_huge: bool) -> io::Result<Pages> {
        if want_huge {
            let rounded = round_up(bytes, HUGE_PAGE_BYTES)?;
            if let Ok(base) = map(rounded, MapFlags::PRIVATE | MapFlags::HUGETLB) {
                return Ok(Pages { base, bytes: rounded, huge: true });
            }
        }
        let rounded = round_up(bytes, PAGE_BYTES)?;
        let base = map(rounded, MapFlags::PRIVATE)?;
        if want_huge {
            // Advice may be refused (a kernel without transparent huge pages); the memory is as good without.
            // SAFETY: the range is the mapping made on the line above, and this advice keeps its contents.
            let _ = unsafe { madvise(base.as_ptr().cast(), rounded, Advice::LinuxHugepage) };
        }
        Ok(Pages { base, bytes: rounded, huge: false })
    }

    /// The first byte. Valid for reads and writes of the mapping's length while `self` lives.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and whoever holds a pointer into it holds `self` too.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of {} bytes does not unmap", self.bytes);
    }
}

// SAFETY: the mapping belongs to the process, not to a thread; access to it is the owner's affair.
unsafe impl Send for Pages {}
// SAFETY: as above; `Pages` itself never reads or writes the memory.
unsafe impl Sync for Pages {}

fn round_up(bytes: usize, unit: usize) -> io::Result<usize> {
    bytes.max(1).checked_next_multiple_of(unit).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

fn map(bytes: usize, flags: MapFlags) -> io::Result<NonNull<u8>> {
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory in use.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// An array of fixed length on pages of its own, aligned to a page, in huge pages when asked for and available.
pub struct HugeArray<T> {
    pages: Pages,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Default> HugeArray<T> {
    /// `len` default values. Fails when the kernel has no memory for them.
    pub fn new(len: usize, want_huge: bool) -> io::Result<HugeArray<T>> {
        const { assert!(align_of::<T>() <= PAGE_BYTES, "a mapping is aligned to a page and no further") };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Pages::new(bytes, want_huge)?;
        let base: *mut T = pages.base().as_ptr().cast();
        for index in 0..len {
            // SAFETY: the mapping holds `len` elements and is aligned for them; each place is written once, and no
            // reference to it exists. Should `default` panic, the elements written so far leak.
            unsafe { base.add(index).write(T::default()) };
        }
        Ok(HugeArray { pages, len, elements: PhantomData })
    }
}

impl<T> HugeArray<T> {
    /// Whether it lies in pages reserved as huge. (Ordinary ones the kernel may still join into huge ones.)
    pub fn uses_huge_pages(&self) -> bool {
        self.pages.huge
    }
}

impl<T> Deref for HugeArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` initialised `len` elements at `base`, and the mapping lives as long as `self`.
        unsafe { slice::from_raw_parts(self.pages.base().as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for HugeArray<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` is the only access.
        unsafe { slice::from_raw_parts_mut(self.pages.base().as_ptr().cast(), self.len) }
    }
}

impl<T> Drop for HugeArray<T> {
    fn drop(&mut self) {
        // SAFETY: the elements are initialised and are not touched again; their pages go after them.
        unsafe { ptr::drop_in_place::<[T]>(&raw mut **self) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_element_of_a_fresh_array_is_the_default_and_can_be_written() {
        for want_huge in [false, true] {
            let mut array = HugeArray::<[u64; 8]>::new(1000, want_huge).unwrap();
            assert_eq!(array.len(), 1000);
            assert!(array.iter().all(|element| *element == [0; 8]));
            assert_eq!(array.as_ptr().addr() % PAGE_BYTES, 0);
            array[999][7] = 1;
            assert_eq!(array[999], [0, 0, 0, 0, 0, 0, 0, 1]);
        }
    }

    proptest! {
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

    #[test]
    fn threads_share_an_array_of_atomics() {
        let array = HugeArray::<AtomicU64>::new(64, false).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| array.iter().for_each(|slot| _ = slot.fetch_add(1, Ordering::Relaxed)));
            }
        });
        assert!(array.iter().all(|slot| slot.load(Ordering::Relaxed) == 2));
    }

    #[test]
    fn elements_are_dropped_with_their_array() {
        let counted = Arc::new(());
        let mut array = HugeArray::<Option<Arc<()>>>::new(10, false).unwrap();
        array.iter_mut().for_each(|slot| *slot = Some(counted.clone()));
        assert_eq!(Arc::strong_count(&counted), 11);
        drop(array);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn a_length_that_no_memory_holds_is_an_error() {
        assert!(HugeArray::<u64>::new(usize::MAX, false).is_err());
        assert!(HugeArray::<u8>::new(usize::MAX, true).is_err());
    }

    #[test]
    fn an_empty_array_is_empty() {
        assert!(HugeArray::<u64>::new(0, true).unwrap().is_empty());
    }

    #[test]
    fn a_prefetch_changes_nothing() {
        let value = [1u64, 2, 3];
        prefetch_read(&value);
        prefetch_write(&value);
        assert_eq!(value, [1, 2, 3]);
    }
}
