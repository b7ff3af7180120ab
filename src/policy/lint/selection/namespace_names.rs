//! Check of selectors that ask for the name of a namespace by another label than `kubernetes.io/metadata.name`.

use crate::nearest::nearest;
use crate::policy::evaluate::{cluster_tiers, isolation};
use crate::policy::lint::finding::{Check, LintFinding};
use crate::policy::lint::objects::{LintObjects, peer_list};
use crate::policy::objects::{ClusterPeer, LabelSelector, NAMESPACE_NAME_LABEL, Peer, Peers, Requirement};
use crate::tables::{Direction, PolicyRef};

pub(in crate::policy::lint) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    let mut check = |policy: PolicyRef, path: String, selector: &LabelSelector| {
        if let Some((key, name)) = misnamed(objects, selector) {
            let message = format!(
                "no namespace has the label {key}: to select namespace {name}, write {NAMESPACE_NAME_LABEL}: {name}"
            );
            found.push(LintFinding {
                policy: policy.into(),
                path,
                check: Check::NameLabelOfNamespace,
                message,
            });
        }
    };
    for direction in [Direction::Ingress, Direction::Egress] {
        let list = peer_list(direction);
        for policy in &objects.network {
            for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
                let Peers::Any(peers) = &rule.peers else { continue };
                for (at, peer) in peers.iter().enumerate() {
                    if let Peer::Pods { namespaces: Some(namespaces), .. } = peer {
                        let path = format!("spec.{direction}[{index}].{list}[{at}].namespaceSelector");
                        check(isolation::name(policy), path, namespaces);
                    }
                }
            }
        }
        for policy in &objects.cluster {
            for (index, rule) in cluster_tiers::rules(policy, direction).iter().enumerate() {
                for peer in &rule.peers {
                    if let ClusterPeer::Pods(scope) = peer {
                        let path = format!("spec.{direction}[{index}].{list}");
                        check(cluster_tiers::name(policy), path, &scope.namespaces);
                    }
                }
            }
        }
    }
    for policy in &objects.cluster {
        check(cluster_tiers::name(policy), "spec.subject".to_owned(), &policy.subject.namespaces);
    }
}

/// Label that a selector asks for in place of the name of a namespace, and that name.
pub(super) fn misnamed<'s>(
    objects: &LintObjects<'_>,
    selector: &'s LabelSelector,
) -> Option<(&'s str, &'s str)> {
    selector.requirements.iter().find_map(|requirement| {
        let Requirement::In { key, values } = requirement else { return None };
        if objects.namespace_keys.contains(key.as_str()) || !means_name(key) {
            return None;
        }
        let name = values.iter().find(|value| objects.namespaces.contains(value.as_str()))?;
        Some((key.as_str(), name.as_str()))
    })
}

fn means_name(key: &str) -> bool {
    key == "name" || key.ends_with("/name") || nearest(key, [NAMESPACE_NAME_LABEL]).is_some()
}
