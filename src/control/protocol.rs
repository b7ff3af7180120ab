//! What goes over the control socket: the types that server and client share.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | [`Status`] |
//! | `GET /v1/tables` | | [`TablesSummary`] |
//! | `GET /v1/tables/document` | | `RuleTables`; 404 while none are loaded |
//! | `PUT /v1/tables` | `RuleTables` | [`Loaded`] |
//! | `PATCH /v1/tables` | [`TablesPatch`] | [`Loaded`]; 409 when the base does not match |
//! | `DELETE /v1/tables` | | [`Loaded`]: pods are closed again |
//! | `GET /v1/ports` | | list of [`PortInfo`] |
//! | `PUT /v1/ports/{name}` | [`PortRequest`] | [`PortInfo`] |
//! | `DELETE /v1/ports/{name}?detach=BOOL` | | 204; `detach` is as `on_stop` configures it where absent |
//! | `GET /v1/pods` | | list of [`PodInfo`] |
//! | `PUT /v1/pods/{namespace}/{name}` | [`PodRequest`] | [`PodInfo`] |
//! | `DELETE /v1/pods/{namespace}/{name}` | | 204 |
//! | `GET /v1/counters` | | [`CountersReport`] |
//! | `GET /v1/flows?max=N&pod=NAMESPACE/NAME` | | list of `FlowInfo` |
//!
//! Every error is [`Problem`] with a 4xx or 5xx status.

use std::collections::BTreeMap;
use std::net::IpAddr;

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
    /// Where the flow table lies, and what of it is from the process before.
    #[serde(default)]
    pub flow_table: FlowTableReport,
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
    /// How it was opened.
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
