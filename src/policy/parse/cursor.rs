//! Cursor: a node of the document tree with its field path and its diagnostics.
//!
//! Parsing continues after an error: an invalid value is reported and treated as absent.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use super::diagnostic::{Diagnostic, Severity};
use super::source::{Location, Source};
use super::tree::{Node, Span, Value};
use crate::limits::{DIAGNOSTICS_MAX, MESSAGE_CHARS_MAX};
use crate::printable;

/// Diagnostics of one object.
pub(crate) struct Diagnostics {
    source: Source,
    object: String,
    list: RefCell<Vec<Diagnostic>>,
    errors: Cell<usize>,
    warnings: Cell<usize>,
    unambiguous: Severity,
    unknown_fields: Severity,
}

impl Diagnostics {
    /// Diagnostics of an object with this name.
    pub(crate) fn new(source: &Source, object: impl Into<String>) -> Diagnostics {
        Diagnostics {
            source: source.clone(),
            object: cut(object.into()),
            list: RefCell::default(),
            errors: Cell::new(0),
            warnings: Cell::new(0),
            unambiguous: Severity::Error,
            unknown_fields: Severity::Error,
        }
    }

    /// Sets the severity of a value that the API server rejects although its meaning is unambiguous.
    pub(crate) fn with_unambiguous(self, unambiguous: Severity) -> Diagnostics {
        Diagnostics { unambiguous, ..self }
    }

    /// Sets the severity of a field that this version does not know.
    pub(crate) fn with_unknown_fields(self, unknown_fields: Severity) -> Diagnostics {
        Diagnostics { unknown_fields, ..self }
    }

    /// Diagnostics up to a limit, and the number of further ones.
    pub(crate) fn into_list(self) -> (Vec<Diagnostic>, usize) {
        let list = self.list.into_inner();
        let omitted = self.errors.get() + self.warnings.get() - list.len();
        (list, omitted)
    }

    /// Number of errors.
    pub(crate) fn errors(&self) -> usize {
        self.errors.get()
    }

    /// Adds a diagnostic.
    pub(crate) fn add(
        &self,
        severity: Severity,
        span: Span,
        path: String,
        message: String,
        help: Option<String>,
    ) {
        let count = if severity == Severity::Error { &self.errors } else { &self.warnings };
        count.set(count.get() + 1);
        // Errors and warnings have separate limits: many warnings must not hide an error.
        if count.get() > DIAGNOSTICS_MAX {
            return;
        }
        let location = Location::new(&self.source, span);
        let object = self.object.clone();
        let path = cut(path);
        let message = cut(message);
        self.list.borrow_mut().push(Diagnostic { severity, location, object, path, message, help });
    }
}

/// Shortens a text, to bound the memory of messages.
fn cut(text: String) -> String {
    match printable::cut(&text, MESSAGE_CHARS_MAX) {
        Cow::Borrowed(_) => text,
        Cow::Owned(short) => short,
    }
}

/// Field path, relative to the object.
#[derive(Clone, Default)]
pub(crate) struct Path<'t>(Option<Rc<(Path<'t>, Step<'t>)>>);

enum Step<'t> {
    Field(&'t str),
    Index(usize),
}

impl<'t> Path<'t> {
    /// Path of a field.
    pub(crate) fn field(&self, name: &'t str) -> Path<'t> {
        Path(Some(Rc::new((self.clone(), Step::Field(name)))))
    }

    fn index(&self, index: usize) -> Path<'t> {
        Path(Some(Rc::new((self.clone(), Step::Index(index)))))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((parent, step)) = self.0.as_deref() else { return Ok(()) };
        parent.fmt(f)?;
        match step {
            Step::Index(index) => write!(f, "[{index}]"),
            // Label keys contain dots and slashes.
            Step::Field(name) if name.contains(['.', '/', ' ']) || name.is_empty() => write!(f, "[{name}]"),
            Step::Field(name) if parent.0.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
        }
    }
}

/// Node with its path and its diagnostics.
#[derive(Clone)]
pub(crate) struct Cursor<'t> {
    /// Node.
    pub node: &'t Node<'t>,
    /// Field path.
    pub path: Path<'t>,
    key: Option<Span>,
    diagnostics: &'t Diagnostics,
}

impl<'t> Cursor<'t> {
    /// Cursor on the root of an object.
    pub(crate) fn root(node: &'t Node<'t>, diagnostics: &'t Diagnostics) -> Cursor<'t> {
        Cursor { node, path: Path::default(), key: None, diagnostics }
    }

    /// Diagnostics of the object.
    pub(crate) fn diagnostics(&self) -> &'t Diagnostics {
        self.diagnostics
    }

    /// Span of the value, or of its key if the value is empty.
    pub(crate) fn span(&self) -> Span {
        match self.key {
            Some(key) if self.node.span.start == self.node.span.end => key,
            _ => self.node.span,
        }
    }

    /// Location of the value.
    pub(crate) fn location(&self) -> Location {
        Location::new(&self.diagnostics.source, self.span())
    }

    /// Reports an error with a help text.
    pub(crate) fn error_help(&self, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.add(
            Severity::Error,
            self.span(),
            self.path.to_string(),
            message.into(),
            Some(help.into()),
        );
    }

    /// Reports a warning with a help text.
    pub(crate) fn warn(&self, message: impl Into<String>, help: impl Into<String>) {
        self.add(Severity::Warning, message.into(), help.into());
    }

    /// Reports a part that is not enforced as written, with a help text.
    pub(crate) fn unenforced(&self, message: impl Into<String>, help: impl Into<String>) {
        self.add(Severity::Unenforced, message.into(), help.into());
    }

    fn add(&self, severity: Severity, message: String, help: String) {
        self.diagnostics.add(severity, self.span(), self.path.to_string(), message, Some(help));
    }

    /// Reports `Invalid value: "x": why`, the form of the API server.
    pub(crate) fn invalid(&self, why: &str, help: impl Into<String>) {
        self.error_help(format!("Invalid value: {}: {why}", self.shown()), help);
    }

    /// Reports an invalid value whose meaning is unambiguous, with the severity of
    /// [`Diagnostics::with_unambiguous`].
    pub(crate) fn invalid_but_unambiguous(&self, why: &str, help: &str) {
        let message = format!("Invalid value: {}: {why}", self.shown());
        self.diagnostics.add(
            self.diagnostics.unambiguous,
            self.span(),
            self.path.to_string(),
            message,
            Some(help.to_owned()),
        );
    }

    /// Reports `Unsupported value: "x": supported values: "a", "b"`, the form of the API server.
    pub(crate) fn unsupported(&self, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {}: supported values: {}", self.shown(), list.join(", "));
        let text = self.node.text().unwrap_or_default();
        let help = match supported.iter().find(|value| value.eq_ignore_ascii_case(text)) {
            Some(value) => format!("write {value}: case matters"),
            None => suggestion(text, supported),
        };
        self.error_help(message, help);
    }

    /// Reports a missing field: with the path of the field and the place of its parent.
    pub(crate) fn required(&self, field: &'t str, why: &str) {
        let path = self.path.field(field).to_string();
        let help = format!("add {field}");
        self.diagnostics.add(
            Severity::Error,
            self.span(),
            path,
            format!("Required value: {why}"),
            Some(help),
        );
    }

    /// Value as shown in a message.
    fn shown(&self) -> String {
        match &self.node.value {
            Value::Text(text) => format!("{text:?}"),
            Value::Number(text) => text.to_string(),
            Value::Bool(value) => value.to_string(),
            _ => self.node.type_name().to_owned(),
        }
    }

    /// Source text of the value: `yes` for a value that is parsed as true.
    fn written(&self) -> &'t str {
        let location = self.diagnostics.source.text().get(self.node.span.start..self.node.span.end);
        location.unwrap_or_default()
    }

    /// Reports a value of another type.
    pub(crate) fn wrong_type(&self, wanted: &str) {
        let what = self.node.type_name();
        let is_word = matches!(self.node.value, Value::Bool(_) | Value::Number(_));
        let help = match self.written() {
            written if is_word && wanted == "a string" && !written.is_empty() => {
                format!("quote it: \"{written}\"")
            }
            _ => format!("write {wanted} here"),
        };
        self.error_help(format!("Invalid value: {}: must be {wanted}, not {what}", self.shown()), help);
    }

    /// Text of a string.
    pub(crate) fn text(&self) -> Option<&'t str> {
        let text = self.node.text();
        if text.is_none() {
            self.wrong_type("a string");
        }
        text
    }

    /// Whole number.
    pub(crate) fn integer(&self) -> Option<i64> {
        let Value::Number(text) = &self.node.value else {
            match self.node.text().map(str::parse::<i64>) {
                Some(Ok(number)) => self.error_help(
                    format!("Invalid value: {}: must be a number, not a string", self.shown()),
                    format!("write it without quotes: {number}"),
                ),
                _ => self.wrong_type("a number"),
            }
            return None;
        };
        // "010" is 8 in YAML 1.1 and 10 in YAML 1.2: the parser rejects it.
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain =
            digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        match text.parse() {
            Ok(number) if plain => Some(number),
            _ => {
                self.invalid(
                    "must be a whole number in decimal digits",
                    "write it without point, prefix or leading zero",
                );
                None
            }
        }
    }

    /// Items of a list; empty for null.
    pub(crate) fn items(&self) -> Vec<Cursor<'t>> {
        match &self.node.value {
            Value::Null => Vec::new(),
            Value::Sequence(items) => {
                let item =
                    |(index, node)| Cursor { node, path: self.path.index(index), key: None, ..self.clone() };
                items.iter().enumerate().map(item).collect()
            }
            _ => {
                self.wrong_type("a list");
                Vec::new()
            }
        }
    }

    /// Entries of a mapping with arbitrary keys; empty for null.
    pub(crate) fn entries(&self) -> Vec<(&'t str, Span, Cursor<'t>)> {
        match &self.node.value {
            Value::Null => Vec::new(),
            Value::Mapping(entries) => {
                let entry = |(key, node): &'t (super::tree::Key<'t>, Node<'t>)| {
                    let name: &'t str = &key.name;
                    let at =
                        Cursor { node, path: self.path.field(name), key: Some(key.span), ..self.clone() };
                    (name, key.span, at)
                };
                entries.iter().map(entry).collect()
            }
            _ => {
                self.wrong_type("a mapping");
                Vec::new()
            }
        }
    }

    /// Field of a mapping that is checked elsewhere, if present and not null.
    pub(crate) fn child(&self, name: &str) -> Option<Cursor<'t>> {
        let Value::Mapping(entries) = &self.node.value else { return None };
        let (key, node) = entries.iter().find(|(key, node)| key.name == name && !node.is_null())?;
        Some(Cursor {
            node,
            path: self.path.field(&key.name),
            key: Some(key.span),
            diagnostics: self.diagnostics,
        })
    }

    /// Items of a list that is checked elsewhere.
    pub(crate) fn child_items(&self, name: &str) -> Vec<Cursor<'t>> {
        let list = self.child(name).filter(|at| matches!(at.node.value, Value::Sequence(_)));
        list.map(|at| at.items()).unwrap_or_default()
    }

    /// Fields of a mapping, all of them among `known`. Reports other fields and other types. A field that is
    /// null counts as absent.
    pub(crate) fn fields(&self, known: &[&'static str]) -> Fields<'t> {
        let mut entries = self.entries();
        for (name, span, at) in entries.iter().filter(|(name, ..)| !known.contains(name)) {
            self.unknown_field(name, *span, &at.path, known);
        }
        entries.retain(|(name, _, at)| known.contains(name) && !at.node.is_null());
        Fields { entries, at: self.clone() }
    }

    /// Reports an unknown field, with the severity of [`Diagnostics::with_unknown_fields`].
    pub(crate) fn unknown_field(&self, name: &str, span: Span, path: &Path<'t>, known: &[&str]) {
        let severity = self.diagnostics.unknown_fields;
        let result = if severity == Severity::Error { "" } else { " is left out" };
        let message = format!("unknown field {name:?}{result}");
        self.diagnostics.add(severity, span, path.to_string(), message, Some(suggestion(name, known)));
    }
}

/// Fields of a mapping.
pub(crate) struct Fields<'t> {
    entries: Vec<(&'t str, Span, Cursor<'t>)>,
    /// Mapping.
    pub at: Cursor<'t>,
}

impl<'t> Fields<'t> {
    /// Field, if present and not null.
    pub(crate) fn get(&self, name: &str) -> Option<Cursor<'t>> {
        self.entries.iter().find(|(field, ..)| *field == name).map(|(.., at)| at.clone())
    }

    /// Items of a list field; empty if the field is absent. Reports null items (a dash without a value):
    /// parsed as `{}` they could match everything.
    pub(crate) fn items(&self, name: &str) -> Vec<Cursor<'t>> {
        let mut items = self.get(name).map(|at| at.items()).unwrap_or_default();
        items.retain(|item| {
            if item.node.is_null() {
                item.error_help(
                    "Invalid value: an item with nothing in it",
                    "write {} if that is meant, or remove it",
                );
            }
            !item.node.is_null()
        });
        items
    }

    /// Reports a list field with more items than the CRD allows.
    pub(crate) fn limit_items(&self, name: &str, length: usize, most: usize) {
        if let Some(at) = self.get(name).filter(|_| length > most) {
            at.error_help(
                format!("Too many: {length}: must have at most {most} items"),
                "split it into several policies",
            );
        }
    }

    /// Required field.
    pub(crate) fn required(&self, name: &'t str) -> Option<Cursor<'t>> {
        let found = self.get(name);
        if found.is_none() {
            self.at.required(name, &format!("{name} must be given"));
        }
        found
    }
}

/// Tests whether a name may be a misspelling of another.
pub(crate) fn is_similar(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
        // The distance is at least the difference in length; computing it costs the product of the lengths.
        || name.len() <= 2 * known.len() && strsim::normalized_damerau_levenshtein(name, known) >= 0.7
}

/// Suggestion: `did you mean "podSelector"?`, or the known names.
pub(crate) fn suggestion(name: &str, known: &[&str]) -> String {
    let distance = |known: &&&str| strsim::damerau_levenshtein(name, known);
    match known.iter().filter(|known| is_similar(name, known)).min_by_key(distance) {
        Some(best) => format!("did you mean {best:?}?"),
        None => format!("known here: {}", known.join(", ")),
    }
}
