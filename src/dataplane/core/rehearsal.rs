//! Candidate tables: flows judged by them and by the tables in force, without enforcement.

use std::sync::Arc;

use super::Core;
use crate::dataplane::conntrack::Side;
use crate::dataplane::fib::effective_acls::Flow;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::{DesiredState, path};
use crate::ids::Generation;
use crate::net::flow::FlowKey;
use crate::tables::{RuleOrigin, RuleTables, Verdict};

/// Tables that are not in force, laid out for the ports and pods of one moment.
pub struct Candidate {
    snapshot: Snapshot,
    /// Last generation with other ports, pods or routes.
    layout_generation: Generation,
}

/// Verdict on a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Verdict.
    pub verdict: Verdict,
    /// Origin of the decisive entry; `None` where a pod is closed because no table knows it.
    pub decided_by: Option<RuleOrigin>,
}

/// Flow on which the tables in force and candidate tables differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Original direction of the flow.
    pub key: FlowKey,
    /// Verdict of the tables in force.
    pub enforced: Judgement,
    /// Verdict of the candidate.
    pub candidate: Judgement,
}

impl Core {
    /// Lays out candidate tables for the ports and pods of this moment. The tables have passed their check.
    pub(in crate::dataplane) fn candidate(&self, tables: Arc<RuleTables>) -> Candidate {
        let (desired, ports, current) = {
            let state = self.state();
            (state.desired.clone(), state.ports.clone(), self.shared.snapshot.current())
        };
        let desired = DesiredState { tables: Some(tables), ..DesiredState::clone(&desired) };
        // Nothing counts its decisions.
        let snapshot = Snapshot::new(&desired, current.generation, &ports, 1);
        Candidate { snapshot, layout_generation: current.layout_generation }
    }

    /// Whether the ports, pods and routes are those of the candidate.
    pub(in crate::dataplane) fn fits(&self, candidate: &Candidate) -> bool {
        self.shared.snapshot.current().layout_generation == candidate.layout_generation
    }

    /// Judges a flow by the tables in force and by a candidate. Returns their difference, if there is one.
    pub(in crate::dataplane) fn judge(&self, candidate: &Candidate, key: &FlowKey) -> Option<Disagreement> {
        disagreement(&self.shared.snapshot.current(), candidate, key, None)
    }

    /// Judges all flows of the conntrack table, and calls `differs` for those on which verdicts differ. Returns the number of
    /// flows.
    pub(in crate::dataplane) fn judge_flows(
        &self,
        candidate: &Candidate,
        differs: &mut dyn FnMut(Disagreement),
    ) -> u64 {
        let snapshot = self.shared.snapshot.current();
        let mut judged = 0;
        self.shared.conntrack.for_each(|_, key, entry| {
            judged += 1;
            let flow_word = entry.flow_word(true);
            let flow = key.flow(flow_word.side(true) == Side::Initiator);
            let by_node_socket = Some(flow_word.is_by_node_socket());
            disagreement(&snapshot, candidate, &flow, by_node_socket).map(&mut *differs);
            true
        });
        judged
    }
}

/// Difference of the verdicts on a flow. `by_node_socket`: whether a socket of the node has opened it; `None` for a new one.
fn disagreement(
    snapshot: &Snapshot,
    candidate: &Candidate,
    key: &FlowKey,
    by_node_socket: Option<bool>,
) -> Option<Disagreement> {
    let new = path::new_flow(snapshot, key);
    let flow = Flow { by_node_socket: by_node_socket.unwrap_or(new.by_node_socket), ..new };
    let (enforced, other) = (path::verdict(snapshot, &flow)?, path::verdict(&candidate.snapshot, &flow)?);
    let judgement = |(verdict, origin): (_, Option<&RuleOrigin>)| Judgement {
        verdict,
        decided_by: origin.map(RuleOrigin::brief),
    };
    (enforced.0 != other.0).then(|| Disagreement {
        key: *key,
        enforced: judgement(enforced),
        candidate: judgement(other),
    })
}
