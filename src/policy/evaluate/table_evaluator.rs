//! Table evaluator: compiled rule tables with the names of their rules.

use super::flow_verdict::{FlowVerdict, SideVerdict};
use crate::net::flow::FlowKey;
use crate::tables::{Classifier, Decision, RuleTables, TablesError, Verdict};

/// Rule tables as the workers ask them, with names for what they decide.
pub struct TableEvaluator {
    tables: RuleTables,
    classifier: Classifier,
}

impl TableEvaluator {
    /// A evaluate by these tables, if they are whole.
    pub fn new(tables: RuleTables) -> Result<TableEvaluator, TablesError> {
        let classifier = Classifier::new(&tables)?;
        Ok(TableEvaluator { tables, classifier })
    }

    /// The tables.
    pub fn tables(&self) -> &RuleTables {
        &self.tables
    }

    /// The classifier of the tables.
    pub fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// The verdict on a new connection, without the reasons.
    pub fn verdict(&self, flow: &FlowKey) -> Verdict {
        if self.classifier.decide_flow(flow).is_allow() { Verdict::Allow } else { Verdict::Deny }
    }

    /// The verdict on a new connection, with the reasons.
    pub fn evaluate(&self, flow: &FlowKey) -> FlowVerdict {
        let decision = self.classifier.decide_flow(flow);
        let name = |decision: Decision| SideVerdict {
            verdict: decision.verdict(),
            // The check of the tables found a name for every decision.
            origin: self.tables.rules[&decision.rule()].clone(),
        };
        FlowVerdict { egress: decision.egress.map(name), ingress: decision.ingress.map(name) }
    }
}
