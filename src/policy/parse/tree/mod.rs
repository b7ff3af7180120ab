//! The text as a tree of values, each with its place in the text.
//!
//! An error deep in an object must point at the line and column it is about. Typed deserializers lose places, and stop at
//! the first error; so the text becomes a tree once, and everything above reads the tree. JSON has a reader of its own:
//! `serde_json` keeps no places, and YAML readers refuse some legal JSON (tabs, surrogate escapes).

mod json;
mod node;
mod scalar;
mod yaml;

pub(crate) use node::{Key, Node, Span, SyntaxError, Value};

/// The documents of a text, up to the first fault that leaves nothing to read, and all syntax_errors.
///
/// `json_only` is for files whose name says JSON. Otherwise a text that starts like JSON is read as JSON where it is, and as
/// YAML where it is not (a flow mapping starts alike).
pub(crate) fn parse(text: &str, json_only: bool) -> (Vec<Node<'_>>, Vec<SyntaxError>) {
    if json_only {
        return json::parse(text);
    }
    if text.trim_start().starts_with(['{', '[']) {
        let (nodes, syntax_errors) = json::parse(text);
        if syntax_errors.is_empty() {
            return (nodes, syntax_errors);
        }
    }
    yaml::parse(text)
}
