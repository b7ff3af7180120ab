//! `namespaces` of v1alpha1 peers, in both of its forms: a label selector, and (up to v0.1.1) one of
//! `namespaceSelector`, `sameLabels` and `notSameLabels`.
//!
//! `sameLabels` ("the same labels as the subject's namespace") is equivalent to a selector only if the
//! subject fixes one value of each label. Other forms would need a policy per namespace, and are rejected.

use crate::policy::objects::{LabelSelector, Requirement};
use crate::policy::parse::cursor::Cursor;
use crate::policy::parse::selector::selector;
use crate::policy::parse::tree::Value;

const OLDER: [&str; 3] = ["namespaceSelector", "notSameLabels", "sameLabels"];

/// Selector of the namespaces. Returns `None` after a report if no selector is equivalent.
pub(super) fn parse(at: &Cursor<'_>, subject: &LabelSelector) -> Option<LabelSelector> {
    if !OLDER.iter().any(|name| at.child(name).is_some()) {
        return Some(selector(at));
    }
    let fields = at.fields(&OLDER);
    let given = |name| fields.get(name);
    match (given("namespaceSelector"), given("sameLabels"), given("notSameLabels")) {
        (Some(labels), None, None) => Some(selector(&labels)),
        (None, Some(keys), None) => {
            let requirements = fixed(&keys, subject)?;
            let same = |(key, value)| Requirement::In { key, values: vec![value] };
            Some(sorted(requirements.into_iter().map(same).collect()))
        }
        (None, None, Some(keys)) => {
            let requirements = fixed(&keys, subject)?;
            if requirements.len() > 1 {
                keys.error_help(
                    "Invalid value: notSameLabels with several labels is no label selector",
                    "write a namespaceSelector for each label",
                );
                return None;
            }
            let other = |(key, value)| Requirement::NotIn { key, values: vec![value] };
            Some(sorted(requirements.into_iter().map(other).collect()))
        }
        _ => {
            at.error_help(
                format!("Invalid value: exactly one of {} must be given", OLDER.join(", ")),
                "make them several entries of the list",
            );
            None
        }
    }
}

/// Labels with the one value that each has in the namespaces of the subject.
fn fixed(keys: &Cursor<'_>, subject: &LabelSelector) -> Option<Vec<(String, String)>> {
    let items = keys.items();
    if items.is_empty() && matches!(keys.node.value, Value::Sequence(_)) {
        keys.error_help("Invalid value: must have at least 1 item", "name a label");
        return None;
    }
    let value_of = |at: &Cursor<'_>| {
        let key = at.text()?;
        let value = subject.requirements.iter().find_map(|requirement| match requirement {
            Requirement::In { key: own, values } if own == key && values.len() == 1 => {
                Some(values[0].clone())
            }
            _ => None,
        });
        if value.is_none() {
            at.error_help(
                format!("Invalid value: {key:?}: the subject does not say which value of this label its namespaces have"),
                "write a policy for each value, with the value in the subject's matchLabels",
            );
        }
        Some((key.to_owned(), value?))
    };
    let fixed: Vec<Option<_>> = items.iter().map(value_of).collect();
    fixed.into_iter().collect()
}

fn sorted(mut requirements: Vec<Requirement>) -> LabelSelector {
    requirements.sort();
    requirements.dedup();
    LabelSelector { requirements }
}
