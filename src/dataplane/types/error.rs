//! Errors of the dataplane.

use crate::ids::{Generation, PortId, WorkerId};

/// A published generation that some worker, or the kernel, has not taken in time. The other workers use it, and that one does
/// as soon as it runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("generation {generation} is published, and {}", describe(workers, kernel.as_deref()))]
pub struct PublishError {
    /// Number of the generation.
    pub generation: Generation,
    /// Workers that have not observed it.
    pub workers: Vec<WorkerId>,
    /// Reason for which the kernel has not taken its rules, where it forwards the packets.
    pub kernel: Option<String>,
}

fn describe(workers: &[WorkerId], kernel: Option<&str>) -> String {
    if let Some(reason) = kernel {
        return format!(
            "the kernel has not taken its rules: {reason}; until it does, the earlier ones hold, and the switch tries again \
             every second"
        );
    }
    let numbers: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let (who, have) = match numbers.as_slice() {
        [one] => (format!("worker {one}"), "has"),
        many => (format!("workers {}", many.join(", ")), "have"),
    };
    format!(
        "{who} {have} not taken it: `palisade show status` says for how long; until then the earlier one holds there, and if \
         that does not end, restart the switch"
    )
}

/// A worker that has not ended its part of the flows in time. Other flows that were to end may go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ended} flows have ended, and worker {worker} does not end others: `palisade show status` says for how long it has \
     stood still; if that does not end, restart the switch"
)]
pub struct FlowsLeft {
    /// Number of flows that have ended.
    pub ended: u64,
    /// Worker that does not answer.
    pub worker: WorkerId,
}

/// Failure of the start of a dataplane.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A sentence that names the failure, its place, and a remedy.
    #[error("{0}")]
    Setup(String),
}

/// Failure to open or close a port. The switch is as before.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No such interface.
    #[error("interface {interface} does not exist: create it first, or correct its name")]
    NoInterface {
        /// The interface.
        interface: String,
    },
    /// No such network namespace.
    #[error(
        "network namespace {namespace} does not exist: `ip netns add {namespace}` makes it, or correct its name"
    )]
    NoNamespace {
        /// Name or path of the namespace.
        namespace: String,
    },
    /// Another port uses the interface.
    #[error("interface {interface} is already a port of this switch")]
    Taken {
        /// The interface.
        interface: String,
    },
    /// The interface has no queue in one of the directions.
    #[error(
        "interface {interface} has {rx} receive and {tx} transmit queues, and needs one of each at least: \
         create a veth with `numrxqueues` and `numtxqueues` at both ends, set a NIC's with `ethtool -L {interface} combined`"
    )]
    NoQueue {
        /// The interface.
        interface: String,
        /// Number of its receive queues.
        rx: u16,
        /// Number of its transmit queues.
        tx: u16,
    },
    /// The MTU is larger than the largest packet of the switch.
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
        /// Largest MTU that works.
        max: u32,
    },
    /// The switch has the largest number of ports.
    #[error("the switch has {max} ports, its limit: remove one first")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// No such port.
    #[error("there is no port {0}")]
    Unknown(PortId),
    /// The interface has a program of another owner, or another Palisade uses it.
    #[error("{reason}")]
    Foreign {
        /// A sentence that names the owner and a remedy.
        reason: String,
    },
    /// The interface would be open and carry no packet.
    #[error("{reason}")]
    Unsuitable {
        /// A sentence that names the interface, what it is, and a remedy.
        reason: String,
    },
    /// The kernel refuses an operation. The sentence names it and a remedy.
    #[error("{0}")]
    Kernel(String),
}
