//! Array in page-aligned memory, in huge pages where available.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use super::pages::{PAGE_BYTES, Pages};

/// Array of fixed length in a mapping of its own, in huge pages if requested and available; or a part of a
/// [`FileMemory`](super::FileMemory).
pub struct HugeArray<T> {
    pub(super) base: NonNull<T>,
    pub(super) len: usize,
    pub(super) pages: Arc<Pages>,
    pub(super) elements: PhantomData<T>,
}

// SAFETY: the array owns its elements as a `Vec` does. Its pages belong to it alone, or are shared with other
// parts of a file.
unsafe impl<T: Send> Send for HugeArray<T> {}
// SAFETY: as above; a shared reference gives only shared references to elements.
unsafe impl<T: Sync> Sync for HugeArray<T> {}

impl<T: Default> HugeArray<T> {
    /// Creates an array of `len` default values. Fails if the kernel has no memory for it.
    pub fn new(len: usize, want_huge: bool) -> io::Result<HugeArray<T>> {
        const { assert!(align_of::<T>() <= PAGE_BYTES, "a mapping is aligned to a page and no further") };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Pages::new(bytes, want_huge)?;
        let base: NonNull<T> = pages.base().cast();
        for index in 0..len {
            // SAFETY: the mapping holds `len` elements and is aligned for them. Each is written once, and no
            // reference to it exists. If `default` panics, the elements written so far leak.
            unsafe { base.add(index).write(T::default()) };
        }
        Ok(HugeArray { base, len, pages: Arc::new(pages), elements: PhantomData })
    }
}

impl<T> HugeArray<T> {
    /// Returns whether the pages are reserved huge pages. The kernel may merge ordinary pages into huge ones
    /// too.
    pub fn uses_huge_pages(&self) -> bool {
        self.pages.huge
    }
}

impl<T> Deref for HugeArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the constructor initialised `len` elements at `base`, and the mapping lives as long as
        // `self`.
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
        // SAFETY: the elements are initialised and are not used again. Their pages are unmapped after them.
        unsafe { ptr::drop_in_place::<[T]>(&raw mut **self) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

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
}
