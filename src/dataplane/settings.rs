//! What a dataplane is started with.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings that hold for the life of a dataplane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Worker `i` runs on core `cores[i]`; their number is the number of workers. The same core may stand twice.
    pub cores: Vec<usize>,
    /// UMEM frames of each worker.
    pub frames_per_worker: usize,
    /// Whether UMEM and large tables ask for huge pages. Without any, ordinary pages serve.
    pub huge_pages: bool,
    /// What a worker does when there is nothing to do.
    pub polling: Polling,
    /// Whether workers poll the drivers of their ports themselves.
    pub prefer_busy_poll: bool,
    /// Directory of a BPF file system that keeps the links of XDP programs. Where it is none, netlink attaches them.
    pub pin_directory: PathBuf,
    /// Connection tracking.
    pub conntrack: ConntrackSettings,
}

/// What a worker does when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    /// Sleeps in the kernel after this many microseconds without a frame, until the next one comes.
    Adaptive {
        /// Microseconds of looking before sleeping.
        spin_us: u32,
    },
    /// Never sleeps.
    Busy,
}

/// Connection tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Capacity, flows; rounded up to a multiple of 16.
    pub flows_max: usize,
    /// Bound of the assured flows of one port, per cent: with 50, as many as there are places left for assured flows of all ports, which
    /// may take three quarters of the capacity.
    pub pod_quota_percent: u8,
    /// Whether a TCP connection may be entered on a packet that is not its first, as opened by who sent that.
    pub tcp_pickup: bool,
    /// Location of the table.
    pub memory: FlowMemory,
    /// Idle times after which a flow is forgotten.
    pub timeouts: Timeouts,
}

/// Location of the flow table, which decides how long flows live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FlowMemory {
    /// In memory of the process: flows end with it.
    #[default]
    Process,
    /// In a file in this directory, which is in memory and this process's alone: the next process goes on with the flows.
    Directory {
        /// The directory.
        path: PathBuf,
        /// The directory that serves where that one is on a disk; none where the start shall fail then.
        fallback: Option<PathBuf>,
    },
}

impl FlowMemory {
    /// The directories that a switch with this control socket uses unless one is configured: beside the socket; and where that is on a
    /// disk, below [`SHARED_MEMORY`], under the name that [`flow_directory_in_shared_memory`] gives.
    pub fn beside(socket: &Path) -> FlowMemory {
        let path = socket.with_extension("flows");
        let fallback = Path::new(SHARED_MEMORY).is_dir().then(|| flow_directory_in_shared_memory(&path));
        FlowMemory::Directory { path, fallback }
    }
}

/// The file system in memory that Linux has everywhere (`shm_open(3)`).
pub const SHARED_MEMORY: &str = "/dev/shm";

/// The directory in shared memory that stands for another one: its path in one name, whose slashes are written as in a URL, so that no
/// two paths have one name.
pub fn flow_directory_in_shared_memory(path: &Path) -> PathBuf {
    let name = path.to_string_lossy().replace('%', "%25").replace('/', "%2F");
    Path::new(SHARED_MEMORY).join(format!("palisade{name}"))
}

/// Idle times after which a flow is forgotten, by state (RFC 5382, RFC 4787, RFC 5508, and Linux's
/// `nf_conntrack-sysctl`, as guides).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, SYN seen, not yet answered.
    pub tcp_syn_sent: Duration,
    /// TCP, SYN answered, handshake not finished.
    pub tcp_syn_received: Duration,
    /// TCP, picked up in its middle and not yet answered.
    pub tcp_unacknowledged: Duration,
    /// TCP, connection open.
    pub tcp_established: Duration,
    /// TCP, one side has finished.
    pub tcp_fin_wait: Duration,
    /// TCP, both sides have finished.
    pub tcp_time_wait: Duration,
    /// TCP, reset.
    pub tcp_close: Duration,
    /// UDP, one direction seen.
    pub udp_one_way: Duration,
    /// UDP, both directions seen.
    pub udp_two_way: Duration,
    /// ICMP echo.
    pub icmp_echo: Duration,
    /// SCTP, association not yet up.
    pub sctp_setup: Duration,
    /// SCTP, association up.
    pub sctp_established: Duration,
    /// Any other protocol, one direction seen.
    pub other_one_way: Duration,
    /// Any other protocol, both directions seen.
    pub other: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let seconds = Duration::from_secs;
        Timeouts {
            tcp_syn_sent: seconds(30),
            tcp_syn_received: seconds(30),
            tcp_unacknowledged: seconds(300),
            tcp_established: seconds(7440),
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
            pin_directory: "/sys/fs/bpf/palisade".into(),
            conntrack: ConntrackSettings::default(),
        }
    }
}
