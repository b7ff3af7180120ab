//! Cross-connect of pods in pairs: the running process, and the setup of the pods.

use palisade::dataplane::Mac;
use palisade::lab::Pod;

use crate::error::BenchError;
use crate::process::Daemon;
use crate::rig::Rig;
use crate::system::Running;

/// Process that cross-connects interfaces in pairs.
pub(super) struct CrossConnect(pub(super) Daemon);

impl Running for CrossConnect {
    fn pids(&self) -> Vec<u32> {
        vec![self.0.pid()]
    }

    fn next_hop(&self, to: &Pod) -> Mac {
        to.plan().mac
    }

    fn routes(&self) -> bool {
        false
    }

    fn note(&self) -> Option<String> {
        Some("no policy, no addresses; checksums are finished in the pods".to_owned())
    }
}

/// Sets each pod's gateway neighbour to the other pod of its pair.
pub(super) fn cross_connect_pods(rig: &Rig) -> Result<(), BenchError> {
    let macs: Vec<Mac> = rig.lab().pods().map(|pod| pod.plan().mac).collect();
    rig.set_gateway_neighbor(|pod| {
        let own = macs.iter().position(|mac| *mac == pod.plan().mac).unwrap_or(0);
        macs[pair_of(own, macs.len())]
    })
}

/// Returns the other port of a pair; the last of an odd number is its own.
pub(super) fn pair_of(port: usize, ports: usize) -> usize {
    if port ^ 1 < ports { port ^ 1 } else { port }
}
