//! Explanations from the tables of a running switch, which hold no labels: the rule that decided, and what else the same
//! tables let pass between the two ends.

use std::fmt;

use serde::Serialize;

use crate::ids::ClassId;
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::describe;
use crate::policy::finding::{Finding, Judge};
use crate::tables::{Decision, Direction, PodName, Row, RuleOrigin, Verdict};

/// Why the loaded tables allow or deny a flow.
#[derive(Debug, Clone, Serialize)]
pub struct LoadedExplanation {
    /// The flow.
    pub flow: FlowKey,
    /// The verdict.
    pub verdict: Verdict,
    /// By the egress table of the source, if the tables know that pod.
    pub egress: Option<LoadedSide>,
    /// By the ingress table of the destination, if the tables know that pod.
    pub ingress: Option<LoadedSide>,
}

/// What one table says.
#[derive(Debug, Clone, Serialize)]
pub struct LoadedSide {
    /// The pod.
    pub pod: PodName,
    /// The direction.
    pub direction: Direction,
    /// The verdict.
    pub verdict: Verdict,
    /// What decided.
    pub decided_by: RuleOrigin,
    /// The same in words.
    pub reason: String,
    /// Class of the other end.
    pub peer_class: ClassId,
    /// Everything that the table says of that class, ports by ports, and of everything else last.
    pub row: Vec<Span>,
}

/// Ports with one decision.
#[derive(Debug, Clone, Serialize)]
pub struct Span {
    /// `TCP 80-90`, or `everything else`.
    pub ports: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What decides.
    pub reason: String,
}

/// Explains a flow by the tables.
pub fn explain(judge: &Judge, flow: &FlowKey) -> LoadedExplanation {
    let answer = judge.answer(flow);
    let side = |finding: &Option<Finding>, direction| {
        let (own, peer) = match direction {
            Direction::Egress => (flow.src, flow.dst),
            Direction::Ingress => (flow.dst, flow.src),
        };
        let (finding, classifier) = (finding.as_ref()?, judge.classifier());
        let peer_class = classifier.class(peer);
        let acl_of = |pod: &PodName| {
            let policy = &judge.tables().pods[pod];
            if direction == Direction::Egress { policy.egress } else { policy.ingress }
        };
        // Of several pods that claim the address, the first whose table says what was decided.
        let decides = |pod: &&PodName| {
            let decision = classifier.decide(acl_of(pod), peer_class, flow.protocol, flow.dst_port);
            decision.verdict() == finding.verdict
        };
        let pod = classifier.pods_at(own).find(decides)?.clone();
        let acl = acl_of(&pod);
        let row = &judge.tables().rows[&judge.tables().acls[&acl].row(peer_class)];
        Some(LoadedSide {
            pod,
            direction,
            verdict: finding.verdict,
            decided_by: finding.origin.clone(),
            reason: finding.origin.to_string(),
            peer_class,
            row: spans(judge, row),
        })
    };
    LoadedExplanation {
        flow: *flow,
        verdict: answer.verdict(),
        egress: side(&answer.egress, Direction::Egress),
        ingress: side(&answer.ingress, Direction::Ingress),
    }
}

fn spans(judge: &Judge, row: &Row) -> Vec<Span> {
    let span = |ports: String, decision: Decision| Span {
        ports,
        verdict: decision.verdict(),
        reason: judge.tables().rules[&decision.rule()].to_string(),
    };
    let protocols = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];
    let listed = protocols.into_iter().flat_map(|protocol| {
        let spans = row.spans(protocol).iter();
        spans.map(move |found| (describe::ports(protocol, found.first, found.last), found.decision))
    });
    let rest =
        (if row.decisions().count() == 1 { "everything" } else { "everything else" }.to_owned(), row.other);
    listed.chain([rest]).map(|(ports, decision)| span(ports, decision)).collect()
}

impl fmt::Display for LoadedExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", word(self.verdict), self.flow)?;
        if self.egress.is_none() && self.ingress.is_none() {
            return writeln!(
                f,
                "  neither table is asked: no end is a pod of the loaded tables, or both are the same"
            );
        }
        self.egress.iter().chain(&self.ingress).try_for_each(|side| side.fmt(f))
    }
}

impl fmt::Display for LoadedSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {} of {}: {}: {}", self.direction, self.pod, word(self.verdict), self.reason)?;
        writeln!(f, "    the table on addresses like the other end (class {}):", self.peer_class)?;
        self.row
            .iter()
            .try_for_each(|span| writeln!(f, "      {}: {}: {}", span.ports, word(span.verdict), span.reason))
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}
