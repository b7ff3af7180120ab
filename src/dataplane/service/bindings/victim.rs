//! The slot that a new binding takes.

use super::slot::Held;
use super::{Bindings, FREE, SPARE_SLOTS, WAYS};
use crate::dataplane::conntrack::QuotaClass;
use crate::ids::PortId;

/// Assured flows of a first set up to which its second one is not looked at.
const FEW_ASSURED: usize = 3;

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

    /// A slot of full sets: that of a flow that has ended, else that of a flow that is not assured, of the port that has most of
    /// these: in the set with fewer assured flows, so that no key meets two sets full of them, and there the oldest one. As in
    /// conntrack, whose quotas limit the assured flows of a port, no port takes the slot of one with fewer, and nobody that of
    /// an assured flow.
    fn victim(
        &self,
        sets: [usize; 2],
        owner: PortId,
        now_ms: u32,
        class_of: impl Fn(&Held) -> QuotaClass,
    ) -> Option<usize> {
        let owner = Held::owner_of(owner);
        let mut left = [None; 2 * WAYS];
        let (mut ended, mut assured) = ([None; 2], [0; 2]);
        for (at, set) in sets.into_iter().enumerate() {
            for slot in set * WAYS..(set + 1) * WAYS {
                // Another worker writes to a slot that has nothing to read.
                let Some(held) = self.slots[slot].held(&self.addresses[slot], now_ms) else { continue };
                match class_of(&held) {
                    QuotaClass::Ended => ended[at] = ended[at].or(Some(slot)),
                    QuotaClass::Assured => assured[at] += 1,
                    QuotaClass::Unassured => {
                        let Held { owner, idle_seconds, .. } = held;
                        left[at * WAYS + slot % WAYS] = Some(Candidate { slot, owner, idle_seconds });
                    }
                }
            }
            if ended[0].is_some() && assured[0] <= FEW_ASSURED {
                return ended[0];
            }
        }
        let emptier = usize::from(assured[1] < assured[0]);
        if let Some(slot) = ended[emptier].or(ended[1 - emptier]) {
            return Some(slot);
        }
        let unassured = |port: u64| left.iter().flatten().filter(|other| other.owner == port).count();
        let own = unassured(owner);
        let of_emptier = |slot: usize| assured[0] != assured[1] && slot / WAYS == sets[emptier];
        left.iter()
            .flatten()
            .filter(|other| unassured(other.owner) >= own)
            .max_by_key(|other| (unassured(other.owner), of_emptier(other.slot), other.idle_seconds))
            .map(|other| other.slot)
    }
}
