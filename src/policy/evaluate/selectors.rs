//! Clauses S1 and S2: label selectors.

use crate::policy::objects::{LabelSelector, Labels, Requirement};

/// Clause S1: all requirements hold. A selector without requirements selects every object.
pub(in crate::policy) fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    unmet(selector, labels).is_none()
}

/// First requirement that labels do not meet.
pub(in crate::policy) fn unmet<'s>(selector: &'s LabelSelector, labels: &Labels) -> Option<&'s Requirement> {
    selector.requirements.iter().find(|requirement| !holds(requirement, labels))
}

/// Clause S2: `NotIn` and `DoesNotExist` hold for objects without the key.
fn holds(requirement: &Requirement, labels: &Labels) -> bool {
    match requirement {
        Requirement::In { key, values } => match labels.get(key) {
            Some(value) => values.iter().any(|wanted| wanted == value),
            None => false,
        },
        Requirement::NotIn { key, values } => match labels.get(key) {
            Some(value) => values.iter().all(|unwanted| unwanted != value),
            None => true,
        },
        Requirement::Exists { key } => labels.keys().any(|known| known == key),
        Requirement::DoesNotExist { key } => labels.keys().all(|known| known != key),
    }
}
