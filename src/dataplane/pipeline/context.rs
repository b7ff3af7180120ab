//! The input of the stages besides the batch, and the state of a worker that they write.

use super::policy_batch::PolicyBatch;
use crate::dataplane::conntrack::{Conntrack, LookupBatch, WorkerState};
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::fragments::{FirstFragmentTable, Fragments};
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::neighbor::table::Neighbors;
use crate::dataplane::stats::WorkerStats;
use crate::xdp::{Frame, Umem};

/// Input of every stage. Stages read it, and write what several workers share only through its atomics.
pub(crate) struct Context<'a> {
    /// Number of the worker.
    pub worker: usize,
    /// Milliseconds since the start of the switch: the one clock reading of the batch.
    pub now_ms: u32,
    /// Packet memory of the worker.
    pub umem: &'a Umem,
    /// FIB and policy of the batch, one generation for all of its packets.
    pub snapshot: &'a Snapshot,
    /// Flow table of all workers.
    pub conntrack: &'a Conntrack,
    /// Ethernet addresses behind the ports and on uplinks.
    pub neighbors: &'a Neighbors,
    /// Counters of the worker.
    pub stats: &'a WorkerStats,
    /// First-fragment table that the workers share.
    pub first_fragments: &'a FirstFragmentTable,
}

/// State of one worker that stages write. [`run`](super::run) hands each stage the parts that it writes.
pub(crate) struct StageState<'a> {
    /// Keys of the batch, and lists of the lookup.
    pub lookups: &'a mut LookupBatch,
    /// New flows of the batch, and their policy queries.
    pub policy_batch: &'a mut PolicyBatch,
    /// The worker's part of the flow table.
    pub worker_state: &'a mut WorkerState,
    /// Solicitations to send, and the limits of ICMP errors.
    pub rate_limits: &'a mut RateLimits,
    /// Fragmented datagrams that the worker tracks.
    pub fragments: &'a mut Fragments,
    /// Frames of UMEM that each port still takes for transmission, by its number.
    pub transmit_credit: &'a mut [u32],
    /// Free frames, for packets that a VLAN tag makes longer than their own.
    pub free: &'a mut Vec<Frame>,
}
