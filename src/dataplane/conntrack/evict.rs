//! Making room for new flows: see [`super::table`] for when, [`super::quota`] for whose.

use super::Class;
use super::table::{Conntrack, Slot, WorkerState};
use crate::ids::PortId;

/// Outcome of an eviction for a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// One flow has gone.
    Made,
    /// No flow may go for anybody.
    None,
    /// Those that may go are of ports with fewer unassured flows.
    Denied,
}

impl Conntrack {
    /// Evicts one flow of two groups for a flow of `port`, from the first one if possible. Whether that may take a slot.
    pub(super) fn make_room(
        &self,
        groups: [usize; 2],
        port: PortId,
        now_ms: u32,
        by: &mut WorkerState,
    ) -> bool {
        let mut is_denied = false;
        for group in groups {
            match self.evict(group, port, now_ms, by) {
                Room::Made => return true,
                Room::Denied => is_denied = true,
                Room::None => {}
            }
        }
        !is_denied
    }

    /// Ends one flow of a group for a flow of `port`: one whose time is over, else one that has ended, else an unassured one of the port
    /// that has most of them, of these the longest idle.
    pub(super) fn evict(&self, group: usize, port: PortId, now_ms: u32, by: &mut WorkerState) -> Room {
        let candidate = |slot: Slot| {
            let entry = self.entry(slot);
            let owner = entry.owner()?;
            let is_over = self.is_idle(slot, now_ms);
            let unassured = match owner.class {
                _ if is_over => u32::MAX,
                Class::Ended => u32::MAX - 1,
                Class::Unassured => self.quotas.flows(owner.port, Class::Unassured),
                Class::Assured => return None,
            };
            Some((unassured, entry.idle_ms(now_ms), slot, is_over))
        };
        let victim = self
            .slots(group)
            .filter_map(candidate)
            .max_by_key(|(unassured, idle_ms, ..)| (*unassured, *idle_ms));
        let Some((unassured, _, slot, is_over)) = victim else { return Room::None };
        if unassured < self.quotas.flows(port, Class::Unassured) {
            return Room::Denied;
        }
        let ended = by.ended;
        self.remove(slot, by);
        by.evicted += if is_over { 0 } else { by.ended - ended };
        Room::Made
    }
}
