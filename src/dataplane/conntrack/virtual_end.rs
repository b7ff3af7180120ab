//! Virtual address and port of a translated flow: the end to which its initiator sends, in whose place the responder is.
//!
//! A table beside the entries has one for each slot, so that an entry stays two cache lines. A worker writes it before it
//! publishes the entry, and never while a flow has the slot: a reader that has found the flow reads whole values. The number of
//! the flow's binding alone changes later.

use std::sync::atomic::Ordering::Relaxed;

use super::parts::AtomicU64;
use crate::net::address::Address;

/// Virtual end of the flow in a slot. Without meaning for a flow that is not translated.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct VirtualEnd {
    address: [AtomicU64; 2],
    port: AtomicU64,
    /// The binding beside which packets of the flow are counted, plus one.
    binding: AtomicU64,
}

impl VirtualEnd {
    /// The virtual end in these words of memory.
    pub(super) fn from_words(words: [u64; 4]) -> VirtualEnd {
        let [high, low, port, binding] = words.map(AtomicU64::new);
        VirtualEnd { address: [high, low], port, binding }
    }

    #[inline]
    pub(super) fn get(&self) -> (Address, u16) {
        let [high, low] = self.address.each_ref().map(|word| u128::from(word.load(Relaxed)));
        (high << 64 | low, self.port.load(Relaxed) as u16)
    }

    pub(super) fn set(&self, (address, port): (Address, u16)) {
        self.address[0].store((address >> 64) as u64, Relaxed);
        self.address[1].store(address as u64, Relaxed);
        self.port.store(port.into(), Relaxed);
        self.binding.store(0, Relaxed);
    }

    /// The binding beside which packets of the flow are counted.
    pub(super) fn binding(&self) -> Option<u32> {
        Some(self.binding.load(Relaxed).checked_sub(1)? as u32)
    }

    pub(super) fn set_binding(&self, binding: u32) {
        self.binding.store(u64::from(binding) + 1, Relaxed);
    }
}
