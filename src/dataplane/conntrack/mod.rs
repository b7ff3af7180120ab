//! Connection tracking: flows that policy has allowed, so that their packets and their replies pass without
//! another evaluation.
//!
//! A reply may pass because an entry exists only for a flow whose first packet policy has allowed, in the
//! egress ACL of its source and the ingress ACL of its destination. An entry has the generation that
//! evaluated it. Under another generation the flow is evaluated again, in its original direction, before a
//! packet of it passes.
//!
//! All workers share one table of fixed size, without locks (see [`table`]). A flow is one entry, found from
//! either direction: its key orders the two endpoints (see [`key`]). A TCP flow has a connection state (see
//! [`tcp`]). A flow that has been answered is assured within its port's quota (see [`quota`]); a full table
//! evicts others only.

mod entry;
mod forward_counts;
mod key;
mod non_tcp;
mod quota;
mod recover;
mod state;
pub(super) mod storage;
mod table;
mod tcp;
mod timeouts;
mod virtual_end;

mod parts;

pub(crate) use entry::{Entry, FlowWord, NewFlow};
pub(crate) use forward_counts::{ForwardCount, ForwardCounts};
pub(crate) use key::Key;
pub(crate) use state::{FlowState, Outcome, QuotaClass, Side};
pub(crate) use table::{
    Conntrack, Hit, InsertOutcome, LookupBatch, LookupVisitor, PacketFlow, Slot, WorkerState, event,
};
pub(crate) use tcp::{Segment, TcpFlow};
pub(crate) use virtual_end::FrontEnd;

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod tests;
