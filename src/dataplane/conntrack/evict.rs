//! Making room for new flows: see [`super::table`] for when, [`super::quota`] for whose.

use super::QuotaClass;
use super::table::{Conntrack, Slot, WorkerState};
use crate::ids::PortId;

/// Outcome of an eviction for a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// One flow has gone.
    Evicted,
    /// No flow may go for anybody.
    NoVictim,
    /// Those that may go are of ports with fewer unassured flows.
    Refused,
}

impl Conntrack {
    /// Evicts one flow of two buckets for a flow of `port`, from the first one if possible. Whether that may take a slot.
    pub(super) fn evict_in_either(
        &self,
        buckets: [usize; 2],
        port: PortId,
        now_ms: u32,
        by: &mut WorkerState,
    ) -> bool {
        let mut is_denied = false;
        for bucket in buckets {
            match self.evict(bucket, port, now_ms, by) {
                Eviction::Evicted => return true,
                Eviction::Refused => is_denied = true,
                Eviction::NoVictim => {}
            }
        }
        !is_denied
    }

    /// Ends one flow of a bucket for a flow of `port`: one whose time is over, else one that has ended, else an unassured one of the port
    /// that has most of them, of these the longest idle.
    pub(super) fn evict(&self, bucket: usize, port: PortId, now_ms: u32, by: &mut WorkerState) -> Eviction {
        let candidate = |slot: Slot| {
            let entry = self.entry(slot);
            let owner = entry.quota_owner()?;
            let is_ended = self.is_idle(slot, now_ms);
            let unassured = match owner.class {
                _ if is_ended => u32::MAX,
                QuotaClass::Ended => u32::MAX - 1,
                QuotaClass::Unassured => self.quotas.flows(owner.port, QuotaClass::Unassured),
                QuotaClass::Assured => return None,
            };
            Some((unassured, entry.idle_ms(now_ms), slot, is_ended))
        };
        let victim = self
            .slots(bucket)
            .filter_map(candidate)
            .max_by_key(|(unassured, idle_ms, ..)| (*unassured, *idle_ms));
        let Some((unassured, _, slot, is_ended)) = victim else { return Eviction::NoVictim };
        if unassured < self.quotas.flows(port, QuotaClass::Unassured) {
            return Eviction::Refused;
        }
        let ended = by.ended;
        self.remove(slot, by);
        by.evicted += if is_ended { 0 } else { by.ended - ended };
        Eviction::Evicted
    }
}
