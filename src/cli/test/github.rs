//! Failures as annotations of a pull request.

use super::report::{CaseResult, NO_PROBES, Outcome, Report};
use crate::cli::output::annotations::line;
use crate::policy::parse::STDIN;

/// A line for each failed probe, and for each case that is wrong or has no probes.
pub(super) fn annotations(report: &Report) -> String {
    let failed = report.results.iter().filter(|result| result.outcome() != Outcome::Passed);
    failed.flat_map(of_case).collect()
}

fn of_case(result: &CaseResult) -> Vec<String> {
    let (file, number) = result.place.rsplit_once(':').unwrap_or((&result.place, "1"));
    let of_case = (file != STDIN).then(|| (file, number.parse().unwrap_or(1), None));
    if !result.errors.is_empty() {
        return vec![line("error", of_case, &result.name, &result.errors.join("\n"))];
    }
    if result.failures.is_empty() {
        return vec![line("error", of_case, &result.name, NO_PROBES)];
    }
    let of_probe = result.failures.iter().map(|failed| {
        let (location, connection) = &result.connections[failed.number];
        let file = location.source().name();
        let place = (file != STDIN).then(|| (file, location.line(), Some(location.column())));
        let message = format!("{connection}: {}\n{}", failed.verdicts(), failed.text.trim_end());
        line("error", place, &result.name, &message)
    });
    of_probe.collect()
}
