//! Queue of a tap device: one packet for each system call.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{Errno, readv, write, writev};

/// One queue of an open tap device.
#[derive(Debug)]
pub struct TapQueue {
    descriptor: OwnedFd,
    refused: Arc<AtomicU64>,
}

impl TapQueue {
    pub(super) fn new(descriptor: OwnedFd) -> TapQueue {
        TapQueue { descriptor, refused: Arc::default() }
    }

    /// Descriptor, readable while packets of the pod wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Packets that the network stack of the device has refused, because its interface is down, for example, or has
    /// not handed over. The counter outlives the queue.
    pub fn refused(&self) -> Arc<AtomicU64> {
        self.refused.clone()
    }

    /// Reads the next packet that the pod has sent: the virtio-net header and the packet, one behind the other,
    /// into `parts`. Returns the number of bytes; `None` where no packet waits, or the device has been removed.
    #[inline]
    pub fn read(&self, parts: &mut [IoSliceMut<'_>]) -> Option<usize> {
        match readv(&self.descriptor, parts) {
            Ok(bytes) => Some(bytes),
            // The device has been removed, or no packet waits.
            Err(Errno::AGAIN | Errno::INTR | Errno::BADFD) => None,
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Gives the pod a packet: the virtio-net header and the packet. Packets that the kernel refuses are counted.
    #[inline]
    pub fn write(&self, bytes: &[u8]) {
        self.repeat(|descriptor| write(descriptor, bytes));
    }

    /// Gives the pod a packet as [`TapQueue::write`] does, header and packet in `parts`.
    #[inline]
    pub fn write_vectored(&self, parts: &[IoSlice<'_>]) {
        self.repeat(|descriptor| writev(descriptor, parts));
    }

    /// Repeats an interrupted write, and counts a refused one.
    #[inline]
    fn repeat(&self, write: impl Fn(BorrowedFd<'_>) -> Result<usize, Errno>) {
        while let Err(error) = write(self.fd()) {
            if error != Errno::INTR {
                self.refused.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
    }
}
