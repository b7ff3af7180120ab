//! Parsed objects of manifests, with their places.

use super::diagnostic::Diagnostic;
use super::source::Location;
use crate::policy::objects::{Labels, Object};

/// Objects of one or several texts.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    /// Objects in the order of the text, with their places.
    pub objects: Vec<(Object, Location)>,
    /// Warnings for the authors of the manifests.
    pub warnings: Vec<Diagnostic>,
    /// Objects of kinds that policy does not depend on.
    pub skipped: Vec<Skipped>,
    /// Annotations of policies and Services that silence a check of lint.
    pub ignored_checks: Vec<IgnoredCheck>,
}

/// Annotation `palisade.dev/ignore-CHECK: reason`.
#[derive(Debug, Clone)]
pub struct IgnoredCheck {
    /// Location of its object.
    pub object: Location,
    /// Name of the check, as written.
    pub check: String,
    /// Reason; empty if the author gave none.
    pub reason: String,
    /// Location of the annotation.
    pub location: Location,
}

/// Object of an unsupported kind.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// Kind.
    pub kind: String,
    /// Name with namespace, if present.
    pub name: String,
    /// Location.
    pub location: Location,
    /// Labels of the pods that it makes, by template. `None` if it makes none that is known of.
    pub made_pods: Option<Vec<Labels>>,
}
