//! From text to validated objects: YAML or JSON in, `policy::objects` or diagnostics with their place out.
//!
//! `text -> tree with places -> documents and lists -> one parser per kind -> objects`
//!
//! Everything that the API server would refuse is refused here, with its words; so are fields that nobody knows, because a
//! misspelt `podSelecter` would select every pod. All errors are found, not just the first. No I/O: see `source::files`.

pub(super) mod cursor;
mod diagnostic;
mod source;
pub(super) mod tree;

mod admin_network_policy;
mod cluster_network_policy;
mod cluster_objects;
mod cluster_peer;
mod legacy_namespaces;
mod metadata;
mod network_policy;
mod selector;
mod syntax;
mod typed;

pub(super) mod documents;

pub use cluster_objects::ADDRESSES_ANNOTATION;
pub use diagnostic::{Diagnostic, Severity};
pub use source::{Location, Source};

use super::objects::Object;

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

/// Reads the objects of a text. The errors are all that there are, in the order of the text.
pub fn parse_source(source: &Source) -> Result<Parsed, Vec<Diagnostic>> {
    parse_sources(std::slice::from_ref(source))
}

/// Reads the objects of several texts.
pub fn parse_sources(sources: &[Source]) -> Result<Parsed, Vec<Diagnostic>> {
    let mut parser = documents::ManifestParser::new(Severity::Error);
    for source in sources {
        parser.source(source);
    }
    parser.finish()
}

/// Reads an object, or a list of them, that is JSON already. Diagnostics have a field path but no line.
pub fn parse_value(name: &str, value: &serde_json::Value) -> Result<Parsed, Vec<Diagnostic>> {
    let mut parser = documents::ManifestParser::new(Severity::Error);
    let source = Source::new(name, "");
    parser.object(&tree::Node::from(value), &source, "");
    parser.finish()
}
