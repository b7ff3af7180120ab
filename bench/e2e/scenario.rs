//! A scenario: the work of one measurement, its size, and the metric that systems are compared by.

use crate::common::json_lines::Fields;
use crate::common::policy::PolicySpec;
use crate::cpu_time::{CpuSample, CpuUsage};
use crate::error::BenchError;
use crate::rig::Rig;
use crate::system::{Kind, Running, System};

/// A scenario with its size.
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: String,
    /// What it is called in results together with others that differ from it in size.
    pub(crate) group: String,
    /// The field that systems are compared by.
    pub(crate) metric: &'static str,
    /// Whether more of it is better.
    pub(crate) more_is_better: bool,
    /// Size of the policy.
    pub(crate) shape: PolicySpec,
    /// MTU of all links.
    pub(crate) mtu: Mtu,
    /// Whether one run is enough: what does not vary from run to run.
    pub(crate) once: bool,
    /// What is measured.
    pub(crate) measure: Measure,
    /// The systems that it says something of.
    pub(crate) is_for: fn(Kind) -> bool,
}

/// Measures one trial.
pub(crate) type Measure = Box<dyn Fn(&Trial<'_>) -> Result<Measures, BenchError>>;

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
    pub(crate) rig: &'a Rig,
    pub(crate) running: &'a dyn Running,
    /// Size of the policy.
    pub(crate) shape: &'a PolicySpec,
    /// MTU of all links.
    pub(crate) mtu: u32,
    /// How long to measure.
    pub(crate) seconds: u64,
    /// The system's own no-drop rate, and the least of its peers', where this run has found them.
    pub(crate) no_drop_mpps: Option<f64>,
    pub(crate) peers_no_drop_mpps: Option<f64>,
}

/// Fields of a result.
pub(crate) type Measures = Fields;

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
    pub(crate) fn measure_cpu<T>(
        &self,
        f: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, CpuUsage), BenchError> {
        let pids = self.running.pids();
        let start = CpuSample::now(self.rig, &pids)?;
        let done = f()?;
        Ok((done, start.until(&CpuSample::now(self.rig, &pids)?)))
    }
}
