//! A scenario: the work of one measurement, its size, and the metric that systems are compared by.

use crate::common::json_lines::Fields;
use crate::common::policy::PolicySpec;
use crate::cpu_time::{CpuSample, CpuUsage};
use crate::error::BenchError;
use crate::rig::Rig;
use crate::system::{Kind, Running, System};

/// Scenario of one size.
pub(crate) struct Scenario {
    /// Name, which results have as `case`.
    pub(crate) name: String,
    /// Name that it shares with scenarios of other sizes; results have it as `scenario`.
    pub(crate) group: String,
    /// Field that systems are compared by.
    pub(crate) metric: &'static str,
    /// True if larger values are better.
    pub(crate) more_is_better: bool,
    /// Size of the policy.
    pub(crate) shape: PolicySpec,
    /// MTU of all links.
    pub(crate) mtu: Mtu,
    /// True if the pods reach a host outside.
    pub(crate) outside: bool,
    /// True if one run is enough, because the metric does not vary from run to run.
    pub(crate) once: bool,
    /// Measurement of one trial.
    pub(crate) measure: Measure,
    /// Kinds of systems that the scenario applies to.
    pub(crate) is_for: fn(Kind) -> bool,
}

/// Function that measures one trial.
pub(crate) type Measure = Box<dyn Fn(&Trial<'_>) -> Result<Measures, BenchError>>;

/// MTU of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mtu {
    /// MTU for all systems.
    Of(u32),
    /// Largest MTU that a system carries.
    Largest,
}

/// Running system that has passed verification.
pub(crate) struct Trial<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) running: &'a dyn Running,
    /// Size of the policy.
    pub(crate) shape: &'a PolicySpec,
    /// MTU of all links.
    pub(crate) mtu: u32,
    /// Length of the measurement.
    pub(crate) seconds: u64,
    /// No-drop rates of the system and of the slowest peer, where this run has found them.
    pub(crate) no_drop_mpps: Option<f64>,
    pub(crate) peers_no_drop_mpps: Option<f64>,
}

/// Fields of a result.
pub(crate) type Measures = Fields;

impl Mtu {
    /// Returns the MTU for one system.
    pub(crate) fn for_system(self, system: &dyn System) -> u32 {
        match self {
            Mtu::Of(mtu) => mtu,
            Mtu::Largest => system.mtu_max(),
        }
    }
}

impl Trial<'_> {
    /// Runs `f`, and returns its processor time too.
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
