//! Systems in the node's kernel: forwarding alone, and with the kernel's connection tracking.

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::rig::Rig;
use crate::system::{FlowMemory, PolicyToggle, Running};

/// Nothing but the node's kernel, whose work shows under no process.
pub(super) struct InKernel;

impl Running for InKernel {
    fn pids(&self) -> Vec<u32> {
        vec![]
    }
}

/// Opens the port that is changed, or closes it.
type Change = Box<dyn Fn(&Rig, bool) -> Result<(), BenchError>>;

/// The kernel with its own connection tracking.
pub(super) struct KernelConntrack {
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
    pub(super) fn with_capacity(
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
