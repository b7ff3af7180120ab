//! Results of a test run, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::lab::live::CounterDelta;
use crate::net::flow::Protocol;
use crate::policy::explain::Explanation;
use crate::policy::parse::Location;
use crate::policy::testcase::{Case, InvalidCase, Probe};
use crate::printable;
use crate::tables::Verdict;

/// Most characters of a case's name to show.
const NAME_CHARS_MAX: usize = 200;

/// Error of a case without probes.
pub(super) const NO_PROBES: &str =
    "the case has no probes, so it tests nothing: add a connection under probes";

/// Reason for which a probe is not sent.
pub(super) const NOT_SENT: &str = "no host, or no single one, can have one of the addresses";

/// Numbers of passed, failed and other items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Items with the expected result.
    pub(super) passed: usize,
    /// Items with another result, and cases without probes.
    pub(super) failed: usize,
    /// Items of invalid cases, which are not tried.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) refused: usize,
    /// Probes that are not sent, because no real host, or no single one, can have one of the addresses.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) not_sent: usize,
}

/// Results of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Numbers of cases. A case fails if one of its probes fails.
    pub(super) cases: Tally,
    /// Numbers of probes.
    pub(super) probes: Tally,
    /// Results by case.
    pub(super) results: Vec<CaseResult>,
}

/// Result of a case.
#[derive(Debug, Serialize)]
pub(super) struct CaseResult {
    /// Name of the case.
    pub(super) name: String,
    /// Location of the case, `file:line`.
    pub(super) place: String,
    /// Number of its probes.
    pub(super) probes: usize,
    /// Its probes: location, and connection as text.
    #[serde(skip)]
    pub(super) connections: Vec<(Location, String)>,
    /// Numbers of the probes that are not sent, because no real host, or no single one, can have one of the addresses.
    #[serde(skip_serializing_if = "BTreeSet::is_empty", serialize_with = "count")]
    pub(super) not_sent: BTreeSet<usize>,
    /// Probes that failed, in their order.
    pub(super) failures: Vec<Failed>,
    /// Errors of an invalid case, which is not tried.
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

/// Probe with another result than expected.
#[derive(Debug, Serialize)]
pub(super) struct Failed {
    /// Number of the probe in its case.
    #[serde(skip)]
    pub(super) number: usize,
    /// Location of the probe, `file:line`.
    pub(super) place: String,
    /// Source, as in the probe's `from`.
    pub(super) from: String,
    /// Destination, as in the probe's `to`.
    pub(super) to: String,
    /// Protocol of the probe.
    pub(super) protocol: Protocol,
    /// Destination port of the probe.
    pub(super) port: u16,
    /// Expected verdict.
    pub(super) expected: Verdict,
    /// Actual verdict. `None` for an error other than policy.
    pub(super) got: Option<Verdict>,
    /// Real connection, with --live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seen: Option<Seen>,
    /// Explanation of the tables' decision; none for a Service without backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) explanation: Option<Explanation>,
    /// Explanation as text.
    #[serde(skip)]
    pub(super) text: String,
}

/// Real connection.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    /// Outcome of the connection.
    pub(super) outcome: crate::lab::traffic::Outcome,
    /// Counters of the switch that moved during the case.
    pub(super) counted: CounterDelta,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn count<S: Serializer>(numbers: &BTreeSet<usize>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(numbers.len() as u64)
}

impl CaseResult {
    /// Creates the result of a case without failures.
    pub(super) fn new(case: &Case) -> CaseResult {
        let place = case.location.to_string();
        CaseResult {
            name: case.name.clone(),
            place,
            probes: case.probes.len(),
            connections: case
                .probes
                .iter()
                .map(|probe| (probe.location.clone(), connection(probe)))
                .collect(),
            not_sent: BTreeSet::new(),
            failures: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Creates the result of an invalid case.
    pub(super) fn refused(case: &InvalidCase) -> CaseResult {
        CaseResult {
            name: case.name.clone(),
            place: case.location.to_string(),
            probes: 0,
            connections: Vec::new(),
            not_sent: BTreeSet::new(),
            failures: Vec::new(),
            errors: case.errors.iter().map(ToString::to_string).collect(),
        }
    }

    /// Outcome of the case.
    pub(super) fn outcome(&self) -> Outcome {
        match (self.errors.len(), self.failures.len(), self.probes) {
            (1.., ..) => Outcome::Refused,
            (0, 1.., _) | (0, 0, 0) => Outcome::Failed,
            (0, 0, 1..) => Outcome::Passed,
        }
    }
}

impl Report {
    /// Sums up results.
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
            probes.not_sent += result.not_sent.len();
            probes.passed += result.probes - result.not_sent.len() - failed;
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
                writeln!(f, "  {}", result.heading(failed))?;
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
                writeln!(f, ", {count} not sent ({NOT_SENT})")
            }
        }
    }
}

/// Connection of a probe: `TCP from shop/web to shop/db port 5432`.
fn connection(probe: &Probe) -> String {
    let Probe { from, to, protocol, port, .. } = probe;
    let port = if protocol.has_ports() { format!(" port {port}") } else { String::new() };
    format!("{protocol} from {from} to {to}{port}")
}

impl Failed {
    /// Expected and actual verdict: `expected allow, got deny`.
    pub(super) fn verdicts(&self) -> String {
        let word = |verdict| format!("{verdict:?}").to_lowercase();
        let got = self.got.map_or("an error".to_owned(), word);
        format!("expected {}, got {got}", word(self.expected))
    }
}

impl CaseResult {
    /// Heading of a failure: location, connection and verdicts.
    pub(super) fn heading(&self, failed: &Failed) -> String {
        format!("{}: {}: {}", failed.place, self.connections[failed.number].1, failed.verdicts())
    }
}
