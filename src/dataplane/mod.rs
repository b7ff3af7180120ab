//! The story of a packet: workers that take frames from rings and decide on each one.
//!
//! [`Dataplane`] is the handle that the control side holds. It knows nothing of Kubernetes and nothing of sockets
//! other than AF_XDP: it is told ports, and a [`DesiredState`] that says who is behind them and what may pass.

// In reading order: the path of a packet, then what keeps it going, then what it is told.
mod packet;
mod pipeline;

mod conntrack;
mod fragments;

mod fib;
mod neighbor;

mod worker;

mod api;
mod core;
mod endpoints;
mod engine;
mod flow_table;
mod open_port;
mod path;
mod uplink;

mod simulation;

mod counters;
mod settings;

/// What publication and calls are made of. Their model makes them of loom's.
mod parts {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(super) use std::sync::{Arc, RwLock};

    pub(super) use crate::dataplane::worker::eventfd::EventFd;
    pub(super) use crate::limits::PORTS_MAX;
}

#[cfg(test)]
mod loom_tests;

/// Frames as the tests of the whole packet path build and check them.
#[cfg(test)]
#[path = "../../tests/common/frames/mod.rs"]
mod frames;

pub use self::core::FlowTableReport;
pub use api::DataplaneApi;
pub use counters::{Counters, DecisionCount, DropReason, LOSSES, PortCounters, WorkerCounters};
pub use engine::{Dataplane, ShutdownMode};
pub use fib::desired_state::{DesiredState, Gateway, Mac, NodeAttachment, PodAttachment, Route};
pub use flow_table::FlowTable;
pub use path::{FlowPath, PathHop, PathNeighbor, PathSide, PathSpan};
pub use settings::{
    ConntrackSettings, FlowMemory, Polling, SHARED_MEMORY, Settings, Timeouts,
    flow_directory_in_shared_memory,
};
pub use simulation::{Publisher, SimulatedPort, Simulation};

use serde::{Deserialize, Serialize};

use crate::ids::{Generation, PortId, WorkerId};
use crate::net::flow::FlowKey;
use crate::tables::RuleOrigin;

/// What a port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// The host end of a veth pair whose other end is a pod's interface.
    Pod,
    /// A veth to the node's own stack.
    Host,
    /// A NIC that it shares with the kernel.
    Uplink,
}

/// A port to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// The network interface that the switch attaches to.
    pub interface: String,
    /// What it is for.
    pub kind: PortKind,
    /// 802.1Q tag that frames carry on this port, in both directions.
    pub vlan: Option<u16>,
}

/// How an opened port turned out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Its number while it is open.
    pub id: PortId,
    /// The kernel's number of the interface.
    #[serde(default)]
    pub interface_index: u32,
    /// The kernel's id of the XDP program.
    #[serde(default)]
    pub program: u32,
    /// MTU of the interface, bytes.
    pub mtu: u32,
    /// Queues in use: one for each of the first workers. Where there are more workers, they hand frames over to these.
    pub queues: u16,
    /// Whether the XDP program runs in the driver (native) rather than in the generic hook.
    pub native: bool,
    /// Whether frames cross between driver and UMEM without a copy.
    pub zero_copy: bool,
    /// What is not as good as it could be, and why: one sentence each.
    pub warnings: Vec<String>,
}

/// State of an open port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortHealth {
    /// As it was opened.
    Good {
        /// The name of its interface by now.
        interface: String,
        /// Reason why frames do not pass all the same.
        obstacle: Option<String>,
    },
    /// Its interface is gone.
    Gone,
    /// Its program is not on the interface any more: frames may have passed it by.
    Unguarded,
    /// The interface is not as it was: what is different. The port is to be opened again.
    Changed(String),
}

/// A generation that some worker has not taken in time. The others judge by it, and so does that one as soon as it goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "generation {generation} is published, and {} not taken it: `palisade show status` says for how long; until then the earlier \
     one holds there, and if that does not end, restart the switch",
    late(workers)
)]
pub struct NotTaken {
    /// The generation.
    pub generation: Generation,
    /// Workers that have not taken it.
    pub workers: Vec<WorkerId>,
}

fn late(workers: &[WorkerId]) -> String {
    let numbers: Vec<String> = workers.iter().map(ToString::to_string).collect();
    match numbers.as_slice() {
        [one] => format!("worker {one} has"),
        many => format!("workers {} have", many.join(", ")),
    }
}

/// A worker that does not come to the end of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckWorker {
    /// Its number.
    pub worker: WorkerId,
    /// Its core.
    pub core: usize,
    /// For how long.
    pub since: std::time::Duration,
}

/// Why the dataplane does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// One sentence: what, where, what to do.
    #[error("{0}")]
    Setup(String),
}

/// Why a port is not opened or closed. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No such interface.
    #[error("interface {interface} does not exist: create it first, or correct its name")]
    NoInterface {
        /// The interface.
        interface: String,
    },
    /// Another port has the interface.
    #[error("interface {interface} is already a port of this switch")]
    Taken {
        /// The interface.
        interface: String,
    },
    /// No queue that works in both directions.
    #[error(
        "interface {interface} has {rx} receive and {tx} transmit queues, and needs one of each at least: \
         create a veth with `numrxqueues` and `numtxqueues` at both ends, set a NIC's with `ethtool -L {interface} combined`"
    )]
    NoQueue {
        /// The interface.
        interface: String,
        /// Its receive queues.
        rx: u16,
        /// Its transmit queues.
        tx: u16,
    },
    /// An MTU above what a packet of the switch can have.
    #[error(
        "interface {interface} has MTU {mtu}, and the switch takes at most {max}{}: \
         `ip link set {interface} mtu {max}` (and the same on the peer)",
        crate::xdp::one_frame(*max as usize)
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: u32,
        /// The largest that works.
        max: u32,
    },
    /// The switch is full.
    #[error("the switch has {max} ports, its limit: remove one first")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// No such port.
    #[error("there is no port {0}")]
    Unknown(PortId),
    /// The interface has a program of somebody else, or another Palisade has the interface.
    #[error("{reason}")]
    Foreign {
        /// Who, and what to do.
        reason: String,
    },
    /// The kernel refuses something: what, and what to do.
    #[error("{0}")]
    Kernel(String),
}

/// One flow in conntrack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// Its original direction.
    pub key: FlowKey,
    /// Its state: `syn-sent`, `established`, `fin-wait`, `time-wait`, `udp-one-way`, `udp-two-way`, ….
    pub state: String,
    /// Whether it stays when the table is full: both sides were heard, and its port's quota allowed it.
    #[serde(default)]
    pub assured: bool,
    /// Generation of tables that judged it last.
    pub generation: Generation,
    /// Time since its last packet.
    pub idle_ms: u64,
    /// Packets in the original direction.
    pub packets: u64,
    /// Bytes (IP, headers included) in the original direction.
    pub bytes: u64,
    /// Packets in the reply direction.
    pub reply_packets: u64,
    /// Bytes in the reply direction.
    pub reply_bytes: u64,
    /// What let it out of the source pod, where the source is a pod of this node.
    pub egress: Option<RuleOrigin>,
    /// What let it into the destination pod, where the destination is a pod of this node.
    pub ingress: Option<RuleOrigin>,
}
