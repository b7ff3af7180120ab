//! Ethernet addresses of what is behind each port, as learned from its frames.
//!
//! A pod or the node is alone behind its port, so one address a port is enough. Workers write it, workers read it; whoever
//! is late uses the old one for another packet.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::PortId;
use crate::limits::PORTS_MAX;
use crate::net::mac::Mac;

/// Learned addresses by port; zero is none.
pub(crate) struct Neighbors(Box<[AtomicU64]>);

impl Neighbors {
    pub(crate) fn new() -> Neighbors {
        Neighbors((0..PORTS_MAX).map(|_| AtomicU64::new(0)).collect())
    }

    /// The address behind a port.
    #[inline]
    pub(crate) fn get(&self, port: PortId) -> Option<Mac> {
        let bits = self.bits(port);
        (bits != 0).then(|| Mac::from_bits(bits))
    }

    /// [`Neighbors::get`] as [`Mac::to_bits`] has it; zero is none.
    #[inline]
    pub(crate) fn bits(&self, port: PortId) -> u64 {
        self.0[port.index()].load(Ordering::Relaxed)
    }

    /// Notes the source of a frame that the port received, as [`Mac::to_bits`] has it.
    #[inline]
    pub(crate) fn learn(&self, port: PortId, bits: u64) {
        let slot = &self.0[port.index()];
        if slot.load(Ordering::Relaxed) != bits && Mac::from_bits(bits).is_unicast() {
            slot.store(bits, Ordering::Relaxed);
        }
    }

    /// Forgets what was behind a port.
    pub(crate) fn forget(&self, port: PortId) {
        self.0[port.index()].store(0, Ordering::Relaxed);
    }
}
