//! Policy tests with real packets: the pods of a case as namespaces, its tables in a running switch, and its probes as
//! connections between real network stacks.
//!
//! A case is run in four steps: its pods are attached where their addresses are ([`placement`]), its tables are loaded, all
//! of its flows are tried at once ([`client`]) while one thread answers for everyone ([`responder`]), and what the switch
//! counted meanwhile is taken down. Lab and switch stay for the next case as long as it fits in.

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

/// How to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSpec {
    /// The `palisade` program.
    pub program: PathBuf,
    /// Workers of the switch.
    pub workers: u16,
}

/// A case.
#[derive(Debug, Clone)]
pub struct LiveCase {
    /// Its name.
    pub name: String,
    /// Its pods, and their addresses: what has none, or not its own, is not among them.
    pub pods: BTreeMap<PodName, Vec<IpAddr>>,
    /// Its tables.
    pub tables: RuleTables,
    /// Its connections.
    pub probes: Vec<LiveProbe>,
}

/// A connection of a case.
#[derive(Debug, Clone, Copy)]
pub struct LiveProbe {
    /// Its flow. The source port is the kernel's to choose.
    pub flow: FlowKey,
    /// What should become of it: silence is waited for less long than an answer.
    pub expect: Verdict,
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveResult {
    /// By probe; none where it was not sent, because no host, or no single one, can have one of its ends.
    pub outcomes: Vec<Option<Outcome>>,
    /// What the switch counted.
    pub counted: CounterDelta,
}

impl LiveCase {
    /// Pods that can be made: those that share no address with another.
    fn pods_to_make(&self) -> impl Iterator<Item = (&PodName, &Vec<IpAddr>)> {
        self.pods.iter().filter(|(_, addresses)| addresses.iter().all(|address| self.claims(*address) == 1))
    }

    /// How many pods say that they have an address.
    fn claims(&self, address: IpAddr) -> usize {
        self.pods.values().filter(|addresses| addresses.contains(&address)).count()
    }
}

/// Runs cases, and tells of each when it is done. Once `interrupted` is set, everything is removed soon.
pub fn run(
    spec: &LiveSpec,
    cases: &[LiveCase],
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(&LiveCase),
) -> Result<Vec<LiveResult>, LabError> {
    super::require_root()?;
    let mut results = vec![];
    for (run, places) in placement::plan(cases) {
        let check = || if interrupted.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) };
        check()?;
        let mut stage = Rig::up(spec, places)?;
        for case in &cases[run] {
            check()?;
            let failed = |error| LabError::Switch(format!("case {:?}: {error}", case.name));
            results.push(stage.play(case).map_err(failed)?);
            tell(case);
        }
        stage.down()?;
    }
    Ok(results)
}
