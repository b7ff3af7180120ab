//! Label selectors and labels (`ValidateLabelSelector` of `k8s.io/apimachinery/pkg/apis/meta/v1/validation`).

use super::cursor::{Cursor, Fields};
use super::syntax;
use crate::policy::objects::{LabelSelector, Requirement};

const FIELDS: [&str; 2] = ["matchExpressions", "matchLabels"];
const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// Parses a selector. Null, `{}` and empty parts select everything.
pub(super) fn selector(at: &Cursor<'_>) -> LabelSelector {
    let fields = at.fields(&FIELDS);
    let labels = fields.get("matchLabels").map(|at| match_labels(&at)).unwrap_or_default();
    let expressions = fields.items("matchExpressions");
    let mut requirements: Vec<_> =
        labels.into_iter().chain(expressions.iter().filter_map(expression)).collect();
    requirements.sort();
    requirements.dedup();
    LabelSelector { requirements }
}

fn match_labels(at: &Cursor<'_>) -> Vec<Requirement> {
    let requirement = |(key, _, value): (&str, _, Cursor<'_>)| {
        check_key(&value, key);
        let values = vec![label_value(&value)?];
        Some(Requirement::In { key: key.to_owned(), values })
    };
    at.entries().into_iter().filter_map(requirement).collect()
}

fn expression(at: &Cursor<'_>) -> Option<Requirement> {
    let fields = at.fields(&["key", "operator", "values"]);
    let key = fields.required("key").and_then(|at| {
        let key = at.text()?;
        check_key(&at, key);
        Some(key.to_owned())
    });
    let mut values: Vec<String> = fields.items("values").iter().filter_map(label_value).collect();
    values.sort();
    values.dedup();
    let operator = fields.required("operator")?;
    let key = key?;
    match operator.text()? {
        "In" if has_values(&fields) => Some(Requirement::In { key, values }),
        "NotIn" if has_values(&fields) => Some(Requirement::NotIn { key, values }),
        "Exists" if has_no_values(&fields) => Some(Requirement::Exists { key }),
        "DoesNotExist" if has_no_values(&fields) => Some(Requirement::DoesNotExist { key }),
        known if OPERATORS.contains(&known) => None,
        _ => {
            operator
                .invalid("not a valid selector operator", format!("write one of {}", OPERATORS.join(", ")));
            None
        }
    }
}

fn has_values(fields: &Fields<'_>) -> bool {
    let there = !fields.items("values").is_empty();
    if !there {
        fields.at.required("values", "must be specified when `operator` is 'In' or 'NotIn'");
    }
    there
}

fn has_no_values(fields: &Fields<'_>) -> bool {
    let Some(values) = fields.get("values").filter(|at| !at.items().is_empty()) else { return true };
    values.error_help(
        "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        "remove the values, or use In or NotIn",
    );
    false
}

fn check_key(at: &Cursor<'_>, key: &str) {
    if let Err(wrong) = syntax::label_key(key) {
        at.error_help(format!("Invalid value: {key:?}: {wrong}"), "write a label key: name, or prefix/name");
    }
}

/// Parses the value of a label.
pub(super) fn label_value(at: &Cursor<'_>) -> Option<String> {
    // Null and "" are equal to the API server: both are the empty value.
    let value = if at.node.is_null() { "" } else { at.text()? };
    if let Err(wrong) = syntax::label_value(value) {
        at.invalid(&wrong, "write a value that a label can have");
    }
    Some(value.to_owned())
}

/// Checks keys and values of `metadata.labels`.
pub(super) fn check_labels(at: &Cursor<'_>) {
    for (key, _, value) in at.entries() {
        check_key(&value, key);
        // The check of the metadata has reported a value that is no text.
        if value.node.text().is_some() {
            label_value(&value);
        }
    }
}
