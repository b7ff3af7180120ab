//! State that the workers and the control side share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::mailbox::Mailbox;
use crate::dataplane::capture::Captures;
use crate::dataplane::conntrack::Conntrack;
use crate::dataplane::fib::publish::Publication;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::fragments::FirstFragmentTable;
use crate::dataplane::masquerade::ExternalPorts;
use crate::dataplane::neighbor::table::{Neighbors, SolicitQueue};
use crate::dataplane::offload::Offload;
use crate::dataplane::service::Bindings;
use crate::dataplane::stats::FlowEventQueues;

/// State that the workers and the control side share.
pub(crate) struct Shared {
    /// The published snapshot.
    pub snapshot: Publication<Snapshot>,
    /// The flow table.
    pub conntrack: Conntrack,
    /// Bindings of translated flows.
    pub bindings: Arc<Bindings>,
    /// External ports of masqueraded flows, if flows are masqueraded.
    pub external_ports: Option<ExternalPorts>,
    /// Records of the flows that the kernel forwards, if it may.
    pub offload: Option<Arc<Offload>>,
    /// Ethernet addresses behind the ports and on uplinks.
    pub neighbors: Arc<Neighbors>,
    /// Neighbours on uplinks that workers want resolved.
    pub solicit_queue: Arc<SolicitQueue>,
    /// Verdicts on first fragments, for workers that receive the later ones.
    pub first_fragments: FirstFragmentTable,
    /// Captures that run.
    pub captures: Captures,
    /// Events of flows, for those who follow them.
    pub flow_events: FlowEventQueues,
    /// Time zero of all millisecond counts.
    pub start: Instant,
    /// Set once, when the workers are to end.
    pub stopping: AtomicBool,
    /// One for each worker.
    pub mailboxes: Vec<Mailbox>,
}
