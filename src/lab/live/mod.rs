//! Policy tests with real packets: the pods of a case are namespaces, a running switch has its tables, and
//! its probes are connections between network stacks.
//!
//! A case runs in four steps: its pods are attached at the sites of their addresses ([`placement`]), its
//! tables are loaded, all of its flows are tried at the same time ([`client`]) while one thread answers for
//! all sites ([`responder`]), and the counters of the switch are compared. Lab and switch stay for the next
//! case as long as it fits their sites.

mod message;
mod placement;

mod case;
mod client;
mod counter_delta;
mod responder;
mod rig;

use std::sync::atomic::{AtomicBool, Ordering};

pub use case::{LiveCase, LiveProbe};
pub use counter_delta::CounterDelta;
pub use rig::{LiveResult, LiveSpec};

use super::LabError;
use rig::Rig;

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
