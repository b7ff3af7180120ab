//! The head of a half: the word that publishes an entry, with the key's word and the quota owner.

use super::super::key::Key;
use super::super::parts::PORTS_MAX;
use super::super::state::QuotaClass;
use crate::ids::PortId;

/// The entry holds a flow. The other bits are the key's word, and among these in the half of the lower end
/// the [`QuotaOwner`], in the half of the higher end the key's [check](check_of).
pub(super) const READY: u64 = 1 << 63;
const OWNER_PORT_SHIFT: u32 = 48;
const OWNER_PORT: u64 = 0xfff << OWNER_PORT_SHIFT;
const _: () = assert!(PORTS_MAX <= 1 << 12, "a port's number fits into OWNER_PORT");
/// The [`QuotaClass`] of the flow.
const OWNER_CLASS_SHIFT: u32 = 60;
pub(super) const OWNER_MASK: u64 = OWNER_PORT | 0x3 << OWNER_CLASS_SHIFT;
pub(super) const KEY_MASK: u64 = !(READY | OWNER_MASK);

/// The port that a flow counts against, and its class there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaOwner {
    /// The port that the first packet of the flow came from.
    pub port: PortId,
    /// The class, which says whether the flow may be evicted.
    pub class: QuotaClass,
}

impl QuotaOwner {
    /// The owner of a flow without an answer so far.
    pub(crate) fn unassured(port: PortId) -> QuotaOwner {
        QuotaOwner { port, class: QuotaClass::Unassured }
    }

    /// Bits of the owner in a head.
    pub(super) fn bits(self) -> u64 {
        u64::from(self.port.0) << OWNER_PORT_SHIFT | (self.class as u64) << OWNER_CLASS_SHIFT
    }

    /// The owner in a head.
    pub(super) fn of(head: u64) -> QuotaOwner {
        let class = match head >> OWNER_CLASS_SHIFT & 0x3 {
            1 => QuotaClass::Assured,
            2 => QuotaClass::Ended,
            _ => QuotaClass::Unassured,
        };
        QuotaOwner { port: PortId(((head & OWNER_PORT) >> OWNER_PORT_SHIFT) as u16), class }
    }
}

/// Twelve bits of a key's hash, for the half of the higher end: they tell an intact entry of a file from a
/// torn one.
pub(super) fn check_of(key: &Key) -> u64 {
    let mix = |mixed: u64, word: &u64| (mixed.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key.words().iter().fold(0, mix) >> 52 << OWNER_PORT_SHIFT
}
