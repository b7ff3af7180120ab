//! Objects of manifests, with their places.

use super::diagnostic::Diagnostic;
use super::source::Location;
use crate::policy::objects::Object;

/// What a text, or several, hold.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    /// The objects, in the order of the text, and where each stands.
    pub objects: Vec<(Object, Location)>,
    /// What their authors should know.
    pub warnings: Vec<Diagnostic>,
    /// Objects of kinds that policy does not depend on.
    pub skipped: Vec<Skipped>,
}

/// An object that was left out because of its kind.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// Its kind.
    pub kind: String,
    /// Its name with its namespace, as far as it has them.
    pub name: String,
    /// Where it is.
    pub location: Location,
}
