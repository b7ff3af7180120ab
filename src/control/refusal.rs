//! Why the switch refuses a request. A refused request has changed nothing, but for [`Refusal::NotTaken`].

use std::net::IpAddr;

use crate::dataplane::{NotTaken, PortError, PortKind};
use crate::policy::testcase::ProbeError;
use crate::tables::{PodName, TablesError};

/// Why the switch refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A field of the request has a value that cannot be.
    #[error("{field}: {reason}")]
    Field {
        /// The field, as it stands in the request.
        field: &'static str,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// No port has the name.
    #[error("there is no port {name:?}: `palisade show ports` lists the ports")]
    NoPort {
        /// The name asked for.
        name: String,
    },
    /// A port has the name already.
    #[error(
        "port {name:?} exists already, on interface {interface}: remove it first, or choose another name"
    )]
    PortExists {
        /// The name asked for.
        name: String,
        /// The interface of the port that has it.
        interface: String,
    },
    /// The interface is a port already.
    #[error("interface {interface} is already port {name:?}: remove that port first")]
    InterfaceTaken {
        /// The interface.
        interface: String,
        /// The port that has it.
        name: String,
    },
    /// There is one way to the node's own stack.
    #[error(
        "port {name:?} already leads to the node's own stack, and a switch has one host port: remove it first"
    )]
    HostPortExists {
        /// The host port.
        name: String,
    },
    /// A pod stands behind the port.
    #[error("port {port:?} has pod {pod}: detach the pod first")]
    PortHasPod {
        /// The port.
        port: String,
        /// The pod.
        pod: PodName,
    },
    /// Ports of this kind have no pod.
    #[error("port {port:?} is of kind {kind}, and a pod needs a port of kind pod", kind = kind_name(*kind))]
    WrongKind {
        /// The port.
        port: String,
        /// Its kind.
        kind: PortKind,
    },
    /// The pod is not attached.
    #[error("pod {pod} is not attached: `palisade show pods` lists the pods")]
    NoPod {
        /// The pod.
        pod: PodName,
    },
    /// The pod is attached.
    #[error("pod {pod} is already attached to port {port:?}: detach it first")]
    PodExists {
        /// The pod.
        pod: PodName,
        /// Its port.
        port: String,
    },
    /// The address belongs to somebody.
    #[error("address {address} already belongs to {owner}: give every pod addresses of its own")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Whose it is.
        owner: String,
    },
    /// Attachment numbers are never used twice, and all have been used.
    #[error("the switch has attached as many pods as one run can number: restart it")]
    AttachmentsUsedUp,
    /// The ends of a connection are none.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No tables are loaded.
    #[error("no rule tables are loaded: load some with `palisade apply FILE`")]
    NoTables,
    /// A difference against nothing.
    #[error("no rule tables are loaded, so a difference has no base: put full tables first")]
    NoBase,
    /// The tables know none of the attached pods: a mistake closes the node, or opens it.
    #[error(
        "these tables know {known} pods, and none of the {attached} that are attached: {fate}. Load the pods' objects with \
         the policies; if it is meant, unload the tables (`palisade apply --delete`), or allow it (`palisade apply \
         --allow-empty`, `?allow_empty=true`)",
        fate = if *fail_open { "traffic of all these would pass unchecked" } else { "all these would be closed" }
    )]
    ClosesAll {
        /// Attached pods.
        attached: usize,
        /// Pods that the tables know.
        known: usize,
        /// Whether pods that no tables know are open.
        fail_open: bool,
    },
    /// The tables do not check, or the difference has another base.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The dataplane refuses.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The change is made, and a worker has not taken it.
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
}

impl Refusal {
    /// The HTTP status that says it.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::NoPort { .. }
            | Refusal::NoPod { .. }
            | Refusal::NoTables
            | Refusal::Probe(ProbeError::UnknownPod { .. }) => 404,
            Refusal::PortExists { .. }
            | Refusal::InterfaceTaken { .. }
            | Refusal::HostPortExists { .. }
            | Refusal::PortHasPod { .. }
            | Refusal::PodExists { .. }
            | Refusal::AddressTaken { .. }
            | Refusal::NoBase
            | Refusal::Tables(TablesError::Base { .. })
            | Refusal::Port(
                PortError::Taken { .. } | PortError::Foreign { .. } | PortError::TooMany { .. },
            ) => 409,
            Refusal::Field { .. }
            | Refusal::WrongKind { .. }
            | Refusal::ClosesAll { .. }
            | Refusal::Probe(_)
            | Refusal::Tables(_)
            | Refusal::Port(
                PortError::NoInterface { .. } | PortError::NoQueue { .. } | PortError::Mtu { .. },
            ) => 422,
            Refusal::NotTaken(_) => 503,
            Refusal::AttachmentsUsedUp | Refusal::Port(PortError::Unknown(_) | PortError::Kernel(_)) => 500,
        }
    }
}

/// The name of a kind, as it stands in requests.
pub(super) fn kind_name(kind: PortKind) -> &'static str {
    match kind {
        PortKind::Pod => "pod",
        PortKind::Host => "host",
        PortKind::Uplink => "uplink",
    }
}
