//! What came of a test run, for people and for programs.

use std::fmt;

use serde::Serialize;

use crate::lab::live::Counted;
use crate::lab::traffic::Outcome;
use crate::net::flow::Protocol;
use crate::policy::cases::Case;
use crate::policy::explain::Explanation;
use crate::tables::Verdict;

/// Passed, failed, and neither.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// As expected.
    pub(super) passed: usize,
    /// Otherwise.
    pub(super) failed: usize,
    /// Not tried: no real host, or no single one, can have one of the addresses.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) not_sent: usize,
}

/// What came of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Cases; one fails where any of its probes does.
    pub(super) cases: Tally,
    /// Probes.
    pub(super) probes: Tally,
    /// By case.
    pub(super) results: Vec<CaseResult>,
}

/// What came of a case.
#[derive(Debug, Serialize)]
pub(super) struct CaseResult {
    /// Its name.
    pub(super) name: String,
    /// `file:line`.
    pub(super) place: String,
    /// Its probes.
    pub(super) probes: usize,
    /// Those that were not tried, because no real host, or no single one, can have one of their addresses.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) not_sent: usize,
    /// Those that failed.
    pub(super) failures: Vec<Failed>,
}

/// A probe that did not get what it expects.
#[derive(Debug, Serialize)]
pub(super) struct Failed {
    /// `file:line`.
    pub(super) place: String,
    /// `from`.
    pub(super) from: String,
    /// `to`.
    pub(super) to: String,
    /// `protocol`.
    pub(super) protocol: Protocol,
    /// `port`.
    pub(super) port: u16,
    /// `expect`.
    pub(super) expected: Verdict,
    /// What came; none where it was neither.
    pub(super) got: Option<Verdict>,
    /// What became of the real connection, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seen: Option<Seen>,
    /// Why the tables decide as they do.
    pub(super) explanation: Explanation,
    /// The same for people.
    #[serde(skip)]
    pub(super) text: String,
}

/// A real connection.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    /// What became of it.
    pub(super) outcome: Outcome,
    /// What the switch counted during the case.
    pub(super) counted: Counted,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl CaseResult {
    /// A case of which nothing has failed so far.
    pub(super) fn new(case: &Case) -> CaseResult {
        let place = case.location.to_string();
        CaseResult {
            name: case.name.clone(),
            place,
            probes: case.probes.len(),
            not_sent: 0,
            failures: Vec::new(),
        }
    }
}

impl Report {
    /// The sums of some results.
    pub(super) fn new(results: Vec<CaseResult>) -> Report {
        let (mut cases, mut probes) = (Tally::default(), Tally::default());
        for result in &results {
            let failed = result.failures.len();
            probes.failed += failed;
            probes.not_sent += result.not_sent;
            probes.passed += result.probes - result.not_sent - failed;
            if failed == 0 { cases.passed += 1 } else { cases.failed += 1 }
        }
        Report { cases, probes, results }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for result in self.results.iter().filter(|result| !result.failures.is_empty()) {
            writeln!(f, "FAILED {} ({})", result.name, result.place)?;
            for failed in &result.failures {
                writeln!(f, "  {failed}")?;
                failed.text.lines().try_for_each(|line| writeln!(f, "    {line}"))?;
            }
            writeln!(f)?;
        }
        writeln!(f, "cases: {} passed, {} failed", self.cases.passed, self.cases.failed)?;
        write!(f, "probes: {} passed, {} failed", self.probes.passed, self.probes.failed)?;
        match self.probes.not_sent {
            0 => writeln!(f),
            count => {
                writeln!(f, ", {count} not sent (no host, or no single one, can have one of the addresses)")
            }
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} from {} to {}", self.place, self.protocol, self.from, self.to)?;
        if self.protocol.has_ports() {
            write!(f, " port {}", self.port)?;
        }
        let word = |verdict| format!("{verdict:?}").to_lowercase();
        let got = self.got.map_or("an error".to_owned(), word);
        write!(f, ": expected {}, got {got}", word(self.expected))
    }
}
