//! Objects in the words of their authors: selectors as `kubectl --selector` takes them, and ports.

use super::objects::{LabelSelector, PodScope, Requirement};
use crate::net::flow::Protocol;

/// A selector; `all` where it selects everything.
pub(in crate::policy) fn selector(selector: &LabelSelector) -> String {
    if selector.is_everything() {
        return "all".to_owned();
    }
    selector.requirements.iter().map(requirement).collect::<Vec<_>>().join(",")
}

/// One requirement.
pub(in crate::policy) fn requirement(requirement: &Requirement) -> String {
    match requirement {
        Requirement::In { key, values } if values.len() == 1 => format!("{key}={}", values[0]),
        Requirement::In { key, values } => format!("{key} in ({})", values.join(",")),
        Requirement::NotIn { key, values } => format!("{key} notin ({})", values.join(",")),
        Requirement::Exists { key } => key.clone(),
        Requirement::DoesNotExist { key } => format!("!{key}"),
    }
}

/// Pods by namespace and label.
pub(in crate::policy) fn scope(scope: &PodScope) -> String {
    format!("pods {} in namespaces {}", selector(&scope.pods), selector(&scope.namespaces))
}

/// Ports of a protocol: `TCP 80`, `TCP 80-90`, `all TCP ports`.
pub(crate) fn ports(protocol: Protocol, first: u16, last: u16) -> String {
    match (first, last) {
        (0 | 1, u16::MAX) => format!("all {protocol} ports"),
        _ if first == last => format!("{protocol} {first}"),
        _ => format!("{protocol} {first}-{last}"),
    }
}
