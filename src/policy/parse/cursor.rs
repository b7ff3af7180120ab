//! Reading a tree: a node with its field path and the list that findings about it go to.
//!
//! Nothing here stops at the first error: a wrong value is reported, read as absent, and the rest is read too.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use super::diagnostic::{Diagnostic, Severity};
use super::source::{Location, Source};
use super::tree::{Node, Span, Value};
use crate::limits::{DIAGNOSTICS_MAX, MESSAGE_CHARS_MAX};
use crate::printable;

/// Where findings about one object go.
pub(crate) struct Diagnostics {
    source: Source,
    object: String,
    list: RefCell<Vec<Diagnostic>>,
    errors: Cell<usize>,
    warnings: Cell<usize>,
    unambiguous: Severity,
}

impl Diagnostics {
    /// For findings about an object of this name.
    pub(crate) fn new(source: &Source, object: impl Into<String>) -> Diagnostics {
        Diagnostics {
            source: source.clone(),
            object: cut(object.into()),
            list: RefCell::default(),
            errors: Cell::new(0),
            warnings: Cell::new(0),
            unambiguous: Severity::Error,
        }
    }

    /// How bad a value is that the API server would refuse though its meaning is plain.
    pub(crate) fn with_unambiguous(self, unambiguous: Severity) -> Diagnostics {
        Diagnostics { unambiguous, ..self }
    }

    /// What was found, up to a bound, and how many more.
    pub(crate) fn into_list(self) -> (Vec<Diagnostic>, usize) {
        let list = self.list.into_inner();
        let omitted = self.errors.get() + self.warnings.get() - list.len();
        (list, omitted)
    }

    /// Errors so far.
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
        // Errors and warnings have a bound each: many warnings must not hide an error.
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

/// Keeps values of any length from filling messages, and memory.
fn cut(text: String) -> String {
    match printable::cut(&text, MESSAGE_CHARS_MAX) {
        Cow::Borrowed(_) => text,
        Cow::Owned(short) => short,
    }
}

/// A field path. The root is the object.
#[derive(Clone, Default)]
pub(crate) struct Path<'t>(Option<Rc<(Path<'t>, Step<'t>)>>);

enum Step<'t> {
    Field(&'t str),
    Index(usize),
}

impl<'t> Path<'t> {
    /// The path of a field below.
    pub(crate) fn field(&self, name: &'t str) -> Path<'t> {
        Path(Some(Rc::new((self.clone(), Step::Field(name)))))
    }

    fn index(&self, index: usize) -> Path<'t> {
        Path(Some(Rc::new((self.clone(), Step::Index(index)))))
    }

    /// The field of the object that the path is in.
    pub(crate) fn first(&self) -> Option<&'t str> {
        let (parent, step) = self.0.as_deref()?;
        match step {
            Step::Field(name) if parent.0.is_none() => Some(name),
            _ => parent.first(),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((parent, step)) = self.0.as_deref() else { return Ok(()) };
        parent.fmt(f)?;
        match step {
            Step::Index(index) => write!(f, "[{index}]"),
            // Label keys hold dots and slashes.
            Step::Field(name) if name.contains(['.', '/', ' ']) || name.is_empty() => write!(f, "[{name}]"),
            Step::Field(name) if parent.0.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
        }
    }
}

/// A node, its path, and the diagnostics.
#[derive(Clone)]
pub(crate) struct Cursor<'t> {
    /// The node.
    pub node: &'t Node<'t>,
    /// Its path.
    pub path: Path<'t>,
    key: Option<Span>,
    diagnostics: &'t Diagnostics,
}

impl<'t> Cursor<'t> {
    /// The root of an object.
    pub(crate) fn root(node: &'t Node<'t>, diagnostics: &'t Diagnostics) -> Cursor<'t> {
        Cursor { node, path: Path::default(), key: None, diagnostics }
    }

    /// The diagnostics that errors about the node go to.
    pub(crate) fn diagnostics(&self) -> &'t Diagnostics {
        self.diagnostics
    }

    /// The place of the value; of its key where the value is empty.
    pub(crate) fn span(&self) -> Span {
        match self.key {
            Some(key) if self.node.span.start == self.node.span.end => key,
            _ => self.node.span,
        }
    }

    /// The place of the value.
    pub(crate) fn location(&self) -> Location {
        Location::new(&self.diagnostics.source, self.span())
    }

    /// Reports an error about the value and what to do about it.
    pub(crate) fn error_help(&self, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.add(
            Severity::Error,
            self.span(),
            self.path.to_string(),
            message.into(),
            Some(help.into()),
        );
    }

    /// Reports a warning about the value.
    pub(crate) fn warn(&self, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.add(
            Severity::Warning,
            self.span(),
            self.path.to_string(),
            message.into(),
            Some(help.into()),
        );
    }

    /// `Invalid value: "x": why`, in the API server's form.
    pub(crate) fn invalid(&self, why: &str, help: impl Into<String>) {
        self.error_help(format!("Invalid value: {}: {why}", self.shown()), help);
    }

    /// Like [`Cursor::invalid`], for a value whose meaning is plain: it is read all the same where diagnostics say so.
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

    /// `Unsupported value: "x": supported values: "a", "b"`, in the API server's form.
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

    /// Reports a field that must be there; the path is the field's, the place is the parent's.
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

    /// The value as the text has it.
    fn shown(&self) -> String {
        match &self.node.value {
            Value::Text(text) => format!("{text:?}"),
            Value::Number(text) => text.to_string(),
            Value::Bool(value) => value.to_string(),
            _ => self.node.type_name().to_owned(),
        }
    }

    /// What the text has where the value stands: `yes` for what is read as true.
    fn written(&self) -> &'t str {
        let location = self.diagnostics.source.text().get(self.node.span.start..self.node.span.end);
        location.unwrap_or_default()
    }

    /// Reports that the value is of another type than it must be.
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

    /// The text of a string.
    pub(crate) fn text(&self) -> Option<&'t str> {
        let text = self.node.text();
        if text.is_none() {
            self.wrong_type("a string");
        }
        text
    }

    /// A whole number.
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
        // "010" is 8 to YAML 1.1 and 10 to YAML 1.2: neither is taken.
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

    /// The items of a list; nothing for null.
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

    /// The entries of a mapping with any keys; nothing for null.
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

    /// A field of a mapping whose fields are checked elsewhere, where it is there and not null.
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

    /// The items of a list that is checked elsewhere.
    pub(crate) fn child_items(&self, name: &str) -> Vec<Cursor<'t>> {
        let list = self.child(name).filter(|at| matches!(at.node.value, Value::Sequence(_)));
        list.map(|at| at.items()).unwrap_or_default()
    }

    /// The fields of a mapping, all of them among `known`; nothing, reported, for another value. Fields that are null
    /// count as absent.
    pub(crate) fn fields(&self, known: &[&'static str]) -> Fields<'t> {
        let mut entries = self.entries();
        for (name, span, at) in entries.iter().filter(|(name, ..)| !known.contains(name)) {
            self.unknown_field(name, *span, &at.path, known);
        }
        entries.retain(|(name, _, at)| known.contains(name) && !at.node.is_null());
        Fields { entries, at: self.clone() }
    }

    /// Reports a field that is not known.
    pub(crate) fn unknown_field(&self, name: &str, span: Span, path: &Path<'t>, known: &[&str]) {
        let message = format!("unknown field {name:?}");
        self.diagnostics.add(Severity::Error, span, path.to_string(), message, Some(suggestion(name, known)));
    }
}

/// The fields of a mapping.
pub(crate) struct Fields<'t> {
    entries: Vec<(&'t str, Span, Cursor<'t>)>,
    /// The mapping.
    pub at: Cursor<'t>,
}

impl<'t> Fields<'t> {
    /// A field, where it is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<Cursor<'t>> {
        self.entries.iter().find(|(field, ..)| *field == name).map(|(.., at)| at.clone())
    }

    /// The items of a list field; nothing where it is absent. An item that is null, a dash with nothing behind it, is
    /// reported: read as `{}` it could mean everything.
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

    /// A field that must be there.
    pub(crate) fn required(&self, name: &'t str) -> Option<Cursor<'t>> {
        let found = self.get(name);
        if found.is_none() {
            self.at.required(name, &format!("{name} must be given"));
        }
        found
    }
}

/// Whether two names are near enough for one to be the other, misspelt.
pub(crate) fn is_similar(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
        // The distance is no less than the difference in length, and costs the product of the lengths.
        || name.len() <= 2 * known.len() && strsim::normalized_damerau_levenshtein(name, known) >= 0.7
}

/// `did you mean "podSelector"?`, or the names to choose from.
pub(crate) fn suggestion(name: &str, known: &[&str]) -> String {
    let distance = |known: &&&str| strsim::damerau_levenshtein(name, known);
    match known.iter().filter(|known| is_similar(name, known)).min_by_key(distance) {
        Some(best) => format!("did you mean {best:?}?"),
        None => format!("known here: {}", known.join(", ")),
    }
}
