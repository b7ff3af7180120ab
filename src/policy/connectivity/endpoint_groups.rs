//! Endpoint groups: all addresses, divided into groups that no policy tells apart, by one or several sets of
//! tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::prefix_regions::{Key, regions};
use crate::ids::{AclId, ClassId};
use crate::policy::evaluate::TableEvaluator;
use crate::tables::PodName;

/// Number of address families: index 0 is IPv4, index 1 is IPv6.
pub(super) const FAMILIES: usize = 2;

/// Grouping of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// Pods that no policy tells apart form one group.
    ByPolicy,
    /// Each pod forms a group.
    ByPod,
}

/// Treatment of a group by one set of tables, in one family.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPolicy {
    /// Class of the addresses.
    pub class: ClassId,
    /// Egress and ingress ACL tables of the pods that claim the address; empty for external addresses.
    pub acls: Vec<(AclId, AclId)>,
}

/// Treatment of a group by every set of tables: by table, then family. `None` if the group has no address
/// there.
type EndpointPolicies = Vec<[Option<EndpointPolicy>; FAMILIES]>;

/// Addresses that no policy tells apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointGroup {
    /// Members of the group.
    pub kind: GroupMembers,
    /// Treatment by table, then family. `None` if the group has no address there.
    pub policies: Vec<[Option<EndpointPolicy>; 2]>,
}

/// Members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupMembers {
    /// Pods, sorted.
    Pods(Vec<PodName>),
    /// External addresses: prefixes, as text.
    External(Vec<String>),
}

/// All groups of some tables.
#[derive(Debug, Clone)]
pub struct EndpointGroups {
    /// Groups, pods first.
    pub groups: Vec<EndpointGroup>,
}

impl EndpointGroups {
    /// Divides all addresses by several sets of tables together.
    pub fn of(evaluators: &[&TableEvaluator], grouping: Grouping) -> EndpointGroups {
        let mut groups = pods(evaluators, grouping);
        groups.extend(outside(evaluators));
        EndpointGroups { groups }
    }
}

fn pods(evaluators: &[&TableEvaluator], grouping: Grouping) -> Vec<EndpointGroup> {
    let names: BTreeSet<&PodName> =
        evaluators.iter().flat_map(|evaluator| evaluator.tables().pods.keys()).collect();
    let mut groups: BTreeMap<(Option<&PodName>, EndpointPolicies), BTreeSet<PodName>> = BTreeMap::new();
    for name in names {
        let own = (grouping == Grouping::ByPod).then_some(name);
        for policies in policies_of(evaluators, name) {
            groups.entry((own, policies)).or_default().insert(name.clone());
        }
    }
    let group = |((_, policies), pods): ((_, EndpointPolicies), BTreeSet<PodName>)| EndpointGroup {
        kind: GroupMembers::Pods(pods.into_iter().collect()),
        policies,
    };
    let mut groups: Vec<EndpointGroup> = groups.into_iter().map(group).collect();
    groups.sort_by(|a, b| first_pod(a).cmp(&first_pod(b)));
    groups
}

fn first_pod(group: &EndpointGroup) -> Option<&PodName> {
    match &group.kind {
        GroupMembers::Pods(pods) => pods.first(),
        GroupMembers::External(_) => None,
    }
}

/// Treatment of a pod; several entries if its addresses of one family differ in class.
fn policies_of(evaluators: &[&TableEvaluator], name: &PodName) -> BTreeSet<EndpointPolicies> {
    let addresses: Vec<[Vec<IpAddr>; FAMILIES]> = evaluators
        .iter()
        .map(|evaluator| {
            let all = evaluator.tables().pods.get(name).map_or(&[][..], |pod| &pod.addresses);
            let (v4, v6) = all.iter().partition(|address| address.is_ipv4());
            [v4, v6]
        })
        .collect();
    let most = addresses.iter().flatten().map(Vec::len).max().unwrap_or(0).max(1);
    let policy = |evaluator: &TableEvaluator, list: &[IpAddr], at: usize| {
        let address = list.get(at).or(list.last())?;
        let classifier = evaluator.classifier();
        let claimants = classifier.pods_at(*address).filter_map(|pod| classifier.pod(pod));
        let mut acls: Vec<_> = claimants.map(|acls| (acls.egress, acls.ingress)).collect();
        acls.sort_unstable();
        acls.dedup();
        Some(EndpointPolicy { class: classifier.class(*address), acls })
    };
    let at = |at: usize| {
        let by_table = evaluators.iter().zip(&addresses);
        by_table.map(|(evaluator, [v4, v6])| [policy(evaluator, v4, at), policy(evaluator, v6, at)]).collect()
    };
    (0..most).map(at).collect()
}

fn outside(evaluators: &[&TableEvaluator]) -> Vec<EndpointGroup> {
    let prefixes: BTreeSet<IpNet> =
        evaluators.iter().flat_map(|evaluator| evaluator.tables().prefixes.keys().copied()).collect();
    let pods = evaluators.iter().flat_map(|evaluator| evaluator.tables().pods.values());
    let pods: BTreeSet<IpAddr> = pods.flat_map(|pod| pod.addresses.iter().copied()).collect();
    let classifiers: Vec<_> = evaluators.iter().map(|evaluator| evaluator.classifier()).collect();
    let mut found: BTreeMap<Key, [Vec<String>; FAMILIES]> = BTreeMap::new();
    // Both texts are valid prefixes.
    for (family, root) in ["0.0.0.0/0", "::/0"].map(|text| text.parse().unwrap()).into_iter().enumerate() {
        for (key, texts) in regions(root, &prefixes, &pods, &classifiers) {
            found.entry(key).or_default()[family] = texts;
        }
    }
    let group = |(key, texts): (Key, [Vec<String>; FAMILIES])| {
        let policy = |class: ClassId, family: usize| {
            (!texts[family].is_empty()).then_some(EndpointPolicy { class, acls: Vec::new() })
        };
        let policies = key.iter().map(|&class| [policy(class, 0), policy(class, 1)]).collect();
        EndpointGroup { kind: GroupMembers::External(texts.concat()), policies }
    };
    found.into_iter().map(group).collect()
}
