//! Blocks of words that clones share until one of them writes.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, madvise, munmap};

use super::holders::Holders;
use super::pages::{HUGE_PAGE_BYTES, map};

/// Number of words in a [`SharedWords`].
pub(crate) const SHARED_WORDS: usize = 4096;

/// Words with copy-on-write: an `Arc` of an array, in memory that the kernel is advised to keep in huge
/// pages. Tables with random access are made of them, because in ordinary pages each access would miss the
/// TLB as well.
pub(crate) struct SharedWords {
    place: NonNull<Place>,
}

#[repr(C, align(64))]
struct Place {
    holders: Holders,
    words: Words,
}

/// The first word starts a cache line.
#[repr(C, align(64))]
struct Words([u32; SHARED_WORDS]);

// SAFETY: the reference count is atomic, and only a sole holder writes words.
unsafe impl Send for SharedWords {}
// SAFETY: as above; a shared reference only reads words.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates words that all are `fill`.
    pub(crate) fn new(fill: u32) -> SharedWords {
        SharedWords::with(|words| {
            // SAFETY: `with` passes a block of that many words, to which no other reference exists.
            unsafe { slice::from_raw_parts_mut(words, SHARED_WORDS) }.fill(fill);
        })
    }

    /// Returns the words for writing, in a block that no clone shares.
    pub(crate) fn make_mut(&mut self) -> &mut [u32; SHARED_WORDS] {
        if !self.holders().is_one() {
            let from: *const u32 = (**self).as_ptr();
            *self = SharedWords::with(|words| {
                // SAFETY: both blocks have that many words, and the second has no other holder yet.
                unsafe { ptr::copy_nonoverlapping(from, words, SHARED_WORDS) };
            });
        }
        // SAFETY: this is the only holder, and it is borrowed mutably.
        unsafe { &mut (*self.place.as_ptr()).words.0 }
    }

    fn with(write: impl FnOnce(*mut u32)) -> SharedWords {
        let place = pool().take();
        // SAFETY: the pool gives blocks that are mapped, aligned and without holders. Both parts are written
        // before anything reads them.
        unsafe {
            (&raw mut (*place.as_ptr()).holders).write(Holders::one());
            write((&raw mut (*place.as_ptr()).words.0).cast());
        }
        SharedWords { place }
    }

    fn holders(&self) -> &Holders {
        // SAFETY: the block exists as long as it has a holder.
        unsafe { &self.place.as_ref().holders }
    }
}

impl Deref for SharedWords {
    type Target = [u32; SHARED_WORDS];

    #[inline]
    fn deref(&self) -> &[u32; SHARED_WORDS] {
        // SAFETY: the block exists as long as it has a holder, and is written only by a sole holder.
        unsafe { &self.place.as_ref().words.0 }
    }
}

impl Clone for SharedWords {
    fn clone(&self) -> SharedWords {
        self.holders().add();
        SharedWords { place: self.place }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if self.holders().remove() {
            pool().give(self.place);
        }
    }
}

/// Pool of blocks in slabs of one huge page each. It unmaps a slab without used blocks, except for one that
/// it keeps.
struct Pool {
    /// Indices of the free blocks, by address of the slab.
    slabs: BTreeMap<usize, Vec<u8>>,
    /// Slabs with a free block. The lowest is used first, so that the others run empty.
    open: BTreeSet<usize>,
}

const PLACES: usize = HUGE_PAGE_BYTES / size_of::<Place>();

const _: () = assert!(PLACES <= u8::MAX as usize);

/// Returns the pool. Only the control side creates and drops tables, so workers never take this lock.
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
        // SAFETY: the slab holds `PLACES` blocks, and this index is one of them.
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
            // SAFETY: the slab is a mapping of this length, and no block in it has a holder.
            let unmapped = unsafe { munmap(slab, HUGE_PAGE_BYTES) };
            debug_assert!(unmapped.is_ok(), "a slab does not unmap");
        }
    }

    fn add_slab(&mut self) -> usize {
        let base = map_huge_page().expect("memory for compiled tables");
        // `pop` takes the last index, so the first block is used first.
        self.slabs.insert(base, (0..PLACES as u8).rev().collect());
        self.open.insert(base);
        base
    }
}

/// Maps a region with the size and alignment of a huge page, and advises the kernel to back it with one.
/// Exposes its address.
fn map_huge_page() -> io::Result<usize> {
    let mapped = map(2 * HUGE_PAGE_BYTES, MapFlags::PRIVATE)?;
    let before = mapped.addr().get().wrapping_neg() & (HUGE_PAGE_BYTES - 1);
    // SAFETY: the mapping above is two huge pages long. The parts before and after the aligned one are
    // unmapped, and nothing refers to them. The kernel may ignore the advice without harm.
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
    use super::*;

    #[test]
    fn shared_words_are_copied_when_written_and_their_places_used_again() {
        let mut first = SharedWords::new(7);
        let second = first.clone();
        first.make_mut()[9] = 1;
        assert_eq!((first[9], second[9], first[8]), (1, 7, 7));
        let place = first.as_ptr();
        first.make_mut()[9] = 2;
        assert_eq!(first.as_ptr(), place, "nobody shares them any more");
        // Three slabs of blocks, dropped by other threads in another order, and allocated again.
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
}
