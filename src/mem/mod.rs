//! Memory primitives: prefetch, pages (huge ones where there are any), aligned arrays.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Bytes of a huge page of x86-64 and of arm64 with 4 KiB pages.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
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

/// The first place of a word among four, 4 if it is none of them.
#[inline(always)]
#[allow(clippy::inline_always)] // Six instructions.
pub(crate) fn place_of(words: &[u32; 4], word: u32) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_ps, _mm_set1_epi32,
        };
        // SAFETY: SSE2 is part of every x86-64, and the load is of the four words, aligned or not.
        let equal = unsafe {
            let words = _mm_loadu_si128(words.as_ptr().cast());
            _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(words, _mm_set1_epi32(word.cast_signed()))))
        };
        (equal | 1 << words.len()).trailing_zeros() as usize
    }
    #[cfg(not(target_arch = "x86_64"))]
    place_of_anywhere(words, word)
}

/// [`place_of`] on any machine.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn place_of_anywhere(words: &[u32; 4], word: u32) -> usize {
    words.iter().position(|&at| at == word).unwrap_or(words.len())
}

/// Memory straight from the kernel, aligned to a page: zeroed, or that of a file.
pub(crate) struct Pages {
    base: NonNull<u8>,
    bytes: usize,
    huge: bool,
    /// Locked as long as it is mapped.
    _file: Option<File>,
}

impl Pages {
    /// Maps at least `bytes`. With `want_huge`, in huge pages when the system has enough of them reserved; otherwise
    /// in ordinary ones, which the kernel is advised to join into huge ones on its own.
    pub(crate) fn new(bytes: usize, want_huge: bool) -> io::Result<Pages> {
        if want_huge {
            let rounded = round_up(bytes, HUGE_PAGE_BYTES)?;
            if let Ok(base) = map(rounded, MapFlags::PRIVATE | MapFlags::HUGETLB) {
                return Ok(Pages { base, bytes: rounded, huge: true, _file: None });
            }
        }
        let rounded = round_up(bytes, PAGE_BYTES)?;
        let base = map(rounded, MapFlags::PRIVATE)?;
        if want_huge {
            // Advice may be refused (a kernel without transparent huge pages); the memory is as good without.
            // SAFETY: the range is the mapping made on the line above, and this advice keeps its contents.
            let _ = unsafe { madvise(base.as_ptr().cast(), rounded, Advice::LinuxHugepage) };
        }
        Ok(Pages { base, bytes: rounded, huge: false, _file: None })
    }

    /// Maps all `bytes` of a file, shared with who maps it later, aligned like a huge page. Takes an exclusive lock of the file, so
    /// that nobody else maps it as long as this lives: an error of kind `WouldBlock` where somebody has it.
    fn of_file(file: File, bytes: usize) -> io::Result<Pages> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || file.metadata()?.len() != bytes as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let reserved_bytes = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserved = map(reserved_bytes, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        let before = reserved.addr().get().wrapping_neg() & (HUGE_PAGE_BYTES - 1);
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: of the memory that was reserved just now, the file takes the place of what begins with the first aligned byte;
        // what lies before it and behind it is unmapped. No reference to any of it exists.
        let base = unsafe {
            let base = reserved.add(before);
            if let Err(error) = mmap(base.as_ptr().cast(), bytes, access, shared, &file, 0) {
                let _ = munmap(reserved.as_ptr().cast(), reserved_bytes);
                return Err(error.into());
            }
            if before > 0 {
                munmap(reserved.as_ptr().cast(), before)?;
            }
            munmap(base.add(bytes).as_ptr().cast(), HUGE_PAGE_BYTES - before)?;
            base
        };
        Ok(Pages { base, bytes, huge: false, _file: Some(file) })
    }

    /// Has the kernel put what is in the memory into huge pages (`MADV_COLLAPSE`, Linux 6.1), whatever its settings for files in
    /// memory. Whether all of it is.
    fn collapse(&self) -> bool {
        // SAFETY: the range is this mapping, and the call keeps its contents.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_COLLAPSE) == 0 }
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

/// An array of fixed length on pages of its own, aligned to a page, in huge pages when asked for and available; or a part of a
/// [`FileMemory`].
pub struct HugeArray<T> {
    base: NonNull<T>,
    len: usize,
    pages: Arc<Pages>,
    elements: PhantomData<T>,
}

// SAFETY: the array owns its elements as a `Vec` does; the pages are nobody's but its own, or other parts of a file.
unsafe impl<T: Send> Send for HugeArray<T> {}
// SAFETY: as above; through a shared reference there are only shared references to elements.
unsafe impl<T: Sync> Sync for HugeArray<T> {}

impl<T: Default> HugeArray<T> {
    /// `len` default values. Fails when the kernel has no memory for them.
    pub fn new(len: usize, want_huge: bool) -> io::Result<HugeArray<T>> {
        const { assert!(align_of::<T>() <= PAGE_BYTES, "a mapping is aligned to a page and no further") };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Pages::new(bytes, want_huge)?;
        let base: NonNull<T> = pages.base().cast();
        for index in 0..len {
            // SAFETY: the mapping holds `len` elements and is aligned for them; each place is written once, and no
            // reference to it exists. Should `default` panic, the elements written so far leak.
            unsafe { base.add(index).write(T::default()) };
        }
        Ok(HugeArray { base, len, pages: Arc::new(pages), elements: PhantomData })
    }
}

impl<T> HugeArray<T> {
    /// Whether it lies in pages reserved as huge. (Ordinary ones the kernel may still join into huge ones.)
    pub fn uses_huge_pages(&self) -> bool {
        self.pages.huge
    }
}

/// A file in memory, mapped, whose parts become arrays one after the other. What is written to these is there for who maps the
/// file next, however this process ends.
pub(crate) struct FileMemory {
    pages: Arc<Pages>,
    /// Bytes of the parts that are given away.
    taken: usize,
}

impl FileMemory {
    /// Maps all `bytes` of the file, a multiple of a page. Fails with `WouldBlock` where another process has it mapped, with
    /// `InvalidInput` where it has another length.
    ///
    /// The file must have a page for each of its bytes, or the process dies when there is none at the time that it needs one.
    pub(crate) fn map(file: File, bytes: usize) -> io::Result<FileMemory> {
        Ok(FileMemory { pages: Arc::new(Pages::of_file(file, bytes)?), taken: 0 })
    }

    /// Passes over the next `bytes`.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// The next part, as an array of `len` elements. Each is made by `make` of the words that stand in its place, and written there. Fails
    /// where the file is too short.
    pub(crate) fn take<T, const WORDS: usize>(
        &mut self,
        len: usize,
        make: impl Fn([u64; WORDS]) -> T,
    ) -> io::Result<HugeArray<T>> {
        const { assert!(size_of::<T>() == WORDS * size_of::<u64>(), "an element is so many words") };
        const { assert!(align_of::<T>() >= align_of::<u64>() && align_of::<T>() <= PAGE_BYTES) };
        let start = self.taken.checked_next_multiple_of(align_of::<T>()).unwrap_or(usize::MAX);
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| start.checked_add(bytes));
        let end = end.filter(|end| *end <= self.pages.bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.taken = end;
        // SAFETY: the part begins and ends within the mapping.
        let base: NonNull<T> = unsafe { self.pages.base().add(start) }.cast();
        for index in 0..len {
            // SAFETY: the part holds `len` elements and is aligned for them, and no other array has any byte of it: parts follow each
            // other, and the lock keeps the file from being mapped twice. Words have no invalid values.
            unsafe {
                let place = base.add(index);
                place.write(make(place.cast::<[u64; WORDS]>().read()));
            }
        }
        Ok(HugeArray { base, len, pages: self.pages.clone(), elements: PhantomData })
    }

    /// Asks the kernel for huge pages. Whether all of the file is in such. To be called when all has been read once.
    pub(crate) fn collapse(&self) -> bool {
        self.pages.collapse()
    }
}

impl<T> Deref for HugeArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: who made the array initialised `len` elements at `base`, and the mapping lives as long as `self`.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for HugeArray<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` is the only access.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T> Drop for HugeArray<T> {
    fn drop(&mut self) {
        // SAFETY: the elements are initialised and are not touched again; their pages go after them.
        unsafe { ptr::drop_in_place::<[T]>(&raw mut **self) }
    }
}

/// Words of a [`SharedWords`].
pub(crate) const SHARED_WORDS: usize = 4096;

/// Words that clones share and that are copied when they are written while shared: an `Arc` of an array, in memory that the
/// kernel is asked to keep in huge pages. Tables visited at random are made of these: in ordinary pages each visit would miss
/// the processor's cache of page addresses besides.
pub(crate) struct SharedWords {
    place: NonNull<Place>,
}

#[repr(C, align(64))]
struct Place {
    holders: AtomicUsize,
    words: Words,
}

/// A cache line begins with the first word.
#[repr(C, align(64))]
struct Words([u32; SHARED_WORDS]);

// SAFETY: the holders count is atomic, and words are written only by the one holder that there is.
unsafe impl Send for SharedWords {}
// SAFETY: as above; through a shared reference words are only read.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Words that all are `fill`.
    pub(crate) fn new(fill: u32) -> SharedWords {
        SharedWords::with(|words| {
            // SAFETY: `with` gives a place for as many words, which nobody else knows.
            unsafe { slice::from_raw_parts_mut(words, SHARED_WORDS) }.fill(fill);
        })
    }

    /// The words, to be written: a copy of their own if somebody else holds them.
    pub(crate) fn make_mut(&mut self) -> &mut [u32; SHARED_WORDS] {
        // Acquire: what an earlier holder read it has read before it let go.
        if self.holders().load(Ordering::Acquire) != 1 {
            let from: *const u32 = (**self).as_ptr();
            *self = SharedWords::with(|words| {
                // SAFETY: both are places of as many words, and the second is nobody's yet.
                unsafe { ptr::copy_nonoverlapping(from, words, SHARED_WORDS) };
            });
        }
        // SAFETY: this is the only holder, and it is borrowed for writing.
        unsafe { &mut (*self.place.as_ptr()).words.0 }
    }

    fn with(write: impl FnOnce(*mut u32)) -> SharedWords {
        let place = pool().take();
        // SAFETY: the pool gives places that are mapped, aligned, and nobody's; the two parts are written before anybody
        // reads them.
        unsafe {
            (&raw mut (*place.as_ptr()).holders).write(AtomicUsize::new(1));
            write((&raw mut (*place.as_ptr()).words.0).cast());
        }
        SharedWords { place }
    }

    fn holders(&self) -> &AtomicUsize {
        // SAFETY: the place is there as long as somebody holds it.
        unsafe { &self.place.as_ref().holders }
    }
}

impl Deref for SharedWords {
    type Target = [u32; SHARED_WORDS];

    #[inline]
    fn deref(&self) -> &[u32; SHARED_WORDS] {
        // SAFETY: the place is there as long as somebody holds it, and is written only where one alone does.
        unsafe { &self.place.as_ref().words.0 }
    }
}

impl Clone for SharedWords {
    fn clone(&self) -> SharedWords {
        self.holders().fetch_add(1, Ordering::Relaxed);
        SharedWords { place: self.place }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if self.holders().fetch_sub(1, Ordering::Release) == 1 {
            // What every other holder did is over before the place is somebody else's.
            fence(Ordering::Acquire);
            pool().give(self.place);
        }
    }
}

/// Places in slabs, a huge page each. A slab is unmapped when nobody holds a place in it, but for one that is kept.
struct Pool {
    /// By address, the numbers of the places that are free.
    slabs: BTreeMap<usize, Vec<u8>>,
    /// Those with a free place. The lowest is used first, so that others run empty.
    open: BTreeSet<usize>,
}

const PLACES: usize = HUGE_PAGE_BYTES / size_of::<Place>();

const _: () = assert!(PLACES <= u8::MAX as usize);

/// Only the control side makes and drops tables, and so comes here.
fn pool() -> MutexGuard<'static, Pool> {
    static POOL: Mutex<Pool> = Mutex::new(Pool { slabs: BTreeMap::new(), open: BTreeSet::new() });
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn take(&mut self) -> NonNull<Place> {
        let base = self.open.first().copied().unwrap_or_else(|| self.add_slab());
        let free = self.slabs.get_mut(&base).expect("an open slab is a slab");
        let number = free.pop().expect("an open slab has a free place");
        if free.is_empty() {
            self.open.remove(&base);
        }
        let slab: NonNull<Place> =
            NonNull::new(ptr::with_exposed_provenance_mut(base)).expect("no slab is at zero");
        // SAFETY: the slab holds `PLACES` places, and this number is one of them.
        unsafe { slab.add(usize::from(number)) }
    }

    fn give(&mut self, place: NonNull<Place>) {
        let base = place.addr().get() & !(HUGE_PAGE_BYTES - 1);
        let free = self.slabs.get_mut(&base).expect("every place is in a slab");
        free.push(((place.addr().get() - base) / size_of::<Place>()) as u8);
        let is_empty = free.len() == PLACES;
        self.open.insert(base);
        if is_empty && self.open.len() > 1 {
            self.slabs.remove(&base);
            self.open.remove(&base);
            let slab = ptr::with_exposed_provenance_mut(base);
            // SAFETY: the slab is a mapping of this length, and nobody holds a place in it.
            let unmapped = unsafe { munmap(slab, HUGE_PAGE_BYTES) };
            debug_assert!(unmapped.is_ok(), "a slab does not unmap");
        }
    }

    fn add_slab(&mut self) -> usize {
        let base = map_huge_page().expect("memory for compiled tables");
        // From the end the first place is taken first.
        self.slabs.insert(base, (0..PLACES as u8).rev().collect());
        self.open.insert(base);
        base
    }
}

/// Maps as much as a huge page takes, aligned like one, and advises the kernel to make it one. The address is exposed.
fn map_huge_page() -> io::Result<usize> {
    let mapped = map(2 * HUGE_PAGE_BYTES, MapFlags::PRIVATE)?;
    let before = mapped.addr().get().wrapping_neg() & (HUGE_PAGE_BYTES - 1);
    // SAFETY: of the two huge pages' length that was mapped just now, what lies before the one that is aligned and behind
    // it is unmapped; the advice may be refused, and the memory is as good without.
    unsafe {
        let base = mapped.add(before);
        if before > 0 {
            munmap(mapped.as_ptr().cast(), before)?;
        }
        munmap(base.add(HUGE_PAGE_BYTES).as_ptr().cast(), HUGE_PAGE_BYTES - before)?;
        let _ = madvise(base.as_ptr().cast(), HUGE_PAGE_BYTES, Advice::LinuxHugepage);
        Ok(base.as_ptr().expose_provenance())
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
    fn what_is_written_to_an_array_in_a_file_is_there_for_who_maps_it_next_and_nobody_maps_it_meanwhile() {
        let path = std::env::temp_dir().join(format!("palisade-mem-{}", std::process::id()));
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let bytes = HUGE_PAGE_BYTES;
        open().set_len(bytes as u64).unwrap();
        let arrays = || {
            let mut memory = FileMemory::map(open(), bytes)?;
            memory.skip(100);
            let first = memory.take(3, |[word]: [u64; 1]| AtomicU64::new(word))?;
            let second = memory.take(2, |words: [u64; 2]| words)?;
            assert!(memory.take(bytes / 8, |[word]: [u64; 1]| word).is_err(), "the file is too short");
            Ok::<_, io::Error>((first, second))
        };
        let (first, mut second) = arrays().unwrap();
        first[2].store(7, Ordering::Relaxed);
        second[1] = [8, 9];
        assert_eq!(arrays().err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        assert_eq!(arrays().err().unwrap().kind(), io::ErrorKind::WouldBlock, "a part of it is still there");
        drop(second);
        let (first, second) = arrays().unwrap();
        assert_eq!((first[2].load(Ordering::Relaxed), second[0], second[1]), (7, [0, 0], [8, 9]));
        drop((first, second));
        let wrong = FileMemory::map(open(), bytes / 2).err().unwrap();
        assert_eq!(wrong.kind(), io::ErrorKind::InvalidInput, "another length than the file's");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_empty_array_is_empty() {
        assert!(HugeArray::<u64>::new(0, true).unwrap().is_empty());
    }

    #[test]
    fn shared_words_are_copied_when_written_and_their_places_used_again() {
        let mut first = SharedWords::new(7);
        let second = first.clone();
        first.make_mut()[9] = 1;
        assert_eq!((first[9], second[9], first[8]), (1, 7, 7));
        let place = first.as_ptr();
        first.make_mut()[9] = 2;
        assert_eq!(first.as_ptr(), place, "nobody shares them any more");
        // Three slabs' worth, dropped by other threads in other orders, and made again.
        for _ in 0..3 {
            let pages: Vec<SharedWords> = (0..3 * PLACES as u32).map(SharedWords::new).collect();
            assert!(pages.iter().all(|page| page.as_ptr().addr() % 64 == 0));
            std::thread::scope(|scope| {
                for part in 0..2 {
                    let copies: Vec<SharedWords> = pages.iter().skip(part).step_by(2).cloned().collect();
                    scope.spawn(move || drop(copies));
                }
            });
            assert!(pages.iter().zip(0..).all(|(page, fill)| page.iter().all(|&word| word == fill)));
        }
        assert_eq!((first[9], second[9]), (2, 7));
    }

    #[test]
    fn a_prefetch_changes_nothing() {
        let value = [1u64, 2, 3];
        prefetch_read(&value);
        prefetch_write(&value);
        assert_eq!(value, [1, 2, 3]);
    }
}
