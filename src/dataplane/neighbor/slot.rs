//! A slot of the table of neighbours on uplinks.

use std::sync::atomic::Ordering;

use super::parts::{AtomicU32, AtomicU64, SequenceLock};
use crate::ids::PortId;
use crate::net::address::Address;
use crate::net::mac::Mac;

/// Bits of the version. The Ethernet address is the payload above.
const VERSION_BITS: u32 = 16;

/// A neighbour on an uplink. The alignment keeps it in one cache line.
#[derive(Default)]
#[repr(align(32))]
pub(super) struct Slot {
    /// Version and Ethernet address. Without an address the slot is free.
    lock: SequenceLock<VERSION_BITS>,
    high: AtomicU64,
    low: AtomicU64,
    port: AtomicU32,
    /// Whether a worker has looked the neighbour up since the last [`Slot::take_used`].
    used: AtomicU32,
}

impl Slot {
    /// The Ethernet address, if the slot has this neighbour.
    #[inline]
    pub(super) fn read(&self, port: PortId, address: Address) -> Option<Mac> {
        let is_same = || {
            self.low.load(Ordering::Relaxed) == address as u64
                && self.high.load(Ordering::Relaxed) == (address >> 64) as u64
                && self.port.load(Ordering::Relaxed) == u32::from(port.0)
        };
        let (word, ()) = self.lock.read(|| is_same().then_some(()))?;
        mac_of(word)
    }

    /// Stores a neighbour in the slot, by one thread at a time.
    pub(super) fn write(&self, port: PortId, address: Address, mac: Mac) {
        self.lock.write(mac.to_bits() << VERSION_BITS, || {
            self.low.store(address as u64, Ordering::Relaxed);
            self.high.store((address >> 64) as u64, Ordering::Relaxed);
            self.port.store(u32::from(port.0), Ordering::Relaxed);
            self.used.store(0, Ordering::Relaxed);
        });
    }

    /// Frees the slot, by one thread at a time.
    pub(super) fn clear(&self) {
        self.lock.write(0, || ());
    }

    /// Whether the slot has no neighbour.
    pub(super) fn is_free(&self) -> bool {
        mac_of(self.lock.word()).is_none()
    }

    /// Whether the slot has a neighbour on this uplink, for the thread that writes slots.
    pub(super) fn is_of(&self, port: PortId) -> bool {
        !self.is_free() && self.port.load(Ordering::Relaxed) == u32::from(port.0)
    }

    /// Notes that a worker has looked the neighbour up.
    #[inline]
    pub(super) fn mark_used(&self) {
        if self.used.load(Ordering::Relaxed) == 0 {
            self.used.store(1, Ordering::Relaxed);
        }
    }

    /// Whether a worker has looked the neighbour up since the last call.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(0, Ordering::Relaxed) != 0
    }
}

#[inline]
fn mac_of(word: u64) -> Option<Mac> {
    let bits = word >> VERSION_BITS;
    (bits != 0).then(|| Mac::from_bits(bits))
}
