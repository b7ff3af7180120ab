//! What a demo came to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lab::traffic::{Latency, Outcome, Throughput};
use crate::tables::RuleOrigin;

/// By pod that connects, then by `pod:port` connected to: what became of it.
pub type Matrix = BTreeMap<String, BTreeMap<String, Outcome>>;

/// The whole demo.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In the order in which they were played.
    pub steps: Vec<Step>,
    /// Connections that became something else than expected.
    pub mismatches: usize,
    /// Workers of the switch.
    pub workers: u16,
    /// Frames that each worker took, by its number.
    pub frames_by_worker: BTreeMap<String, u64>,
    /// One message after the other, there and back, through the switch.
    pub latency: Latency,
    /// One connection through the switch.
    pub throughput: Throughput,
    /// The whole, from the first namespace on.
    pub seconds: f64,
}

/// One state of policy, and the connections tried in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it is.
    pub name: String,
    /// What the scenario says.
    pub expected: Matrix,
    /// What happened.
    pub seen: Matrix,
    /// What the switch counted meanwhile as denied.
    pub denied: Vec<Denied>,
}

/// Packets that one decision dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// How many.
    pub packets: u64,
    /// What decided, in words.
    pub by: String,
    /// What decided.
    pub origin: RuleOrigin,
}

impl Step {
    /// Connections that became something else than expected.
    pub fn mismatches(&self) -> usize {
        let seen = |from: &str, to: &str| self.seen.get(from).and_then(|row| row.get(to));
        let expected = self
            .expected
            .iter()
            .flat_map(|(from, row)| row.iter().map(move |(to, outcome)| (from, to, outcome)));
        expected.filter(|(from, to, outcome)| seen(from, to) != Some(outcome)).count()
    }
}
