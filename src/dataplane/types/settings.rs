//! Settings of a dataplane.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Program that forwards the packets of pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The workers of the switch, by AF_XDP sockets.
    #[default]
    AfXdp,
    /// The kernel, by its routes and by rules of nftables.
    Nftables,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backend::AfXdp => "af-xdp",
            Backend::Nftables => "nftables",
        })
    }
}

/// Settings for the life of a dataplane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Cores of the workers: worker `i` runs on core `cores[i]`, and as many workers run as cores are listed.
    /// A core may be listed twice.
    pub cores: Vec<usize>,
    /// UMEM frames of each worker.
    pub frames_per_worker: usize,
    /// Whether UMEM and large tables request huge pages. If the kernel has none free, they use ordinary
    /// pages.
    pub huge_pages: bool,
    /// Behaviour of an idle worker.
    pub polling: Polling,
    /// Whether sockets set `SO_PREFER_BUSY_POLL`, so that workers drive the NAPI of their ports
    /// (`asm-generic/socket.h`).
    pub prefer_busy_poll: bool,
    /// Scheduling policy of the workers' threads (`sched(7)`).
    pub scheduling: Scheduling,
    /// Whether a start without the privilege for AF_XDP fails. A kernel without AF_XDP never makes it fail. Without
    /// AF_XDP the dataplane opens tap ports only.
    pub needs_xdp: bool,
    /// Directory in a BPF file system that pins the links of XDP programs. If it is on another file system,
    /// netlink attaches the programs.
    pub pin_directory: PathBuf,
    /// Connection tracking.
    pub conntrack: ConntrackSettings,
    /// Address of the node and external ports of flows that are masqueraded, if flows may be.
    pub masquerade: Option<MasqueradeSettings>,
    /// Tunnels to other nodes, if there may be any.
    pub tunnel: Option<TunnelSettings>,
    /// Flow offload, if the kernel may forward packets of established flows.
    pub offload: Option<OffloadSettings>,
}

/// Flow offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffloadSettings {
    /// Time for which the kernel forwards packets of established flows after the switch has ended or stopped.
    pub lease: Duration,
}

/// Tunnels to other nodes (VXLAN, RFC 7348). Uplinks take their packets from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelSettings {
    /// Nodes whose pods are reached by a tunnel.
    pub mode: TunnelMode,
    /// UDP port of all nodes.
    pub port: u16,
    /// VXLAN network identifier of all nodes, 24 bits.
    pub vni: u32,
    /// Addresses of this node, between which and other nodes tunnels lie: the first one of each family.
    pub addresses: Vec<IpAddr>,
}

impl TunnelSettings {
    /// This node's end of tunnels of a family.
    pub(crate) fn address(&self, v4: bool) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == v4)
    }
}

/// Nodes whose pods are reached by a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelMode {
    /// Those that are reached by a router.
    Auto,
    /// All.
    Always,
}

/// External ends of masqueraded flows. Uplinks take packets to them from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasqueradeSettings {
    /// Addresses of the node that flows get: the first one of each family.
    pub addresses: Vec<IpAddr>,
    /// External ports of TCP, UDP and SCTP flows.
    pub ports: RangeInclusive<u16>,
}

/// Behaviour of an idle worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    /// Polls for `spin_us` without a frame, then sleeps in the kernel until the next frame arrives.
    Adaptive {
        /// Polling before a sleep, microseconds.
        spin_us: u32,
    },
    /// Never sleeps.
    Busy,
}

/// Scheduling policy of the workers' threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduling {
    /// `SCHED_OTHER`: workers share their cores with other threads by the scheduler's slices.
    Fair,
    /// `SCHED_FIFO`, priority 1: workers come before all other threads, and leave them a twentieth of their cores.
    RealTime,
}

/// Connection tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Capacity in flows; rounded up to a multiple of 16.
    pub flows_max: usize,
    /// Bound of the assured flows of one port, `q` per cent: `q / (100 - q)` times the slots that are free
    /// for assured flows of all ports. These are three quarters of the capacity. With 50, one port alone has
    /// up to half of them.
    pub pod_quota_percent: u8,
    /// Whether a TCP connection may be picked up on a packet after its first; the sender of that packet
    /// counts as initiator (Linux: `nf_conntrack_tcp_loose`).
    pub tcp_pickup: bool,
    /// Whether a TCP segment of no flow is answered with a reset, if policy lets its sender open the connection.
    pub tcp_reset_unknown: bool,
    /// Location of the table, which decides whether flows outlive the process.
    pub memory: FlowMemory,
    /// Idle times after which a flow is removed.
    pub timeouts: Timeouts,
}

/// Location of the flow table, which decides whether flows outlive the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FlowMemory {
    /// Anonymous memory: flows end with the process.
    #[default]
    Process,
    /// A file in this directory, on `tmpfs` or `ramfs` and locked by one process at a time: the next process
    /// restores the flows.
    Directory {
        /// The directory.
        path: PathBuf,
        /// The directory to use if `path` is on a disk; with `None` the start fails then.
        fallback: Option<PathBuf>,
    },
}

impl FlowMemory {
    /// Default directories for a switch with this control socket: one beside the socket, and, if that is on a
    /// disk, the one that [`flow_directory_in_shared_memory`] gives below [`SHARED_MEMORY`].
    pub fn beside(socket: &Path) -> FlowMemory {
        let path = socket.with_extension("flows");
        let fallback = Path::new(SHARED_MEMORY).is_dir().then(|| flow_directory_in_shared_memory(&path));
        FlowMemory::Directory { path, fallback }
    }
}

/// The `tmpfs` that every Linux mounts for POSIX shared memory (`shm_open(3)`).
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Maps a directory to one below [`SHARED_MEMORY`]. The name is the whole path with slashes percent-encoded
/// (RFC 3986), so that no two paths share a name.
pub fn flow_directory_in_shared_memory(path: &Path) -> PathBuf {
    let name = path.to_string_lossy().replace('%', "%25").replace('/', "%2F");
    Path::new(SHARED_MEMORY).join(format!("palisade{name}"))
}

/// Idle times after which a flow is removed, by state. The defaults follow RFC 5382, RFC 4787, RFC 5508, and
/// Linux's `nf_conntrack-sysctl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP: SYN seen, not yet answered.
    pub tcp_syn_sent: Duration,
    /// TCP: SYN answered, handshake not finished.
    pub tcp_syn_received: Duration,
    /// TCP: picked up in the middle of a connection and not yet answered.
    pub tcp_unacknowledged: Duration,
    /// TCP: connection established.
    pub tcp_established: Duration,
    /// TCP: one side has sent FIN.
    pub tcp_fin_wait: Duration,
    /// TCP: both sides have sent FIN.
    pub tcp_time_wait: Duration,
    /// TCP: reset.
    pub tcp_close: Duration,
    /// UDP: one direction seen.
    pub udp_one_way: Duration,
    /// UDP: both directions seen.
    pub udp_two_way: Duration,
    /// ICMP echo.
    pub icmp_echo: Duration,
    /// SCTP: association not yet established.
    pub sctp_setup: Duration,
    /// SCTP: association established.
    pub sctp_established: Duration,
    /// Other protocols: one direction seen.
    pub other_one_way: Duration,
    /// Other protocols: both directions seen.
    pub other: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let seconds = Duration::from_secs;
        Timeouts {
            tcp_syn_sent: seconds(30),
            tcp_syn_received: seconds(30),
            tcp_unacknowledged: seconds(300),
            tcp_established: seconds(86_400),
            tcp_fin_wait: seconds(120),
            tcp_time_wait: seconds(60),
            tcp_close: seconds(10),
            udp_one_way: seconds(30),
            udp_two_way: seconds(120),
            icmp_echo: seconds(30),
            sctp_setup: seconds(30),
            sctp_established: seconds(7440),
            other_one_way: seconds(30),
            other: seconds(600),
        }
    }
}

impl Default for ConntrackSettings {
    fn default() -> ConntrackSettings {
        ConntrackSettings {
            flows_max: 1 << 18,
            pod_quota_percent: 50,
            tcp_pickup: false,
            tcp_reset_unknown: false,
            memory: FlowMemory::default(),
            timeouts: Timeouts::default(),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cores: vec![0],
            frames_per_worker: 1 << 15,
            huge_pages: true,
            polling: Polling::Adaptive { spin_us: 50 },
            prefer_busy_poll: false,
            scheduling: Scheduling::Fair,
            needs_xdp: true,
            pin_directory: "/sys/fs/bpf/palisade".into(),
            conntrack: ConntrackSettings::default(),
            masquerade: None,
            tunnel: None,
            offload: None,
        }
    }
}
