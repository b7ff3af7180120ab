//! The context of a batch.

use super::policy_batch::PolicyBatch;
use crate::dataplane::conntrack::{Conntrack, WorkerState};
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::fragments::{FirstFragmentTable, Fragments};
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::neighbor::table::Neighbors;
use crate::dataplane::worker::stats::WorkerStats;
use crate::xdp::{Frame, Umem};

/// What the stages work with, besides the batch.
pub(crate) struct Context<'a> {
    /// This worker's number.
    pub worker: usize,
    /// Milliseconds since the start of the switch: the one clock reading of the batch.
    pub now_ms: u32,
    /// Memory of the frames.
    pub umem: &'a Umem,
    /// The generation that this batch is judged by.
    pub snapshot: &'a Snapshot,
    /// The flows.
    pub conntrack: &'a Conntrack,
    /// This worker's part in conntrack.
    pub worker_state: &'a mut WorkerState,
    /// Ethernet addresses behind the ports.
    pub neighbors: &'a Neighbors,
    /// This worker's counters.
    pub stats: &'a WorkerStats,
    /// What this worker wants to ask and may still answer.
    pub rate_limits: &'a mut RateLimits,
    /// What this worker knows of fragmented datagrams.
    pub fragments: &'a mut Fragments,
    /// What workers tell each other of them.
    pub first_fragments: &'a FirstFragmentTable,
    /// What is asked about new flows.
    pub policy_batch: &'a mut PolicyBatch,
    /// Frames of UMEM that each port's transmit ring still takes.
    pub transmit_credit: &'a mut [u32],
    /// Frames that nobody has, for packets that a tag makes longer than theirs.
    pub free: &'a mut Vec<Frame>,
}
