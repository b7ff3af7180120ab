//! Ports and workers as the control side sees them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{PortId, WorkerId};
use crate::net::mac::Mac;
use crate::netlink::Interface;

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
    /// A tap device of the switch inside the pod's network namespace.
    Tap,
}

impl PortKind {
    /// Whether a pod is behind a port of this kind.
    pub fn has_pod(self) -> bool {
        matches!(self, PortKind::Pod | PortKind::Tap)
    }
}

/// A port to open. The control API reports it in this form too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSpec {
    /// Network interface that the switch attaches to, or makes.
    pub interface: String,
    /// Kind of the port.
    pub kind: PortKind,
    /// 802.1Q VLAN identifier of the port's frames, in both directions; `None` for untagged ones.
    pub vlan: Option<u16>,
    /// Network namespace of a tap device: a name of `ip netns`, or an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Cookie that the namespace of a tap device must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_cookie: Option<u64>,
    /// MTU of a tap device, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_mtu: Option<u32>,
    /// Ethernet address of a tap device that the switch makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_mac: Option<Mac>,
}

impl PortSpec {
    /// Whether both ports have one interface: one name in one namespace.
    pub fn has_interface_of(&self, other: &PortSpec) -> bool {
        self.interface == other.interface && self.namespace == other.namespace
    }

    /// Whether the port's interface is the one of this name in the network namespace of the switch.
    pub fn is_node_interface(&self, name: &str) -> bool {
        self.namespace.is_none() && self.interface == name
    }
}

/// Properties of a port that the switch has opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Number of the port while it is open.
    pub id: PortId,
    /// Interface index of the kernel.
    #[serde(default)]
    pub interface_index: u32,
    /// Kernel id of the program at the interface: XDP, or tc where its flows are offloaded.
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
    /// Whether the kernel forwards the packets of established flows.
    #[serde(default)]
    pub offloaded: bool,
    /// Reason for which it does not, where the configuration has it do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_offloaded: Option<String>,
    /// Limitations, and their reasons: one sentence each.
    pub warnings: Vec<String>,
}

impl PortReport {
    /// Report on a port without an XDP program.
    pub(crate) fn without_program(id: PortId, interface: &Interface, warnings: Vec<String>) -> PortReport {
        PortReport {
            id,
            interface_index: interface.index,
            program: 0,
            mtu: interface.mtu,
            queues: interface.queues(),
            native: false,
            zero_copy: false,
            offloaded: false,
            not_offloaded: None,
            warnings,
        }
    }
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
