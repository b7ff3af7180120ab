//! YAML into a tree, from the events of `libyaml-safer`: anchors, aliases, merge keys, several documents.
//!
//! That crate is libyaml, which `kubectl` reads by a port of too: a text means here what it means there, or is refused.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::BufReader;

use libyaml_safer::{Encoding, EventData as Event, Mark, Parser, ScalarStyle};

use super::{Key, Node, Span, SyntaxError, Value, scalar};
use crate::limits::{ALIAS_NODES_MAX, DOCUMENT_DEPTH_MAX};

type Events<'e> = Parser<BufReader<&'e [u8]>>;

/// Bytes that the scanner decodes at a time. It keeps each character in four bytes.
const DECODED_BYTES: usize = 16 << 10;

/// Prefix of the tags of YAML itself (YAML 1.1 section 2.4), `!!str` for one.
const CORE: &str = "tag:yaml.org,2002:";

pub(super) fn parse(text: &str) -> (Vec<Node<'_>>, Vec<SyntaxError>) {
    // The scanner does not take a block scalar whose last line has no break.
    let is_ended = text.ends_with(['\n', '\r']);
    let ended = if is_ended { Cow::Borrowed(text) } else { Cow::Owned(format!("{text}\n")) };
    if let Some(syntax_error) = tag_before_comma(&ended) {
        return (Vec::new(), vec![syntax_error]);
    }
    let events = events_of(&ended);
    let mut composer =
        Composer { events, text, anchors: HashMap::new(), copied: 0, syntax_errors: Vec::new() };
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

/// Finds a tag that a comma follows without a blank, which the scanner panics on.
///
/// Texts with a comma in a word that has a `!` are scanned once more before: with `@` for the `!`, which no token begins with. The first
/// `!` that is not within a scalar or a comment is where that fails.
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
    /// Nodes copied because of anchors and aliases: what a bomb would make many of.
    copied: usize,
    /// What is wrong and does not keep the rest from being read.
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

    /// Takes from a block scalar the line break that the text does not have.
    fn end_where_the_text_does(&self, value: &mut String, span: Span) -> Result<(), SyntaxError> {
        let last_line = self.text.rsplit(['\n', '\r']).next().unwrap_or_default();
        if last_line.trim().is_empty() {
            // Whether these blanks are a line of the scalar depends on how many they are.
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
        // An alias inside its own anchor finds nothing: the anchor is entered when it is complete.
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

/// Adds what `<<` brings: keys that stand in the mapping itself, or in an earlier merge, win.
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

/// Nodes below and including this one; long text counts as more than one.
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

/// Where a flow collection ends: the end of its closing_bracket_end bracket. Block collections have none.
fn closing_bracket_end(text: &str, span: Span) -> usize {
    let bracket = text.get(span.start..span.end).is_some_and(|part| part == "}" || part == "]");
    if bracket { span.end } else { 0 }
}

/// Whether a character may not stand in YAML (YAML 1.1 section 5.1, `c-printable`).
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
mod tests {
    use super::*;

    fn one(text: &str) -> Node<'_> {
        let (mut nodes, syntax_errors) = parse(text);
        assert_eq!((nodes.len(), syntax_errors), (1, Vec::new()), "{text}");
        nodes.remove(0)
    }

    fn syntax_error(text: &str) -> String {
        parse(text).1.first().map(|syntax_error| syntax_error.message.clone()).unwrap_or_default()
    }

    #[test]
    fn places_are_bytes_of_the_text() {
        let text = "ä: \"ö\"\nb:\n  - c: 17 # x\n";
        let node = one(text);
        let Value::Mapping(entries) = &node.value else { panic!() };
        assert_eq!(&text[entries[0].0.span.start..entries[0].0.span.end], "ä");
        assert_eq!(&text[entries[0].1.span.start..entries[0].1.span.end], "\"ö\"");
        let Value::Sequence(items) = &entries[1].1.value else { panic!() };
        let c = items[0].get("c").unwrap();
        assert_eq!(&text[c.span.start..c.span.end], "17");
    }

    #[test]
    fn aliases_and_merge_keys_stand_for_what_they_name() {
        let node = one("a: &a {x: 1, z: 2}\nb: *a\nc: {<<: *a, x: \"3\"}\nd: {<<: [{x: q}, *a]}\n");
        let number = |node: &Node<'_>, key: &str| match &node.get(key).unwrap().value {
            Value::Number(text) | Value::Text(text) => text.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(number(node.get("b").unwrap(), "x"), "1");
        assert_eq!(
            (number(node.get("c").unwrap(), "x"), number(node.get("c").unwrap(), "z")),
            ("3".into(), "2".into())
        );
        assert_eq!(
            (number(node.get("d").unwrap(), "x"), number(node.get("d").unwrap(), "z")),
            ("q".into(), "2".into())
        );
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let level = |level: usize| {
            let aliases = vec![format!("*a{}", level.saturating_sub(1)); 10].join(", ");
            format!("a{level}: &a{level} [{}]\n", if level == 0 { "x, x, x, x, x" } else { &aliases })
        };
        let text: Vec<String> = (0..12).map(level).collect();
        let text = text.concat();
        assert!(syntax_error(&text).contains("stand for more than"), "{}", syntax_error(&text));
        let long = format!("a: &a \"{}\"\nb: [{}]\n", "\\n".repeat(1_000_000), vec!["*a"; 1000].join(", "));
        assert!(syntax_error(&long).contains("stand for more than"), "{}", syntax_error(&long));
    }

    #[test]
    fn what_has_no_meaning_in_kubernetes_is_refused() {
        for (text, part) in [
            ("a: &a [*a]", "complete before it"),
            ("a: *b", "invalid YAML"),
            ("? [a]\n: b", "not a list or a mapping"),
            ("yes: b", "must be text"),
            ("a: !Secret b", "tag"),
            ("a: {<<: 1}", "merges mappings"),
            ("a: [b", "invalid YAML"),
            ("a: b\n\tc: d", "invalid YAML"),
        ] {
            assert!(syntax_error(text).contains(part), "{text}: {}", syntax_error(text));
        }
        let deep = syntax_error(&"- ".repeat(5000));
        assert!(deep.contains("invalid YAML") || deep.contains("levels deep"), "{deep}");
    }

    /// The tree in short: `{key=value}`, `[item item]`.
    fn shape(node: &Node<'_>) -> String {
        match &node.value {
            Value::Sequence(items) => format!("[{}]", items.iter().map(shape).collect::<Vec<_>>().join(" ")),
            Value::Mapping(entries) => {
                let entry = |(key, node): &(Key<'_>, Node<'_>)| format!("{}={}", key.name, shape(node));
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(" "))
            }
            Value::Text(text) | Value::Number(text) => text.escape_default().to_string(),
            Value::Bool(value) => value.to_string(),
            Value::Null => "~".to_owned(),
        }
    }

    /// Results of libyaml 0.2.5 (seen by `yaml.CBaseLoader` of `PyYAML` 6.0); nothing where it refuses.
    #[test]
    fn a_text_is_read_as_libyaml_reads_it_or_refused() {
        for (text, expected) in [
            // A closing_bracket_end bracket may stand where the key does, and tabs within brackets wherever a blank may.
            ("spec: {\n  a: b\n}\nc: d\n", Some("{spec={a=b} c=d}")),
            ("a: [\n  b,\n  c\n]\n", Some("{a=[b c]}")),
            ("- {\n  a: b\n}\n", Some("[{a=b}]")),
            ("a: {\n\tb: c,\n\td: [\n\t\te,\n\t],\n\t}\n", Some("{a={b=c d=[e]}}")),
            ("a: {\n\tb: c\n\t}\n", None),
            ("a:\tb\t# c\n", Some("{a=b}")),
            // Tabs indent nothing.
            ("\ta: b\n", None),
            ("a:\n\tb: c\n", None),
            ("a: b\n\tc: d\n", None),
            ("- a\n\t- b\n", None),
            ("- \ta\n", None),
            ("a: |\n\tb\n", None),
            // A block scalar at the end of the text has no line break that is not there.
            ("a: |\n  b", Some("{a=b}")),
            ("a: |\n  b\n", Some("{a=b\\n}")),
            ("a: >-\n  b\n  c", Some("{a=b c}")),
            ("a: |\n  b\n  ", None),
            // More than YAML 1.2 takes.
            ("a: {b: c}#d\n", Some("{a={b=c}}")),
            ("a:\n  - b: \"c\n   d\"\n", Some("{a=[{b=c d}]}")),
            ("a: [b\nc]\n", Some("{a=[b c]}")),
            // Less.
            ("a: {b:}\n", None),
            ("a: {b: ::1}\n", None),
            ("{a b\n  c: d}\n", None),
            ("a: [b,, c]\n", None),
            ("...\n", None),
            // Tags that a comma follows: the scanner would panic.
            ("a: [!!str,b]\n", None),
            ("a: !x,b\n", None),
            ("a: 'no!, b' # c!,\n", Some("{a=no!, b}")),
            ("a: no!,b\nc: [!!str ,b]\n", Some("{a=no!,b c=[ b]}")),
        ] {
            let (nodes, syntax_errors) = parse(text);
            let read =
                syntax_errors.is_empty().then(|| nodes.iter().map(shape).collect::<Vec<_>>().join(" --- "));
            assert_eq!(read.as_deref(), expected, "{text:?}: {syntax_errors:?}");
        }
    }

    #[test]
    fn a_fault_of_indentation_is_told_where_the_tab_is() {
        let (_, syntax_errors) = parse("a:\n\tb: c\n");
        assert_eq!(
            (syntax_errors[0].span.start, syntax_errors[0].help.as_deref()),
            (3, Some("indent with spaces: a tab is none"))
        );
        let (_, syntax_errors) = parse("a: b\nc: \u{1b}[2J\n");
        assert_eq!(syntax_errors[0].span.start, 8, "{syntax_errors:?}");
    }

    #[test]
    fn tags_of_yaml_itself_type_a_scalar() {
        let node = one("a: !!str 80\nb: !!int \"80\"\n");
        assert_eq!(node.get("a").unwrap().text(), Some("80"));
        assert!(matches!(node.get("b").unwrap().value, Value::Number(_)));
    }
}
