//! Eviction of flows for new ones.
//!
//! An insertion that finds few free slots in the two buckets of its key has another flow evicted, whose slot
//! is free a few batches later. The victim is a flow that has ended, or an unassured flow (see
//! [`super::super::quota`]) of the port that has most of them: the longest idle one. It is never one of a
//! port that has fewer unassured flows than the port of the new flow; where all unassured flows of the two
//! buckets are of such ports, the new flow is refused. So a port keeps its flows as long as others have more:
//! a flood evicts its own flows or is refused, and takes no slot from anybody else.

use super::super::state::QuotaClass;
use super::layout::Conntrack;
use super::remove::WorkerState;
use super::slot::Slot;
use crate::dataplane::FlowEnd;
use crate::ids::PortId;

/// Outcome of an eviction for a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// One flow was evicted.
    Evicted,
    /// All flows are assured.
    NoVictim,
    /// All flows that are not assured are of ports with fewer unassured flows.
    Refused,
}

impl Conntrack {
    /// Evicts one flow of two buckets for a flow of `port`, from the first bucket if possible. Returns
    /// whether the new flow may take a slot.
    pub(super) fn evict_in_either(
        &self,
        buckets: [usize; 2],
        port: PortId,
        now_ms: u32,
        by: &mut WorkerState,
    ) -> bool {
        let mut is_refused = false;
        for bucket in buckets {
            match self.evict(bucket, port, now_ms, by) {
                Eviction::Evicted => return true,
                Eviction::Refused => is_refused = true,
                Eviction::NoVictim => {}
            }
        }
        !is_refused
    }

    /// Ends one flow of a bucket for a flow of `port`: one that is past its timeout, else one that has ended,
    /// else an unassured one of the port that has most of them, of these the longest idle.
    pub(super) fn evict(&self, bucket: usize, port: PortId, now_ms: u32, by: &mut WorkerState) -> Eviction {
        let candidate = |slot: Slot| {
            // The kernel may have forwarded what makes the flow an assured one.
            self.count_offloaded(slot, now_ms);
            let entry = self.entry(slot);
            let owner = entry.quota_owner()?;
            let is_idle = self.is_idle(slot, now_ms);
            let unassured = match owner.class {
                _ if is_idle => u32::MAX,
                QuotaClass::Ended => u32::MAX - 1,
                QuotaClass::Unassured => self.quotas.flows(owner.port, QuotaClass::Unassured),
                QuotaClass::Assured => return None,
            };
            Some((unassured, entry.idle_ms(now_ms), slot, is_idle))
        };
        let victim = self
            .flow_slots(bucket)
            .filter_map(candidate)
            .max_by_key(|(unassured, idle_ms, ..)| (*unassured, *idle_ms));
        let Some((unassured, _, slot, is_idle)) = victim else { return Eviction::NoVictim };
        if unassured < self.quotas.flows(port, QuotaClass::Unassured) {
            return Eviction::Refused;
        }
        let ended = by.ended;
        let reason = if is_idle { FlowEnd::Idle } else { FlowEnd::Evicted };
        self.remove(slot, Some(reason), by);
        by.evicted += if is_idle { 0 } else { by.ended - ended };
        Eviction::Evicted
    }
}
