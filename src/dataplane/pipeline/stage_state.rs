//! State of a worker that the stages write.

use super::policy_batch::PolicyBatch;
use super::translate::Translator;
use crate::dataplane::conntrack::{LookupBatch, WorkerState};
use crate::dataplane::fragments::Fragments;
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::xdp::Frame;

/// State of one worker that stages write. [`run`](super::run) hands each stage the parts that it writes.
pub(crate) struct StageState<'a> {
    /// Packets that may be to virtual addresses.
    pub translator: &'a mut Translator,
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
