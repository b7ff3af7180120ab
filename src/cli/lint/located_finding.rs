//! Finding of `palisade lint` with its location.

use serde::Serialize;

use crate::policy::lint::LintFinding;
use crate::policy::parse::Location;

/// Finding with the location of its object.
#[derive(Debug, Serialize)]
pub(super) struct LocatedFinding<'m> {
    /// The location as text, `file:line`.
    pub(super) place: String,
    #[serde(skip)]
    pub(super) location: Option<&'m Location>,
    #[serde(flatten)]
    pub(super) finding: LintFinding,
}
