//! Text forms of selectors, scopes and ports, as `kubectl` writes them.

use super::objects::{LabelSelector, PodScope, Requirement};
use crate::net::flow::Protocol;

/// Text of a selector as `kubectl --selector` takes it; `all` for an empty selector.
pub(in crate::policy) fn selector(selector: &LabelSelector) -> String {
    if selector.is_everything() {
        return "all".to_owned();
    }
    selector.requirements.iter().map(requirement).collect::<Vec<_>>().join(",")
}

/// Text of one requirement.
pub(in crate::policy) fn requirement(requirement: &Requirement) -> String {
    match requirement {
        Requirement::In { key, values } if values.len() == 1 => format!("{key}={}", values[0]),
        Requirement::In { key, values } => format!("{key} in ({})", values.join(",")),
        Requirement::NotIn { key, values } => format!("{key} notin ({})", values.join(",")),
        Requirement::Exists { key } => key.clone(),
        Requirement::DoesNotExist { key } => format!("!{key}"),
    }
}

/// Text of a scope: pods by namespace and label.
pub(in crate::policy) fn scope(scope: &PodScope) -> String {
    format!("pods {} in namespaces {}", selector(&scope.pods), selector(&scope.namespaces))
}

/// Text of ports of a protocol: `TCP 80`, `TCP 80-90`, `all TCP ports`.
pub(crate) fn ports(protocol: Protocol, first: u16, last: u16) -> String {
    match (first, last) {
        (0 | 1, u16::MAX) => format!("all {protocol} ports"),
        _ if first == last => format!("{protocol} {first}"),
        _ => format!("{protocol} {first}-{last}"),
    }
}
