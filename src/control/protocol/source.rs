//! Messages about the cluster that policies come from.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// State of an agent that follows the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceReport {
    /// Address of the API server.
    pub server: String,
    /// Number of objects that are known.
    pub objects: usize,
    /// Number of policies among them.
    pub policies: usize,
    /// Kinds that have not been listed since the start of the agent. While there are some, it loads no tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<String>,
    /// Kinds that are not followed at present. The last tables hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<UnfollowedKind>,
    /// Reason for which the switch does not take the tables of the agent. The last tables hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Prefixes of this node's pods (`spec.podCIDRs` of its Node).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_prefixes: Vec<IpNet>,
    /// Whether the switch has the routes to the pods of other nodes.
    #[serde(default)]
    pub has_routes: bool,
    /// Objects that are not enforced as written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unenforced: Vec<Unenforced>,
    /// Number of such objects beyond these.
    #[serde(default)]
    pub unenforced_left_out: usize,
}

/// Kind that is not followed at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnfollowedKind {
    /// Kind of the objects.
    pub kind: String,
    /// Time since which it is not followed: seconds since 1970.
    pub since_unix_s: u64,
    /// Reason.
    pub reason: String,
}

/// Object that is not enforced as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unenforced {
    /// Kind.
    pub kind: String,
    /// Namespace; empty for a cluster-wide object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Fields and reasons.
    pub reason: String,
    /// Consequence for pods.
    pub consequence: String,
}

/// Last report, with its age.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Report.
    #[serde(flatten)]
    pub report: SourceReport,
    /// Seconds since the agent has reported.
    pub age_s: u64,
}
