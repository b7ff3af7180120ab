//! Places of the fields of a parsed object.

use std::collections::HashMap;

use super::cursor::{Cursor, Diagnostics};
use super::source::Location;
use super::tree::{self, Span, Value};

/// Places of the fields of an object, by their paths.
pub struct FieldPlaces {
    object: Location,
    fields: HashMap<String, Span>,
}

impl FieldPlaces {
    /// Parses the text of the object again. A parsed object keeps the place of its beginning alone.
    pub fn of(object: &Location) -> FieldPlaces {
        let (source, span) = (object.source(), object.span());
        let line = source.line_span(source.line_index(span.start));
        // The first line of a block mapping gets the indentation of the others.
        let before = &source.text()[line.start..span.start];
        let indent = if source.text()[span.start..].starts_with('{') { 0 } else { before.chars().count() };
        let text = " ".repeat(indent) + &source.text()[span.start..span.end];
        let mut fields = HashMap::new();
        let (nodes, _) = tree::parse(&text, source.is_json());
        let diagnostics = Diagnostics::new(source, "");
        for node in &nodes {
            add_fields(&Cursor::root(node, &diagnostics), &mut fields);
        }
        for place in fields.values_mut() {
            let [start, end] = [place.start, place.end].map(|at| span.start + at.saturating_sub(indent));
            *place = Span::new(start, end);
        }
        FieldPlaces { object: object.clone(), fields }
    }

    /// Location of a field such as `spec.ingress[0].ports[1]`, or of the nearest one around it that is there.
    pub fn location(&self, path: &str) -> Location {
        let mut path = path;
        loop {
            if let Some(span) = self.fields.get(path) {
                return Location::new(self.object.source(), *span);
            }
            let Some(end) = path.rfind(['.', '[']) else { return self.object.clone() };
            path = &path[..end];
        }
    }
}

/// Adds the keys of mappings and the items of sequences.
fn add_fields(at: &Cursor<'_>, fields: &mut HashMap<String, Span>) {
    match &at.node.value {
        Value::Mapping(_) => {
            for (_, key, below) in at.entries() {
                fields.insert(below.path.to_string(), key);
                add_fields(&below, fields);
            }
        }
        Value::Sequence(_) => {
            for item in at.items() {
                fields.insert(item.path.to_string(), item.node.span);
                add_fields(&item, fields);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse::{Source, parse_source};

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
    fn place(text: &str, path: &str) -> (usize, usize) {
        let parsed = parse_source(&Source::new("fields.yaml", text)).unwrap();
        let (_, object) = parsed.objects.last().unwrap();
        let location = FieldPlaces::of(object).location(path);
        (location.line(), location.column())
    }

    #[test]
    fn a_field_is_found_in_a_document_in_a_list_and_in_json() {
        let path = "spec.ingress[0].ports[1]";
        assert_eq!(place(POLICY, path), (9, 11));
        assert_eq!(place(&format!("# p\n---\n{POLICY}"), path), (11, 11));
        let item = POLICY.trim_end().replace('\n', "\n    ");
        let list = format!("apiVersion: v1\nkind: List\nitems:\n  - {item}\n");
        assert_eq!(place(&list, path), (12, 15));
        assert_eq!(place(&list, "spec.podSelector"), (8, 7));
        let json = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"},
"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}, {"port": 81}]}]}}"#;
        assert_eq!(place(json, path), (2, 66));
    }

    #[test]
    fn a_field_that_is_not_there_is_at_the_one_around_it() {
        assert_eq!(place(POLICY, "spec.ingress[0].ports[1].endPort"), (9, 11));
        assert_eq!(place(POLICY, "spec.egress[0]"), (4, 1));
        assert_eq!(place(POLICY, "status"), (1, 1));
    }
}
