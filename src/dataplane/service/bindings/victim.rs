//! The slot that a new binding takes.

use super::slot::Held;
use super::{Bindings, FREE, SPARE_SLOTS, WAYS};
use crate::dataplane::conntrack::QuotaClass;
use crate::ids::PortId;

/// A binding that a port may lose.
#[derive(Clone, Copy)]
struct Candidate {
    slot: usize,
    owner: u64,
    idle_seconds: u64,
}

impl Bindings {
    /// The slot of the sets of a hash for another binding of a port. `None` where no slot is left.
    pub(super) fn slot_for(
        &self,
        hash: u64,
        owner: PortId,
        now_ms: u32,
        class_of: impl Fn(&Held) -> QuotaClass,
    ) -> Option<usize> {
        let (first, _) = self.place(hash);
        let free_in = |set| self.ways_tagged(set, FREE).count_ones() as usize;
        let free_in_first = free_in(first);
        let mut set = first;
        if free_in_first < SPARE_SLOTS {
            let second = self.second_set(hash);
            if free_in(second) > free_in_first {
                set = second;
            }
        }
        let slot = self
            .tagged(set, hash, FREE)
            .next()
            .or_else(|| self.victim([first, self.second_set(hash)], owner, now_ms, class_of))?;
        if slot / WAYS != first {
            self.note_overflown(first);
        }
        Some(slot)
    }

    /// A slot of full sets: that of a flow that has ended, else the oldest one among the flows that are not assured of the port
    /// that has most of these. As in conntrack, whose quotas limit the assured flows of a port, no port takes the slot of one with
    /// fewer, and nobody that of an assured flow.
    fn victim(
        &self,
        sets: [usize; 2],
        owner: PortId,
        now_ms: u32,
        class_of: impl Fn(&Held) -> QuotaClass,
    ) -> Option<usize> {
        let owner = Held::owner_of(owner);
        let mut left = [None; 2 * WAYS];
        let slots = sets.into_iter().flat_map(|set| set * WAYS..(set + 1) * WAYS);
        for (slot, left) in slots.zip(&mut left) {
            // Another worker writes to a slot that has nothing to read.
            let Some(held) = self.slots[slot].held(&self.addresses[slot], now_ms) else { continue };
            let class = class_of(&held);
            if class == QuotaClass::Ended {
                return Some(slot);
            }
            let candidate = Candidate { slot, owner: held.owner, idle_seconds: held.idle_seconds };
            *left = (class == QuotaClass::Unassured).then_some(candidate);
        }
        let unassured = |port: u64| left.iter().flatten().filter(|other| other.owner == port).count();
        let own = unassured(owner);
        left.iter()
            .flatten()
            .filter(|other| unassured(other.owner) >= own)
            .max_by_key(|other| (unassured(other.owner), other.idle_seconds))
            .map(|other| other.slot)
    }
}
