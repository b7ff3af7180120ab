//! Messages of the control API: the types that server and client share.
//!
//! | request | body | response |
//! |---|---|---|
//! | `GET /v1/status` | | [`Status`] |
//! | `GET /v1/tables` | | [`TablesSummary`] |
//! | `GET /v1/tables/document` | | `RuleTables`; 404 while none are loaded |
//! | `POST /v1/tables/check?allow_empty=BOOL` | `RuleTables` | [`Checked`]; errors as of `PUT /v1/tables`; changes nothing |
//! | `GET /v1/acls/{namespace}/{name}` | | [`AclReport`]; 404 for a pod without tables |
//! | `GET /v1/classes` | | [`ClassesReport`] |
//! | `GET /v1/policies` | | [`PoliciesReport`] |
//! | `GET /v1/routes` | | list of [`RouteInfo`] |
//! | `PUT /v1/routes/{address}/{length}` | [`RouteRequest`] | [`RouteInfo`] |
//! | `DELETE /v1/routes/{address}/{length}` | | 204 |
//! | `PUT /v1/tables?allow_empty=BOOL` | `RuleTables` | [`Loaded`]; 422 if they know none of the attached pods |
//! | `PATCH /v1/tables?allow_empty=BOOL` | [`TablesPatch`] | [`Loaded`]; 409 if the base does not match, 422 if the last known pod goes |
//! | `DELETE /v1/tables` | | [`Loaded`]; traffic of pods is dropped again |
//! | `PUT /v1/shadow?allow_empty=BOOL` | `RuleTables` | [`ShadowReport`]; candidate tables, which are not enforced |
//! | `GET /v1/shadow` | | [`ShadowReport`]; 404 without candidate tables |
//! | `POST /v1/shadow/promote?allow_empty=BOOL&replace=BOOL` | | [`Loaded`]; the candidate replaces the tables in force; 409 if these have changed since its load, without `replace` |
//! | `DELETE /v1/shadow` | | 204 |
//! | `PUT /v1/audit` | [`AuditTables`] | [`AuditReport`]; 409 if the base is not in force |
//! | `PATCH /v1/audit` | [`AuditPatch`] | [`AuditReport`]; 409 if one of the bases does not match |
//! | `GET /v1/audit` | | [`AuditReport`] |
//! | `DELETE /v1/audit` | | 204; no policy is audited |
//! | `GET /v1/services` | | [`ServicesReport`] |
//! | `PUT /v1/services` | [`ServiceTable`](crate::tables::ServiceTable) | [`Loaded`]; an empty one ends translation |
//! | `PATCH /v1/services` | [`ServicesPatch`] | [`Loaded`]; 409 if the base does not match |
//! | `PUT /v1/source` | [`SourceReport`] | 204; the state of an agent, for status, readiness and metrics |
//! | `GET /v1/ports` | | list of [`PortInfo`] |
//! | `PUT /v1/ports/{name}` | [`PortRequest`] | [`PortInfo`] |
//! | `DELETE /v1/ports/{name}?detach=BOOL` | | 204; `detach` defaults to `on_stop` of the configuration |
//! | `PUT /v1/ports/{name}/drain` | | [`PortFlows`]; no flow from or to the port's pod begins |
//! | `DELETE /v1/ports/{name}/drain` | | [`PortFlows`] |
//! | `GET /v1/flows/ports` | | list of [`PortFlows`] |
//! | `GET /v1/pods` | | list of [`PodInfo`] |
//! | `PUT /v1/pods/{namespace}/{name}` | [`PodRequest`] | [`PodInfo`] |
//! | `DELETE /v1/pods/{namespace}/{name}` | | 204 |
//! | `PUT /v1/pods/{namespace}/{name}/bandwidth` | [`Bandwidth`] | [`PodInfo`] |
//! | `GET /v1/counters` | | [`CountersReport`] |
//! | `GET /v1/workers` | | list of [`WorkerTimes`](crate::dataplane::WorkerTimes) |
//! | `GET /v1/drops?FILTERS&after=N&max=N&reason=R&interface=NAME&since_unix_ms=N` | | [`DropsReport`] |
//! | `POST /v1/captures` | [`CaptureRequest`] | [`CaptureStarted`] |
//! | `GET /v1/captures/{number}` | | [`CaptureReport`]; a capture ends without such a request in ten seconds |
//! | `DELETE /v1/captures/{number}` | | 204 |
//! | `GET /v1/flows?FILTERS&sort=bytes\|packets\|age\|idle&limit=N&by_pod=BOOL` | | [`FlowsReport`] |
//! | `DELETE /v1/flows?FILTERS` or `?all=true` | | [`FlowsEnded`]; ends the flows |
//! | `GET /v1/flows/events?FILTERS` | | stream of lines, each a [`FlowEventLine`] as JSON |
//! | `GET /v1/explain?from=END&to=END&protocol=P&port=N&backend=ADDRESS:PORT` | | list of [`PathReport`](super::explain::PathReport), one for each address family |
//!
//! `FILTERS` are `from=END`, `to=END`, `pod=NAMESPACE/NAME`, `address=PREFIX`, `port=N` or `N-M`, and `protocol=P`, of flows
//! also `state=NAME`: see [`PacketFilter`] and [`FlowQuery`].
//!
//! Every error response is a [`Problem`] with a 4xx or 5xx status.

mod configuration;
mod filter;
mod flows;
mod in_force;
mod ipfix;
mod observation;
mod rehearsal;
mod services;
mod source;
mod steering;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::dataplane::{
    Backend, Bandwidth, DecisionCount, FlowTableReport, Mac, OffloadCounters, PortCounters, PortKind,
    PortReport, PortSpec, WorkerCounters,
};
use crate::ids::{AttachmentId, Generation};
use crate::tables::{PodName, PortMapping, TablesDiff};

pub use self::configuration::{ConfigurationReport, ReloadRequested};
pub use self::filter::{AddressPrefix, EndFilter, PacketFilter};
pub use self::flows::{
    FlowEventLine, FlowEventRecord, FlowHolder, FlowQuery, FlowRecord, FlowSort, FlowsEnded, FlowsReport,
};
pub(crate) use self::in_force::hits_text;
pub use self::in_force::{
    AclDecision, AclDirection, AclEntry, AclReport, Checked, ClassInfo, ClassesReport, Peers, PoliciesReport,
    PolicyInForce, RouteInfo,
};
pub use self::ipfix::IpfixReport;
pub use self::observation::{
    CaptureReport, CaptureRequest, CaptureStarted, DropRecord, DropsReport, PacketRecord, PacketVerdictName,
};
pub use self::rehearsal::{
    AuditDenial, AuditPatch, AuditReport, AuditTables, AuditedPolicy, ShadowDisagreement, ShadowReport,
    ShadowVerdict,
};
pub use self::services::{BackendReport, ServiceReport, ServicesPatch, ServicesReport};
pub use self::source::{SourceReport, SourceStatus, Unenforced, UnfollowedKind};
pub use self::steering::{PortFlows, RouteRequest};
pub use crate::dataplane::PortRange;

/// Status of the switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Program that forwards the packets.
    #[serde(default)]
    pub backend: Backend,
    /// Whether the kernel forwards established flows of pods on veth pairs.
    #[serde(default)]
    pub offloads: bool,
    /// Cores of the workers, by worker.
    pub cores: Vec<usize>,
    /// Generation that the workers use.
    pub generation: Generation,
    /// Whether rule tables are loaded.
    pub tables_loaded: bool,
    /// Problems for the operator, one sentence each: ports that are not up, workers that are stuck, and
    /// others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Ports, pods and routes that a restart forgets, because the configuration file lacks them: `port web`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forgotten: Vec<String>,
    /// Location of the flow table, and the number of flows restored from the process before.
    #[serde(default)]
    pub flow_table: FlowTableReport,
    /// Policy in force. `None` while no tables are loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyStatus>,
    /// Last reload of the watched directory, if it was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_reload: Option<RejectedReload>,
    /// Last reload of the configuration, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ConfigurationReport>,
    /// Addresses by which the pods know the switch, their gateway.
    #[serde(default)]
    pub gateway: Vec<IpAddr>,
    /// Least MTU of the uplinks, bytes; `None` without an uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_mtu: Option<u32>,
    /// Prefixes that only pods of this node have addresses of: those of the configuration, then those that an agent
    /// follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_prefixes: Vec<IpNet>,
    /// Agent that follows the Kubernetes API, if one has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceStatus>,
    /// Export of flows, if a collector is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipfix: Option<IpfixReport>,
}

/// Source of policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PolicySource {
    /// The watched directory.
    Directory {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The Kubernetes API, followed by the switch itself.
    Kubernetes {
        /// Address of the API server.
        server: String,
    },
    /// A request on the control socket.
    ControlSocket {
        /// User id of the requesting process (`SO_PEERCRED`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
        /// Process id of the requesting process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
    },
}

/// Origin of tables: their source and the objects that they were compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyOrigin {
    /// Source of the tables.
    pub source: PolicySource,
    /// Number of objects; known of a directory only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<usize>,
    /// Number of policies among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<usize>,
}

impl PolicyOrigin {
    /// Origin in a directory, without numbers of objects.
    pub fn directory(path: impl Into<PathBuf>) -> PolicyOrigin {
        PolicyOrigin { source: PolicySource::Directory { path: path.into() }, objects: None, policies: None }
    }

    /// Origin in a request on the control socket, by a process that may be unknown.
    pub fn control_socket(uid: Option<u32>, pid: Option<i32>) -> PolicyOrigin {
        PolicyOrigin { source: PolicySource::ControlSocket { uid, pid }, objects: None, policies: None }
    }
}

/// Policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Origin of the policy.
    #[serde(flatten)]
    pub origin: PolicyOrigin,
    /// Generation in which the policy came into force.
    pub generation: Generation,
    /// Time at which it came into force: seconds since 1970.
    pub since_unix_s: u64,
    /// Number of rules, default denies included.
    pub rules: usize,
    /// Number of pods with tables.
    pub pods: usize,
}

/// Rejected change of the watched directory. It stays until a change is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedReload {
    /// Path of the directory.
    pub path: PathBuf,
    /// Time of the rejection: seconds since 1970.
    pub at_unix_s: u64,
    /// Errors, at most [`REJECTED_ERRORS_MAX`](crate::limits::REJECTED_ERRORS_MAX).
    pub errors: Vec<String>,
    /// Number of errors beyond these.
    #[serde(default)]
    pub left_out: usize,
}

/// Sizes of the loaded tables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablesSummary {
    /// Generation that the workers use.
    pub generation: Generation,
    /// Whether tables are loaded.
    pub loaded: bool,
    /// Number of rules, default denies included.
    pub rules: usize,
    /// Number of peer classes, the class of all other addresses included.
    pub classes: usize,
    /// Number of prefixes that map to classes.
    pub prefixes: usize,
    /// Number of distinct rows.
    pub rows: usize,
    /// Number of distinct ACL tables.
    pub acls: usize,
    /// Number of pods with tables.
    pub pods: usize,
}

/// Change of the loaded tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablesPatch {
    /// Generation that the difference applies to.
    pub base: Generation,
    /// Difference to apply.
    pub diff: TablesDiff,
}

/// Result of loading tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Generation that every worker uses.
    pub generation: Generation,
}

/// Port to add. The path of the request has its name, which is the interface too where that is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRequest {
    /// Kind of the port.
    pub kind: PortKind,
    /// Name of the network interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// 802.1Q tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Addresses of the node, for a host port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Network namespace of a tap device: a name of `ip netns`, or an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Cookie of that namespace (`SO_NETNS_COOKIE`), for a name that another one may get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_cookie: Option<u64>,
    /// MTU of a tap device, bytes: 1500 for a new device where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Ethernet address of a tap device that the switch makes; the kernel chooses one where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

impl PortRequest {
    /// Request for a port of this kind, on the interface of its name.
    pub fn of(kind: PortKind) -> PortRequest {
        PortRequest {
            kind,
            interface: None,
            vlan: None,
            addresses: Vec::new(),
            namespace: None,
            namespace_cookie: None,
            mtu: None,
            mac: None,
        }
    }

    /// Request for a tap device `interface` in a network namespace.
    pub fn tap(namespace: &str, interface: &str) -> PortRequest {
        PortRequest {
            interface: Some(interface.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..PortRequest::of(PortKind::Tap)
        }
    }
}

/// State of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// Frames pass.
    #[default]
    Up,
    /// No frame passes: the interface is gone, set down or cannot be attached to. Every frame that it
    /// receives is dropped.
    Down,
    /// An interface with the port's name has no XDP program of this switch. Its frames enter the node's own
    /// stack.
    Unguarded,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PortState::Up => "up",
            PortState::Down => "down",
            PortState::Unguarded => "unguarded",
        })
    }
}

/// Port of the switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Name of the port.
    pub name: String,
    /// Interface, kind and 802.1Q tag.
    #[serde(flatten)]
    pub spec: PortSpec,
    /// State of the port.
    #[serde(default)]
    pub state: PortState,
    /// Reason for a state other than up, or a remark on the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Report of the last opening.
    #[serde(flatten)]
    pub report: PortReport,
    /// Pod behind the port.
    pub pod: Option<PodName>,
    /// Whether the port is drained: no flow from or to the pod begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// Pod to attach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodRequest {
    /// Name of its port.
    pub port: String,
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// Ethernet address of the pod; learned where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Bandwidth of the pod.
    #[serde(default, skip_serializing_if = "Bandwidth::is_unlimited")]
    pub bandwidth: Bandwidth,
    /// Ports of the node that lead to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
}

/// Pod of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodInfo {
    /// Name of the pod.
    pub pod: PodName,
    /// Number of this attachment.
    pub attachment: AttachmentId,
    /// Name of its port.
    pub port: String,
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// Ethernet address of the pod, if the request gave one.
    pub mac: Option<Mac>,
    /// Bandwidth of the pod.
    #[serde(default, skip_serializing_if = "Bandwidth::is_unlimited")]
    pub bandwidth: Bandwidth,
    /// Ports of the node that lead to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Whether the loaded tables know the pod. Traffic of an unknown pod is dropped, or passes with `fail =
    /// "open"`.
    pub known: bool,
    /// Warnings for the operator, such as addresses that differ between tables and attachment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// All counters, by the names that operators use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersReport {
    /// Counters by name of the port.
    pub ports: BTreeMap<String, PortCounters>,
    /// Counters by number of the worker.
    pub workers: BTreeMap<String, WorkerCounters>,
    /// Packets by decision.
    pub decisions: Vec<DecisionCount>,
    /// Flow offload, if the kernel forwards established flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<OffloadCounters>,
}

/// Error message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Cause, object and remedy in one sentence.
    pub error: String,
}
