//! `metadata`: name, namespace and labels of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::cursor::{Cursor, Fields};
use super::selector::check_labels;
use super::{syntax, typed};
use crate::policy::objects::Labels;
use crate::printable::is_steering;

/// Namespace of an object without one: the default of `kubectl`.
const DEFAULT_NAMESPACE: &str = "default";

/// Name, namespace and labels of an object.
pub(super) struct Identity {
    /// Namespace: `default` if absent; empty for cluster-wide objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: Labels,
}

/// Scope of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Objects within a namespace.
    Namespaced,
    /// Cluster-wide objects.
    Cluster,
}

/// Parses and checks `metadata`.
pub(super) fn parse(object: &Fields<'_>, scope: Scope) -> Option<Identity> {
    let at = object.required("metadata")?;
    let meta: ObjectMeta = typed::parse(&at)?;
    let fields = |name| at.child(name).filter(|at| at.node.text() != Some(""));
    match fields("name") {
        Some(name) => check(&name, syntax::dns_subdomain),
        None => at.required("name", "name is required"),
    }
    match (fields("namespace"), scope) {
        (Some(namespace), Scope::Namespaced) => check(&namespace, syntax::dns_label),
        (Some(namespace), Scope::Cluster) => {
            namespace.error_help(
                "Forbidden: not allowed on this type",
                "remove it: this kind lives outside namespaces",
            );
        }
        (None, _) => {}
    }
    if let Some(labels) = fields("labels") {
        check_labels(&labels);
    }
    let namespace = match scope {
        Scope::Namespaced => {
            meta.namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
        }
        Scope::Cluster => String::new(),
    };
    Some(Identity { namespace, name: meta.name.unwrap_or_default(), labels: meta.labels.unwrap_or_default() })
}

/// Name of an object in diagnostics, before any check: `default/allow-db`, or the bare name.
pub(super) fn display_name(node: &super::tree::Node<'_>, scope: Scope) -> String {
    let metadata = node.get("metadata");
    let text = |name| metadata.and_then(|node| node.get(name)).and_then(|node| node.text());
    match (text("name"), scope) {
        (Some(name), Scope::Namespaced) => {
            format!("{}/{name}", text("namespace").unwrap_or(DEFAULT_NAMESPACE))
        }
        (Some(name), Scope::Cluster) => name.to_owned(),
        (None, _) => String::new(),
    }
}

fn check(at: &Cursor<'_>, syntax: fn(&str) -> Result<(), syntax::Violation>) {
    // The check of the metadata has reported a value that is no text.
    let Some(name) = at.node.text() else { return };
    match syntax(name) {
        Ok(()) => {}
        // A name with control characters is an error even if its meaning is unambiguous: it could manipulate
        // a terminal.
        Err(wrong) if name.contains(is_steering) => at.invalid(&wrong, "choose a name of this form"),
        Err(wrong) => at.invalid_but_unambiguous(&wrong, "choose a name of this form"),
    }
}

impl Identity {
    /// Identity of an object without metadata, so that parsing can continue.
    pub(super) fn unknown() -> Identity {
        Identity { namespace: String::new(), name: String::new(), labels: Labels::new() }
    }
}
