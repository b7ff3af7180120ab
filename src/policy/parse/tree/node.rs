//! Nodes of the document tree.

use std::borrow::Cow;

use crate::limits::SOURCE_VALUES_MAX;

/// Range of bytes in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    /// First byte.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
}

impl Span {
    /// Span `start..end`; empty if the end precedes the start.
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start, end: end.max(start) }
    }
}

/// Value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    /// Span; for mappings and sequences up to the end of the last part.
    pub span: Span,
    /// Value.
    pub value: Value<'a>,
}

/// Value of a node. Numbers stay text: their consumer decides which ones are valid.
#[derive(Debug, Clone)]
pub(crate) enum Value<'a> {
    /// Null; in Kubernetes equivalent to an absent value.
    Null,
    /// Boolean.
    Bool(bool),
    /// Number, as written.
    Number(Cow<'a, str>),
    /// String.
    Text(Cow<'a, str>),
    /// Sequence.
    Sequence(Vec<Node<'a>>),
    /// Mapping. Keys are in the order of the text, including duplicates.
    Mapping(Vec<(Key<'a>, Node<'a>)>),
}

/// Key of an entry and its place.
#[derive(Debug, Clone)]
pub(crate) struct Key<'a> {
    /// Text of the key.
    pub name: Cow<'a, str>,
    /// Span of the key.
    pub span: Span,
}

/// Syntax error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    /// Span.
    pub span: Span,
    /// Message.
    pub message: String,
    /// Suggested correction.
    pub help: Option<String>,
}

impl SyntaxError {
    pub(super) fn new(span: Span, message: impl Into<String>) -> SyntaxError {
        SyntaxError { span, message: message.into(), help: None }
    }

    pub(super) fn with_help(mut self, help: impl Into<String>) -> SyntaxError {
        self.help = Some(help.into());
        self
    }
}

impl<'a> Node<'a> {
    /// Tests whether the value is null.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Value of a key, if present and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&Node<'a>> {
        let Value::Mapping(entries) = &self.value else { return None };
        entries.iter().find(|(key, node)| key.name == name && !node.is_null()).map(|(_, node)| node)
    }

    /// Text of a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Name of the type of the value.
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
    /// Converts a JSON value, without places.
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

/// Error of a text with more than [`SOURCE_VALUES_MAX`] values, at the first one beyond.
pub(super) fn too_many_values(span: Span) -> SyntaxError {
    let message = format!("more than {SOURCE_VALUES_MAX} values in one file");
    SyntaxError::new(span, message).with_help("split it into several files, without managedFields")
}
