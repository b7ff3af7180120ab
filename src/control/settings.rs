//! Settings of a switch that hold from its start to its end.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::protocol::{PodRequest, PortRequest};
use crate::dataplane::{Gateway, Masquerade, TunnelSettings};
use crate::tables::PodName;

/// Settings of the control side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchSettings {
    /// Cores of the workers, by worker; shown in the status.
    pub cores: Vec<usize>,
    /// Gateway: the switch as its pods see it.
    pub gateway: Gateway,
    /// Whether traffic of pods that the tables do not know passes. Off: it is dropped.
    pub fail_open: bool,
    /// Whether senders of packets that policy denies get an answer: a TCP reset, or an ICMP error.
    pub rejects: bool,
    /// Whether the kernel gets the interface of a removed port back. Off: the XDP program stays and drops every frame.
    pub detach: bool,
    /// Interval of reports on denied packets in the log; zero for none.
    pub denied_interval: Duration,
    /// Prefixes that only pods of this node have addresses of.
    pub pod_prefixes: Vec<IpNet>,
    /// Routes at the start, in the order of the configuration.
    pub routes: Vec<PortRoute>,
    /// Masquerading of what pods send outside. Pods and nodes of the cluster are exempt besides its exceptions.
    pub masquerade: Option<Masquerade>,
    /// Tunnels to the pods of other nodes.
    pub tunnel: Option<TunnelSettings>,
    /// Directory of a BPF file system that keeps what outlives the process.
    pub pin_directory: PathBuf,
    /// Whether the node has no kube-proxy: its own sockets get all Services, and not the ports of pods alone.
    pub replaces_kube_proxy: bool,
    /// Directory of the cgroup2 hierarchy of the node's processes.
    pub socket_cgroup: PathBuf,
    /// Export of flows to a collector, if there is one.
    pub ipfix: Option<IpfixSettings>,
}

/// Settings of the export of flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpfixSettings {
    /// Address of the collector, UDP.
    pub collector: SocketAddr,
    /// Number of the switch among those that share an address.
    pub observation_domain: u32,
    /// Time after which a flow that goes on gets a record.
    pub active_timeout: Duration,
    /// Interval of the templates.
    pub template_interval: Duration,
}

/// A route to a port by the port's name. It is in force while the port is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRoute {
    /// Destination prefix.
    pub prefix: IpNet,
    /// Name of the port.
    pub port: String,
    /// Address of the next router; the destination itself where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Whether the node's own kernel gets the route, too. Such a route has a next router, on an uplink.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node: bool,
}

/// Condition on tables that know none of the attached pods, and so isolate all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoverageCheck {
    /// Accepts such tables.
    Skip,
    /// Rejects such tables. A client that replaces all tables gives those of the attached pods.
    Require,
    /// Rejects such tables only where the loaded ones know an attached pod. A pod that is attached before its objects are loaded
    /// does not block the load.
    RequireIfCovered,
}

/// Ports, pods and routes of a configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configured {
    /// Ports by name, with the pods behind them.
    pub ports: BTreeMap<String, (PortRequest, Option<(PodName, PodRequest)>)>,
    /// Routes.
    pub routes: Vec<PortRoute>,
}
