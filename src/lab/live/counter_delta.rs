//! Packets that the switch counts while a case runs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::control::protocol::CountersReport;
use crate::tables::Verdict;

/// Packets that the switch counted while a case ran.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CounterDelta {
    /// Denied packets by the origin of the decision.
    pub denied: BTreeMap<String, u64>,
    /// Dropped packets on all ports by reason.
    pub dropped: BTreeMap<String, u64>,
}

impl CounterDelta {
    /// Subtracts the counters before a case from those after it.
    pub(super) fn between(before: &CountersReport, after: &CountersReport) -> CounterDelta {
        CounterDelta {
            denied: grown(&denied(before), denied(after)),
            dropped: grown(&dropped(before), dropped(after)),
        }
    }
}

fn denied(counters: &CountersReport) -> BTreeMap<String, u64> {
    let denials = counters.decisions.iter().filter(|decision| decision.verdict == Verdict::Deny);
    sums(denials.map(|denial| (denial.origin.to_string(), denial.packets)))
}

fn dropped(counters: &CountersReport) -> BTreeMap<String, u64> {
    sums(counters.ports.values().flat_map(|port| port.drops.clone()))
}

fn sums(counts: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    counts.fold(BTreeMap::new(), |mut sums, (what, packets)| {
        *sums.entry(what).or_default() += packets;
        sums
    })
}

fn grown(before: &BTreeMap<String, u64>, after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let less = |(what, packets): (String, u64)| {
        let packets = packets.saturating_sub(before.get(&what).copied().unwrap_or(0));
        (packets > 0).then_some((what, packets))
    };
    after.into_iter().filter_map(less).collect()
}

impl fmt::Display for CounterDelta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = 0;
        for (what, packets) in &self.denied {
            writeln!(f, "{packets} denied: {what}")?;
            lines += 1;
        }
        for (reason, packets) in &self.dropped {
            writeln!(f, "{packets} dropped: {reason}")?;
            lines += 1;
        }
        if lines == 0 { writeln!(f, "no packet denied, none dropped") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_grew_is_told() {
        let counts =
            |list: &[(&str, u64)]| sums(list.iter().map(|(what, count)| ((*what).to_owned(), *count)));
        let dropped = grown(&counts(&[("a", 2), ("b", 3)]), counts(&[("a", 2), ("b", 5), ("c", 1)]));
        let counted = CounterDelta { denied: BTreeMap::new(), dropped };
        assert_eq!(counted.to_string(), "2 dropped: b\n1 dropped: c\n");
        assert_eq!(CounterDelta::default().to_string(), "no packet denied, none dropped\n");
    }
}
