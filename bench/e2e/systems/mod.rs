//! The systems: what connects the pods, and how each is started, tuned and told the policy.

mod bridge;
mod dpdk;
mod iptables;
mod kernel;
mod nftables;
mod noop;
mod ovs;
mod palisade;
mod tc_identity;

use ::palisade::dataplane::Mac;
use ::palisade::lab::Pod;

use crate::common::policy::PolicySpec;
use crate::process::BenchError;
use crate::rig::{GATEWAY_MAC, Rig};

pub(crate) use noop::forward;

/// A system, not yet started.
pub(crate) trait System {
    /// Its name in results.
    fn name(&self) -> &'static str;

    /// What a system is compared as.
    fn kind(&self) -> Kind;

    /// What it is made of, with versions; empty where that is not installed.
    fn versions(&self) -> Vec<String>;

    /// Largest MTU that it can be expected to carry.
    fn mtu_max(&self) -> u32 {
        // IP's own limit, and what a veth takes.
        65_535
    }

    /// Connects the pods and enforces the policy. Whatever it makes goes when the answer is dropped, or with the rig.
    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError>;
}

/// What a system is compared as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This switch.
    Palisade,
    /// Enforces the policy.
    Peer,
    /// Enforces nothing, between any pods.
    NoPolicy,
    /// Enforces nothing, and knows no addresses: joins pods in pairs.
    CrossConnect,
}

/// A system that runs.
pub(crate) trait Running {
    /// Processes that do its work; none where the kernel does.
    fn pids(&self) -> Vec<u32>;

    /// Memory that flows take, where that can be told.
    fn flow_memory(&self, rig: &Rig) -> Result<FlowMemory, BenchError> {
        let _ = rig;
        Ok(FlowMemory::Unknown("it tracks no flows"))
    }

    /// Flows that it tracks, where that can be told.
    fn flows(&self, rig: &Rig) -> Result<Option<u64>, BenchError> {
        let _ = rig;
        Ok(None)
    }

    /// The Ethernet address that a pod sends frames for the other one to.
    fn next_hop(&self, to: &Pod) -> Mac {
        let _ = to;
        GATEWAY_MAC
    }

    /// Whether it brings each pod what is for it. What does not brings everything to one.
    fn routes(&self) -> bool {
        true
    }

    /// What lets the client in on [`CHANGED_PORT`](crate::common::policy::CHANGED_PORT), or no longer.
    fn policy_toggle<'a>(&'a self, rig: &'a Rig, shape: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let _ = (rig, shape);
        Err(BenchError::Other("it enforces no policy that could change".to_owned()))
    }

    /// Frames that the kernel has dropped before the system had them, where the system tells.
    fn dropped_before(&self) -> Result<Option<u64>, BenchError> {
        Ok(None)
    }

    /// Anything that a reader of its results should know.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Opens the port that is changed, or closes it; back when the system's own tool says that it is done.
pub(crate) type PolicyToggle<'a> = Box<dyn FnMut(bool) -> Result<(), BenchError> + 'a>;

/// How a system's memory for flows is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FlowMemory {
    /// Taken as flows come: bytes at this moment.
    Grows(u64),
    /// Taken at the start: bytes for each flow that there is room for.
    Reserved(f64),
    /// Not to be told, and why.
    Unknown(&'static str),
}

impl Kind {
    /// Whether it enforces the policy.
    pub(crate) fn enforces(self) -> bool {
        matches!(self, Kind::Palisade | Kind::Peer)
    }
}

/// All systems, in the order in which they take turns.
pub(crate) fn all() -> Vec<Box<dyn System>> {
    vec![
        Box::new(palisade::Palisade),
        Box::new(noop::Noop),
        Box::new(kernel::Kernel),
        Box::new(bridge::Bridge),
        Box::new(nftables::Nftables),
        Box::new(iptables::Iptables),
        Box::new(tc_identity::TcIdentity),
        Box::new(ovs::Ovs),
        Box::new(dpdk::Dpdk),
    ]
}

/// Nothing but the node's kernel, whose work shows under no process.
pub(crate) struct InKernel;

impl Running for InKernel {
    fn pids(&self) -> Vec<u32> {
        vec![]
    }
}

/// Opens the port that is changed, or closes it.
type Change = Box<dyn Fn(&Rig, bool) -> Result<(), BenchError>>;

/// The kernel with its own connection tracking.
pub(crate) struct KernelConntrack {
    _limit: ConntrackLimit,
    /// Opens the port that is changed, or closes it.
    change: Change,
}

/// Room for a million connections. The limit is the machine's, not a namespace's: dropped, it is what it was.
struct ConntrackLimit {
    before: String,
}

/// The limit.
const CONNTRACK_MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Connections that there shall be room for, as users with many would set it.
const CONNECTIONS: &str = "1250000";

impl KernelConntrack {
    /// Makes room.
    pub(crate) fn with_capacity(
        change: impl Fn(&Rig, bool) -> Result<(), BenchError> + 'static,
    ) -> Result<KernelConntrack, BenchError> {
        let before = std::fs::read_to_string(CONNTRACK_MAX)?;
        std::fs::write(CONNTRACK_MAX, CONNECTIONS)?;
        Ok(KernelConntrack { _limit: ConntrackLimit { before }, change: Box::new(change) })
    }
}

impl Drop for ConntrackLimit {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(CONNTRACK_MAX, &self.before) {
            eprintln!("{CONNTRACK_MAX} was {} and stays raised: {error}", self.before.trim());
        }
    }
}

impl Running for KernelConntrack {
    fn pids(&self) -> Vec<u32> {
        vec![]
    }

    fn policy_toggle<'a>(&'a self, rig: &'a Rig, _: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        Ok(Box::new(|open| (self.change)(rig, open)))
    }

    fn flow_memory(&self, _: &Rig) -> Result<FlowMemory, BenchError> {
        let unknown = FlowMemory::Unknown("/proc/slabinfo does not show nf_conntrack");
        Ok(slab_bytes("nf_conntrack").map_or(unknown, FlowMemory::Grows))
    }

    fn flows(&self, rig: &Rig) -> Result<Option<u64>, BenchError> {
        let count =
            rig.node().run(|| std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count"))??;
        Ok(count.trim().parse().ok())
    }
}

/// Bytes of the slabs of one kind of kernel object: `slabinfo(5)`.
fn slab_bytes(kind: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let line = text.lines().find(|line| line.split_ascii_whitespace().next() == Some(kind))?;
    let number = |at: usize| line.split_ascii_whitespace().nth(at)?.parse::<u64>().ok();
    // Columns 2 and 4: objects that there are, bytes of one.
    Some(number(1)? * number(3)?)
}
