//! Document tree: values of a text with their places.
//!
//! A diagnostic must point at the line and column of its field. Typed deserializers lose places and stop at
//! the first error, so the text is parsed into a tree, and all further steps read the tree. JSON has its own
//! parser: `serde_json` keeps no places, and YAML parsers reject some valid JSON (tabs, surrogate escapes).

mod json;
mod node;
mod scalar;
mod yaml;

use crate::limits::SOURCE_VALUES_MAX;

pub(crate) use node::{Key, Node, Span, SyntaxError, Value};

/// Parses the documents of a text, up to the first error that prevents further reading. Returns all syntax
/// errors.
///
/// `json_only` is set for files whose name ends in `.json`. Other texts that start like JSON are parsed as
/// JSON, and as YAML if that fails: a flow mapping of YAML starts alike.
pub(crate) fn parse(text: &str, json_only: bool) -> (Vec<Node<'_>>, Vec<SyntaxError>) {
    if json_only {
        return json::parse(text, SOURCE_VALUES_MAX);
    }
    if text.trim_start().starts_with(['{', '[']) {
        let (nodes, syntax_errors) = json::parse(text, SOURCE_VALUES_MAX);
        if syntax_errors.is_empty() {
            return (nodes, syntax_errors);
        }
    }
    yaml::parse(text, SOURCE_VALUES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_too_many_values_is_an_error_at_the_first_beyond() {
        for (text, values) in [("[1, 2, {\"a\": 3}]", 5), ("[[], 2]\n[3]", 5)] {
            assert_eq!(json::parse(text, values).1, []);
            let (_, errors) = json::parse(text, values - 1);
            assert_eq!(errors[0].span.start, text.rfind(['2', '3']).unwrap());
        }
        let text = "a: [1, 2]\nb: 3\n---\n- c\n";
        assert_eq!(yaml::parse(text, 9).1, []);
        let (nodes, errors) = yaml::parse(text, 8);
        assert_eq!((nodes.len(), errors[0].span.start), (1, text.find('c').unwrap()));
        assert!(errors[0].message.contains("4194304 values"), "{errors:?}");
    }
}
