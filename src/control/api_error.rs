//! Errors of the control API. A request that fails has changed nothing, except for [`ApiError::PublishError`].

use std::net::IpAddr;

use ipnet::IpNet;

use crate::dataplane::{Backend, FlowsLeft, PortError, PortKind, PublishError};
use crate::ids::Generation;
use crate::limits::{CAPTURES_MAX, FOLLOWERS_MAX, ROUTES_MAX};
use crate::nearest::hint;
use crate::policy::testcase::ProbeError;
use crate::tables::{PodName, PortMapping, ServicesError, TablesError};

/// Reason for which the switch rejects a request.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A field of the request has an invalid value.
    #[error("{field}: {reason}")]
    Field {
        /// Name of the field in the request.
        field: &'static str,
        /// Reason, and the values that are allowed.
        reason: String,
    },
    /// The process has no configuration file.
    #[error("the switch was started without `--config`, and has no configuration to read again")]
    NoConfiguration,
    /// No port has this name.
    #[error("there is no port {name:?}{}: `palisade show ports` lists the ports", hint(nearest.as_ref()))]
    NoPort {
        /// Requested name.
        name: String,
        /// Port with a similar name.
        nearest: Option<String>,
    },
    /// No pod is behind the port, so that no flow begins there anyway.
    #[error(
        "port {port:?} has no pod, and only ports with a pod are drained: `palisade show ports` lists the pods"
    )]
    NothingToDrain {
        /// Name of the port.
        port: String,
    },
    /// No route has this prefix.
    #[error("there is no configured route to {prefix}: `palisade route list` lists the routes")]
    NoRoute {
        /// Requested prefix.
        prefix: IpNet,
    },
    /// Another route has this prefix.
    #[error("a route to {prefix} exists already, to port {port:?}: remove it first")]
    RouteExists {
        /// Requested prefix.
        prefix: IpNet,
        /// Name of the port that the other route leads to.
        port: String,
    },
    /// There are as many routes as there may be.
    #[error("there are {ROUTES_MAX} routes already, the limit: remove some")]
    TooManyRoutes,
    /// The loaded tables do not know the pod.
    #[error(
        "the loaded tables do not know pod {pod}{}: `palisade show pods` lists the attached pods, and `palisade apply` \
         loads the tables of others",
        hint(nearest.as_ref())
    )]
    PodWithoutTables {
        /// Requested pod.
        pod: PodName,
        /// Pod with a similar name.
        nearest: Option<PodName>,
    },
    /// No capture has this number.
    #[error("there is no capture {number}: one ends ten seconds after the last request for its packets")]
    NoCapture {
        /// Requested number.
        number: u64,
    },
    /// No candidate tables are loaded.
    #[error("no candidate tables are loaded: `palisade apply --shadow` loads some")]
    NoShadow,
    /// Other tables have come into force since the load of the candidate.
    #[error(
        "the tables in force have changed since the candidate was loaded, and promoting it would undo that: load it again \
         (`palisade apply --shadow`), or replace them all the same (`palisade shadow promote --replace`, `?replace=true`)"
    )]
    ShadowOutdated,
    /// A difference of an audit has another base.
    #[error(
        "the difference applies to revision {of} of the audit, and {current}: read it again, or put whole tables",
        current = current.map_or_else(|| "no audit is loaded".to_owned(), |is| format!("revision {is} is loaded"))
    )]
    AuditRevision {
        /// Base of the difference.
        of: u64,
        /// Loaded revision.
        current: Option<u64>,
    },
    /// There are as many captures as may run at the same time.
    #[error("{CAPTURES_MAX} captures run already: end one, or wait ten seconds after its client has ended")]
    TooManyCaptures,
    /// There are as many readers of events as there may be, or the switch stops.
    #[error("{FOLLOWERS_MAX} readers follow flows already, or the switch stops: end one of them")]
    TooManyFollowers,
    /// A flush without a filter.
    #[error(
        "a flush without a filter cuts every connection of the node: give a filter, or `--all` (`?all=true`) if that is meant"
    )]
    FlushOfAll,
    /// Workers have not ended all flows of a flush.
    #[error(transparent)]
    FlowsLeft(#[from] FlowsLeft),
    /// Another port has this name.
    #[error(
        "port {name:?} exists already, on interface {interface}: remove it first, or choose another name"
    )]
    PortExists {
        /// Requested name.
        name: String,
        /// Interface of the existing port.
        interface: String,
    },
    /// The interface belongs to another port.
    #[error("interface {interface} is already port {name:?}: remove that port first")]
    InterfaceTaken {
        /// Name of the interface.
        interface: String,
        /// Name of the port that has it.
        name: String,
    },
    /// A second host port. The switch has one port to the node's own stack.
    #[error(
        "port {name:?} already leads to the node's own stack, and a switch has one host port: remove it first"
    )]
    HostPortExists {
        /// Name of the existing host port.
        name: String,
    },
    /// A pod is attached to the port.
    #[error("port {port:?} has pod {pod}: detach the pod first")]
    PortHasPod {
        /// Name of the port.
        port: String,
        /// Name of the pod.
        pod: PodName,
    },
    /// The kind of the port does not take a pod.
    #[error("port {port:?} is of kind {kind}, and a pod needs a port of kind pod", kind = kind_name(*kind))]
    WrongKind {
        /// Name of the port.
        port: String,
        /// Kind of the port.
        kind: PortKind,
    },
    /// The pod is not attached.
    #[error("pod {pod} is not attached{}: `palisade show pods` lists the pods", hint(nearest.as_ref()))]
    NoPod {
        /// Name of the pod.
        pod: PodName,
        /// Pod with a similar name.
        nearest: Option<PodName>,
    },
    /// The pod is attached already.
    #[error("pod {pod} is already attached to port {port:?}: detach it first")]
    PodExists {
        /// Name of the pod.
        pod: PodName,
        /// Name of its port.
        port: String,
    },
    /// A port of the node leads to another pod.
    #[error("port {mapping} of the node already leads to pod {pod}: give each pod ports of its own")]
    PortMappingTaken {
        /// The port.
        mapping: PortMapping,
        /// The other pod.
        pod: PodName,
    },
    /// Another owner has the address.
    #[error("address {address} already belongs to {owner}: give every pod addresses of its own")]
    AddressTaken {
        /// Address that is taken.
        address: IpAddr,
        /// Owner of the address.
        owner: String,
    },
    /// All attachment numbers are used up. The switch uses none twice.
    #[error("the switch has attached as many pods as one run can number: restart it")]
    AttachmentsUsedUp,
    /// The two endpoints make no connection.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No tables are loaded.
    #[error("no rule tables are loaded: load some with `palisade apply FILE`")]
    NoTables,
    /// A difference needs loaded tables as its base.
    #[error("no rule tables are loaded, so a difference has no base: put full tables first")]
    NoBase,
    /// The tables know none of the attached pods. Such a mistake cuts off the whole node, or opens it with
    /// `fail = "open"`.
    #[error(
        "these tables know {known} pods, and none of the {attached} that are attached: {fate}. Load the pods' objects with \
         the policies; if it is meant, unload the tables (`palisade apply --delete`), or allow it (`palisade apply \
         --allow-empty`, `?allow_empty=true`)",
        fate = if *fail_open { "traffic of all these would pass unchecked" } else { "all these would be closed" }
    )]
    NoPodCovered {
        /// Number of attached pods.
        attached: usize,
        /// Number of pods that the tables know.
        known: usize,
        /// Whether traffic of pods that the tables do not know passes.
        fail_open: bool,
    },
    /// The tables are invalid, or the difference has another base.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The Services are invalid.
    #[error(transparent)]
    Services(#[from] ServicesError),
    /// A difference needs loaded Services as its base.
    #[error("no Services are loaded, so a difference has no base: put a whole table of Services first")]
    NoServicesBase,
    /// The loaded Services are others than those that the difference changes.
    #[error(
        "the difference is to the Services of generation {base}, and others have been loaded since (the switch is at {current}): \
         put a whole table of Services"
    )]
    ServicesBase {
        /// Base of the difference.
        base: Generation,
        /// Generation that the workers use.
        current: Generation,
    },
    /// The dataplane does not open or close the port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The kernel forwards the packets, and the switch does not see them.
    #[error("{what} need the backend af-xdp, and this switch runs with the backend {backend}: {instead}")]
    NeedsWorkers {
        /// Requested thing, a plural.
        what: &'static str,
        /// Backend of the switch.
        backend: Backend,
        /// Way to the same information.
        instead: &'static str,
    },
    /// The change is published, and a worker has not taken it in time.
    #[error(transparent)]
    PublishError(#[from] PublishError),
}

impl ApiError {
    /// HTTP status of the error.
    pub fn status(&self) -> u16 {
        match self {
            ApiError::NoPort { .. }
            | ApiError::NoPod { .. }
            | ApiError::NoRoute { .. }
            | ApiError::NoTables
            | ApiError::NoConfiguration
            | ApiError::NoCapture { .. }
            | ApiError::PodWithoutTables { .. }
            | ApiError::NoShadow
            | ApiError::Probe(ProbeError::UnknownPod { .. }) => 404,
            ApiError::PortExists { .. }
            | ApiError::InterfaceTaken { .. }
            | ApiError::HostPortExists { .. }
            | ApiError::PortHasPod { .. }
            | ApiError::PodExists { .. }
            | ApiError::AddressTaken { .. }
            | ApiError::PortMappingTaken { .. }
            | ApiError::RouteExists { .. }
            | ApiError::TooManyRoutes
            | ApiError::NoBase
            | ApiError::ShadowOutdated
            | ApiError::AuditRevision { .. }
            | ApiError::NoServicesBase
            | ApiError::ServicesBase { .. }
            | ApiError::TooManyCaptures
            | ApiError::TooManyFollowers
            | ApiError::Tables(TablesError::Base { .. })
            | ApiError::Port(
                PortError::Taken { .. } | PortError::Foreign { .. } | PortError::TooMany { .. },
            ) => 409,
            ApiError::Field { .. }
            | ApiError::FlushOfAll
            | ApiError::WrongKind { .. }
            | ApiError::NothingToDrain { .. }
            | ApiError::NoPodCovered { .. }
            | ApiError::Probe(_)
            | ApiError::Tables(_)
            | ApiError::Services(_)
            | ApiError::Port(
                PortError::NoInterface { .. }
                | PortError::NoNamespace { .. }
                | PortError::NoQueue { .. }
                | PortError::Unsuitable { .. }
                | PortError::Mtu { .. },
            ) => 422,
            ApiError::NeedsWorkers { .. } => 501,
            ApiError::PublishError(_) | ApiError::FlowsLeft(_) => 503,
            ApiError::AttachmentsUsedUp | ApiError::Port(PortError::Unknown(_) | PortError::Kernel(_)) => 500,
        }
    }
}

/// Name of a port kind in requests.
pub(super) fn kind_name(kind: PortKind) -> &'static str {
    match kind {
        PortKind::Pod => "pod",
        PortKind::Host => "host",
        PortKind::Uplink => "uplink",
        PortKind::Tap => "tap",
    }
}
