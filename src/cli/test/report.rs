//! What came of a test run, for people and for programs.

use std::fmt;

use serde::Serialize;

use crate::lab::live::CounterDelta;
use crate::net::flow::Protocol;
use crate::policy::explain::Explanation;
use crate::policy::testcase::{Case, InvalidCase};
use crate::printable;
use crate::tables::Verdict;

/// Characters of a case's name that are shown.
const NAME_CHARS_MAX: usize = 200;

/// Why a case without a probe fails.
pub(super) const NO_PROBES: &str =
    "the case has no probes, so it tests nothing: add a connection under probes";

/// Passed, failed, and neither.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// As expected.
    pub(super) passed: usize,
    /// Otherwise; of cases also those without a probe.
    pub(super) failed: usize,
    /// Not tried: the case is wrong.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) refused: usize,
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
    /// Error in the case, which was not tried then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) errors: Vec<String>,
}

/// Outcome of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    Refused,
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
    /// Its outcome.
    pub(super) outcome: crate::lab::traffic::Outcome,
    /// What the switch counted during the case.
    pub(super) counted: CounterDelta,
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
            errors: Vec::new(),
        }
    }

    /// A case that is wrong.
    pub(super) fn refused(case: &InvalidCase) -> CaseResult {
        CaseResult {
            name: case.name.clone(),
            place: case.location.to_string(),
            probes: 0,
            not_sent: 0,
            failures: Vec::new(),
            errors: case.errors.iter().map(ToString::to_string).collect(),
        }
    }

    /// Its outcome.
    pub(super) fn outcome(&self) -> Outcome {
        match (self.errors.len(), self.failures.len(), self.probes) {
            (1.., ..) => Outcome::Refused,
            (0, 1.., _) | (0, 0, 0) => Outcome::Failed,
            (0, 0, 1..) => Outcome::Passed,
        }
    }
}

impl Report {
    /// The sums of some results.
    pub(super) fn new(results: Vec<CaseResult>) -> Report {
        let (mut cases, mut probes) = (Tally::default(), Tally::default());
        for result in &results {
            let count = match result.outcome() {
                Outcome::Passed => &mut cases.passed,
                Outcome::Failed => &mut cases.failed,
                Outcome::Refused => {
                    cases.refused += 1;
                    probes.refused += result.probes;
                    continue;
                }
            };
            *count += 1;
            let failed = result.failures.len();
            probes.failed += failed;
            probes.not_sent += result.not_sent;
            probes.passed += result.probes - result.not_sent - failed;
        }
        Report { cases, probes, results }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for result in self.results.iter().filter(|result| result.outcome() != Outcome::Passed) {
            let name = printable::cut(&result.name, NAME_CHARS_MAX);
            let word = if result.outcome() == Outcome::Refused { "REFUSED" } else { "FAILED" };
            writeln!(f, "{word} {} ({})", printable::line(&name), result.place)?;
            result.errors.iter().try_for_each(|error| writeln!(f, "  {}", printable::line(error)))?;
            if result.outcome() == Outcome::Failed && result.failures.is_empty() {
                writeln!(f, "  {NO_PROBES}")?;
            }
            for failed in &result.failures {
                writeln!(f, "  {failed}")?;
                failed.text.lines().try_for_each(|line| writeln!(f, "    {line}"))?;
            }
            writeln!(f)?;
        }
        write!(f, "cases: {} passed, {} failed", self.cases.passed, self.cases.failed)?;
        match self.cases.refused {
            0 => writeln!(f)?,
            count => writeln!(f, ", {count} refused")?,
        }
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
