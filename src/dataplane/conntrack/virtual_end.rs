//! Virtual address and port of a translated flow: the end to which its initiator sends, in whose place the responder is.
//!
//! A table beside the entries has one for each slot, so that an entry stays two cache lines. A worker writes it before it
//! publishes the entry, and never while a flow has the slot: a reader that has found the flow reads whole values. The number of
//! the flow's binding alone changes later.

use std::sync::atomic::Ordering::Relaxed;

use super::parts::AtomicU64;
use crate::net::address::Address;

/// End to which the initiator of a translated flow sends, the port from which it does, and the one that the responder sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FrontEnd {
    /// Virtual address. Of a flow whose source alone is translated, the address of the responder.
    pub address: Address,
    /// Its port.
    pub port: u16,
    /// Port of the initiator where the flow has another one in its place, else zero.
    pub client_port: u16,
    /// External port or identifier of a masqueraded flow, else zero.
    pub external_port: u16,
}

impl FrontEnd {
    /// Whether both are one front end for one client's port, whatever external port their flows have.
    #[inline]
    pub(crate) fn is_same_front(&self, other: &FrontEnd) -> bool {
        FrontEnd { external_port: other.external_port, ..*self } == *other
    }
}

/// Virtual end of the flow in a slot. Without meaning for a flow that is not translated.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct VirtualEnd {
    address: [AtomicU64; 2],
    /// From the low bits up, 16 bits each: the virtual port, the client's, the external one.
    ports: AtomicU64,
    /// The binding beside which packets of the flow are counted, plus one.
    binding: AtomicU64,
}

impl VirtualEnd {
    /// The virtual end in these words of memory.
    pub(super) fn from_words(words: [u64; 4]) -> VirtualEnd {
        let [high, low, ports, binding] = words.map(AtomicU64::new);
        VirtualEnd { address: [high, low], ports, binding }
    }

    #[inline]
    pub(super) fn get(&self) -> FrontEnd {
        let [high, low] = self.address.each_ref().map(|word| u128::from(word.load(Relaxed)));
        let ports = self.ports.load(Relaxed);
        FrontEnd {
            address: high << 64 | low,
            port: ports as u16,
            client_port: (ports >> 16) as u16,
            external_port: (ports >> 32) as u16,
        }
    }

    pub(super) fn set(&self, FrontEnd { address, port, client_port, external_port }: FrontEnd) {
        self.address[0].store((address >> 64) as u64, Relaxed);
        self.address[1].store(address as u64, Relaxed);
        let ports = u64::from(port) | u64::from(client_port) << 16 | u64::from(external_port) << 32;
        self.ports.store(ports, Relaxed);
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
