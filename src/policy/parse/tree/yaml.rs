//! YAML parser on the events of `libyaml-safer`: anchors, aliases, merge keys, several documents.
//!
//! That crate is a port of libyaml, as is the parser of `kubectl`: both read a text alike, or this one
//! rejects it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::BufReader;

use libyaml_safer::{Encoding, EventData as Event, Mark, Parser, ScalarStyle};

use super::node::{Key, Node, Span, SyntaxError, Value, too_many_values};
use super::scalar;
use crate::limits::{ALIAS_NODES_MAX, DOCUMENT_DEPTH_MAX};

type Events<'e> = Parser<BufReader<&'e [u8]>>;

/// Bytes that the scanner decodes at a time. It keeps each character in four bytes.
const DECODED_BYTES: usize = 16 << 10;

/// Prefix of the core tags (YAML 1.1 section 2.4), such as `!!str`.
const CORE: &str = "tag:yaml.org,2002:";

/// Parses all documents of a text with at most so many values.
pub(super) fn parse(text: &str, values_max: usize) -> (Vec<Node<'_>>, Vec<SyntaxError>) {
    // The scanner rejects a block scalar whose last line has no break.
    let is_ended = text.ends_with(['\n', '\r']);
    let ended = if is_ended { Cow::Borrowed(text) } else { Cow::Owned(format!("{text}\n")) };
    if let Some(syntax_error) = tag_before_comma(&ended) {
        return (Vec::new(), vec![syntax_error]);
    }
    let events = events_of(&ended);
    let mut composer = Composer {
        events,
        text,
        anchors: HashMap::new(),
        copied: 0,
        values_left: values_max,
        syntax_errors: Vec::new(),
    };
    let mut nodes = Vec::new();
    let fatal = composer.documents(&mut nodes).err();
    composer.syntax_errors.extend(fatal);
    (nodes, composer.syntax_errors)
}

fn events_of(text: &str) -> Events<'_> {
    let mut events = Parser::new();
    events.set_encoding(Encoding::Utf8);
    events.set_input(BufReader::with_capacity(DECODED_BYTES, text.as_bytes()));
    events
}

/// Finds a tag directly followed by a comma, on which the scanner panics.
///
/// Texts with a comma in a word that contains a `!` are scanned twice: first with `@`, with which no token
/// starts, instead of the `!`. That scan fails at the first `!` outside of scalars and comments.
fn tag_before_comma(text: &str) -> Option<SyntaxError> {
    let mut masked = text.as_bytes().to_vec();
    let mut marks = HashSet::new();
    for word in text.split_whitespace().filter(|word| word.contains('!')) {
        let start = word.as_ptr().addr() - text.as_ptr().addr();
        let before_comma = &word[..word.rfind(',').unwrap_or(0)];
        for (at, _) in before_comma.match_indices('!') {
            masked[start + at] = b'@';
            marks.insert(start + at);
        }
    }
    if marks.is_empty() {
        return None;
    }
    let mut events = events_of(std::str::from_utf8(&masked).ok()?);
    loop {
        match events.parse() {
            Ok(event) if event.data == Event::StreamEnd => return None,
            Ok(_) => {}
            Err(error) => {
                let at = error.problem_mark()?.index as usize;
                return marks.contains(&at).then(|| unknown_tag(Span::new(at, at + 1)));
            }
        }
    }
}

struct Composer<'a, 'e> {
    events: Events<'e>,
    text: &'a str,
    anchors: HashMap<String, Node<'a>>,
    /// Number of nodes copied for anchors and aliases; the limit prevents an alias bomb.
    copied: usize,
    /// Number of values, keys among them, that may follow.
    values_left: usize,
    /// Errors that do not prevent further parsing.
    syntax_errors: Vec<SyntaxError>,
}

impl<'a> Composer<'a, '_> {
    fn documents(&mut self, nodes: &mut Vec<Node<'a>>) -> Result<(), SyntaxError> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(()),
                Event::StreamStart { .. } | Event::DocumentStart { .. } => {}
                Event::DocumentEnd { .. } => self.anchors.clear(),
                event => nodes.push(self.node(event, span, 0)?),
            }
        }
    }

    fn next(&mut self) -> Result<(Event, Span), SyntaxError> {
        let event = self.events.parse().map_err(|error| self.syntax_error(&error))?;
        let byte = |mark: Mark| (mark.index as usize).min(self.text.len());
        let (mut data, span) = (event.data, Span::new(byte(event.start_mark), byte(event.end_mark)));
        if let Event::Scalar { value, style: ScalarStyle::Literal | ScalarStyle::Folded, .. } = &mut data
            && event.end_mark.index as usize > self.text.len()
        {
            self.end_where_the_text_does(value, span)?;
        }
        Ok((data, span))
    }

    /// Removes the line break from a block scalar that the text does not contain.
    fn end_where_the_text_does(&self, value: &mut String, span: Span) -> Result<(), SyntaxError> {
        let last_line = self.text.rsplit(['\n', '\r']).next().unwrap_or_default();
        if last_line.trim().is_empty() {
            // The number of blanks determines whether they are a line of the scalar.
            let syntax_error =
                SyntaxError::new(span, "invalid YAML: a block scalar ends in blanks without a line break");
            return Err(syntax_error.with_help("end the file with a line break"));
        }
        if value.ends_with('\n') {
            value.pop();
        }
        Ok(())
    }

    fn syntax_error(&self, error: &libyaml_safer::Error) -> SyntaxError {
        let at = match error.problem_mark() {
            Some(mark) => (mark.index as usize).min(self.text.len()),
            None => self.text.find(is_forbidden).unwrap_or(self.text.len()),
        };
        let context = error.context().map(|context| format!("{context}, ")).unwrap_or_default();
        let syntax_error =
            SyntaxError::new(Span::new(at, at + 1), format!("invalid YAML: {context}{}", error.problem()));
        if self.text[at..].starts_with('\t') {
            syntax_error.with_help("indent with spaces: a tab is none")
        } else {
            syntax_error
        }
    }

    fn node(&mut self, event: Event, span: Span, depth: usize) -> Result<Node<'a>, SyntaxError> {
        self.values_left = self.values_left.checked_sub(1).ok_or_else(|| too_many_values(span))?;
        if depth > DOCUMENT_DEPTH_MAX {
            return Err(SyntaxError::new(span, format!("nested more than {DOCUMENT_DEPTH_MAX} levels deep")));
        }
        let (node, anchor) = match event {
            Event::Alias { anchor } => return self.alias(&anchor, span),
            Event::Scalar { anchor, tag, value, style, .. } => {
                let value = typed(value.into(), style, tag.as_deref(), span)?;
                (Node { span, value }, anchor)
            }
            Event::SequenceStart { anchor, tag, .. } => {
                refuse_tag(tag.as_deref(), "seq", span)?;
                (self.sequence(span, depth)?, anchor)
            }
            Event::MappingStart { anchor, tag, .. } => {
                refuse_tag(tag.as_deref(), "map", span)?;
                (self.mapping(span, depth)?, anchor)
            }
            other => return Err(SyntaxError::new(span, format!("invalid YAML: unexpected {other:?}"))),
        };
        if let Some(anchor) = anchor {
            count_copies(&mut self.copied, &node, span)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, anchor: &str, span: Span) -> Result<Node<'a>, SyntaxError> {
        // The anchor is added once its value is complete, so an alias within it finds nothing.
        let Some(target) = self.anchors.get(anchor) else {
            let message =
                format!("invalid YAML: the alias {anchor:?} names no value that is complete before it");
            return Err(SyntaxError::new(span, message)
                .with_help(format!("write \"&{anchor}\" before the value that it means")));
        };
        count_copies(&mut self.copied, target, span)?;
        Ok(Node { span, value: target.value.clone() })
    }

    fn sequence(&mut self, span: Span, depth: usize) -> Result<Node<'a>, SyntaxError> {
        let mut items: Vec<Node<'a>> = Vec::new();
        loop {
            let (event, inner) = self.next()?;
            if event == Event::SequenceEnd {
                let end = items
                    .last()
                    .map_or(span.end, |last| last.span.end)
                    .max(closing_bracket_end(self.text, inner));
                return Ok(Node { span: Span::new(span.start, end), value: Value::Sequence(items) });
            }
            items.push(self.node(event, inner, depth + 1)?);
        }
    }

    fn mapping(&mut self, span: Span, depth: usize) -> Result<Node<'a>, SyntaxError> {
        let mut entries: Vec<(Key<'a>, Node<'a>)> = Vec::new();
        let mut merges = Vec::new();
        loop {
            let (event, inner) = self.next()?;
            if event == Event::MappingEnd {
                let end = entries.last().map_or(span.end, |(_, last)| last.span.end);
                let start = entries.first().map_or(span.start, |(key, _)| key.span.start.min(span.start));
                let end = end.max(closing_bracket_end(self.text, inner));
                merge(&mut entries, merges)?;
                return Ok(Node { span: Span::new(start, end), value: Value::Mapping(entries) });
            }
            let is_merge = matches!(&event, Event::Scalar { value, style: ScalarStyle::Plain, tag: None, .. } if value == "<<");
            let key = self.key(event, inner)?;
            let (event, inner) = self.next()?;
            let value = self.node(event, inner, depth + 1)?;
            if is_merge {
                merges.push(value);
            } else {
                entries.push((key, value));
            }
        }
    }

    fn key(&mut self, event: Event, span: Span) -> Result<Key<'a>, SyntaxError> {
        let node = match event {
            Event::Scalar { .. } | Event::Alias { .. } => self.node(event, span, 0)?,
            _ => return Err(SyntaxError::new(span, "a key must be text, not a list or a mapping")),
        };
        match node.value {
            Value::Text(name) => Ok(Key { name, span }),
            Value::Number(name) if name.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Key { name, span }),
            _ => {
                let written = self.text.get(span.start..span.end).unwrap_or_default();
                let syntax_error =
                    SyntaxError::new(span, format!("a key must be text, not {}", node.type_name()));
                self.syntax_errors
                    .push(syntax_error.with_help(format!("quote it if it is meant as text: {written:?}")));
                Ok(Key { name: written.into(), span })
            }
        }
    }
}

fn typed<'a>(
    text: Cow<'a, str>,
    style: ScalarStyle,
    tag: Option<&str>,
    span: Span,
) -> Result<Value<'a>, SyntaxError> {
    match (tag, tag.and_then(|tag| tag.strip_prefix(CORE))) {
        (None, _) if style == ScalarStyle::Plain => Ok(scalar::plain(text)),
        (None, _) | (_, Some("str")) => Ok(Value::Text(text)),
        (_, Some("int" | "float" | "bool" | "null")) => Ok(scalar::plain(text)),
        _ => Err(unknown_tag(span)),
    }
}

/// Adds the entries of `<<`. Keys of the mapping itself, and of earlier merges, take precedence.
fn merge<'a>(entries: &mut Vec<(Key<'a>, Node<'a>)>, merges: Vec<Node<'a>>) -> Result<(), SyntaxError> {
    if merges.is_empty() {
        return Ok(());
    }
    let mut names: HashSet<Cow<'a, str>> = entries.iter().map(|(key, _)| key.name.clone()).collect();
    for merge in merges {
        let span = merge.span;
        let sources = match merge.value {
            Value::Sequence(items) => items,
            _ => vec![merge],
        };
        for source in sources {
            let what = source.type_name();
            let Value::Mapping(inherited) = source.value else {
                return Err(SyntaxError::new(span, format!("\"<<\" merges mappings, not {what}")));
            };
            entries.extend(inherited.into_iter().filter(|(key, _)| names.insert(key.name.clone())));
        }
    }
    Ok(())
}

fn count_copies(copied: &mut usize, node: &Node<'_>, span: Span) -> Result<(), SyntaxError> {
    *copied += size(node);
    if *copied > ALIAS_NODES_MAX {
        let message = format!("anchors and aliases stand for more than {ALIAS_NODES_MAX} values");
        return Err(SyntaxError::new(span, message).with_help("write the values out, or split the file"));
    }
    Ok(())
}

/// Number of nodes of a tree; long text counts as more than one.
fn size(node: &Node<'_>) -> usize {
    let mut total = 1;
    match &node.value {
        Value::Text(text) | Value::Number(text) => total += text.len() / 64,
        Value::Sequence(items) => {
            for item in items {
                total += size(item);
            }
        }
        Value::Mapping(entries) => {
            for (key, value) in entries {
                total += key.name.len() / 64 + size(value);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    total
}

/// End of the closing bracket of a flow collection; 0 for a block collection.
fn closing_bracket_end(text: &str, span: Span) -> usize {
    let bracket = text.get(span.start..span.end).is_some_and(|part| part == "}" || part == "]");
    if bracket { span.end } else { 0 }
}

/// Tests for a character that YAML forbids (YAML 1.1 section 5.1, `c-printable`).
fn is_forbidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}') || matches!(c, '\u{fffe}' | '\u{ffff}')
}

fn refuse_tag(tag: Option<&str>, allowed: &str, span: Span) -> Result<(), SyntaxError> {
    match tag {
        Some(tag) if tag.strip_prefix(CORE) != Some(allowed) => Err(unknown_tag(span)),
        _ => Ok(()),
    }
}

fn unknown_tag(span: Span) -> SyntaxError {
    SyntaxError::new(span, "a tag that means nothing here").with_help("remove the \"!tag\"")
}

#[cfg(test)]
mod tests;
