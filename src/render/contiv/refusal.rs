//! Error that names the pod and the rule for which a policy cannot be expressed.

use super::rule::{EXPANSION_MAX, Obstacle};
use crate::net::flow::Protocol;
use crate::render::output::RenderError;
use crate::render::plan::Plan;
use crate::tables::PodName;

/// Error for a pod. `system` is the name of the format.
pub(in crate::render) fn inexpressible(
    plans: &[Plan; 2],
    system: &str,
    pod: &PodName,
    obstacle: Obstacle,
) -> RenderError {
    let problem = match obstacle {
        Obstacle::Sctp => format!("{system} has no rules for ports of SCTP"),
        Obstacle::Ranges(found) => format!(
            "{system} has no ranges of ports, and single ports would be more than {EXPANSION_MAX} rules ({found})"
        ),
        Obstacle::Overlaps(found) => format!(
            "its ports would be split into more than {EXPANSION_MAX} rules ({found}), since {system} has no order of \
             rules that overlap"
        ),
    };
    RenderError::Inexpressible { pod: pod.clone(), rule: culprit(plans, pod, obstacle), problem }
}

/// Title of the rule that most likely is the cause: for the pod itself, else for another pod of the node.
fn culprit(plans: &[Plan; 2], pod: &PodName, obstacle: Obstacle) -> String {
    let weight = |(protocol, first, last): (Protocol, u16, u16)| match obstacle {
        Obstacle::Sctp => usize::from(protocol == Protocol::SCTP),
        Obstacle::Ranges(_) => usize::from(last - first),
        Obstacle::Overlaps(_) => usize::from(last - first) + 1,
    };
    let mut best: Option<(usize, bool, &str)> = None;
    for plan in plans {
        let own = plan.endpoints.values().filter(|endpoint| endpoint.pods.contains(pod));
        let own: Vec<&String> =
            own.flat_map(|endpoint| endpoint.ingress.iter().chain(&endpoint.egress)).collect();
        for (name, list) in &plan.acls {
            for rule in &list.rules {
                let weight = rule.services.iter().flatten().map(|span| weight(*span)).max().unwrap_or(0);
                let candidate = (weight, own.contains(&name), rule.title.as_str());
                if weight > 0 && best.is_none_or(|best| (best.1, best.0) < (candidate.1, candidate.0)) {
                    best = Some(candidate);
                }
            }
        }
    }
    best.map_or_else(|| "its rules together".to_owned(), |(_, _, title)| title.to_owned())
}
