//! Filter of JSON that arrives in pieces: keeps the fields that are needed, whatever the size of the others.

/// Deepest nesting of kept values.
const DEPTH_MAX: usize = 128;
/// Longest key of a kept field, in bytes. Label keys have at most 317.
const KEY_BYTES_MAX: usize = 4096;

/// Parts of a value that are kept.
#[derive(Debug)]
pub(super) enum Keep {
    /// Whole value.
    All,
    /// These fields of an object. Values of other types are kept, and their reader refuses them.
    Fields(&'static [(&'static str, Keep)]),
    /// A part of each element of a list.
    Each(&'static Keep),
    /// A part of each element of a list, as a text of its own.
    Items(&'static Keep),
}

static ALL: Keep = Keep::All;

/// Kept part of a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Text: JSON, unless it is cut.
    pub(super) text: String,
    /// Whether the text ends at the limit.
    pub(super) is_cut: bool,
    /// Whether it is an element of [`Keep::Items`], not a whole document.
    pub(super) is_item: bool,
}

/// Text is not JSON.
#[derive(Debug, thiserror::Error)]
#[error("the response is not valid JSON at byte {at}")]
pub(super) struct Malformed {
    at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    KeyOrEnd,
    Key,
    Colon,
    Value,
    ValueOrEnd,
    CommaOrEnd,
}

struct Frame {
    is_object: bool,
    keep: &'static Keep,
    has_entries: bool,
    expected: Expected,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Key,
    Kept,
    Dropped,
}

/// Filter of a sequence of JSON documents.
pub(super) struct Filter {
    root: &'static Keep,
    limit: usize,
    stack: Vec<Frame>,
    /// Nesting within a dropped value.
    dropped_depth: u64,
    string: Option<Text>,
    is_escape: bool,
    /// Number, `true`, `false` or `null` in progress, and whether it is kept.
    scalar: Option<bool>,
    key: Vec<u8>,
    /// Part that is kept of the value of the last key.
    of_key: Option<&'static Keep>,
    text: Vec<u8>,
    is_cut: bool,
    /// Text around an element of [`Keep::Items`], and the depth of its list.
    around: Option<(Vec<u8>, usize)>,
    pieces: Vec<Piece>,
    at: u64,
}

impl Filter {
    /// Creates a filter of documents whose kept texts have at most `limit` bytes.
    pub(super) fn new(root: &'static Keep, limit: usize) -> Filter {
        Filter {
            root,
            limit,
            stack: Vec::new(),
            dropped_depth: 0,
            string: None,
            is_escape: false,
            scalar: None,
            key: Vec::new(),
            of_key: None,
            text: Vec::new(),
            is_cut: false,
            around: None,
            pieces: Vec::new(),
            at: 0,
        }
    }

    /// Reads bytes. Returns the texts that are complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Piece>, Malformed> {
        let mut rest = bytes;
        while let [byte, after @ ..] = rest {
            if let Some(string) = self.string {
                rest = self.string(string, rest)?;
                continue;
            }
            rest = after;
            self.at += 1;
            if self.dropped_depth > 0 {
                self.dropped(*byte)?;
            } else {
                self.byte(*byte)?;
            }
        }
        Ok(std::mem::take(&mut self.pieces))
    }

    /// Whether the bytes end between two documents.
    pub(super) fn is_between_documents(&self) -> bool {
        self.stack.is_empty() && self.dropped_depth == 0 && self.string.is_none() && self.scalar.is_none()
    }

    /// Reads a part of a string. Returns the bytes after it.
    fn string<'b>(&mut self, string: Text, bytes: &'b [u8]) -> Result<&'b [u8], Malformed> {
        if std::mem::take(&mut self.is_escape) {
            self.at += 1;
            self.copy(string, &bytes[..1]);
            return Ok(&bytes[1..]);
        }
        let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(bytes.len());
        let (part, rest) = bytes.split_at(end);
        self.at += end as u64;
        self.copy(string, part);
        let [byte, after @ ..] = rest else { return Ok(rest) };
        self.at += 1;
        if *byte == b'\\' {
            self.is_escape = true;
            self.copy(string, b"\\");
            return Ok(after);
        }
        self.string = None;
        match string {
            Text::Key => self.end_key(),
            Text::Kept => {
                self.write(b"\"");
                self.end_value()?;
            }
            Text::Dropped if self.dropped_depth == 0 => self.end_value()?,
            Text::Dropped => {}
        }
        Ok(after)
    }

    fn copy(&mut self, string: Text, part: &[u8]) {
        match string {
            Text::Key if self.key.len() <= KEY_BYTES_MAX => {
                let most = (KEY_BYTES_MAX + 1 - self.key.len()).min(part.len());
                self.key.extend_from_slice(&part[..most]);
            }
            Text::Kept => self.write(part),
            Text::Key | Text::Dropped => {}
        }
    }

    fn dropped(&mut self, byte: u8) -> Result<(), Malformed> {
        match byte {
            b'{' | b'[' => self.dropped_depth += 1,
            b'}' | b']' => {
                self.dropped_depth -= 1;
                if self.dropped_depth == 0 {
                    return self.end_value();
                }
            }
            b'"' => self.string = Some(Text::Dropped),
            _ => {}
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> Result<(), Malformed> {
        let ends_scalar = matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',' | b'}' | b']');
        if ends_scalar && self.scalar.take().is_some() {
            self.end_value()?;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => Ok(()),
            b'{' | b'[' => self.begin_container(byte),
            b'}' | b']' => self.end_container(byte),
            b'"' => self.begin_string(),
            b':' => self.expect(Expected::Colon, Expected::Value),
            b',' => {
                let is_object = self.stack.last().is_some_and(|frame| frame.is_object);
                let next = if is_object { Expected::Key } else { Expected::Value };
                self.expect(Expected::CommaOrEnd, next)
            }
            _ => {
                if self.scalar.is_none() {
                    self.scalar = Some(self.begin_value()?.is_some());
                }
                if self.scalar == Some(true) {
                    self.write(&[byte]);
                }
                Ok(())
            }
        }
    }

    fn expect(&mut self, expected: Expected, next: Expected) -> Result<(), Malformed> {
        let malformed = self.malformed();
        let frame = self.stack.last_mut().filter(|frame| frame.expected == expected).ok_or(malformed)?;
        frame.expected = next;
        Ok(())
    }

    fn begin_string(&mut self) -> Result<(), Malformed> {
        let frame = self.stack.last();
        if frame.is_some_and(|frame| matches!(frame.expected, Expected::Key | Expected::KeyOrEnd)) {
            self.key.clear();
            self.string = Some(Text::Key);
            return Ok(());
        }
        self.string = Some(if self.begin_value()?.is_some() {
            self.write(b"\"");
            Text::Kept
        } else {
            Text::Dropped
        });
        Ok(())
    }

    fn end_key(&mut self) {
        let Some(frame) = self.stack.last_mut() else { return };
        frame.expected = Expected::Colon;
        self.of_key = match frame.keep {
            Keep::Fields(fields) => {
                fields.iter().find(|(name, _)| name.as_bytes() == self.key).map(|(_, keep)| keep)
            }
            _ => Some(&ALL),
        };
        if self.key.len() > KEY_BYTES_MAX && self.of_key.take().is_some() {
            self.is_cut = true;
        }
    }

    /// Begins a value. Returns the part of it that is kept.
    fn begin_value(&mut self) -> Result<Option<&'static Keep>, Malformed> {
        let malformed = self.malformed();
        let Some(frame) = self.stack.last_mut() else { return Ok(Some(self.root)) };
        if !matches!(frame.expected, Expected::Value | Expected::ValueOrEnd) {
            return Err(malformed);
        }
        let keep = match (frame.is_object, frame.keep) {
            (true, _) => self.of_key.take(),
            (false, Keep::Items(keep)) => {
                self.around = Some((std::mem::take(&mut self.text), self.stack.len()));
                return Ok(Some(keep));
            }
            (false, Keep::Each(keep)) => Some(*keep),
            (false, _) => Some(&ALL),
        };
        if keep.is_some() {
            let (had_entries, is_object) = (std::mem::replace(&mut frame.has_entries, true), frame.is_object);
            if had_entries {
                self.write(b",");
            }
            if is_object {
                let key = std::mem::take(&mut self.key);
                self.write(b"\"");
                self.write(&key);
                self.write(b"\":");
                self.key = key;
            }
        }
        Ok(keep)
    }

    fn begin_container(&mut self, byte: u8) -> Result<(), Malformed> {
        let Some(keep) = self.begin_value()? else {
            self.dropped_depth = 1;
            return Ok(());
        };
        if self.stack.len() >= DEPTH_MAX {
            return Err(self.malformed());
        }
        let is_object = byte == b'{';
        let expected = if is_object { Expected::KeyOrEnd } else { Expected::ValueOrEnd };
        self.write(&[byte]);
        self.stack.push(Frame { is_object, keep, has_entries: false, expected });
        Ok(())
    }

    fn end_container(&mut self, byte: u8) -> Result<(), Malformed> {
        let frame = self.stack.pop().ok_or(self.malformed())?;
        let may_end =
            matches!(frame.expected, Expected::KeyOrEnd | Expected::ValueOrEnd | Expected::CommaOrEnd);
        if !may_end || frame.is_object != (byte == b'}') {
            return Err(self.malformed());
        }
        self.write(&[byte]);
        self.end_value()
    }

    fn end_value(&mut self) -> Result<(), Malformed> {
        if self.around.as_ref().is_some_and(|(_, depth)| *depth == self.stack.len()) {
            let (around, _) = self.around.take().unwrap_or_default();
            let text = std::mem::replace(&mut self.text, around);
            self.finish(text, true)?;
        }
        if let Some(frame) = self.stack.last_mut() {
            frame.expected = Expected::CommaOrEnd;
            return Ok(());
        }
        let text = std::mem::take(&mut self.text);
        self.finish(text, false)
    }

    fn finish(&mut self, text: Vec<u8>, is_item: bool) -> Result<(), Malformed> {
        let is_cut = std::mem::take(&mut self.is_cut);
        let text = match String::from_utf8(text) {
            Ok(text) => text,
            Err(error) if is_cut => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            Err(_) => return Err(self.malformed()),
        };
        self.pieces.push(Piece { text, is_cut, is_item });
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) {
        if !self.is_cut {
            let room = self.limit.saturating_sub(self.text.len());
            self.is_cut = bytes.len() > room;
            self.text.extend_from_slice(&bytes[..room.min(bytes.len())]);
        }
    }

    fn malformed(&self) -> Malformed {
        Malformed { at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static OBJECT: Keep = Keep::Fields(&[
        ("metadata", Keep::Fields(&[("name", Keep::All), ("labels", Keep::All)])),
        ("list", Keep::Each(&Keep::Fields(&[("a", Keep::All)]))),
    ]);
    static LIST: Keep = Keep::Fields(&[
        ("metadata", Keep::Fields(&[("continue", Keep::All)])),
        ("items", Keep::Items(&Keep::Fields(&[("metadata", Keep::Fields(&[("name", Keep::All)]))]))),
    ]);

    /// Filters a text in pieces of every size up to 40, which must not matter.
    fn filtered(root: &'static Keep, text: &str) -> Result<Vec<Piece>, Malformed> {
        let whole = Filter::new(root, 1000).feed(text.as_bytes());
        for size in 1..40 {
            let mut filter = Filter::new(root, 1000);
            let mut pieces = Vec::new();
            let mut is_wrong = false;
            for part in text.as_bytes().chunks(size) {
                match filter.feed(part) {
                    Ok(found) => pieces.extend(found),
                    Err(_) => is_wrong = true,
                }
            }
            assert_eq!(is_wrong, whole.is_err(), "in pieces of {size}: {text}");
            if let Ok(whole) = &whole {
                assert_eq!(&pieces, whole, "in pieces of {size}: {text}");
            }
        }
        whole
    }

    fn texts(root: &'static Keep, text: &str) -> Vec<String> {
        filtered(root, text).unwrap().into_iter().map(|piece| piece.text).collect()
    }

    #[test]
    fn named_fields_are_kept_and_all_others_dropped() {
        let text = r#"{"x":{"y":[1,"}]\"",{}]},"metadata" : {"annotations":{"a":"\\\""},"name":"a\"b\\","labels":{"k":"v","l":[null,true,-1.5e3]}},
            "list":[{"b":1,"a":"x"},{"b":2},{"a":{"c":[]}}],"z":null}
            {"metadata":{"name":"second"}}"#;
        assert_eq!(
            texts(&OBJECT, text),
            [
                r#"{"metadata":{"name":"a\"b\\","labels":{"k":"v","l":[null,true,-1.5e3]}},"list":[{"a":"x"},{},{"a":{"c":[]}}]}"#,
                r#"{"metadata":{"name":"second"}}"#
            ]
        );
    }

    #[test]
    fn the_elements_of_a_list_are_texts_of_their_own() {
        let text = r#"{"kind":"PodList","metadata":{"continue":"x","a":1},"items":[{"metadata":{"name":"a"},"s":1},{"metadata":{"name":"b"}}]}"#;
        let pieces = filtered(&LIST, text).unwrap();
        let shown: Vec<_> = pieces.iter().map(|piece| (piece.text.as_str(), piece.is_item)).collect();
        let expected = [
            (r#"{"metadata":{"name":"a"}}"#, true),
            (r#"{"metadata":{"name":"b"}}"#, true),
            (r#"{"metadata":{"continue":"x"},"items":[]}"#, false),
        ];
        assert_eq!(shown, expected);
        assert_eq!(texts(&LIST, r#"{"items":[],"metadata":{}}"#), [r#"{"items":[],"metadata":{}}"#]);
        assert_eq!(texts(&LIST, r#"{"items":null}"#), [r#"{"items":null}"#]);
    }

    #[test]
    fn dropped_values_of_any_size_take_no_memory_and_kept_ones_are_cut() {
        let mut filter = Filter::new(&OBJECT, 1000);
        let mut pieces = filter.feed(br#"{"metadata":{"name":"a","annotations":{"x":""#).unwrap();
        for _ in 0..1000 {
            pieces.extend(filter.feed(&[b'a'; 10_000]).unwrap());
        }
        assert!(filter.text.capacity() < 2000 && pieces.is_empty());
        assert!(!filter.is_between_documents());
        let pieces = filter.feed(br#""}}}"#).unwrap();
        assert_eq!(pieces[0].text, r#"{"metadata":{"name":"a"}}"#);
        let text =
            format!(r#"{{"metadata":{{"name":"a","labels":{{"x":"{}"}}}}}}{{"list":[]}}"#, "v".repeat(2000));
        let pieces = filtered(&OBJECT, &text).unwrap();
        assert!(pieces[0].is_cut && pieces[0].text.starts_with(r#"{"metadata":{"name":"a""#));
        assert_eq!((pieces[1].text.as_str(), pieces[1].is_cut), (r#"{"list":[]}"#, false));
    }

    #[test]
    fn broken_structure_is_an_error() {
        for text in
            ["}", "{]", "{\"a\"}", "{\"metadata\":{\"name\" \"a\"}}", "{,}", "{\"metadata\":{]}", "[1,]"]
        {
            assert!(filtered(&OBJECT, text).is_err(), "{text}");
        }
        assert!(filtered(&ALL, &"[".repeat(1000)).is_err());
    }
}
