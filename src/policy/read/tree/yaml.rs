//! YAML into a tree, from the events of `granit-parser`: anchors, aliases, merge keys, several documents.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, StrInput, Tag};

use super::{Fault, Key, Node, Span, Value, scalar};
use crate::limits::{ALIAS_NODES_MAX, DOCUMENT_DEPTH_MAX};

pub(super) fn parse(text: &str) -> (Vec<Node<'_>>, Vec<Fault>) {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: DOCUMENT_DEPTH_MAX,
        block_nesting_limit: DOCUMENT_DEPTH_MAX,
    };
    let mut composer = Composer {
        events: Parser::new_from_str_with_options(text, options),
        text,
        anchors: HashMap::new(),
        copied: 0,
        faults: Vec::new(),
    };
    let mut nodes = Vec::new();
    let fatal = composer.documents(&mut nodes).err();
    composer.faults.extend(fatal);
    (nodes, composer.faults)
}

struct Composer<'a> {
    events: Parser<'a, StrInput<'a>>,
    text: &'a str,
    anchors: HashMap<usize, Node<'a>>,
    /// Nodes copied because of anchors and aliases: what a bomb would make many of.
    copied: usize,
    /// What is wrong and does not keep the rest from being read.
    faults: Vec<Fault>,
}

impl<'a> Composer<'a> {
    fn documents(&mut self, nodes: &mut Vec<Node<'a>>) -> Result<(), Fault> {
        while let Some((event, span)) = self.next()? {
            match event {
                Event::StreamStart | Event::DocumentStart(..) | Event::StreamEnd => {}
                Event::DocumentEnd => self.anchors.clear(),
                event => nodes.push(self.node(event, span, 0)?),
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Fault> {
        match self.events.next_event() {
            None => Ok(None),
            Some(Ok((event, span))) => {
                let byte = |marker: granit_parser::Marker| marker.byte_offset().unwrap_or(self.text.len());
                Ok(Some((event, Span::new(byte(span.start), byte(span.end)))))
            }
            Some(Err(error)) => {
                let at = error.marker().byte_offset().unwrap_or(self.text.len());
                Err(Fault::new(Span::new(at, at + 1), format!("invalid YAML: {}", error.kind())))
            }
        }
    }

    fn inner(&mut self) -> Result<(Event<'a>, Span), Fault> {
        let end = Span::new(self.text.len(), self.text.len());
        self.next()?.ok_or_else(|| Fault::new(end, "invalid YAML: the text ends within a value"))
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node<'a>, Fault> {
        if depth > DOCUMENT_DEPTH_MAX {
            return Err(Fault::new(span, format!("nested more than {DOCUMENT_DEPTH_MAX} levels deep")));
        }
        let (node, anchor) = match event {
            Event::Alias(id) => return self.alias(id, span),
            Event::Scalar(text, style, anchor, tag) => {
                let value = typed(text, style, tag.as_deref(), span)?;
                (Node { span, value }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), "seq", span)?;
                (self.sequence(span, depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), "map", span)?;
                (self.mapping(span, depth)?, anchor)
            }
            other => return Err(Fault::new(span, format!("invalid YAML: unexpected {other:?}"))),
        };
        if anchor != 0 {
            charge(&mut self.copied, &node, span)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, span: Span) -> Result<Node<'a>, Fault> {
        // An alias inside its own anchor finds nothing: the anchor is entered when it is complete.
        let Some(target) = self.anchors.get(&id) else {
            return Err(Fault::new(span, "an alias may not stand inside the value that it names"));
        };
        charge(&mut self.copied, target, span)?;
        Ok(Node { span, value: target.value.clone() })
    }

    fn sequence(&mut self, span: Span, depth: usize) -> Result<Node<'a>, Fault> {
        let mut items: Vec<Node<'a>> = Vec::new();
        loop {
            let (event, inner) = self.inner()?;
            if event == Event::SequenceEnd {
                let end = items.last().map_or(span.end, |last| last.span.end).max(closing(self.text, inner));
                return Ok(Node { span: Span::new(span.start, end), value: Value::Sequence(items) });
            }
            items.push(self.node(event, inner, depth + 1)?);
        }
    }

    fn mapping(&mut self, span: Span, depth: usize) -> Result<Node<'a>, Fault> {
        let mut entries: Vec<(Key<'a>, Node<'a>)> = Vec::new();
        let mut merges = Vec::new();
        loop {
            let (event, inner) = self.inner()?;
            if event == Event::MappingEnd {
                let end = entries.last().map_or(span.end, |(_, last)| last.span.end);
                let start = entries.first().map_or(span.start, |(key, _)| key.span.start.min(span.start));
                let end = end.max(closing(self.text, inner));
                merge(&mut entries, merges)?;
                return Ok(Node { span: Span::new(start, end), value: Value::Mapping(entries) });
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.key(event, inner)?;
            let (event, inner) = self.inner()?;
            let value = self.node(event, inner, depth + 1)?;
            if is_merge {
                merges.push(value);
            } else {
                entries.push((key, value));
            }
        }
    }

    fn key(&mut self, event: Event<'a>, span: Span) -> Result<Key<'a>, Fault> {
        let node = match event {
            Event::Scalar(..) | Event::Alias(_) => self.node(event, span, 0)?,
            _ => return Err(Fault::new(span, "a key must be text, not a list or a mapping")),
        };
        match node.value {
            Value::Text(name) => Ok(Key { name, span }),
            Value::Number(name) if name.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Key { name, span }),
            _ => {
                let written = self.text.get(span.start..span.end).unwrap_or_default();
                let fault = Fault::new(span, format!("a key must be text, not {}", node.what()));
                self.faults.push(fault.with_help(format!("quote it if it is meant as text: {written:?}")));
                Ok(Key { name: written.into(), span })
            }
        }
    }
}

fn typed<'a>(
    text: Cow<'a, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    span: Span,
) -> Result<Value<'a>, Fault> {
    match (tag, tag.and_then(Tag::core_suffix)) {
        (None, _) if style == ScalarStyle::Plain => Ok(scalar::plain(text)),
        (None, _) | (_, Some("str")) => Ok(Value::Text(text)),
        (_, Some("int" | "float" | "bool" | "null")) => Ok(scalar::plain(text)),
        _ => Err(unknown_tag(span)),
    }
}

/// Adds what `<<` brings: keys that stand in the mapping itself, or in an earlier merge, win.
fn merge<'a>(entries: &mut Vec<(Key<'a>, Node<'a>)>, merges: Vec<Node<'a>>) -> Result<(), Fault> {
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
            let what = source.what();
            let Value::Mapping(inherited) = source.value else {
                return Err(Fault::new(span, format!("\"<<\" merges mappings, not {what}")));
            };
            entries.extend(inherited.into_iter().filter(|(key, _)| names.insert(key.name.clone())));
        }
    }
    Ok(())
}

fn charge(copied: &mut usize, node: &Node<'_>, span: Span) -> Result<(), Fault> {
    *copied += weight(node);
    if *copied > ALIAS_NODES_MAX {
        let message = format!("anchors and aliases stand for more than {ALIAS_NODES_MAX} values");
        return Err(Fault::new(span, message).with_help("write the values out, or split the file"));
    }
    Ok(())
}

/// Nodes below and including this one; long text counts as more than one.
fn weight(node: &Node<'_>) -> usize {
    let mut total = 1;
    match &node.value {
        Value::Text(text) | Value::Number(text) => total += text.len() / 64,
        Value::Sequence(items) => {
            for item in items {
                total += weight(item);
            }
        }
        Value::Mapping(entries) => {
            for (key, value) in entries {
                total += key.name.len() / 64 + weight(value);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    total
}

/// Where a flow collection ends: the end of its closing bracket. Block collections have none.
fn closing(text: &str, span: Span) -> usize {
    let bracket = text.get(span.start..span.end).is_some_and(|part| part == "}" || part == "]");
    if bracket { span.end } else { 0 }
}

fn refuse_tag(tag: Option<&Tag>, allowed: &str, span: Span) -> Result<(), Fault> {
    match tag {
        Some(tag) if tag.core_suffix() != Some(allowed) => Err(unknown_tag(span)),
        _ => Ok(()),
    }
}

fn unknown_tag(span: Span) -> Fault {
    Fault::new(span, "a tag that means nothing here").with_help("remove the \"!tag\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Node<'_> {
        let (mut nodes, faults) = parse(text);
        assert_eq!((nodes.len(), faults), (1, Vec::new()), "{text}");
        nodes.remove(0)
    }

    fn fault(text: &str) -> String {
        parse(text).1.first().map(|fault| fault.message.clone()).unwrap_or_default()
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
        assert!(fault(&text).contains("stand for more than"), "{}", fault(&text));
        let long = format!("a: &a \"{}\"\nb: [{}]\n", "\\n".repeat(1_000_000), vec!["*a"; 1000].join(", "));
        assert!(fault(&long).contains("stand for more than"), "{}", fault(&long));
    }

    #[test]
    fn what_has_no_meaning_in_kubernetes_is_refused() {
        for (text, part) in [
            ("a: &a [*a]", "inside the value"),
            ("a: *b", "invalid YAML"),
            ("? [a]\n: b", "not a list or a mapping"),
            ("yes: b", "must be text"),
            ("a: !Secret b", "tag"),
            ("a: {<<: 1}", "merges mappings"),
            ("a: [b", "invalid YAML"),
            ("a: b\n\tc: d", "invalid YAML"),
        ] {
            assert!(fault(text).contains(part), "{text}: {}", fault(text));
        }
        let deep = fault(&"- ".repeat(5000));
        assert!(deep.contains("invalid YAML") || deep.contains("levels deep"), "{deep}");
    }

    #[test]
    fn tags_of_yaml_itself_type_a_scalar() {
        let node = one("a: !!str 80\nb: !!int \"80\"\n");
        assert_eq!(node.get("a").unwrap().text(), Some("80"));
        assert!(matches!(node.get("b").unwrap().value, Value::Number(_)));
    }
}
