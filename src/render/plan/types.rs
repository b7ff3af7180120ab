//! Plan of one address family, as data.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::net::flow::Protocol;
use crate::tables::{Direction, PodName, Verdict};

/// Ports of one protocol, inclusive.
pub(crate) type Span = (Protocol, u16, u16);

/// Set of addresses: prefixes with membership, in order. The longest prefix of an address decides, and an address
/// without a prefix is no member.
pub(crate) type AddressSet = Vec<(IpNet, bool)>;

/// Address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, in the order of printing.
    pub(crate) const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Tests whether an address is of the family.
    pub(crate) fn holds(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Family::V4)
    }
}

/// Plan of one address family.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Addresses of pods.
    pub(crate) endpoints: BTreeMap<IpAddr, Endpoint>,
    /// Pods that have an address.
    pub(crate) pods: BTreeMap<PodName, PodLists>,
    /// Rule lists by name.
    pub(crate) acls: BTreeMap<String, AclPlan>,
    /// Address sets by name.
    pub(crate) sets: BTreeMap<String, SetPlan>,
}

/// Address of one pod, or of several.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Pods that claim the address, by name.
    pub(crate) pods: Vec<PodName>,
    /// Addresses that are certainly of the same pod, with this one.
    pub(crate) own: Vec<IpAddr>,
    /// Addresses of the pod's node, from which all traffic passes.
    pub(crate) nodes: Vec<IpAddr>,
    /// Rule lists of flows to the address. Each may deny; without one the flow passes.
    pub(crate) ingress: Vec<String>,
    /// Rule lists of flows from the address.
    pub(crate) egress: Vec<String>,
}

/// Rule lists of a pod. Without a list all flows of the direction pass.
#[derive(Debug)]
pub(crate) struct PodLists {
    /// Rule list of flows to the pod.
    pub(crate) ingress: Option<String>,
    /// Rule list of flows from the pod.
    pub(crate) egress: Option<String>,
    /// Addresses of the pod's node that the list of ingress leaves out: all traffic from them passes.
    pub(crate) nodes: Vec<IpAddr>,
}

/// Rule list of pods in one direction. The first rule that matches decides.
#[derive(Debug)]
pub(crate) struct AclPlan {
    /// Direction: the peer is the source of ingress, the destination of egress.
    pub(crate) direction: Direction,
    /// Rules.
    pub(crate) rules: Vec<PlanRule>,
    /// Verdict if no rule matches.
    pub(crate) last: Verdict,
    /// Origin of the last verdict, in words.
    pub(crate) title: String,
    /// Name of the counter of the last verdict.
    pub(crate) counter: String,
}

/// Rule of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanRule {
    /// Peers.
    pub(crate) peers: Peers,
    /// Services, sorted; `None` for all traffic.
    pub(crate) services: Option<Vec<Span>>,
    /// Verdict.
    pub(crate) verdict: Verdict,
    /// Origin in words.
    pub(crate) title: String,
    /// Name of the policy, or of another origin.
    pub(crate) policy: String,
    /// Name of the counter of the decision.
    pub(crate) counter: String,
}

/// Peers of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Every address.
    Anyone,
    /// Members of a set.
    In(String),
    /// Other addresses than the members of a set.
    NotIn(String),
    /// Addresses of the pod's node.
    Hosts(Vec<IpAddr>),
}

/// Named address set.
#[derive(Debug)]
pub(crate) struct SetPlan {
    /// Addresses.
    pub(crate) addresses: AddressSet,
    /// Rule that gives the set its name, in words.
    pub(crate) title: String,
}
