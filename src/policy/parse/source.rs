//! Source texts, and locations in them.

use std::fmt;
use std::sync::Arc;

use super::tree::Span;
use crate::printable;

/// Byte order mark.
const MARK: char = '\u{feff}';

/// Name of the source that is standard input.
pub const STDIN: &str = "<stdin>";

/// Named text. A clone shares the text.
#[derive(Clone)]
pub struct Source(Arc<Inner>);

struct Inner {
    name: String,
    text: String,
    /// Offsets of the first byte of every line.
    line_starts: Vec<usize>,
}

impl Source {
    /// Creates a source with the name that errors show: a path, or [`STDIN`]. Removes the byte order marks before documents
    /// (YAML 1.2.2 section 5.2): files that are joined keep theirs.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Source {
        let text = without_marks(text.into());
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(breaks).collect();
        Source(Arc::new(Inner { name: name.into(), text, line_starts }))
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Tests whether the name ends in `.json`.
    pub(crate) fn is_json(&self) -> bool {
        std::path::Path::new(self.name())
            .extension()
            .is_some_and(|ending| ending.eq_ignore_ascii_case("json"))
    }

    /// Index of the line, from 0, that contains a byte.
    pub(crate) fn line_index(&self, offset: usize) -> usize {
        self.0.line_starts.partition_point(|start| *start <= offset).saturating_sub(1)
    }

    /// Span of a line, without its line break.
    pub(crate) fn line_span(&self, index: usize) -> Span {
        let start = self.0.line_starts.get(index).copied().unwrap_or(self.text().len());
        let end = self.0.line_starts.get(index + 1).copied().unwrap_or(self.text().len());
        let line = self.text()[start..end].trim_end_matches(['\n', '\r']);
        Span::new(start, start + line.len())
    }

    /// Number of lines.
    pub(crate) fn line_count(&self) -> usize {
        self.0.line_starts.len()
    }
}

/// Removes byte order marks at the beginning of the text and of the lines behind `---` and `...`.
fn without_marks(text: String) -> String {
    if !text.contains(MARK) {
        return text;
    }
    let mut is_first = true;
    let lines = text.split_inclusive('\n').map(|line| {
        let line = if is_first { line.trim_start_matches(MARK) } else { line };
        let is_marker = ["---", "..."].into_iter().any(|marker| line.trim_end() == marker);
        is_first = is_marker || is_first && line.trim().is_empty();
        line
    });
    lines.collect()
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:?}, {} bytes)", self.name(), self.text().len())
    }
}

/// Location in a source. Displays as `file:line`.
#[derive(Debug, Clone)]
pub struct Location {
    source: Source,
    span: Span,
}

impl Location {
    /// Creates a location. Moves the span to character boundaries within the text: syntax errors may lie past
    /// its end.
    pub(crate) fn new(source: &Source, span: Span) -> Location {
        let text = source.text();
        let start = text.floor_char_boundary(span.start.min(text.len()));
        let end = text.ceil_char_boundary(span.end.min(text.len()));
        Location { source: source.clone(), span: Span::new(start, end) }
    }

    /// Source of the location.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Line, from 1.
    pub fn line(&self) -> usize {
        self.source.line_index(self.span.start) + 1
    }

    /// Column in characters, from 1.
    pub fn column(&self) -> usize {
        let line = self.source.line_span(self.line() - 1);
        self.source.text()[line.start..self.span.start].chars().count() + 1
    }

    /// Byte offset in the text.
    pub fn offset(&self) -> usize {
        self.span.start
    }

    /// Range of bytes in the text.
    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// Part of the span on its first line, for underlining.
    pub(crate) fn underlined(&self) -> Span {
        let line_end = self.source.line_span(self.source.line_index(self.span.start)).end;
        Span::new(self.span.start, self.span.end.min(line_end))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", printable::line(self.source.name()), self.line())
    }
}
