//! Page mappings, anonymous or of a file.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::{FlockOperation, flock};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Bytes of a huge page on x86-64, and on arm64 with 4 KiB pages.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of the smallest page, and so the least alignment of [`Pages`].
pub(super) const PAGE_BYTES: usize = 4096;

/// Mapping of whole pages: zeroed memory, or the contents of a file or a BPF map.
pub(crate) struct Pages {
    base: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) huge: bool,
    /// Mapped file, locked as long as the mapping exists.
    _file: Option<File>,
}

impl Pages {
    /// Maps at least `bytes`. With `want_huge`, it takes reserved huge pages if the system has enough of
    /// them. Otherwise it takes ordinary pages, and advises the kernel to merge them into huge ones.
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
            // The kernel may reject the advice (without transparent huge pages), which does no harm. SAFETY:
            // the range is the mapping made above, and this advice keeps its contents.
            let _ = unsafe { madvise(base.as_ptr().cast(), rounded, Advice::LinuxHugepage) };
        }
        Ok(Pages { base, bytes: rounded, huge: false, _file: None })
    }

    /// Maps all `bytes` of a file, shared with later mappings and aligned like a huge page. Takes an
    /// exclusive lock of the file for the life of the mapping. Fails with `WouldBlock` if another mapping has
    /// the lock.
    pub(super) fn of_file(file: File, bytes: usize) -> io::Result<Pages> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || file.metadata()?.len() != bytes as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let reserved_bytes = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserved = map(reserved_bytes, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        let before = reserved.addr().get().wrapping_neg() & (HUGE_PAGE_BYTES - 1);
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the file replaces the part of the reserved range that starts at the first aligned byte. The
        // parts before and after it are unmapped. No reference to any of the range exists.
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

    /// Maps at least `bytes` from the start of a BPF map (`BPF_F_MMAPABLE`), shared with its programs.
    pub(super) fn of_map(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Pages> {
        let bytes = round_up(bytes, PAGE_BYTES)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address that the kernel chooses touches no memory in use.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, map, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { base, bytes, huge: false, _file: None })
    }

    /// Has the kernel collapse the mapping into huge pages (`MADV_COLLAPSE`, Linux 6.1), regardless of its
    /// settings for shared memory. Returns whether all of it is in huge pages.
    pub(super) fn collapse(&self) -> bool {
        // SAFETY: the range is this mapping, and the call keeps its contents.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_COLLAPSE) == 0 }
    }

    /// First byte of the mapping, valid for reads and writes of its length while `self` lives.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the constructor made the mapping with this length, and every holder of a pointer into it
        // holds `self` too.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of {} bytes does not unmap", self.bytes);
    }
}

// SAFETY: the mapping belongs to the process and not to a thread. The owner synchronises access to it.
unsafe impl Send for Pages {}
// SAFETY: as above; `Pages` itself never reads or writes the memory.
unsafe impl Sync for Pages {}

fn round_up(bytes: usize, unit: usize) -> io::Result<usize> {
    bytes.max(1).checked_next_multiple_of(unit).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

pub(super) fn map(bytes: usize, flags: MapFlags) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous mapping at an address that the kernel chooses touches no memory in use.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}
