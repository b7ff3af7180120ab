//! The scenarios: what is done with a system that runs, and what of it is compared.

mod bulk;
mod connections;
mod idle;
mod memory;

use serde_json::{Map, Value};

use crate::bed::{Bed, PODS_MIN};
use crate::cpu::{Cost, Moment};
use crate::policy::PolicyShape;
use crate::systems::{Running, System};
use crate::tool::Trouble;

/// Rules where a scenario is not about their number.
const RULES: usize = 1000;
/// The seed of policies.
const SEED: u64 = 5;

/// A scenario with its size.
pub(crate) struct Scenario {
    /// Its name in results.
    pub(crate) name: String,
    /// The field that systems are compared by.
    pub(crate) metric: &'static str,
    /// Whether more of it is better.
    pub(crate) more_is_better: bool,
    /// Size of the policy.
    pub(crate) shape: PolicyShape,
    /// MTU of all links.
    pub(crate) mtu: Mtu,
    /// Whether one run is enough: what does not vary from run to run.
    pub(crate) once: bool,
    /// What is measured.
    pub(crate) measure: fn(&Trial<'_>) -> Result<Measures, Trouble>,
}

/// An MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mtu {
    /// This one, for all.
    Of(u32),
    /// The largest that a system carries.
    Largest,
}

/// A system that runs, and has shown that it does.
pub(crate) struct Trial<'a> {
    pub(crate) bed: &'a Bed,
    pub(crate) running: &'a dyn Running,
    /// MTU of all links.
    pub(crate) mtu: u32,
    /// How long to measure.
    pub(crate) seconds: u64,
}

/// Fields of a result.
pub(crate) type Measures = Map<String, Value>;

impl Mtu {
    /// The number for one system.
    pub(crate) fn for_system(self, system: &dyn System) -> u32 {
        match self {
            Mtu::Of(mtu) => mtu,
            Mtu::Largest => system.mtu_max(),
        }
    }
}

impl Trial<'_> {
    /// Does something, and gives what it cost besides.
    pub(crate) fn cost_of<T>(&self, f: impl FnOnce() -> Result<T, Trouble>) -> Result<(T, Cost), Trouble> {
        let pids = self.running.pids();
        let start = Moment::now(self.bed, &pids)?;
        let done = f()?;
        Ok((done, start.until(&Moment::now(self.bed, &pids)?)))
    }
}

/// All scenarios, in the order in which they run; in smoke size or in full.
pub(crate) fn all(smoke: bool) -> Vec<Scenario> {
    let shape = PolicyShape { rules: if smoke { 100 } else { RULES }, pods: PODS_MIN, seed: SEED };
    let plain = |name: &str, metric, measure| Scenario {
        name: name.to_owned(),
        metric,
        more_is_better: true,
        shape,
        mtu: Mtu::Of(1500),
        once: false,
        measure,
    };
    let bulk = |name: &str, mtu| Scenario { mtu, ..plain(name, "gbps", bulk::measure) };
    let mut scenarios = vec![
        plain("tcp-connect", "connections_per_s", connections::measure),
        bulk("tcp-bulk-mtu1500", Mtu::Of(1500)),
    ];
    if !smoke {
        scenarios.extend([bulk("tcp-bulk-mtu9000", Mtu::Of(9000)), bulk("tcp-bulk-largest", Mtu::Largest)]);
        let memory = plain("flow-memory", "bytes_per_flow", memory::measure);
        scenarios.push(Scenario { more_is_better: false, once: true, ..memory });
    }
    let idle = plain("idle", "cpu_percent", idle::measure);
    let pods = if smoke { 10 } else { 100 };
    let shape = PolicyShape { pods, ..shape };
    scenarios.push(Scenario { more_is_better: false, once: true, shape, ..idle });
    scenarios
}
