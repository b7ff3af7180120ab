//! Arrays in a file or a BPF map that is mapped into memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use super::huge_array::HugeArray;
use super::pages::{PAGE_BYTES, Pages};

/// Contents of a page that nobody has written to.
static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Types that consist of atomics alone.
///
/// # Safety
/// Every bit pattern is a value of the type, each of its fields is an atomic, and it has no padding.
pub(crate) unsafe trait Atomics {}

/// Mapped file whose consecutive parts become arrays. Their contents persist for the next process that maps
/// the file, however this one ends.
pub(crate) struct FileMemory {
    pages: Arc<Pages>,
    /// Bytes of the parts taken so far.
    taken: usize,
}

impl FileMemory {
    /// Maps all `bytes` of the file, a multiple of a page. Fails with `WouldBlock` while another process has
    /// the file mapped, and with `InvalidInput` if the file has another length.
    ///
    /// The file must have a page allocated for each byte. Otherwise the kernel kills the process (SIGBUS)
    /// when it has no page at the time of an access.
    pub(crate) fn map(file: File, bytes: usize) -> io::Result<FileMemory> {
        Ok(FileMemory { pages: Arc::new(Pages::of_file(file, bytes)?), taken: 0 })
    }

    /// Maps the first `bytes` of a BPF map, which its programs read and write meanwhile: every element consists of atomics.
    pub(crate) fn of_map(map: BorrowedFd<'_>, bytes: usize) -> io::Result<FileMemory> {
        Ok(FileMemory { pages: Arc::new(Pages::of_map(map, bytes)?), taken: 0 })
    }

    /// Zeroed memory of the process, in place of a file.
    pub(crate) fn of_process(bytes: usize) -> io::Result<FileMemory> {
        Ok(FileMemory { pages: Arc::new(Pages::new(bytes, false)?), taken: 0 })
    }

    /// Skips the next `bytes`.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// Takes the next part as an array of `len` elements. `make` builds each element from the words at its
    /// position, and the element replaces them; zeroed pages stay as they are if `make` leaves zeroes as they are. Fails if
    /// the file is too short.
    pub(crate) fn take<T, const WORDS: usize>(
        &mut self,
        len: usize,
        make: impl Fn([u64; WORDS]) -> T,
    ) -> io::Result<HugeArray<T>> {
        const { assert!(size_of::<T>() == WORDS * size_of::<u64>(), "an element is so many words") };
        const { assert!(align_of::<T>() >= align_of::<u64>()) };
        let base = self.next_part::<T>(len)?;
        let of_zeroes = make([0; WORDS]);
        // SAFETY: the element has the size of its words, and no alignment less than theirs.
        let keeps_zeroes = unsafe { ptr::from_ref(&of_zeroes).cast::<[u64; WORDS]>().read() } == [0; WORDS];
        let of_page = (PAGE_BYTES / size_of::<T>()).max(1);
        for first in (0..len).step_by(of_page) {
            let count = of_page.min(len - first);
            // SAFETY: the part holds `len` elements and is aligned for them. No other array has any byte of
            // it: parts follow each other, and the lock keeps the file from being mapped twice. Every bit
            // pattern of the words is valid.
            unsafe {
                let page = base.add(first);
                let bytes = slice::from_raw_parts(page.cast::<u8>().as_ptr(), count * size_of::<T>());
                if keeps_zeroes && ZEROES.get(..bytes.len()) == Some(bytes) {
                    continue;
                }
                for index in 0..count {
                    let place = page.add(index);
                    place.write(make(place.cast::<[u64; WORDS]>().read()));
                }
            }
        }
        Ok(HugeArray { base, len, pages: self.pages.clone(), elements: PhantomData })
    }

    /// Takes the next part as an array of `len` elements, which others may write to at the same time.
    pub(crate) fn take_shared<T: Atomics>(&mut self, len: usize) -> io::Result<HugeArray<T>> {
        let base = self.next_part::<T>(len)?;
        Ok(HugeArray { base, len, pages: self.pages.clone(), elements: PhantomData })
    }

    fn next_part<T>(&mut self, len: usize) -> io::Result<NonNull<T>> {
        const { assert!(align_of::<T>() <= PAGE_BYTES) };
        let start = self.taken.checked_next_multiple_of(align_of::<T>()).unwrap_or(usize::MAX);
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| start.checked_add(bytes));
        let end = end.filter(|end| *end <= self.pages.bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.taken = end;
        // SAFETY: the part starts and ends within the mapping.
        Ok(unsafe { self.pages.base().add(start) }.cast())
    }

    /// Asks the kernel for huge pages, and returns whether the whole file is in such. Call it after every
    /// page has been read once.
    pub(crate) fn collapse(&self) -> bool {
        self.pages.collapse()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::mem::HUGE_PAGE_BYTES;

    use super::*;

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
}
