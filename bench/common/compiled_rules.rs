//! Rule tables of the simulated node: as a document, and compiled.

use std::ops::RangeInclusive;
use std::sync::Arc;

use palisade::tables::{Classifier, RuleTables};

use super::random::{Random, SEED};
use super::rule_tables::rule_tables;

/// Pods of the simulated node, each behind a port of its own.
pub(crate) const PODS: u16 = 16;
/// Ports that rule 0 opens to all peers, so that the same flows pass under every number of rules.
pub(crate) const OPEN_PORTS: RangeInclusive<u16> = 40_000..=49_999;

/// Rules, as a document and compiled.
pub(crate) struct CompiledRules {
    pub(crate) document: Arc<RuleTables>,
    /// Classifier that tells allowed flows from denied ones before the measurement.
    pub(crate) classifier: Classifier,
}

impl CompiledRules {
    /// Makes tables of this many rules.
    pub(crate) fn new(rules: usize) -> CompiledRules {
        let document = Arc::new(rule_tables(rules, Some(&OPEN_PORTS), &mut Random(SEED)));
        let classifier = Classifier::new(&document).expect("the tables are whole");
        CompiledRules { document, classifier }
    }
}
