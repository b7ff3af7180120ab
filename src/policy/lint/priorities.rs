//! Check of priorities: the API leaves the order of two policies of one tier and priority undefined.

use super::finding::{Check, LintFinding};
use super::objects::LintObjects;
use crate::policy::evaluate::cluster_tiers;
use crate::policy::objects::{ClusterNetworkPolicy, Tier};
use crate::tables::PolicyKind;

pub(super) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for (at, later) in objects.cluster.iter().enumerate() {
        // `BaselineAdminNetworkPolicy` has no priority.
        let tied = |other: &&&ClusterNetworkPolicy| {
            (other.tier, other.priority) == (later.tier, later.priority)
                && [other.kind, later.kind].iter().all(|kind| *kind != PolicyKind::BaselineAdminNetworkPolicy)
        };
        let Some(first) = objects.cluster[..at].iter().find(tied) else { continue };
        let tier = match later.tier {
            Tier::Admin => "Admin",
            Tier::Baseline => "Baseline",
        };
        let order = if later.name < first.name { "before" } else { "after" };
        found.push(LintFinding {
            policy: cluster_tiers::name(later).into(),
            path: "spec.priority".to_owned(),
            check: Check::TiedPriority,
            message: format!(
                "has priority {} of tier {tier} like {}: the API leaves the order open; here it is asked {order}, by name",
                later.priority,
                cluster_tiers::name(first)
            ),
        });
    }
}
