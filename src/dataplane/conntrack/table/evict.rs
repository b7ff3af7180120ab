//! Eviction of flows for new ones.
//!
//! An insertion that finds few free slots in the two buckets of its key has another flow evicted, whose slot
//! is free a few batches later. The victim is a flow that has ended, or an unassured flow (see
//! [`super::super::quota`]) of the port that has most of them: the longest idle one. It is never one of a
//! port that has fewer unassured flows than the port of the new flow; where all unassured flows of the two
//! buckets are of such ports, the new flow is refused. So a port keeps its flows as long as others have more:
//! a flood evicts its own flows or is refused, and takes no slot from anybody else.
//!
//! An evicted slot is free two batches later: the first packets of one batch may take all free slots of two buckets before
//! that. While many wait to be free, the last two free slots are for *small* ports, which have at most three quarters as
//! many unassured flows as another port with a flow there. A small port takes any free slot, and evicts a flow of its own
//! only where no more than two are left. Flows of ports with few unassured ones are evicted only there, too.

use super::super::state::QuotaClass;
use super::layout::Conntrack;
use super::remove::WorkerState;
use super::slot::Slot;
use crate::dataplane::FlowEnd;
use crate::ids::PortId;

/// Free slots of two buckets that are for small ports while many evicted ones wait to be free.
const RESERVED_SLOTS: u32 = 2;

/// Number of slots of a worker that wait to be free from which on they are many.
const BURST: usize = 16;

/// Most unassured flows of a port that has few.
const FEW: u32 = 4;

/// Flow that an eviction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Victim {
    /// Number of unassured flows of its port; more for a flow that has ended, and most for one past its timeout.
    rank: u32,
    idle_ms: u32,
    slot: Slot,
}

/// Ranks of flows past their timeout, and of those that have ended.
const IDLE: u32 = u32::MAX;
const ENDED: u32 = IDLE - 1;

impl Conntrack {
    /// Evicts a flow of two buckets, which have `free` slots, for a flow of `port`: one of the first bucket if possible, and
    /// one of each if both have flows that have ended. Returns whether the new flow may take a slot.
    pub(super) fn evict_for(
        &self,
        buckets: [usize; 2],
        free: u32,
        port: PortId,
        now_ms: u32,
        by: &mut WorkerState,
    ) -> bool {
        let own = self.quotas.flows(port, QuotaClass::Unassured);
        let [(first, most_in_first), (second, most_in_second)] =
            buckets.map(|bucket| self.victim(bucket, now_ms));
        let most = most_in_first.max(most_in_second);
        let is_small = u64::from(own) * 4 <= u64::from(most) * 3;
        let has_spare = free > RESERVED_SLOTS;
        let least = if has_spare { FEW + 1 } else { 0 };
        let takes_own = !is_small || !has_spare;
        let is_larger = |rank: u32| rank > own || rank == own && takes_own;

        let victims = [first, second];
        let have_ended = victims.iter().all(|victim| victim.is_some_and(|victim| victim.rank >= ENDED));
        let evicted = victims
            .into_iter()
            .flatten()
            .filter(|victim| victim.rank >= least && is_larger(victim.rank))
            .take(1 + usize::from(have_ended))
            .map(|victim| self.end_victim(victim, by))
            .count();
        let is_refused = evicted == 0 && victims.iter().flatten().any(|victim| victim.rank >= least);
        let is_reserved = !has_spare && by.retired.len() >= BURST && !have_ended;
        is_small || free > 0 && !is_reserved && !is_refused
    }

    /// The flow of a bucket that is evicted first, and the largest number of unassured flows of a port that has flows there.
    fn victim(&self, bucket: usize, now_ms: u32) -> (Option<Victim>, u32) {
        let (mut victim, mut most) = (None, 0);
        for slot in self.flow_slots(bucket) {
            // The kernel may have forwarded what makes the flow an assured one.
            self.count_offloaded(slot, now_ms);
            let entry = self.entry(slot);
            let Some(owner) = entry.quota_owner() else { continue };
            let unassured = self.quotas.flows(owner.port, QuotaClass::Unassured);
            most = most.max(unassured);
            let rank = match owner.class {
                _ if self.is_idle(slot, now_ms) => IDLE,
                QuotaClass::Ended => ENDED,
                QuotaClass::Unassured => unassured,
                QuotaClass::Assured => continue,
            };
            victim = victim.max(Some(Victim { rank, idle_ms: entry.idle_ms(now_ms), slot }));
        }
        (victim, most)
    }

    fn end_victim(&self, Victim { rank, slot, .. }: Victim, by: &mut WorkerState) {
        let ended = by.ended;
        let reason = if rank == IDLE { FlowEnd::Idle } else { FlowEnd::Evicted };
        self.remove(slot, Some(reason), by);
        by.evicted += if rank == IDLE { 0 } else { by.ended - ended };
    }
}
