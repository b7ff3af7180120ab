//! Options, output and errors of all formats.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::nearest::hint;
use crate::tables::{Direction, PodName};

/// Choice of pods, and their interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderOptions {
    /// Only this pod; all by default.
    pub pod: Option<PodName>,
    /// Interface of the node that leads to a pod, where it is known.
    pub interfaces: BTreeMap<PodName, String>,
    /// Beginning of the names of all interfaces that lead to pods, if they have one: those that no pod has carry nothing
    /// (`iptables` alone).
    pub pod_interface_prefix: Option<String>,
    /// Interfaces of the node that lead to other addresses than those of its pods (`vpp-acl` alone).
    pub uplinks: Vec<String>,
    /// Rules for a dataplane in the kernel (`nftables` alone). They judge every packet by the original direction of its
    /// flow, so that a change ends the flows that it denies, and count decisions by [`counter_name`](super::counter_name).
    /// The output is one part for each step of a load, of which the second alone changes decisions.
    pub every_packet: bool,
    /// Name of the tables (`nftables` alone).
    pub table: &'static str,
    /// Direction into which `contiv` folds the rules of the other, from the point of view of the vswitch.
    pub direction: Direction,
}

impl RenderOptions {
    /// Tests whether a pod is among those of the rendering.
    pub(super) fn is_chosen(&self, pod: &PodName) -> bool {
        self.pod.as_ref().is_none_or(|only| only == pod)
    }
}

impl Default for RenderOptions {
    fn default() -> RenderOptions {
        RenderOptions {
            pod: None,
            interfaces: BTreeMap::new(),
            pod_interface_prefix: None,
            uplinks: Vec::new(),
            every_packet: false,
            table: "palisade",
            direction: Direction::Egress,
        }
    }
}

/// One input of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Name of its file.
    pub file: &'static str,
    /// Text.
    pub text: String,
}

/// Reason for which a format cannot express the tables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Chosen pod is not in the tables.
    #[error("there is no pod {pod} for which tables are compiled{}", hint(nearest.as_ref()))]
    UnknownPod {
        /// The pod.
        pod: PodName,
        /// Pod with a similar name.
        nearest: Option<PodName>,
    },
    /// Interface with an invalid name, or that two pods share.
    #[error("interface {interface:?} of pod {pod}: {problem}")]
    Interface {
        /// Pod.
        pod: PodName,
        /// Interface.
        interface: String,
        /// Problem.
        problem: &'static str,
    },
    /// Beginning of names of interfaces that no rule can have.
    #[error("interfaces that begin with {prefix:?}: {problem}")]
    Prefix {
        /// Beginning of the names.
        prefix: String,
        /// Reason.
        problem: &'static str,
    },
    /// Uplink with an invalid name, or the name of another interface.
    #[error("uplink {interface:?}: {problem}")]
    Uplink {
        /// Interface.
        interface: String,
        /// Problem.
        problem: &'static str,
    },
    /// Set with too many members.
    #[error("the set of {rule} has {found} entries, and an ipset holds {max}")]
    SetTooLarge {
        /// Rule that names the set.
        rule: String,
        /// Number of entries.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// Rule that the system cannot express.
    #[error("pod {pod}: {rule}: {problem}")]
    Inexpressible {
        /// Pod whose rules need it.
        pod: PodName,
        /// Rule.
        rule: String,
        /// Problem.
        problem: String,
    },
    /// State with too many rules.
    #[error("{system} would have more than {max} rules: choose the pods of one node with --node")]
    TooManyRules {
        /// Format.
        system: &'static str,
        /// Limit.
        max: usize,
    },
    /// Map with too many entries.
    #[error("the {map} would have {found} entries, and Cilium holds {max}")]
    MapTooLarge {
        /// Map.
        map: &'static str,
        /// Number of entries.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// Address with too many rule lists.
    #[error("pods with {found} different rule lists claim the address {address}, and its flows hold {max}")]
    TooManyLists {
        /// Address.
        address: IpAddr,
        /// Number of lists.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// Rule list with too many different sets of ports.
    #[error("{found} sets of ports share a port in the list of pods {rule}, and a flow holds {max}")]
    TooManyConjunctions {
        /// Origin of the list's last verdict.
        rule: String,
        /// Number of conjunctions.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// Security group with too many rules.
    #[error(
        "security group {group} has {found} rules or more, and palisade prints at most {max}: split the policy, or \
        deny fewer addresses"
    )]
    GroupTooLarge {
        /// Name of the group.
        group: String,
        /// Number of rules.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// Text that is no recorded state.
    #[error("it is no recorded state of security groups: {0}")]
    Recorded(String),
    /// Two names with one digest.
    #[error("{first:?} and {second:?} would have the same short name {name}: rename one of them")]
    SameName {
        /// First name.
        first: String,
        /// Second name.
        second: String,
        /// Their digest.
        name: String,
    },
}
