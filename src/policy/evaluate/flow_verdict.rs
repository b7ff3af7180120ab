//! Findings: what is said of a flow, whoever says it, and the tables as one who says it.

use serde::Serialize;

use crate::net::flow::FlowKey;
use crate::tables::{Classifier, Decision, RuleOrigin, RuleTables, TablesError, Verdict};

/// What one side of a flow says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SideVerdict {
    /// Whether it lets the flow pass.
    pub verdict: Verdict,
    /// Why.
    pub origin: RuleOrigin,
}

/// What both sides of a flow say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlowVerdict {
    /// The source, if it is a pod that policy judges.
    pub egress: Option<SideVerdict>,
    /// The destination, if it is a pod that policy judges.
    pub ingress: Option<SideVerdict>,
}

impl FlowVerdict {
    /// Whether the flow passes: no side denies it.
    pub fn verdict(&self) -> Verdict {
        let denies =
            |side: &Option<SideVerdict>| side.as_ref().is_some_and(|side| side.verdict == Verdict::Deny);
        if denies(&self.egress) || denies(&self.ingress) { Verdict::Deny } else { Verdict::Allow }
    }
}

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
