//! Policy tests with real packets: the pods of a case are namespaces, a running switch has its tables, and
//! its probes are connections between network stacks.
//!
//! A case runs in four steps: its pods are attached at the sites of their addresses ([`placement`]), its
//! tables are loaded, all of its flows are tried at the same time ([`client`]) while one thread answers for
//! all sites ([`responder`]), and the counters of the switch are compared. Lab and switch stay for the next
//! case as long as it fits their sites.

mod message;
mod placement;

mod client;
mod responder;
mod rig;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

pub use rig::CounterDelta;

use super::LabError;
use super::traffic::Outcome;
use crate::net::flow::FlowKey;
use crate::tables::{PodName, RuleTables, Verdict};
use rig::Rig;

/// Parameters of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSpec {
    /// The `palisade` program.
    pub program: PathBuf,
    /// Workers of the switch.
    pub workers: u16,
}

/// A case of a policy test.
#[derive(Debug, Clone)]
pub struct LiveCase {
    /// Name.
    pub name: String,
    /// Pods with their addresses. Pods without addresses of their own are left out.
    pub pods: BTreeMap<PodName, Vec<IpAddr>>,
    /// Rule tables.
    pub tables: RuleTables,
    /// Connections to be tried.
    pub probes: Vec<LiveProbe>,
}

/// A connection of a case.
#[derive(Debug, Clone, Copy)]
pub struct LiveProbe {
    /// Flow of the connection. The kernel chooses the source port.
    pub flow: FlowKey,
    /// Expected verdict. The wait for silence is shorter than that for an answer.
    pub expect: Verdict,
}

/// Result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveResult {
    /// Outcome of each probe; `None` for one that no single host can send or receive.
    pub outcomes: Vec<Option<Outcome>>,
    /// Counters of the switch.
    pub counted: CounterDelta,
}

impl LiveCase {
    /// Pods that share no address with another, so that a lab can have them.
    fn pods_to_make(&self) -> impl Iterator<Item = (&PodName, &Vec<IpAddr>)> {
        self.pods.iter().filter(|(_, addresses)| addresses.iter().all(|address| self.claims(*address) == 1))
    }

    /// Counts the pods with an address.
    fn claims(&self, address: IpAddr) -> usize {
        self.pods.values().filter(|addresses| addresses.contains(&address)).count()
    }
}

/// Runs cases, and calls `tell` after each. Once `interrupted` is set, everything is removed soon.
pub fn run(
    spec: &LiveSpec,
    cases: &[LiveCase],
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(&LiveCase),
) -> Result<Vec<LiveResult>, LabError> {
    super::require_root()?;
    let mut results = vec![];
    for (run, placement) in placement::plan(cases) {
        let check = || if interrupted.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) };
        check()?;
        let mut rig = Rig::up(spec, placement)?;
        for case in &cases[run] {
            check()?;
            let failed = |error| LabError::Switch(format!("case {:?}: {error}", case.name));
            results.push(rig.run(case).map_err(failed)?);
            tell(case);
        }
        rig.down()?;
    }
    Ok(results)
}
