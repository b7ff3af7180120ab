//! `metadata`: name, namespace and labels of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::cursor::{Cursor, Fields};
use super::parsed::IgnoredCheck;
use super::selector::check_labels;
use super::{syntax, typed};
use crate::policy::objects::{AssignedMetadata, Labels};
use crate::printable::is_steering;

/// Namespace of an object without one: the default of `kubectl`.
const DEFAULT_NAMESPACE: &str = "default";

/// Prefix of the annotations that this program reads on policies.
const ANNOTATIONS: &str = "palisade.dev/";
/// Annotation of the mode of a policy.
const MODE: &str = "palisade.dev/mode";
/// Beginning of an annotation that silences a check of lint on its object. The name of the check follows.
const IGNORE: &str = "palisade.dev/ignore-";
const ENFORCE: &str = "enforce";
const AUDIT: &str = "audit";

/// Name, namespace and labels of an object.
pub(super) struct Identity {
    /// Namespace: `default` if absent; empty for cluster-wide objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: Labels,
    /// Fields that the API server assigns.
    pub assigned: AssignedMetadata,
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
    Some(Identity {
        namespace,
        name: meta.name.unwrap_or_default(),
        labels: meta.labels.unwrap_or_default(),
        assigned: AssignedMetadata { uid: meta.uid, generation: meta.generation },
    })
}

/// Tests whether a policy has the annotation `palisade.dev/mode: audit`: it is judged and not enforced. Reports values other
/// than `audit` and `enforce`.
pub(super) fn is_audited(object: &Fields<'_>) -> bool {
    let Some(annotations) = object.get("metadata").and_then(|at| at.child("annotations")) else {
        return false;
    };
    let mut is_audited = false;
    for (name, _, at) in annotations.entries() {
        match (name, at.node.text()) {
            (MODE, Some(ENFORCE)) => {}
            (MODE, Some(AUDIT)) => is_audited = true,
            // The check of the metadata reports other values that are no text.
            (MODE, text) if text.is_some() || at.node.is_null() => at.unsupported(&[ENFORCE, AUDIT]),
            (MODE, _) => {}
            _ if name.starts_with(IGNORE) => {}
            _ if name.starts_with(ANNOTATIONS) => at.warn(
                "no annotation of this name has an effect on a policy",
                format!(
                    "the mode of a policy is {MODE:?}, and {IGNORE}CHECK silences lint: correct the name, or remove the \
                     annotation"
                ),
            ),
            _ => {}
        }
    }
    is_audited
}

/// Checks of lint that annotations of an object silence.
pub(super) fn ignored_checks(object: &Cursor<'_>) -> Vec<IgnoredCheck> {
    let annotations = object.child("metadata").and_then(|at| at.child("annotations"));
    let entries = annotations.map(|at| at.entries()).unwrap_or_default();
    let ignored = entries.iter().filter_map(|(name, _, at)| {
        Some(IgnoredCheck {
            object: object.location(),
            check: name.strip_prefix(IGNORE)?.to_owned(),
            reason: at.node.text().unwrap_or_default().trim().to_owned(),
            location: at.location(),
        })
    });
    ignored.collect()
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
        Identity {
            namespace: String::new(),
            name: String::new(),
            labels: Labels::new(),
            assigned: AssignedMetadata::default(),
        }
    }
}
