//! Connection tracking: which flows were let in, so that their packets and their replies pass without being asked again.
//!
//! Why it is safe to let a reply pass: an entry exists only for a flow whose first packet was policy_epoch, by the egress table
//! of its source and the ingress table of its destination. An entry remembers the generation that policy_epoch it; under
//! another one it is policy_epoch again, from its original direction, before the packet passes.
//!
//! One table of fixed size is shared by all workers, without locks (see [`table`]). A flow is one entry, found from
//! either direction: its key orders the two endpoints (see [`key`]). TCP is followed by state (see [`tcp`]). A flow that both sides
//! were heard of is assured as far as its port's quota goes (see [`quota`]); the others make room when there is none.

mod entry;
mod evict;
mod key;
mod quota;
mod recover;
pub(super) mod storage;
mod table;
pub(crate) mod tcp;
mod timeouts;

pub(crate) use entry::{Entry, FlowWord, NewFlow, Side};
pub(crate) use key::Key;
pub(crate) use table::{Candidate, Conntrack, HalfId, InsertOutcome, Slot, WorkerState};
pub(crate) use timeouts::{FlowState, QuotaClass};

/// What entries and table are made of. Their model makes them of loom's atomics, and for fewer ports and workers.
mod parts {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

    pub(super) use crate::limits::{PORTS_MAX, WORKERS_MAX};
}

const _: () = assert!(size_of::<entry::Entry>() == 128);

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod tests;
