//! Reference evaluator: admin tier, `NetworkPolicy`, baseline tier.

use std::net::IpAddr;
use std::ops::Deref;

use super::flow_verdict::{FlowVerdict, SideVerdict};
use super::object_index::ObjectIndex;
use super::query::{PeerAddress, Query};
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::objects::{Object, Pod, Tier};
use crate::tables::{Direction, RuleOrigin, Verdict};

/// Evaluator that reads the objects directly.
#[derive(Debug)]
pub struct ReferenceEvaluator<'a> {
    objects: ObjectIndex<'a>,
}

impl<'a> Deref for ReferenceEvaluator<'a> {
    type Target = ObjectIndex<'a>;

    fn deref(&self) -> &ObjectIndex<'a> {
        &self.objects
    }
}

impl<'a> ReferenceEvaluator<'a> {
    /// Evaluator of these objects. Of two objects with one name the later one counts.
    pub fn new(objects: impl IntoIterator<Item = &'a Object>) -> ReferenceEvaluator<'a> {
        ReferenceEvaluator { objects: ObjectIndex::new(objects) }
    }

    /// Evaluates a new connection by its first packet. Clause E1: the flow passes unless a side denies it.
    pub fn evaluate(&self, flow: &FlowKey) -> FlowVerdict {
        if self.hairpin_pod(flow).is_some() {
            return FlowVerdict { egress: None, ingress: None };
        }
        FlowVerdict {
            egress: self.evaluate_claimants(flow, Direction::Egress).map(|(_, side_verdict)| side_verdict),
            ingress: self.evaluate_claimants(flow, Direction::Ingress).map(|(_, side_verdict)| side_verdict),
        }
    }

    /// Clause L4: evaluates all pods that claim the address of one side, by name. The first pod that denies
    /// decides; if none denies, the first pod.
    pub(in crate::policy) fn evaluate_claimants(
        &self,
        flow: &FlowKey,
        direction: Direction,
    ) -> Option<(&'a Pod, SideVerdict)> {
        let (own, peer) = match direction {
            Direction::Egress => (flow.src, flow.dst),
            Direction::Ingress => (flow.dst, flow.src),
        };
        let evaluate =
            |pod: &'a Pod| (pod, self.evaluate_direction(pod, direction, peer, flow.protocol, flow.dst_port));
        let verdicts: Vec<(&Pod, SideVerdict)> = self.pods_at(own).into_iter().map(evaluate).collect();
        let denying = verdicts.iter().position(|(_, side_verdict)| side_verdict.verdict == Verdict::Deny);
        verdicts.into_iter().nth(denying.unwrap_or(0))
    }

    /// Evaluates one direction of a pod. Clause L4: if several owners claim the peer address, the flow passes
    /// only if it passes for each of them.
    pub fn evaluate_direction(
        &self,
        pod: &Pod,
        direction: Direction,
        peer: IpAddr,
        protocol: Protocol,
        dst_port: u16,
    ) -> SideVerdict {
        let mut first = None;
        for owner in self.owners(peer) {
            let peer = PeerAddress { address: peer, owner };
            let side_verdict = self.decide(&Query { pod, direction, peer, protocol, dst_port });
            if side_verdict.verdict == Verdict::Deny {
                return side_verdict;
            }
            first = first.or(Some(side_verdict));
        }
        first.unwrap_or_else(|| unreachable!("an address is at least nobody's"))
    }

    /// Clauses C1 to C5: admin tier, then `NetworkPolicy`, then baseline tier, then allow.
    fn decide(&self, query: &Query<'_>) -> SideVerdict {
        self.evaluate_tier(Tier::Admin, query)
            .or_else(|| self.evaluate_network_policies(query))
            .or_else(|| self.evaluate_tier(Tier::Baseline, query))
            .unwrap_or(SideVerdict {
                verdict: Verdict::Allow,
                origin: RuleOrigin::NotIsolated { direction: query.direction },
            })
    }
}
