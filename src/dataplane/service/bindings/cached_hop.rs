//! The hop that a flow's initiator takes, cached beside its binding: its packets need no lookup in conntrack while it is current.
//!
//! The hop names the version of the slot, so that it ends with the binding that it was cached for. The packets that took it are
//! counted here, until conntrack takes the counts over.

use std::sync::atomic::Ordering::Relaxed;

use super::parts::AtomicU64;
use crate::dataplane::conntrack::ForwardCount;
use crate::ids::Generation;

/// Bits of the number of bytes in the last word. The number of packets stands above them. Conntrack takes both over once a
/// second while packets come.
const BYTES_BITS: u32 = 38;

/// A cached hop. Three words: the policy epoch, 32 bits, the hop plus one, 16 bits, and the version of the slot of the binding, 16
/// bits; the conntrack slot of the flow plus one, 32 bits, and the time of the last packet, 32 bits; packets and bytes.
#[derive(Default)]
pub(super) struct CachedHop([AtomicU64; 3]);

impl CachedHop {
    /// The cached hop in these words of memory.
    pub(super) fn from_words(words: [u64; 3]) -> CachedHop {
        CachedHop(words.map(AtomicU64::new))
    }

    /// Ends the hop.
    pub(super) fn clear(&self) {
        self.0[0].store(0, Relaxed);
    }

    /// Policy epoch and hop that were cached for this version of a binding.
    #[inline(always)]
    pub(super) fn get(&self, version: u16) -> Option<(Generation, u16)> {
        let word = self.0[0].load(Relaxed);
        let hop = ((word >> 16) as u16).checked_sub(1)?;
        (word as u16 == version).then_some((Generation((word >> 32) as u32), hop))
    }

    /// The conntrack slot of the flow whose hop was cached last. It may have another flow now.
    #[inline]
    pub(super) fn flow(&self) -> Option<u32> {
        ((self.0[1].load(Relaxed) >> 32) as u32).checked_sub(1)
    }

    /// Caches the hop of the flow in a slot. Another flow of the binding has given its count away.
    pub(super) fn set(&self, version: u16, (epoch, hop): (Generation, u16), flow: u32) {
        if !self.is_of(flow) {
            self.0[2].store(0, Relaxed);
            self.0[1].store(owner(flow) << 32, Relaxed);
        }
        // Hop 65535 does not fit beside the value for none: it is not cached.
        let hop = u64::from(hop.wrapping_add(1));
        self.0[0].store(u64::from(epoch.0) << 32 | hop << 16 | u64::from(version), Relaxed);
    }

    /// Whether the flow in a slot was the last one whose hop was cached.
    pub(super) fn is_of(&self, flow: u32) -> bool {
        self.0[1].load(Relaxed) >> 32 == owner(flow)
    }

    /// Counts a packet.
    #[inline(always)]
    pub(super) fn count(&self, bytes: usize, now_ms: u32) {
        let (seen, counted) = (self.0[1].load(Relaxed), self.0[2].load(Relaxed));
        self.0[1].store(seen >> 32 << 32 | u64::from(now_ms), Relaxed);
        self.0[2].store(counted + (1 << BYTES_BITS | bytes as u64), Relaxed);
    }

    /// Count of the flow in a slot.
    pub(super) fn count_of(&self, flow: u32) -> ForwardCount {
        let (seen, counted) = (self.0[1].load(Relaxed), self.0[2].load(Relaxed));
        if seen >> 32 != owner(flow) {
            return ForwardCount::default();
        }
        let bytes = counted & ((1 << BYTES_BITS) - 1);
        ForwardCount { packets: counted >> BYTES_BITS, bytes, last_seen_ms: seen as u32 }
    }

    /// Gives the count of the flow in a slot away.
    pub(super) fn take_count(&self, flow: u32) -> ForwardCount {
        let count = self.count_of(flow);
        if count.packets > 0 {
            self.0[2].store(0, Relaxed);
        }
        count
    }
}

/// The number of a conntrack slot as the words have it: not zero.
fn owner(flow: u32) -> u64 {
    u64::from(flow) + 1
}
