//! Table evaluator: compiled rule tables with the names of their rules.

use super::flow_verdict::{FlowVerdict, SideVerdict};
use crate::net::flow::FlowKey;
use crate::tables::{Classifier, Decision, FlowDecision, RuleTables, TablesError, Verdict};

/// Rule tables and their classifier, which returns decisions with the names of their rules.
pub struct TableEvaluator {
    tables: RuleTables,
    classifier: Classifier,
}

impl TableEvaluator {
    /// Evaluator of these tables. Returns an error if they fail their check.
    pub fn new(tables: RuleTables) -> Result<TableEvaluator, TablesError> {
        let classifier = Classifier::new(&tables)?;
        Ok(TableEvaluator { tables, classifier })
    }

    /// Rule tables.
    pub fn tables(&self) -> &RuleTables {
        &self.tables
    }

    /// Classifier of the tables.
    pub fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// Verdict on a new connection, without rules.
    pub fn verdict(&self, flow: &FlowKey) -> Verdict {
        if self.classifier.decide_flow(flow).is_allow() { Verdict::Allow } else { Verdict::Deny }
    }

    /// Verdict on a new connection, with the rules that decide.
    pub fn evaluate(&self, flow: &FlowKey) -> FlowVerdict {
        self.named(self.classifier.decide_flow(flow))
    }

    /// Verdict on a new connection that a Service makes of a client's, with the rules that decide. A pod that reaches itself is
    /// subject to policies of the cluster (clause C16).
    pub fn evaluate_by_service(&self, flow: &FlowKey) -> FlowVerdict {
        if !self.classifier.is_to_itself(flow) {
            return self.evaluate(flow);
        }
        let FlowVerdict { egress, ingress } = self.named(self.classifier.decide_sides(flow));
        let applies = |side: &SideVerdict| side.origin.is_of_cluster_policy();
        FlowVerdict { egress: egress.filter(applies), ingress: ingress.filter(applies) }
    }

    fn named(&self, decision: FlowDecision) -> FlowVerdict {
        let name = |decision: Decision| SideVerdict {
            verdict: decision.verdict(),
            // The check of the tables has found a name for every decision.
            origin: self.tables.rules[&decision.rule()].clone(),
        };
        FlowVerdict { egress: decision.egress.map(name), ingress: decision.ingress.map(name) }
    }
}
