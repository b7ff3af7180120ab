//! Messages about what is in force: rule tables, policies, routes.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{AuditedPolicy, PolicyStatus, PortState, RejectedReload, SourceStatus};
use crate::dataplane::{PathNeighbor, RouteOrigin};
use crate::ids::{ClassId, Generation};
use crate::tables::{PodName, PolicyRef, RuleOrigin, Verdict};

/// Tables of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclReport {
    /// Name of the pod.
    pub pod: PodName,
    /// Generation that the workers use.
    pub generation: Generation,
    /// Addresses that the tables give the pod.
    pub addresses: Vec<IpAddr>,
    /// Port of the pod, if it is attached.
    pub port: Option<String>,
    /// Warnings about the attachment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Table of flows to the pod.
    pub ingress: AclDirection,
    /// Table of flows from the pod.
    pub egress: AclDirection,
}

/// Table of one direction. The entries do not overlap: tiers, priorities and passes are resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclDirection {
    /// Whether a `NetworkPolicy` isolates the pod. `None` if other rules decide on every flow before.
    pub isolated: Option<bool>,
    /// Policies that isolate the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub isolated_by: Vec<PolicyRef>,
    /// Decisions that differ from the default, by tier, policy and rule.
    pub entries: Vec<AclEntry>,
    /// Number of entries beyond these.
    #[serde(default)]
    pub left_out: usize,
    /// Decision on all other flows.
    pub default: AclDecision,
}

/// Decision on some ports of some peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclEntry {
    /// Ports, such as `TCP 80-90`; `everything`, or `everything else` beside other entries for the same peers.
    pub ports: Vec<String>,
    /// Other ends of the flows.
    pub peers: Peers,
    /// Peers among them that the entry does not cover.
    #[serde(default, skip_serializing_if = "Peers::is_empty")]
    pub except: Peers,
    /// Decision.
    #[serde(flatten)]
    pub decision: AclDecision,
}

/// Decision with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclDecision {
    /// Verdict.
    pub verdict: Verdict,
    /// Origin of the decision.
    pub decided_by: RuleOrigin,
    /// Origin in words.
    pub reason: String,
    /// Decisions of this origin at all pods: flows if allowed, packets if denied.
    pub hits: u64,
}

/// Set of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// Whether these are all addresses.
    #[serde(default)]
    pub any: bool,
    /// Pods with tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodName>,
    /// Prefixes, such as `10.0.0.0/8 except 10.1.0.0/16`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// Number of pods and prefixes beyond these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

impl Peers {
    /// Tests whether the set has no member.
    pub fn is_empty(&self) -> bool {
        !self.any && self.pods.is_empty() && self.prefixes.is_empty() && self.left_out == 0
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Classes of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassesReport {
    /// Generation that the workers use.
    pub generation: Generation,
    /// Classes by number.
    pub classes: Vec<ClassInfo>,
    /// Number of classes beyond these.
    #[serde(default)]
    pub left_out: usize,
}

/// Class of addresses: no rule tells them apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassInfo {
    /// Number of the class.
    pub class: ClassId,
    /// Addresses of the class.
    #[serde(flatten)]
    pub members: Peers,
    /// Policies with a rule for these addresses and not for all others, sorted: the first of them.
    #[serde(default)]
    pub policies: Vec<PolicyRef>,
    /// Number of policies beyond these.
    #[serde(default)]
    pub policies_left_out: usize,
}

/// Route of a destination prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteInfo {
    /// Destination prefix.
    pub prefix: IpNet,
    /// Origin of the route.
    pub origin: RouteOrigin,
    /// Whether the workers use the route. A configured one waits for its port, and yields to other origins and to later
    /// ones.
    pub in_force: bool,
    /// Egress port. Absent for the switch itself, and for addresses that no pod has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Interface of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// State of the port, if it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_state: Option<PortState>,
    /// Pod behind the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Next-hop router; absent if destinations are on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Whether the node's own kernel has the route, too.
    #[serde(default)]
    pub node: bool,
    /// Whether packets take a tunnel to the next hop, which is another node.
    #[serde(default)]
    pub tunnel: bool,
    /// Largest packet that leaves, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Next hop on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbor: Option<PathNeighbor>,
}

impl fmt::Display for RouteInfo {
    /// Writes `10.1.0.2/32 (pod) by port db (veth-db, up, MTU 1500), 10.1.0.2 at 02:00:00:00:00:01 (learned)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.prefix, self.origin)?;
        match &self.port {
            Some(port) => {
                write!(f, " by port {port}")?;
                let interface = self.interface.clone();
                let state = self.port_state.map(|state| state.to_string());
                let mtu = self.mtu.map(|mtu| format!("MTU {mtu}"));
                let about: Vec<String> = [interface, state, mtu].into_iter().flatten().collect();
                if !about.is_empty() {
                    write!(f, " ({})", about.join(", "))?;
                }
            }
            None if self.origin == RouteOrigin::Gateway => f.write_str(" to the switch itself")?,
            None => f.write_str(" to no pod")?,
        }
        let by = if self.tunnel { "tunnel to" } else { "router" };
        self.next_hop.iter().try_for_each(|next_hop| write!(f, ", {by} {next_hop}"))?;
        f.write_str(if self.node { ", of the node too" } else { "" })?;
        self.neighbor.iter().try_for_each(|neighbor| write!(f, ", {neighbor}"))
    }
}

/// Number of decisions in words: `3 flows`, `1 packet`.
pub(crate) fn hits_text(verdict: Verdict, hits: u64) -> String {
    let unit = match verdict {
        Verdict::Allow => "flow",
        Verdict::Deny => "packet",
    };
    format!("{hits} {unit}{}", if hits == 1 { "" } else { "s" })
}

/// Policies in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoliciesReport {
    /// Generation that the workers use.
    pub generation: Generation,
    /// Origin of the policies. `None` while no tables are loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
    /// Last reload of the watched directory, if it was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_reload: Option<RejectedReload>,
    /// Agent that follows the Kubernetes API, if one has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceStatus>,
    /// Policies with an effect on some pod, by namespace, kind and name.
    pub policies: Vec<PolicyInForce>,
    /// Number of policies beyond these.
    #[serde(default)]
    pub left_out: usize,
    /// Policies in audit mode: they are not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audited: Vec<AuditedPolicy>,
    /// Warnings about attached pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInForce {
    /// Policy.
    #[serde(flatten)]
    pub policy: PolicyRef,
    /// Number of pods whose tables have a decision of the policy: of a rule, or of its isolation.
    pub pods: usize,
    /// Number of its rules in the tables.
    pub rules: usize,
    /// Flows that its rules allowed.
    pub allowed_flows: u64,
    /// Packets that it denied. A packet that no rule admits counts for each policy that isolates the pod.
    pub denied_packets: u64,
}

/// Result of a check of tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Generation that the workers use, which stays.
    pub generation: Generation,
}
