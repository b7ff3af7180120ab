//! The naive evaluator.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::flow_verdict::{FlowVerdict, SideVerdict};
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::objects::{
    ClusterNetworkPolicy, Labels, Namespace, NetworkPolicy, Node, Object, Pod, Tier,
};
use crate::tables::{Direction, PodName, PolicyKind, RuleOrigin, Verdict};

/// The objects as they stand, and nothing else.
#[derive(Debug, Default)]
pub struct ReferenceEvaluator<'a> {
    pods: BTreeMap<&'a PodName, &'a Pod>,
    namespaces: BTreeMap<&'a str, &'a Namespace>,
    nodes: BTreeMap<&'a str, &'a Node>,
    /// By namespace and name, which is the order in which they are looked at.
    pub(super) network_policies: BTreeMap<(&'a str, &'a str), &'a NetworkPolicy>,
    /// In the order of clauses C1 and C7.
    pub(super) cluster_policies: BTreeMap<(Tier, u32, &'a str, PolicyKind), &'a ClusterNetworkPolicy>,
}

/// The other end of a flow, as one pod's policies see it.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct PeerAddress<'a> {
    pub(in crate::policy) address: IpAddr,
    pub(in crate::policy) owner: AddressOwner<'a>,
}

/// Who has an address.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) enum AddressOwner<'a> {
    Pod(&'a Pod),
    Node(&'a Node),
    External,
}

/// One direction of a pod, and a flow that it is verdicts about.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct Query<'a> {
    pub(in crate::policy) pod: &'a Pod,
    pub(in crate::policy) direction: Direction,
    pub(in crate::policy) peer: PeerAddress<'a>,
    pub(in crate::policy) protocol: Protocol,
    pub(in crate::policy) dst_port: u16,
}

impl<'a> ReferenceEvaluator<'a> {
    /// An evaluator of these objects. Of two with one name the later is_live.
    pub fn new(objects: impl IntoIterator<Item = &'a Object>) -> ReferenceEvaluator<'a> {
        let mut evaluator = ReferenceEvaluator::default();
        for object in objects {
            evaluator.insert(object);
        }
        evaluator
    }

    fn insert(&mut self, object: &'a Object) {
        match object {
            Object::Pod(pod) => drop(self.pods.insert(&pod.name, pod)),
            Object::Namespace(namespace) => drop(self.namespaces.insert(&namespace.name, namespace)),
            Object::Node(node) => drop(self.nodes.insert(&node.name, node)),
            Object::NetworkPolicy(policy) => {
                self.network_policies.insert((&policy.namespace, &policy.name), policy);
            }
            Object::ClusterNetworkPolicy(policy) => {
                self.cluster_policies
                    .retain(|_, known| (known.kind, &known.name) != (policy.kind, &policy.name));
                let rank = (policy.tier, policy.priority, policy.name.as_str(), policy.kind);
                self.cluster_policies.insert(rank, policy);
            }
        }
    }

    /// Judges a new connection by its first packet. Clause E1: it passes where neither side denies it.
    pub fn evaluate(&self, flow: &FlowKey) -> FlowVerdict {
        if self.hairpin_pod(flow).is_some() {
            return FlowVerdict { egress: None, ingress: None };
        }
        FlowVerdict {
            egress: self.evaluate_claimants(flow, Direction::Egress).map(|(_, side_verdict)| side_verdict),
            ingress: self.evaluate_claimants(flow, Direction::Ingress).map(|(_, side_verdict)| side_verdict),
        }
    }

    /// Clause E7: the pod that is certainly both ends of a flow. Where several claim an address, it is only for a flow from
    /// that address to itself.
    pub fn hairpin_pod(&self, flow: &FlowKey) -> Option<&'a Pod> {
        match (self.pods_at(flow.src).as_slice(), self.pods_at(flow.dst).as_slice()) {
            ([source], [destination]) if source.name == destination.name => Some(source),
            ([source, ..], _) if flow.src == flow.dst => Some(source),
            _ => None,
        }
    }

    /// Clause L4: the pods that claim an end's address are all verdicts, in the order of their names. The first that denies
    /// has decided; where none does, the first.
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

    /// What the policies of one pod say of one direction. Clause L4: where several claim the peer's address, the flow passes
    /// only if it passes whoever it belongs to.
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

    /// Clauses L1, L2 and N3: pods without an address, finished pods and pods on the host's network are neither judged
    /// nor selected.
    pub fn is_live(pod: &Pod) -> bool {
        !pod.addresses.is_empty() && !pod.finished && !pod.host_network
    }

    /// The pods that claim an address, by name.
    pub fn pods_at(&self, address: IpAddr) -> Vec<&'a Pod> {
        let claims = |pod: &&Pod| ReferenceEvaluator::is_live(pod) && pod.addresses.contains(&address);
        self.pods.values().copied().filter(claims).collect()
    }

    /// The pod of this name, whether or not it is judged.
    pub fn pod(&self, name: &PodName) -> Option<&'a Pod> {
        self.pods.get(name).copied()
    }

    /// Pods that have an address and are not judged.
    pub fn exempt_pods_at(&self, address: IpAddr) -> impl Iterator<Item = &'a Pod> {
        let at = self.pods.values().copied().filter(move |pod| pod.addresses.contains(&address));
        at.filter(|pod| !ReferenceEvaluator::is_live(pod))
    }

    /// Everyone who claims an address; nobody, where nobody does.
    pub(in crate::policy) fn owners(&self, address: IpAddr) -> Vec<AddressOwner<'a>> {
        let mut owners = Vec::new();
        for pod in self.pods.values() {
            if ReferenceEvaluator::is_live(pod) && pod.addresses.contains(&address) {
                owners.push(AddressOwner::Pod(pod));
            }
        }
        for node in self.nodes.values() {
            if node.addresses.contains(&address) {
                owners.push(AddressOwner::Node(node));
            }
        }
        if owners.is_empty() { vec![AddressOwner::External] } else { owners }
    }

    /// Whose address it is, in words.
    pub fn display_owner(&self, address: IpAddr) -> String {
        let name = |owner: &AddressOwner<'_>| match owner {
            AddressOwner::Pod(pod) => format!("pod {}", pod.name),
            AddressOwner::Node(node) => format!("node {}", node.name),
            AddressOwner::External => "outside".to_owned(),
        };
        let names: Vec<String> = self.owners(address).iter().map(name).collect();
        format!("{} ({address})", names.join(" or "))
    }

    /// Clause S3: a namespace carries its name as a label, also where no object declares it.
    pub(in crate::policy) fn namespace_labels(&self, name: &str) -> Labels {
        let mut labels = self.namespaces.get(name).map(|found| found.labels.clone()).unwrap_or_default();
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
        labels
    }
}
