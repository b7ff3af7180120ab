//! What goes over the control socket: the types that server and client share.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | [`Status`] |
//! | `GET /v1/tables` | | [`TablesSummary`] |
//! | `GET /v1/tables/document` | | `RuleTables`; 404 while none are loaded |
//! | `PUT /v1/tables?allow_empty=BOOL` | `RuleTables` | [`Loaded`]; 422 when they know none of the attached pods |
//! | `PATCH /v1/tables?allow_empty=BOOL` | [`TablesPatch`] | [`Loaded`]; 409 when the base does not match, 422 when the last known pod goes |
//! | `DELETE /v1/tables` | | [`Loaded`]: pods are closed again |
//! | `GET /v1/ports` | | list of [`PortInfo`] |
//! | `PUT /v1/ports/{name}` | [`PortRequest`] | [`PortInfo`] |
//! | `DELETE /v1/ports/{name}?detach=BOOL` | | 204; `detach` is as `on_stop` configures it where absent |
//! | `GET /v1/pods` | | list of [`PodInfo`] |
//! | `PUT /v1/pods/{namespace}/{name}` | [`PodRequest`] | [`PodInfo`] |
//! | `DELETE /v1/pods/{namespace}/{name}` | | 204 |
//! | `GET /v1/counters` | | [`CountersReport`] |
//! | `GET /v1/flows?max=N&pod=NAMESPACE/NAME` | | list of `FlowInfo` |
//! | `GET /v1/explain?from=END&to=END&protocol=P&port=N` | | list of [`PathReport`](super::explain::PathReport), one a family |
//!
//! Every error is [`Problem`] with a 4xx or 5xx status.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::dataplane::{
    DecisionCount, FlowTableReport, Mac, PortCounters, PortKind, PortReport, WorkerCounters,
};
use crate::ids::{AttachmentId, Generation};
use crate::tables::{PodName, TablesDiff};

/// The switch in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Cores of the workers, by worker.
    pub cores: Vec<usize>,
    /// Generation that the workers see.
    pub generation: Generation,
    /// Whether rule tables are loaded.
    pub tables_loaded: bool,
    /// Ports that are not up, workers that are stuck, and what else the operator should look at: one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Location of the flow table, and the flows restored from the process before.
    #[serde(default)]
    pub flow_table: FlowTableReport,
    /// The policy in force, where tables are loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyStatus>,
    /// The last reload of the watched directory, where it was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_reload: Option<RejectedReload>,
}

/// Source of policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PolicySource {
    /// The watched directory.
    Directory {
        /// Its path.
        path: PathBuf,
    },
    /// A request on the control socket.
    ControlSocket {
        /// User id of the process that asked, as the kernel gives it (`SO_PEERCRED`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
        /// Its process id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
    },
}

/// The source of tables, and the objects that they were compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyOrigin {
    /// Their source.
    pub source: PolicySource,
    /// Objects; known of a directory only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<usize>,
    /// Policies among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<usize>,
}

impl PolicyOrigin {
    /// A directory whose objects have not been counted.
    pub fn directory(path: impl Into<PathBuf>) -> PolicyOrigin {
        PolicyOrigin { source: PolicySource::Directory { path: path.into() }, objects: None, policies: None }
    }

    /// A request on the control socket, by a process that may be known.
    pub fn control_socket(uid: Option<u32>, pid: Option<i32>) -> PolicyOrigin {
        PolicyOrigin { source: PolicySource::ControlSocket { uid, pid }, objects: None, policies: None }
    }
}

/// The policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its source.
    #[serde(flatten)]
    pub origin: PolicyOrigin,
    /// The generation that it came with.
    pub generation: Generation,
    /// When it came: seconds since 1970.
    pub since_unix_s: u64,
    /// Decisions that have a name.
    pub rules: usize,
    /// Pods judged.
    pub pods: usize,
}

/// A change of the watched directory that did not come into force. Stays until one does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedReload {
    /// The directory.
    pub path: PathBuf,
    /// When it was rejected: seconds since 1970.
    pub at_unix_s: u64,
    /// Errors: [`REJECTED_ERRORS_MAX`](crate::limits::REJECTED_ERRORS_MAX) at most.
    pub errors: Vec<String>,
    /// Errors that are left out.
    #[serde(default)]
    pub left_out: usize,
}

/// The loaded tables in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablesSummary {
    /// Generation that the workers see.
    pub generation: Generation,
    /// Whether tables are loaded.
    pub loaded: bool,
    /// Decisions that have a name.
    pub rules: usize,
    /// Peer classes, the rest of the world included.
    pub classes: usize,
    /// Prefixes that lead to classes.
    pub prefixes: usize,
    /// Distinct rows.
    pub rows: usize,
    /// Distinct ACL tables.
    pub acls: usize,
    /// Pods judged.
    pub pods: usize,
}

/// A change of the loaded tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablesPatch {
    /// Generation that the difference is against.
    pub base: Generation,
    /// The difference.
    pub diff: TablesDiff,
}

/// Tables were loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Every worker sees this generation.
    pub generation: Generation,
}

/// A port to add. Its name is the path's; the interface is the name where not given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRequest {
    /// What it is for.
    pub kind: PortKind,
    /// The network interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// 802.1Q tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// For a host port: the node's addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// Whether frames pass a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// They do.
    #[default]
    Up,
    /// They do not: the interface is gone, set down or cannot be attached to. What it receives is dropped.
    Down,
    /// An interface of its name has no program of ours: what it receives enters the node's own stack.
    Unguarded,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Its name.
    pub name: String,
    /// Its interface.
    pub interface: String,
    /// What it is for.
    pub kind: PortKind,
    /// 802.1Q tag.
    pub vlan: Option<u16>,
    /// Whether frames pass.
    #[serde(default)]
    pub state: PortState,
    /// Why they do not, or what is amiss with the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Report of its last opening.
    #[serde(flatten)]
    pub report: PortReport,
    /// The pod behind it.
    pub pod: Option<PodName>,
}

/// A pod to attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodRequest {
    /// Name of its port.
    pub port: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its Ethernet address; learned where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodInfo {
    /// Its name.
    pub pod: PodName,
    /// This attachment.
    pub attachment: AttachmentId,
    /// Name of its port.
    pub port: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its Ethernet address, if given.
    pub mac: Option<Mac>,
    /// Whether the loaded tables know it; if not, it is closed (or open, with `fail = "open"`).
    pub known: bool,
    /// What the operator should know: tables that give it other addresses, and the like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// All counters, by the names that operators know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersReport {
    /// By name of port.
    pub ports: BTreeMap<String, PortCounters>,
    /// By number of worker.
    pub workers: BTreeMap<String, WorkerCounters>,
    /// By what decided.
    pub decisions: Vec<DecisionCount>,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What, where, and what to do.
    pub error: String,
}
