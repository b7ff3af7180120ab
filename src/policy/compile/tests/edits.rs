//! Random edits of existing policies and pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::arbitrary::*;
use crate::policy::objects::{
    ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, ContainerPort, LabelSelector, Labels,
    NetworkPolicy, NetworkPolicyRule, Object, Peers, Pod, PortMatch, Ports, Tier,
};
use crate::policy::store::{Change, ObjectName};

/// Edit of an existing policy.
#[derive(Debug, Clone)]
pub(super) enum Edit {
    /// Adds a rule to a direction.
    Insert(bool, u8, NetworkPolicyRule, ClusterRule),
    /// Removes a rule from a direction.
    Remove(bool, u8),
    /// Replaces a rule, with the same peers, the same ports, or neither.
    Replace(bool, u8, Kept, NetworkPolicyRule, ClusterRule),
    /// Reverses the rules of a direction.
    Reverse(bool),
    /// Removes a direction.
    Forget(bool),
    /// Replaces the pod selector or the namespace selector.
    Reselect(LabelSelector, bool),
    /// Changes tier and priority.
    Rank(Tier, u32),
    /// Copies the policy to another name.
    Copy(String),
    /// Removes and adds the policy in one step.
    Recreate,
    /// Removes the policy.
    Drop,
}

/// Edit of an existing pod. All other fields stay.
#[derive(Debug, Clone)]
pub(super) enum PodEdit {
    /// Replaces the labels.
    Relabel(Labels),
    /// Replaces the addresses.
    Readdress(Vec<IpAddr>),
    /// Replaces the ports.
    Expose(Vec<ContainerPort>),
    /// Moves the pod to another node.
    Move(Option<String>),
    /// Replaces the addresses of its node.
    Rehost(Vec<IpAddr>),
    /// Finishes the pod, or runs it again.
    Finish,
    /// Moves the pod to or from the host's network.
    Unnet,
    /// Removes and adds the pod in one step.
    Recreate,
    /// Finishes the pod and assigns its addresses to another one.
    HandOver(Box<Pod>),
}

/// Part of a replaced rule that stays.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kept {
    Peers,
    Ports,
    Nothing,
}

pub(super) fn edit() -> impl Strategy<Value = Edit> {
    let place = || (any::<bool>(), any::<u8>());
    prop_oneof![
        4 => (place(), edit_rules()).prop_map(|((is_in, at), (rule, cluster))| Edit::Insert(is_in, at, rule, cluster)),
        2 => place().prop_map(|(is_in, at)| Edit::Remove(is_in, at)),
        3 => (place(), select(&[Kept::Peers, Kept::Ports, Kept::Nothing][..]), edit_rules())
            .prop_map(|((is_in, at), kept, (rule, cluster))| Edit::Replace(is_in, at, kept, rule, cluster)),
        1 => any::<bool>().prop_map(Edit::Reverse),
        1 => any::<bool>().prop_map(Edit::Forget),
        1 => (selector(), any::<bool>()).prop_map(|(selector, of_pods)| Edit::Reselect(selector, of_pods)),
        1 => (select(&[Tier::Admin, Tier::Baseline][..]), 0..2_u32).prop_map(|(tier, at)| Edit::Rank(tier, at)),
        2 => name(&["a", "b", "c"]).prop_map(Edit::Copy),
        1 => Just(Edit::Recreate),
        1 => Just(Edit::Drop),
    ]
}

pub(super) fn pod_edit() -> impl Strategy<Value = PodEdit> {
    prop_oneof![
        2 => labels().prop_map(PodEdit::Relabel),
        2 => vec(address(), 0..3).prop_map(PodEdit::Readdress),
        2 => vec(container_port(), 0..3).prop_map(PodEdit::Expose),
        1 => prop::option::of(name(&["n1", "n2"])).prop_map(PodEdit::Move),
        1 => vec(address(), 0..2).prop_map(PodEdit::Rehost),
        1 => Just(PodEdit::Finish),
        1 => Just(PodEdit::Unnet),
        2 => Just(PodEdit::Recreate),
        1 => pod().prop_map(|pod| PodEdit::HandOver(Box::new(pod))),
    ]
}

/// Generates rules, more often than not static ones: only these carry over.
pub(super) fn edit_rules() -> impl Strategy<Value = (NetworkPolicyRule, ClusterRule)> {
    (rule(), cluster_rule(), vec(peer(), 1..3), scope(), any::<bool>()).prop_map(
        |(mut rule, mut cluster, peers, scope, is_static)| {
            if is_static {
                rule.peers = Peers::Any(peers);
                if let Ports::Any(ports) = &mut rule.ports {
                    ports.retain(|port| matches!(port, PortMatch::Range { .. }));
                }
                cluster.peers.retain(|peer| *peer != ClusterPeer::Everyone);
                cluster.peers.push(ClusterPeer::Pods(scope));
                cluster.ports.iter_mut().for_each(|ports| {
                    ports.retain(|port| matches!(port, ClusterPort::Range { .. }));
                });
            }
            (rule, cluster)
        },
    )
}

/// Converts an edit into changes, if a policy exists.
pub(super) fn edited(objects: &BTreeMap<ObjectName, Object>, which: u8, edit: Edit) -> Vec<Change> {
    let is_policy =
        |object: &&Object| matches!(object, Object::NetworkPolicy(_) | Object::ClusterNetworkPolicy(_));
    let policies: Vec<&Object> = objects.values().filter(is_policy).collect();
    let Some(&object) = policies.get(usize::from(which) % policies.len().max(1)) else { return Vec::new() };
    let removed = Change::Remove(ObjectName::of(object));
    match edit {
        Edit::Drop => return vec![removed],
        Edit::Recreate => return vec![removed, Change::Upsert(object.clone())],
        _ => {}
    }
    let mut object = object.clone();
    match &mut object {
        Object::NetworkPolicy(policy) => edit_network_policy(policy, edit),
        Object::ClusterNetworkPolicy(policy) => edit_cluster_policy(policy, edit),
        _ => unreachable!("only policies are edited"),
    }
    vec![Change::Upsert(object)]
}

/// Converts an edit into changes, if a pod exists.
pub(super) fn edited_pod(objects: &BTreeMap<ObjectName, Object>, which: u8, edit: PodEdit) -> Vec<Change> {
    let pods = objects.values().filter_map(|object| match object {
        Object::Pod(pod) => Some(pod),
        _ => None,
    });
    let pods: Vec<&Pod> = pods.collect();
    let Some(&pod) = pods.get(usize::from(which) % pods.len().max(1)) else { return Vec::new() };
    let mut pod = pod.clone();
    let mut changes = Vec::new();
    match edit {
        PodEdit::Relabel(labels) => pod.labels = labels,
        PodEdit::Readdress(addresses) => pod.addresses = addresses,
        PodEdit::Expose(ports) => pod.ports = ports,
        PodEdit::Move(node) => pod.node = node,
        PodEdit::Rehost(addresses) => pod.host_ips = addresses,
        PodEdit::Finish => pod.finished = !pod.finished,
        PodEdit::Unnet => pod.host_network = !pod.host_network,
        PodEdit::Recreate => {
            changes.push(Change::Remove(ObjectName::Pod(pod.name.clone())));
        }
        PodEdit::HandOver(carry_over) => {
            changes
                .push(Change::Upsert(Object::Pod(Pod { addresses: pod.addresses.clone(), ..*carry_over })));
            pod.finished = true;
        }
    }
    changes.push(Change::Upsert(Object::Pod(pod)));
    changes
}

pub(super) fn edit_network_policy(policy: &mut NetworkPolicy, edit: Edit) {
    match edit {
        Edit::Insert(is_in, at, rule, _) => {
            insert(of(is_in, &mut policy.ingress, &mut policy.egress).get_or_insert_default(), at, rule);
        }
        Edit::Remove(is_in, at) => drop(
            of(is_in, &mut policy.ingress, &mut policy.egress).as_mut().and_then(|rules| remove(rules, at)),
        ),
        Edit::Replace(is_in, at, kept, rule, _) => {
            let rules = of(is_in, &mut policy.ingress, &mut policy.egress).iter_mut();
            rules.for_each(|rules| {
                replace(rules, at, kept, rule.clone(), |rule| (&mut rule.peers, &mut rule.ports));
            });
        }
        Edit::Reverse(is_in) => {
            of(is_in, &mut policy.ingress, &mut policy.egress).iter_mut().for_each(|rules| rules.reverse());
        }
        Edit::Forget(is_in) => *of(is_in, &mut policy.ingress, &mut policy.egress) = None,
        Edit::Reselect(selector, _) => policy.pod_selector = selector,
        Edit::Copy(name) => policy.name = name,
        Edit::Rank(..) | Edit::Recreate | Edit::Drop => {}
    }
}

pub(super) fn edit_cluster_policy(policy: &mut ClusterNetworkPolicy, edit: Edit) {
    match edit {
        Edit::Insert(is_in, at, _, rule) => {
            insert(of(is_in, &mut policy.ingress, &mut policy.egress), at, rule);
        }
        Edit::Remove(is_in, at) => drop(remove(of(is_in, &mut policy.ingress, &mut policy.egress), at)),
        Edit::Replace(is_in, at, kept, _, rule) => {
            let rules = of(is_in, &mut policy.ingress, &mut policy.egress);
            replace(rules, at, kept, rule, |rule| (&mut rule.peers, &mut rule.ports));
        }
        Edit::Reverse(is_in) => of(is_in, &mut policy.ingress, &mut policy.egress).reverse(),
        Edit::Forget(is_in) => of(is_in, &mut policy.ingress, &mut policy.egress).clear(),
        Edit::Reselect(selector, true) => policy.subject.pods = selector,
        Edit::Reselect(selector, false) => policy.subject.namespaces = selector,
        Edit::Rank(tier, priority) => (policy.tier, policy.priority) = (tier, priority),
        Edit::Copy(name) => policy.name = name,
        Edit::Recreate | Edit::Drop => {}
    }
}

pub(super) fn of<'a, T>(is_in: bool, ingress: &'a mut T, egress: &'a mut T) -> &'a mut T {
    if is_in { ingress } else { egress }
}

pub(super) fn insert<T>(rules: &mut Vec<T>, at: u8, rule: T) {
    rules.insert(usize::from(at) % (rules.len() + 1), rule);
}

pub(super) fn remove<T>(rules: &mut Vec<T>, at: u8) -> Option<T> {
    (!rules.is_empty()).then(|| rules.remove(usize::from(at) % rules.len()))
}

pub(super) fn replace<T, Peers, Ports>(
    rules: &mut [T],
    at: u8,
    kept: Kept,
    mut rule: T,
    parts: impl Fn(&mut T) -> (&mut Peers, &mut Ports),
) {
    let len = rules.len().max(1);
    let Some(before) = rules.get_mut(usize::from(at) % len) else { return };
    match kept {
        Kept::Peers => std::mem::swap(parts(before).0, parts(&mut rule).0),
        Kept::Ports => std::mem::swap(parts(before).1, parts(&mut rule).1),
        Kept::Nothing => {}
    }
    *before = rule;
}
