//! Document tree: values of a text with their places.
//!
//! A diagnostic must point at the line and column of its field. Typed deserializers lose places and stop at
//! the first error, so the text is parsed into a tree, and all further steps read the tree. JSON has its own
//! parser: `serde_json` keeps no places, and YAML parsers reject some valid JSON (tabs, surrogate escapes).

mod json;
mod node;
mod scalar;
mod yaml;

pub(crate) use node::{Key, Node, Span, SyntaxError, Value};

/// Parses the documents of a text, up to the first error that prevents further reading. Returns all syntax
/// errors.
///
/// `json_only` is set for files whose name ends in `.json`. Other texts that start like JSON are parsed as
/// JSON, and as YAML if that fails: a flow mapping of YAML starts alike.
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
