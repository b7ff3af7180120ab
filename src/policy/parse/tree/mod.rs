//! The text as a tree of values, each with its place in the text.
//!
//! An error deep in an object must point at the line and column it is about. Typed deserializers lose places, and stop at
//! the first error; so the text becomes a tree once, and everything above reads the tree. JSON has a reader of its own:
//! `serde_json` keeps no places, and YAML readers refuse some legal JSON (tabs, surrogate escapes).

mod json;
mod scalar;
mod yaml;

use std::borrow::Cow;

/// A range of bytes in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    /// First byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Span {
    /// `start..end`, never backwards.
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start, end: end.max(start) }
    }
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    /// Where it stands; the end of its last part for mappings and sequences.
    pub span: Span,
    /// What it is.
    pub value: Value<'a>,
}

/// What a node is. Numbers stay text: what reads them knows which ones it takes.
#[derive(Debug, Clone)]
pub(crate) enum Value<'a> {
    /// Nothing: in Kubernetes, the same as absent.
    Null,
    /// A truth value.
    Bool(bool),
    /// A number, as written.
    Number(Cow<'a, str>),
    /// Text.
    Text(Cow<'a, str>),
    /// A list.
    Sequence(Vec<Node<'a>>),
    /// An object. Keys are in the order of the text, doubles included.
    Mapping(Vec<(Key<'a>, Node<'a>)>),
}

/// The key of an entry and its place.
#[derive(Debug, Clone)]
pub(crate) struct Key<'a> {
    /// Its text.
    pub name: Cow<'a, str>,
    /// Where it stands.
    pub span: Span,
}

/// Why a text is no tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    /// Where.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl SyntaxError {
    fn new(span: Span, message: impl Into<String>) -> SyntaxError {
        SyntaxError { span, message: message.into(), help: None }
    }

    fn with_help(mut self, help: impl Into<String>) -> SyntaxError {
        self.help = Some(help.into());
        self
    }
}

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

impl<'a> Node<'a> {
    /// Whether the value is null.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The entry of a mapping with this key, where it is not null.
    pub(crate) fn get(&self, name: &str) -> Option<&Node<'a>> {
        let Value::Mapping(entries) = &self.value else { return None };
        entries.iter().find(|(key, node)| key.name == name && !node.is_null()).map(|(_, node)| node)
    }

    /// The text of a text node.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What the value is, in words.
    pub(crate) fn type_name(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::Sequence(_) => "a list",
            Value::Mapping(_) => "a mapping",
        }
    }
}

impl From<&serde_json::Value> for Node<'static> {
    /// The same value, at no place.
    fn from(value: &serde_json::Value) -> Node<'static> {
        use serde_json::Value as Json;
        let value = match value {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => Value::Number(number.to_string().into()),
            Json::String(text) => Value::Text(text.clone().into()),
            Json::Array(items) => Value::Sequence(items.iter().map(Node::from).collect()),
            Json::Object(entries) => Value::Mapping(
                entries
                    .iter()
                    .map(|(name, value)| {
                        (Key { name: name.clone().into(), span: Span::default() }, Node::from(value))
                    })
                    .collect(),
            ),
        };
        Node { span: Span::default(), value }
    }
}
