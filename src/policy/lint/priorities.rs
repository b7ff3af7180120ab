//! Two cluster-wide policies of one tier with one priority: the API leaves open which is asked first.

use super::{Check, LintFinding, LintObjects};
use crate::policy::evaluate::cluster_tiers;
use crate::policy::objects::{ClusterNetworkPolicy, Tier};
use crate::tables::PolicyKind;

pub(super) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for (at, later) in objects.cluster.iter().enumerate() {
        // The older baseline kind has no priority to choose.
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
            policy: cluster_tiers::name(later),
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
