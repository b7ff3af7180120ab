//! Systems in the node's kernel: forwarding, and forwarding with the kernel's connection tracking.

use std::net::Ipv4Addr;

use palisade::lab::Pod;
use palisade::render::Part;

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::manifests::Renderings;
use crate::rig::Rig;
use crate::system::{FlowMemory, PolicyToggle, Running, VIRTUAL};

/// Node's kernel, whose work counts for no process.
pub(super) struct InKernel;

impl Running for InKernel {
    fn pids(&self) -> Vec<u32> {
        vec![]
    }
}

/// Function that loads parts of a rendering.
type Load = fn(&Rig, &[Part]) -> Result<(), BenchError>;

/// Node's kernel with its own connection tracking.
pub(super) struct KernelConntrack {
    _limit: ConntrackLimit,
    renderings: Renderings,
    load: Load,
}

/// Raised limit of connections. It is the machine's, not a namespace's, so drop restores it.
struct ConntrackLimit {
    before: String,
}

/// File of the limit.
const CONNTRACK_MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Limit for a million connections and some more, as users with many would set it.
const CONNECTIONS: &str = "1250000";

impl KernelConntrack {
    /// Raises the limit.
    pub(super) fn with_capacity(renderings: Renderings, load: Load) -> Result<KernelConntrack, BenchError> {
        let before = std::fs::read_to_string(CONNTRACK_MAX)?;
        std::fs::write(CONNTRACK_MAX, CONNECTIONS)?;
        Ok(KernelConntrack { _limit: ConntrackLimit { before }, renderings, load })
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

    /// Translates as kube-proxy's rules do, in nftables.
    fn serve(&self, rig: &Rig, pod: &Pod, port: u16) -> Result<Ipv4Addr, BenchError> {
        let rules = format!(
            "table ip services {{\nchain before {{\ntype nat hook prerouting priority dstnat;\n\
             ip daddr {VIRTUAL} tcp dport {port} dnat to {}:{port}\n}}\n}}\n",
            pod.v4()
        );
        rig.in_node("nft", &["-f", "-"], &rules)?;
        Ok(VIRTUAL)
    }

    fn policy_toggle<'a>(&'a self, rig: &'a Rig, _: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let changes = self.renderings.changes()?;
        Ok(Box::new(move |open| (self.load)(rig, &changes[usize::from(open)])))
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

/// Reads the bytes of one slab cache, from `/proc/slabinfo` (slabinfo(5)).
fn slab_bytes(kind: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let line = text.lines().find(|line| line.split_ascii_whitespace().next() == Some(kind))?;
    let number = |at: usize| line.split_ascii_whitespace().nth(at)?.parse::<u64>().ok();
    // Column 2 is the number of objects, column 4 the size of one.
    Some(number(1)? * number(3)?)
}
