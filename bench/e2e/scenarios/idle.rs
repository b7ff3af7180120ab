//! Processor time of an idle system: all pods attached, no traffic.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::error::BenchError;
use crate::scenario::{Measures, Trial};

/// Time for the start-up to end.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) fn measure(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    sleep(SETTLE);
    let ((), cost) = trial.measure_cpu(|| {
        sleep(Duration::from_secs(trial.seconds));
        Ok(())
    })?;
    let mut measures = cost.fields();
    // Time of the system's own processes: other processes of the machine are not idle.
    measures.insert("cpu_percent".to_owned(), json!(100.0 * cost.processes_s / cost.window_s));
    measures.insert("all_cores_percent".to_owned(), json!(100.0 * cost.all_cores_s / cost.window_s));
    Ok(measures)
}
