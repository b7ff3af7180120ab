//! Configuration file `palisade.toml`: keys, types and defaults.
//!
//! `config/palisade.toml` in the repository documents the same keys for operators, each with its default. A
//! test compares the two.

mod changes;
mod cni;
mod control;
mod http;
mod ipfix;
mod keys;
mod log;
mod masquerade;
mod offload;
mod read;
mod schema;
mod services;
mod settings;
mod tunnel;
mod values;

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::control::PortRoute;
use crate::dataplane::{
    Backend, Bandwidth, ConntrackSettings, Gateway, Mac, Polling, PortKind, Scheduling, Settings,
    Timeouts as TimeoutSettings,
};
use crate::tables::{PodName, PortMapping};

pub use cni::Cni;
pub use control::Control;
pub use http::Http;
pub use ipfix::Ipfix;
pub use log::{Log, LogFormat};
pub use masquerade::Masquerade;
pub use offload::Offload;
pub use read::ConfigError;
pub use services::Services;
pub use tunnel::Tunnel;
pub use values::Cores;

/// Contents of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Program that forwards the packets of pods.
    pub backend: Backend,
    /// State of the pods' interfaces after a clean stop.
    pub on_stop: OnStop,
    /// Prefixes that only pods of this node have addresses of.
    pub pod_prefixes: Vec<IpNet>,
    /// `[workers]`.
    pub workers: Workers,
    /// `[xdp]`.
    pub xdp: Xdp,
    /// `[control]`.
    #[serde(deserialize_with = "control::section")]
    pub control: Control,
    /// `[http]`.
    #[serde(deserialize_with = "http::section")]
    pub http: Http,
    /// `[ipfix]`.
    #[serde(deserialize_with = "ipfix::section")]
    pub ipfix: Ipfix,
    /// `[log]`.
    pub log: Log,
    /// `[cni]`.
    pub cni: Cni,
    /// `[hardening]`.
    pub hardening: Hardening,
    /// `[gateway]`.
    pub gateway: Gateway,
    /// `[[ports]]`.
    pub ports: Vec<PortConfig>,
    /// `[[routes]]`.
    pub routes: Vec<PortRoute>,
    /// `[masquerade]`.
    pub masquerade: Masquerade,
    /// `[services]`.
    pub services: Services,
    /// `[tunnel]`.
    pub tunnel: Tunnel,
    /// `[offload]`.
    pub offload: Offload,
    /// `[conntrack]`.
    pub conntrack: Conntrack,
    /// `[policy]`.
    pub policy: Policy,
}

/// State of the pods' interfaces after a clean stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// The XDP programs stay attached and drop every frame: pods are cut off rather than unprotected.
    #[default]
    Closed,
    /// The XDP programs are detached, and the kernel handles the interfaces.
    Detach,
}

/// `[workers]`: threads that move frames.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    /// Cores of the workers.
    pub cores: Cores,
    /// Behaviour of a worker without frames.
    pub polling: PollingMode,
    /// Microseconds without a frame after which an adaptive worker sleeps.
    #[serde(deserialize_with = "values::within::<_, _, 0, 1_000_000>")]
    pub spin_us: u32,
    /// Whether workers poll the drivers of their ports themselves.
    pub prefer_busy_poll: bool,
    /// Scheduling policy of the workers' threads.
    pub scheduling: SchedulingPolicy,
    /// UMEM frames of each worker.
    #[serde(deserialize_with = "values::within::<_, _, 4096, 1_048_576>")]
    pub frames: usize,
    /// Whether the UMEM and the flow table ask for huge pages.
    pub huge_pages: bool,
}

/// Behaviour of a worker without frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollingMode {
    /// Sleeps in the kernel after [`Workers::spin_us`].
    Adaptive,
    /// Never sleeps.
    Busy,
}

/// Scheduling policy of the workers' threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulingPolicy {
    /// Workers share their cores with other threads.
    Fair,
    /// Workers come before all other threads of their cores.
    RealTime,
}

/// `[xdp]`: programs in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Xdp {
    /// Directory of a BPF file system that keeps the links of the programs.
    pub pin_directory: PathBuf,
}

impl Default for Xdp {
    fn default() -> Xdp {
        Xdp { pin_directory: Settings::default().pin_directory }
    }
}

/// `[hardening]`: rights that the switch gives up.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hardening {
    /// Whether Landlock restricts files.
    pub landlock: bool,
    /// Further directories below which files are read.
    pub readable: Vec<PathBuf>,
}

impl Default for Hardening {
    fn default() -> Hardening {
        Hardening { landlock: true, readable: Vec::new() }
    }
}

/// `[[ports]]`: a port to open at start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Name of the port.
    pub name: String,
    /// Kind of the port.
    pub kind: PortKind,
    /// Network interface; the name of the port where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// 802.1Q tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Addresses of the node, for a host port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Network namespace of a tap device: a name of `ip netns`, or an absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// MTU of a tap device, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Pod behind the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Addresses of the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_addresses: Vec<IpAddr>,
    /// Ethernet address of the pod; learned where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_mac: Option<Mac>,
    /// Ports of the node that lead to this pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_port_mappings: Vec<PortMapping>,
    /// Bandwidth of the pod.
    #[serde(default, skip_serializing_if = "Bandwidth::is_unlimited")]
    pub pod_bandwidth: Bandwidth,
}

/// `[conntrack]`: connection tracking.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conntrack {
    /// Capacity in flows.
    #[serde(deserialize_with = "values::within::<_, _, 1024, 67_108_864>")]
    pub flows: usize,
    /// Most assured flows of one port, in per cent of the capacity.
    #[serde(deserialize_with = "values::within::<_, _, 1, 100>")]
    pub pod_quota_percent: u8,
    /// Whether a packet other than a SYN may create a TCP flow (mid-stream pickup).
    pub tcp_pickup: bool,
    /// Whether a TCP segment of no flow that policy allows is answered with a reset.
    pub tcp_reset_unknown: bool,
    /// Directory of the flow table's file: beside the control socket where absent, no file where empty.
    pub directory: Option<PathBuf>,
    /// `[conntrack.timeouts]`.
    pub timeouts: Timeouts,
}

/// `[policy]`: source of policy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Place that objects come from.
    pub source: SourceKind,
    /// Credentials of the Kubernetes API. Absent: as `kubectl` finds them, or those of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Directory (or file) of manifests.
    pub directory: Option<PathBuf>,
    /// Name of this node, whose pods get tables. All pods get tables where absent.
    pub node: Option<String>,
    /// Fate of traffic of pods that the tables do not know.
    pub fail: Fail,
    /// Answer to the sender of a packet that policy denies.
    pub denied: Denied,
    /// Whether changes of the directory are loaded.
    pub watch: bool,
}

/// Place that objects come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// The policy directory, or requests on the control socket.
    #[default]
    Directory,
    /// The Kubernetes API.
    Kubernetes,
}

/// Fate of traffic of pods that the tables do not know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fail {
    /// It is dropped.
    #[default]
    Closed,
    /// It passes.
    Open,
}

/// Answer to the sender of a packet that policy denies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Denied {
    /// None.
    #[default]
    Drop,
    /// A TCP reset, or an ICMP error.
    Reject,
}

macro_rules! timeouts {
    ($($(#[$doc:meta])+ $key:ident => $setting:ident,)+) => {
        /// `[conntrack.timeouts]`: seconds without a packet after which a flow expires.
        #[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Timeouts {
            $($(#[$doc])+
            #[serde(deserialize_with = "values::within::<_, _, 1, 864_000>")]
            pub $key: u32,)+
        }

        impl From<&TimeoutSettings> for Timeouts {
            fn from(settings: &TimeoutSettings) -> Timeouts {
                Timeouts { $($key: settings.$setting.as_secs() as u32,)+ }
            }
        }

        impl From<&Timeouts> for TimeoutSettings {
            fn from(timeouts: &Timeouts) -> TimeoutSettings {
                TimeoutSettings { $($setting: std::time::Duration::from_secs(timeouts.$key.into()),)+ }
            }
        }
    };
}

timeouts! {
    /// TCP: SYN seen, no answer.
    tcp_syn_sent_s => tcp_syn_sent,
    /// TCP: SYN answered, handshake not complete.
    tcp_syn_received_s => tcp_syn_received,
    /// TCP: picked up mid-stream, no answer.
    tcp_unacknowledged_s => tcp_unacknowledged,
    /// TCP: connection established.
    tcp_established_s => tcp_established,
    /// TCP: one side has sent a FIN.
    tcp_fin_wait_s => tcp_fin_wait,
    /// TCP: both sides have sent a FIN.
    tcp_time_wait_s => tcp_time_wait,
    /// TCP: connection reset.
    tcp_close_s => tcp_close,
    /// UDP: packets in one direction.
    udp_one_way_s => udp_one_way,
    /// UDP: packets in both directions.
    udp_two_way_s => udp_two_way,
    /// ICMP echo.
    icmp_echo_s => icmp_echo,
    /// SCTP: association in setup.
    sctp_setup_s => sctp_setup,
    /// SCTP: association established.
    sctp_established_s => sctp_established,
    /// Other protocols: packets in one direction.
    other_one_way_s => other_one_way,
    /// Other protocols: packets in both directions.
    other_s => other,
}

impl Default for Workers {
    fn default() -> Workers {
        let settings = Settings::default();
        let (polling, spin_us) = match settings.polling {
            Polling::Adaptive { spin_us } => (PollingMode::Adaptive, spin_us),
            Polling::Busy => (PollingMode::Busy, 0),
        };
        Workers {
            cores: Cores::Auto,
            polling,
            spin_us,
            prefer_busy_poll: settings.prefer_busy_poll,
            scheduling: match settings.scheduling {
                Scheduling::Fair => SchedulingPolicy::Fair,
                Scheduling::RealTime => SchedulingPolicy::RealTime,
            },
            frames: settings.frames_per_worker,
            huge_pages: settings.huge_pages,
        }
    }
}

impl Default for Conntrack {
    fn default() -> Conntrack {
        let ConntrackSettings {
            flows_max,
            pod_quota_percent,
            tcp_pickup,
            tcp_reset_unknown,
            timeouts,
            memory: _,
        } = ConntrackSettings::default();
        Conntrack {
            flows: flows_max,
            pod_quota_percent,
            tcp_pickup,
            tcp_reset_unknown,
            directory: None,
            timeouts: Timeouts::from(&timeouts),
        }
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            source: SourceKind::Directory,
            kubeconfig: None,
            directory: None,
            node: None,
            fail: Fail::Closed,
            denied: Denied::Drop,
            watch: true,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts::from(&TimeoutSettings::default())
    }
}
