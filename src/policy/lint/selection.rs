//! A policy that selects no pod.

use super::{Check, LintFinding, Scene};
use crate::policy::describe;
use crate::policy::objects::Pod;
use crate::policy::oracle::{cluster_tiers, isolation, selectors};

pub(super) fn check(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    for policy in &scene.network {
        let selects = |pod: &&&Pod| {
            pod.name.namespace == policy.namespace && selectors::selects(&policy.pod_selector, &pod.labels)
        };
        if scene.pods.iter().find(selects).is_none() {
            let labels = describe::selector(&policy.pod_selector);
            let message = format!("selects no pod: none in namespace {} matches {labels}", policy.namespace);
            let (policy, path) = (isolation::name(policy), "spec.podSelector".to_owned());
            found.push(LintFinding { policy, path, check: Check::SelectsNoPod, message });
        }
    }
    for policy in &scene.cluster {
        if !scene.pods.iter().any(|pod| scene.oracle.scope_holds(&policy.subject, pod)) {
            let message = format!("selects no pod: there are no {}", describe::scope(&policy.subject));
            let (policy, path) = (cluster_tiers::name(policy), "spec.subject".to_owned());
            found.push(LintFinding { policy, path, check: Check::SelectsNoPod, message });
        }
    }
}
