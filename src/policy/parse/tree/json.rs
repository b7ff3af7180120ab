//! JSON (RFC 8259) parser. Several values in a row are several documents, as in `kubectl`.

use std::borrow::Cow;

use super::node::{Key, Node, Span, SyntaxError, Value, too_many_values};
use crate::limits::DOCUMENT_DEPTH_MAX;

/// Parses all values of a text, which has at most so many in these.
pub(super) fn parse(text: &str, values_max: usize) -> (Vec<Node<'_>>, Vec<SyntaxError>) {
    let mut reader = JsonParser { text, at: 0, values_left: values_max };
    let mut nodes = Vec::new();
    loop {
        reader.skip_space();
        if reader.at == text.len() {
            return (nodes, Vec::new());
        }
        match reader.value(0) {
            Ok(node) => nodes.push(node),
            Err(syntax_error) => return (nodes, vec![syntax_error]),
        }
    }
}

struct JsonParser<'a> {
    text: &'a str,
    at: usize,
    /// Number of values that may follow.
    values_left: usize,
}

impl<'a> JsonParser<'a> {
    fn value(&mut self, depth: usize) -> Result<Node<'a>, SyntaxError> {
        self.skip_space();
        let start = self.at;
        let too_many = || too_many_values(Span::new(start, start + 1));
        self.values_left = self.values_left.checked_sub(1).ok_or_else(too_many)?;
        if depth > DOCUMENT_DEPTH_MAX {
            let message = format!("nested more than {DOCUMENT_DEPTH_MAX} levels deep");
            return Err(SyntaxError::new(Span::new(start, start + 1), message));
        }
        let value = match self.peek() {
            Some(b'{') => self.mapping(depth)?,
            Some(b'[') => self.sequence(depth)?,
            Some(b'"') => Value::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", Value::Bool(true))?,
            Some(b'f') => self.word("false", Value::Bool(false))?,
            Some(b'n') => self.word("null", Value::Null)?,
            _ => return Err(self.unexpected("a JSON value")),
        };
        Ok(Node { span: Span::new(start, self.at), value })
    }

    fn mapping(&mut self, depth: usize) -> Result<Value<'a>, SyntaxError> {
        self.at += 1;
        let mut entries = Vec::new();
        if self.take(b'}') {
            return Ok(Value::Mapping(entries));
        }
        loop {
            self.skip_space();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a key in double quotes"));
            }
            let name = self.string()?;
            let span = Span::new(start, self.at);
            if !self.take(b':') {
                return Err(self.unexpected("':' after the key"));
            }
            entries.push((Key { name, span }, self.value(depth + 1)?));
            if self.take(b'}') {
                return Ok(Value::Mapping(entries));
            }
            if !self.take(b',') {
                return Err(self.unexpected("',' or '}'"));
            }
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<Value<'a>, SyntaxError> {
        self.at += 1;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Value::Sequence(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(b']') {
                return Ok(Value::Sequence(items));
            }
            if !self.take(b',') {
                return Err(self.unexpected("',' or ']'"));
            }
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, SyntaxError> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut escaped = false;
        let mut end = start + 1;
        loop {
            match bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    end += 2;
                }
                Some(0..=0x1f) | None => {
                    let message = "a string without its closing quote";
                    return Err(SyntaxError::new(Span::new(start, end.min(bytes.len())), message));
                }
                Some(_) => end += 1,
            }
        }
        self.at = end + 1;
        if !escaped {
            return Ok(Cow::Borrowed(&self.text[start + 1..end]));
        }
        serde_json::from_str(&self.text[start..=end])
            .map(Cow::Owned)
            .map_err(|_| SyntaxError::new(Span::new(start, end + 1), "a string with an invalid escape"))
    }

    fn number(&mut self) -> Result<Value<'a>, SyntaxError> {
        let start = self.at;
        let part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        self.at += self.text.as_bytes()[start..].iter().take_while(|byte| part(byte)).count();
        let text = &self.text[start..self.at];
        match serde_json::from_str::<serde_json::Number>(text) {
            Ok(_) => Ok(Value::Number(text.into())),
            Err(_) => {
                Err(SyntaxError::new(Span::new(start, self.at), format!("{text} is not a JSON number")))
            }
        }
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, SyntaxError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.unexpected("a JSON value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn unexpected(&self, wanted: &str) -> SyntaxError {
        let span = Span::new(self.at, self.at + 1);
        match self.text[self.at..].chars().next() {
            Some(found) => {
                SyntaxError::new(span, format!("invalid JSON: expected {wanted}, found {found:?}"))
            }
            None => SyntaxError::new(span, format!("invalid JSON: expected {wanted}, the text ends here")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_places() {
        let text = "{\"a\": [1,\t\"x\\u00e9\"]}";
        let (nodes, syntax_errors) = parse(text, 1000);
        assert_eq!(syntax_errors, []);
        let Some(Value::Sequence(items)) = nodes[0].get("a").map(|node| &node.value) else { panic!() };
        assert_eq!(items[0].span, Span::new(7, 8));
        assert_eq!(items[1].text(), Some("xé"));
        assert_eq!(&text[items[1].span.start..items[1].span.end], "\"x\\u00e9\"");
    }

    #[test]
    fn what_rfc_8259_forbids_is_refused() {
        for text in [
            "{\"a\":1,}",
            "[1,]",
            "{a:1}",
            "01",
            "+1",
            "1.",
            "nul",
            "\"a",
            "\"\\x\"",
            "\"\t\"",
            "{\"a\"}",
            "[",
        ] {
            assert!(!parse(text, 1000).1.is_empty(), "{text}");
        }
    }

    #[test]
    fn values_in_a_row_are_documents() {
        let (nodes, syntax_errors) = parse(" {} \n[]\t1 ", 1000);
        assert_eq!((nodes.len(), syntax_errors), (3, Vec::new()));
    }

    #[test]
    fn nesting_is_bounded() {
        let text = "[".repeat(1_000_000);
        assert!(parse(&text, 1000).1[0].message.contains("levels deep"));
    }
}
