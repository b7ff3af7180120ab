//! Error that names the pod and the rule for which a policy cannot be expressed.

use super::rule::{EXPANSION_MAX, Obstacle};
use crate::net::flow::Protocol;
use crate::render::output::RenderError;
use crate::render::plan::{Plan, PlanRule};
use crate::tables::{PodName, Verdict};

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
        Obstacle::DeniedPorts => format!(
            "it denies ports or a protocol of what another rule permits, and {system} has PERMITs before one DENY of the rest: \
             each of the other ports would take a rule"
        ),
        Obstacle::Pieces(found) => format!(
            "{system} has PERMITs before one DENY of the rest, and the networks that are not denied would be more than \
             {EXPANSION_MAX} rules ({found})"
        ),
    };
    RenderError::Inexpressible { pod: pod.clone(), rule: culprit(plans, pod, obstacle), problem }
}

/// Title of the rule that most likely is the cause: for the pod itself, else for another pod of the node.
fn culprit(plans: &[Plan; 2], pod: &PodName, obstacle: Obstacle) -> String {
    let weight = |rule: &PlanRule| {
        let of_spans = |weight: fn((Protocol, u16, u16)) -> usize| {
            rule.services.iter().flatten().map(|span| weight(*span)).max().unwrap_or(0)
        };
        match obstacle {
            Obstacle::Sctp => of_spans(|(protocol, ..)| usize::from(protocol == Protocol::SCTP)),
            Obstacle::Ranges(_) => of_spans(|(_, first, last)| usize::from(last - first)),
            Obstacle::Overlaps(_) => of_spans(|(_, first, last)| usize::from(last - first) + 1),
            Obstacle::DeniedPorts => usize::from(rule.verdict == Verdict::Deny && rule.services.is_some()),
            Obstacle::Pieces(_) => usize::from(rule.verdict == Verdict::Deny),
        }
    };
    let mut best: Option<(usize, bool, &str)> = None;
    for plan in plans {
        let own = plan.endpoints.values().filter(|endpoint| endpoint.pods.contains(pod));
        let own: Vec<&String> =
            own.flat_map(|endpoint| endpoint.ingress.iter().chain(&endpoint.egress)).collect();
        for (name, list) in &plan.acls {
            for rule in &list.rules {
                let weight = weight(rule);
                let candidate = (weight, own.contains(&name), rule.title.as_str());
                if weight > 0 && best.is_none_or(|best| (best.1, best.0) < (candidate.1, candidate.0)) {
                    best = Some(candidate);
                }
            }
        }
    }
    best.map_or_else(|| "its rules together".to_owned(), |(_, _, title)| title.to_owned())
}
