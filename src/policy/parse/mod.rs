//! Parsing: from YAML or JSON text to validated objects, or diagnostics with their place.
//!
//! `text -> tree with places -> documents and lists -> one parser per kind -> objects`
//!
//! The parser rejects everything that the API server rejects, with the same words. It also rejects unknown
//! fields, because a misspelled `podSelecter` would select every pod. It reports all errors, not only the
//! first. It performs no I/O: see `source::files`.

pub(super) mod cursor;
mod diagnostic;
mod fields;
mod source;
pub(super) mod tree;

mod admin_network_policy;
mod cluster_network_policy;
mod cluster_objects;
mod cluster_peer;
mod metadata;
mod network_policy;
mod parsed;
mod selector;
mod service;
mod syntax;
mod typed;

pub(super) mod documents;

pub use cluster_objects::ADDRESSES_ANNOTATION;
pub use diagnostic::{Diagnostic, Severity};
pub use fields::{FieldPosition, field_positions};
pub use parsed::{IgnoredCheck, Parsed, Skipped};
pub use source::{Location, STDIN, Source};

/// Parses the objects of a text. Returns all errors in the order of the text.
pub fn parse_source(source: &Source) -> Result<Parsed, Vec<Diagnostic>> {
    parse_sources(std::slice::from_ref(source))
}

/// Parses the objects of several texts.
pub fn parse_sources(sources: &[Source]) -> Result<Parsed, Vec<Diagnostic>> {
    let mut parser = documents::ManifestParser::new(Severity::Error);
    for source in sources {
        parser.source(source);
    }
    parser.finish()
}

/// Parses an object, or a list of objects, from a JSON value. Diagnostics have a field path but no line.
pub fn parse_value(name: &str, value: &serde_json::Value) -> Result<Parsed, Vec<Diagnostic>> {
    let mut parser = documents::ManifestParser::new(Severity::Error);
    let source = Source::new(name, "");
    parser.object(&tree::Node::from(value), &source, "");
    parser.finish()
}
