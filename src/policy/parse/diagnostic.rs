//! Diagnostics: an error or warning with its place and a help text, as one line, as JSON, or as a report with
//! the underlined field.

use std::fmt;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteError, MietteSpanContents, SourceCode,
    SourceSpan, SpanContents,
};
use serde::Serialize;
use serde::ser::SerializeStruct;

use super::source::{Location, Source};
use super::tree::Span;
use crate::printable;

/// Maximum part of a line in a report: a JSON file may consist of one line.
const SHOWN_LINE_BYTES_MAX: usize = 2000;

/// Number of lines before and after the line of the diagnostic.
const LINES_AROUND: usize = 1;

/// Maximum underlined part of a value.
const UNDERLINED_BYTES_MAX: usize = 200;

/// Severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Object is rejected.
    Error,
    /// Object is accepted, and a part of it is not enforced as written.
    Unenforced,
    /// Object is accepted.
    Warning,
}

/// Diagnostic. Displays as `file:line:col: default/allow-db spec.ingress[1].ports[0].endPort: message
/// (help)`.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// Severity.
    pub severity: Severity,
    /// Location.
    pub location: Location,
    /// Object, if known: `default/allow-db`, or a name for objects without a namespace.
    pub object: String,
    /// Field: `spec.ingress[1].ports[0].endPort`; empty for the whole object or text.
    pub path: String,
    /// Message, in the words of the API server if it has some.
    pub message: String,
    /// Suggested correction.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Report of several lines: the message, the source lines with the underlined field, the help. Ends with
    /// a line break.
    pub fn report(&self, color: bool) -> String {
        let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_links(false).with_width(120);
        let mut text = String::new();
        match handler.render_report(&mut text, &Report::new(self)) {
            Ok(()) => text,
            // If miette fails, the single line must suffice.
            Err(fmt::Error) => format!("{self}\n"),
        }
    }

    /// Heading: object, field and message, such as `default/allow-db spec.ingress[0]: message`.
    fn heading(&self) -> String {
        let subject: Vec<&str> =
            [self.object.as_str(), self.path.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        let colon = if subject.is_empty() { "" } else { ": " };
        printable::line(&format!("{}{colon}{}", subject.join(" "), self.message)).into_owned()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.location, self.location.column())?;
        if self.severity != Severity::Error {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.heading())?;
        match &self.help {
            Some(help) => write!(f, " ({})", printable::line(help)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Diagnostic {}

impl Serialize for Diagnostic {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Diagnostic", 8)?;
        fields.serialize_field("severity", &self.severity)?;
        fields.serialize_field("source", self.location.source().name())?;
        fields.serialize_field("line", &self.location.line())?;
        fields.serialize_field("column", &self.location.column())?;
        fields.serialize_field("object", &self.object)?;
        fields.serialize_field("path", &self.path)?;
        fields.serialize_field("message", &self.message)?;
        fields.serialize_field("help", &self.help)?;
        fields.end()
    }
}

/// Diagnostic in the form for miette: the heading has no place, which stands above the source lines.
struct Report<'d> {
    diagnostic: &'d Diagnostic,
    name: String,
    /// Underlined range of bytes.
    label: Span,
    /// Source lines around it, and their offset in the text.
    lines: Vec<u8>,
    lines_start: usize,
}

impl Report<'_> {
    fn new(diagnostic: &Diagnostic) -> Report<'_> {
        let source = diagnostic.location.source();
        let mut label = diagnostic.location.underlined();
        label.end = source.text().floor_char_boundary(label.end.min(label.start + UNDERLINED_BYTES_MAX));
        let shown = source.lines_around(label, LINES_AROUND);
        Report {
            diagnostic,
            name: printable::line(source.name()).into_owned(),
            label,
            lines: harmless(&source.text()[shown.start..shown.end]),
            lines_start: shown.start,
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.diagnostic.heading())
    }
}

impl fmt::Debug for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.diagnostic, f)
    }
}

impl std::error::Error for Report<'_> {}

impl miette::Diagnostic for Report<'_> {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.diagnostic.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Unenforced | Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = printable::line(self.diagnostic.help.as_ref()?);
        Some(Box::new(help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        let source = self.diagnostic.location.source();
        (!source.text().is_empty()).then_some(self as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let Span { start, end } = self.label;
        let label = LabeledSpan::new(None, start, (end - start).max(1));
        Some(Box::new(std::iter::once(label)))
    }
}

/// Returns whole lines through the line index of the source: a report on a large file costs no more than on a
/// small one.
impl SourceCode for Report<'_> {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        lines_before: usize,
        lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let source = self.diagnostic.location.source();
        let lines_end = self.lines_start + self.lines.len();
        // miette reads the heading without lines around it.
        let (start, end) = match (lines_before, lines_after) {
            (0, 0) => (span.offset(), (span.offset() + span.len()).min(lines_end)),
            _ => (self.lines_start, lines_end),
        };
        let data = self.lines.get(start.wrapping_sub(self.lines_start)..end.wrapping_sub(self.lines_start));
        let line = source.line_index(start);
        let last = source.line_index(end.max(start + 1) - 1);
        let before = &source.text()[source.line_span(line).start..start];
        let contents = MietteSpanContents::new_named(
            self.name.clone(),
            data.ok_or(MietteError::OutOfBounds)?,
            (start, end - start).into(),
            line,
            before.chars().count(),
            last - line + 1,
        );
        Ok(Box::new(contents))
    }
}

impl Source {
    /// Range of the lines around a span; a part of the first line if they are too long.
    fn lines_around(&self, span: Span, around: usize) -> Span {
        let text = self.text();
        let line = self.line_index(span.start);
        let last = (line + around).min(self.line_count() - 1);
        let mut start = self.line_span(line.saturating_sub(around)).start;
        let mut end = self.line_span(last).end;
        if end - start > SHOWN_LINE_BYTES_MAX {
            let from = span.start.saturating_sub(SHOWN_LINE_BYTES_MAX / 20);
            start = text.floor_char_boundary(from.max(self.line_span(line).start));
            end = text.ceil_char_boundary((start + SHOWN_LINE_BYTES_MAX / 10).min(self.line_span(line).end));
        }
        // The label of an empty span is one byte wide; it may be the line break or lie past the last byte.
        let label_end = text.ceil_char_boundary(span.end.max(span.start + 1).min(text.len()));
        Span::new(start, end.max(label_end))
    }
}

/// Replaces control characters by printable ones of equal length in bytes, so that offsets stay valid.
fn harmless(text: &str) -> Vec<u8> {
    let mut safe = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let is_break = c == '\r' && text[at + 1..].starts_with('\n');
        safe.push(match c.len_utf8() {
            _ if !printable::is_steering(c) || is_break || matches!(c, '\n' | '\t') => c,
            1 => '?',
            2 => '·',
            _ => char::REPLACEMENT_CHARACTER,
        });
    }
    safe.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnostic(text: &str, part: &str) -> Diagnostic {
        let start = text.find(part).unwrap();
        let location = Location::new(
            &Source::new("a\u{1b}]0;x\u{7}\n.yaml", text),
            Span::new(start, start + part.len()),
        );
        Diagnostic {
            severity: Severity::Error,
            location,
            object: "default/\u{1b}[2J\u{202e}db".to_owned(),
            path: "spec.a\nb".to_owned(),
            message: "unknown \u{9b}31m".to_owned(),
            help: Some("write\u{85}this".to_owned()),
        }
    }

    #[test]
    fn nothing_that_a_stranger_wrote_steers_the_terminal() {
        let text = "kind: Pod\r\nname: \u{1b}[31mred\u{9b}5m\u{202e}x # \u{7f}\nspec: {}\n";
        let diagnostic = diagnostic(text, "red");
        for shown in [diagnostic.to_string(), diagnostic.report(false)] {
            let steering = shown.chars().find(|c| printable::is_steering(*c) && *c != '\n');
            assert_eq!(steering, None, "{shown:?}");
        }
        assert!(!diagnostic.to_string().contains('\n'), "{diagnostic}");
        let report = diagnostic.report(false);
        assert!(report.contains(r"default/\u{1b}[2J\u{202e}db spec.a\nb: unknown \u{9b}31m"), "{report}");
        assert!(report.contains("name: ?[31mred·5m\u{fffd}x # ?"), "{report}");
    }

    #[test]
    fn a_value_of_any_length_is_shown_in_part() {
        let text = format!("name: {}\nb: c\n", "x".repeat(1 << 20));
        let diagnostic = diagnostic(&text, &"x".repeat(1 << 20));
        assert!(diagnostic.report(false).len() < 4000, "{}", diagnostic.report(false).len());
    }
}
