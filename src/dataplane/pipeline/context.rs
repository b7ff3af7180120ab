//! Input of the stages besides the batch.

use crate::dataplane::conntrack::Conntrack;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::fragments::FirstFragmentTable;
use crate::dataplane::masquerade::ExternalPorts;
use crate::dataplane::neighbor::table::Neighbors;
use crate::dataplane::offload::Offload;
use crate::dataplane::service::Bindings;
use crate::dataplane::stats::{FlowEventQueue, WorkerStats};
use crate::xdp::Umem;

/// Input of every stage. Stages read it, and write what several workers share only through its atomics.
pub(crate) struct Context<'a> {
    /// Number of the worker.
    pub worker: usize,
    /// Number of workers.
    pub workers: usize,
    /// Worker that counts decisions and flows in the snapshot. `None` for a trial, which leaves no trace there.
    pub counted_by: Option<usize>,
    /// Milliseconds since the start of the switch, read at the beginning of the batch.
    pub now_ms: u32,
    /// The same time in nanoseconds.
    pub now_ns: u64,
    /// Packet memory of the worker.
    pub umem: &'a Umem,
    /// FIB and policy of the batch, one generation for all of its packets.
    pub snapshot: &'a Snapshot,
    /// Flow table of all workers.
    pub conntrack: &'a Conntrack,
    /// Bindings of translated flows of all workers.
    pub bindings: &'a Bindings,
    /// External ports of masqueraded flows, if flows are masqueraded.
    pub external_ports: Option<&'a ExternalPorts>,
    /// Records of the flows that the kernel forwards, if it may.
    pub offload: Option<&'a Offload>,
    /// Ethernet addresses behind the ports and on uplinks.
    pub neighbors: &'a Neighbors,
    /// Counters of the worker.
    pub stats: &'a WorkerStats,
    /// Queue of events, if somebody follows flows.
    pub events: Option<&'a FlowEventQueue>,
    /// First-fragment table that the workers share.
    pub first_fragments: &'a FirstFragmentTable,
}
