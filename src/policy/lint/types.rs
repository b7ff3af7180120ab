//! Check of rules whose direction `policyTypes` lacks: the API ignores them, and the direction is not
//! isolated.

use super::finding::{Check, LintFinding};
use super::objects::LintObjects;
use crate::policy::evaluate::isolation;
use crate::tables::Direction;

pub(super) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for policy in &objects.network {
        for direction in &policy.ignored {
            let name = match direction {
                Direction::Ingress => "Ingress",
                Direction::Egress => "Egress",
            };
            found.push(LintFinding {
                policy: isolation::name(policy).into(),
                path: format!("spec.{direction}"),
                check: Check::RulesWithoutType,
                message: format!(
                    "these rules mean nothing, because policyTypes lacks {name}: add it, or remove the rules"
                ),
            });
        }
    }
}
