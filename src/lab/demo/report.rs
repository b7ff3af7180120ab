//! Report of the demonstration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lab::traffic::{Latency, Outcome, Throughput};
use crate::tables::RuleOrigin;

/// Outcomes by source pod, then by destination `pod:port`.
pub type Matrix = BTreeMap<String, BTreeMap<String, Outcome>>;

/// Report of the whole demonstration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Steps in their order.
    pub steps: Vec<Step>,
    /// Connections with another outcome than expected.
    pub mismatches: usize,
    /// Workers of the switch.
    pub workers: u16,
    /// Received frames by worker.
    pub frames_by_worker: BTreeMap<String, u64>,
    /// Round trips of single messages through the switch.
    pub latency: Latency,
    /// Throughput of one connection through the switch.
    pub throughput: Throughput,
    /// Duration of the whole, seconds.
    pub seconds: f64,
}

/// A state of policy, and the connections tried in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the step.
    pub name: String,
    /// Outcomes by the scenario.
    pub expected: Matrix,
    /// Outcomes observed.
    pub seen: Matrix,
    /// Packets that the switch denied meanwhile.
    pub denied: Vec<Denied>,
}

/// Packets denied by one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// Number of packets.
    pub packets: u64,
    /// Origin of the decision, in words.
    pub by: String,
    /// Origin of the decision.
    pub origin: RuleOrigin,
}

impl Step {
    /// Counts the connections with another outcome than expected.
    pub fn mismatches(&self) -> usize {
        let seen = |from: &str, to: &str| self.seen.get(from).and_then(|row| row.get(to));
        let expected = self
            .expected
            .iter()
            .flat_map(|(from, row)| row.iter().map(move |(to, outcome)| (from, to, outcome)));
        expected.filter(|(from, to, outcome)| seen(from, to) != Some(outcome)).count()
    }
}
