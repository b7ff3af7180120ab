//! Ports and workers as the control side sees them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{PortId, WorkerId};

/// Kind of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// The host end of a veth pair whose other end is a pod's interface.
    Pod,
    /// A veth to the node's own network stack.
    Host,
    /// A NIC that the switch shares with the kernel.
    Uplink,
}

/// A port to open. The control API reports it in this form too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSpec {
    /// Network interface that the switch attaches to.
    pub interface: String,
    /// Kind of the port.
    pub kind: PortKind,
    /// 802.1Q VLAN identifier of the port's frames, in both directions; `None` for untagged ones.
    pub vlan: Option<u16>,
}

/// Properties of a port that the switch has opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Number of the port while it is open.
    pub id: PortId,
    /// Interface index of the kernel.
    #[serde(default)]
    pub interface_index: u32,
    /// Kernel id of the XDP program.
    #[serde(default)]
    pub program: u32,
    /// MTU of the interface, bytes.
    pub mtu: u32,
    /// Queues in use: one for each of the first workers. Further workers hand frames off to these.
    pub queues: u16,
    /// Whether the XDP program runs in the driver (native), not in the generic hook.
    pub native: bool,
    /// Whether driver and UMEM exchange frames without a copy.
    pub zero_copy: bool,
    /// Limitations, and their reasons: one sentence each.
    pub warnings: Vec<String>,
}

/// State of an open port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortHealth {
    /// The port is as it was opened.
    Good {
        /// Current name of its interface.
        interface: String,
        /// Reason for which the interface passes no frames.
        obstacle: Option<String>,
    },
    /// The interface does not exist any more.
    Gone,
    /// The XDP program is not on the interface any more: frames may have bypassed it.
    Unguarded,
    /// The interface has changed, in the way that the sentence names, and the port has to be opened again.
    Changed(String),
}

/// A worker that does not come to the end of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckWorker {
    /// Number of the worker.
    pub worker: WorkerId,
    /// Core of the worker.
    pub core: usize,
    /// Time since it was seen to make progress.
    pub since: Duration,
}
