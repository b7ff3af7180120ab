//! Positions of the fields of parsed objects.

use std::collections::HashMap;

use super::source::{Location, Source};
use super::tree::{self, Node, Span, Value};

/// Line and column of a field, from 1; the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPosition {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

/// Positions of fields such as `spec.ingress[0].ports[1]`, each of an object of the source, in the order of `wanted`. A
/// field that does not exist has the position of the nearest one around it, or of the object.
///
/// Parses the source again: a parsed object keeps the location of its beginning alone.
pub fn field_positions(source: &Source, wanted: &[(&Location, &str)]) -> Vec<FieldPosition> {
    let (nodes, _) = tree::parse(source.text(), source.is_json());
    let mut objects = HashMap::new();
    nodes.iter().for_each(|node| add_objects(node, &mut objects));
    let start = |(object, path): &(&Location, &str)| {
        let node = objects.get(&(object.span().start, object.span().end));
        node.and_then(|node| field_span(node, path)).unwrap_or(object.span()).start
    };
    positions(source, &wanted.iter().map(start).collect::<Vec<_>>())
}

/// Adds the objects of a document, and of the lists in it, by their spans.
fn add_objects<'n>(node: &'n Node<'n>, objects: &mut HashMap<(usize, usize), &'n Node<'n>>) {
    objects.insert((node.span.start, node.span.end), node);
    if let Some(Value::Sequence(items)) = node.get("items").map(|items| &items.value) {
        items.iter().for_each(|item| add_objects(item, objects));
    }
}

/// Span of the key of a field, or of an item of a sequence: of the last part of the path that exists.
fn field_span(object: &Node<'_>, path: &str) -> Option<Span> {
    let (mut node, mut rest, mut span) = (object, path, None);
    while !rest.is_empty() {
        let (part, after) = if let Some(inside) = rest.strip_prefix('[') {
            inside.split_once(']')?
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            name.split_at(name.find(['.', '[']).unwrap_or(name.len()))
        };
        let found = match &node.value {
            Value::Mapping(entries) => {
                let entry = entries.iter().find(|(key, _)| key.name == part);
                entry.map(|(key, value)| (key.span, value))
            }
            Value::Sequence(items) => {
                part.parse().ok().and_then(|index: usize| items.get(index)).map(|item| (item.span, item))
            }
            _ => None,
        };
        let Some((found_span, value)) = found else { break };
        (node, rest, span) = (value, after, Some(found_span));
    }
    span
}

/// Positions of bytes. A line of any length is read once.
fn positions(source: &Source, starts: &[usize]) -> Vec<FieldPosition> {
    let text = source.text();
    let mut order: Vec<usize> = (0..starts.len()).collect();
    order.sort_unstable_by_key(|&at| starts[at]);
    let mut found = vec![FieldPosition { line: 1, column: 1 }; starts.len()];
    let (mut line, mut offset, mut column) = (usize::MAX, 0, 1);
    for at in order {
        let start = text.floor_char_boundary(starts[at].min(text.len()));
        let index = source.line_index(start);
        if index != line {
            (line, offset, column) = (index, source.line_span(index).start, 1);
        }
        column += text[offset..start].chars().count();
        offset = start;
        found[at] = FieldPosition { line: line + 1, column };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse::parse_source;

    const POLICY: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p}
spec:
  podSelector: {}
  ingress:
    - ports:
        - port: 80
        - {port: 81}
";

    /// Line and column of a field of the last object.
    fn position(text: &str, path: &str) -> (usize, usize) {
        let source = Source::new("fields.yaml", text);
        let parsed = parse_source(&source).unwrap();
        let (_, object) = parsed.objects.last().unwrap();
        let positions = field_positions(&source, &[(object, path), (object, ""), (object, path)]);
        assert_eq!(positions[0], positions[2]);
        assert_eq!((positions[1].line, positions[1].column), (object.line(), object.column()));
        (positions[0].line, positions[0].column)
    }

    #[test]
    fn a_field_is_found_in_a_document_in_a_list_and_in_json() {
        let path = "spec.ingress[0].ports[1]";
        assert_eq!(position(POLICY, path), (9, 11));
        assert_eq!(position(&format!("# p\n---\n{POLICY}"), path), (11, 11));
        assert_eq!(position(&POLICY.replace('\n', "\r\n"), path), (9, 11));
        let item = POLICY.trim_end().replace('\n', "\n    ");
        let list = format!("apiVersion: v1\nkind: List\nitems:\n  - {item}\n");
        assert_eq!(position(&list, path), (12, 15));
        assert_eq!(position(&list, "spec.podSelector"), (8, 7));
        let json = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "ü"},
"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}, {"port": 81}]}]}}"#;
        assert_eq!(position(&json.replace('ü', "p"), path), (2, 66));
    }

    #[test]
    fn a_field_with_an_anchor_of_another_object_is_where_it_is_written() {
        let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: &l {app: db}}\n---\n";
        let policy = POLICY.replace("podSelector: {}", "podSelector: {matchLabels: *l}");
        // Documents of YAML do not share anchors, items of a list do.
        let [namespace, policy] =
            [&text[..text.len() - 5], policy.trim_end()].map(|text| text.replace('\n', "\n    "));
        let list = format!("apiVersion: v1\nkind: List\nitems:\n  - {namespace}\n  - {policy}\n");
        assert_eq!(position(&list, "spec.podSelector.matchLabels"), (11, 21));
    }

    #[test]
    fn a_field_that_does_not_exist_is_at_the_one_around_it() {
        assert_eq!(position(POLICY, "spec.ingress[0].ports[1].endPort"), (9, 11));
        assert_eq!(position(POLICY, "spec.egress[0]"), (4, 1));
        assert_eq!(position(POLICY, "status"), (1, 1));
        let annotated = POLICY.replace("{name: p}", "{name: p, annotations: {a.b/c: x}}");
        assert_eq!(position(&annotated, "metadata.annotations[a.b/c]"), (3, 35));
    }
}
