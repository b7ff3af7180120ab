//! The slot of a set that another binding takes.

use super::slot::Held;
use super::{Bindings, FREE, WAYS};
use crate::dataplane::conntrack::QuotaClass;
use crate::ids::PortId;

impl Bindings {
    /// The slot of a set for another binding of a port: a free one, else that of a flow that has ended, else the oldest one
    /// among the flows that are not assured of the port that has most of these. As in conntrack, whose quotas limit the
    /// assured flows of a port, no port takes the slot of one with fewer, and nobody that of an assured flow. `None` where no
    /// slot is left.
    pub(super) fn victim(
        &self,
        hash: u64,
        owner: PortId,
        now_ms: u32,
        class_of: impl Fn(&Held) -> QuotaClass,
    ) -> Option<usize> {
        let owner = Held::owner_of(owner);
        if let Some(free) = self.tagged(hash, FREE).next() {
            return Some(free);
        }
        let mut left = [None; WAYS];
        for (slot, left) in self.slots_of(hash).zip(&mut left) {
            // Another worker writes to a slot that has nothing to read.
            let Some(held) = self.slots[slot].held(&self.addresses[slot], now_ms) else { continue };
            let class = class_of(&held);
            if class == QuotaClass::Ended {
                return Some(slot);
            }
            *left = (class == QuotaClass::Unassured).then_some((slot, held.owner, held.idle_seconds));
        }
        let unassured = |port: u64| left.iter().flatten().filter(|(_, owner, _)| *owner == port).count();
        let own = unassured(owner);
        left.iter()
            .flatten()
            .filter(|(_, other, _)| unassured(*other) >= own)
            .max_by_key(|(_, owner, idle_seconds)| (unassured(*owner), *idle_seconds))
            .map(|(slot, ..)| *slot)
    }
}
