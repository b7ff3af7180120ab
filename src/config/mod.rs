//! The configuration file, `palisade.toml`: what each key means, and what it is where it is absent.
//!
//! `config/palisade.toml` in the repository is the operator's view of the same: every key with its default and
//! its reason; a test keeps the two alike.

mod read;
mod settings;
mod values;

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

use crate::control::{DEFAULT_SOCKET, PortRoute};
use crate::dataplane::{
    ConntrackSettings, Gateway, Mac, Polling, PortKind, Settings, Timeouts as TimeoutSettings,
};
use crate::tables::PodName;

pub use read::ConfigError;
pub use values::Cores;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What becomes of the pods' interfaces after a clean stop.
    pub on_stop: OnStop,
    /// Prefixes that only pods of this node have addresses of.
    pub pod_prefixes: Vec<IpNet>,
    /// `[workers]`.
    pub workers: Workers,
    /// `[xdp]`.
    pub xdp: Xdp,
    /// `[control]`.
    pub control: Control,
    /// `[gateway]`.
    pub gateway: Gateway,
    /// `[[ports]]`.
    pub ports: Vec<PortConfig>,
    /// `[[routes]]`.
    pub routes: Vec<PortRoute>,
    /// `[conntrack]`.
    pub conntrack: Conntrack,
    /// `[policy]`.
    pub policy: Policy,
}

/// What becomes of the pods' interfaces after a clean stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// The XDP programs stay and drop everything: pods are cut off rather than unguarded.
    #[default]
    Closed,
    /// The XDP programs go: the kernel handles the interfaces as if there had been no switch.
    Detach,
}

/// `[workers]`: threads that move frames.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    /// Their cores.
    pub cores: Cores,
    /// What a worker does when there is nothing to do.
    pub polling: PollingMode,
    /// Microseconds without a frame after which an adaptive worker sleeps.
    #[serde(deserialize_with = "values::within::<_, _, 0, 1_000_000>")]
    pub spin_us: u32,
    /// Whether workers poll the drivers of their ports themselves.
    pub prefer_busy_poll: bool,
    /// UMEM frames of each worker.
    #[serde(deserialize_with = "values::within::<_, _, 4096, 1_048_576>")]
    pub frames: usize,
    /// Whether to ask for huge pages.
    pub huge_pages: bool,
}

/// What a worker does when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollingMode {
    /// Sleeps in the kernel after [`Workers::spin_us`].
    Adaptive,
    /// Never sleeps.
    Busy,
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

/// `[control]`: the control socket.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Its path.
    pub socket: PathBuf,
    /// Its permissions.
    #[serde(deserialize_with = "values::mode")]
    pub mode: u32,
}

/// `[[ports]]`: a port to open at start.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: PortKind,
    /// The network interface; the name where absent.
    pub interface: Option<String>,
    /// 802.1Q tag.
    pub vlan: Option<u16>,
    /// For a host port: the node's addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The pod behind it.
    pub pod: Option<PodName>,
    /// The pod's addresses.
    #[serde(default)]
    pub pod_addresses: Vec<IpAddr>,
    /// The pod's Ethernet address; learned where absent.
    pub pod_mac: Option<Mac>,
}

/// `[conntrack]`: connection tracking.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conntrack {
    /// Capacity, flows.
    #[serde(deserialize_with = "values::within::<_, _, 1024, 67_108_864>")]
    pub flows: usize,
    /// Bound of the assured flows of one port, per cent.
    #[serde(deserialize_with = "values::within::<_, _, 1, 100>")]
    pub pod_quota_percent: u8,
    /// Whether a TCP connection may be entered on a packet that is not its first.
    pub tcp_pickup: bool,
    /// Directory of the file that the flow table lies in: beside the control socket where absent, none where empty.
    pub directory: Option<PathBuf>,
    /// `[conntrack.timeouts]`.
    pub timeouts: Timeouts,
}

/// `[policy]`: where policy comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Directory (or file) of manifests.
    pub directory: Option<PathBuf>,
    /// This node's name: tables cover its pods only. All pods where absent.
    pub node: Option<String>,
    /// What happens to traffic of pods that the tables do not know.
    pub fail: Fail,
    /// Whether to load the directory again when it changes.
    pub watch: bool,
}

/// What happens to traffic of pods that the tables do not know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fail {
    /// It is dropped.
    #[default]
    Closed,
    /// It passes.
    Open,
}

macro_rules! timeouts {
    ($($(#[$doc:meta])+ $key:ident => $setting:ident,)+) => {
        /// `[conntrack.timeouts]`: seconds without a packet after which a flow is forgotten.
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
    /// TCP, SYN seen, not yet answered.
    tcp_syn_sent_s => tcp_syn_sent,
    /// TCP, SYN answered, handshake not finished.
    tcp_syn_received_s => tcp_syn_received,
    /// TCP, picked up in its middle and not yet answered.
    tcp_unacknowledged_s => tcp_unacknowledged,
    /// TCP, connection open.
    tcp_established_s => tcp_established,
    /// TCP, one side has finished.
    tcp_fin_wait_s => tcp_fin_wait,
    /// TCP, both sides have finished.
    tcp_time_wait_s => tcp_time_wait,
    /// TCP, reset.
    tcp_close_s => tcp_close,
    /// UDP, one direction seen.
    udp_one_way_s => udp_one_way,
    /// UDP, both directions seen.
    udp_two_way_s => udp_two_way,
    /// ICMP echo.
    icmp_echo_s => icmp_echo,
    /// SCTP, association not yet up.
    sctp_setup_s => sctp_setup,
    /// SCTP, association up.
    sctp_established_s => sctp_established,
    /// Any other protocol, one direction seen.
    other_one_way_s => other_one_way,
    /// Any other protocol, both directions seen.
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
            frames: settings.frames_per_worker,
            huge_pages: settings.huge_pages,
        }
    }
}

impl Default for Control {
    fn default() -> Control {
        Control { socket: DEFAULT_SOCKET.into(), mode: 0o660 }
    }
}

impl Default for Conntrack {
    fn default() -> Conntrack {
        let ConntrackSettings { flows_max, pod_quota_percent, tcp_pickup, timeouts, memory: _ } =
            ConntrackSettings::default();
        Conntrack {
            flows: flows_max,
            pod_quota_percent,
            tcp_pickup,
            directory: None,
            timeouts: Timeouts::from(&timeouts),
        }
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { directory: None, node: None, fail: Fail::Closed, watch: true }
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts::from(&TimeoutSettings::default())
    }
}
