//! What is wrong with an object, where, and what to do: one line, JSON, or a report with the field underlined.

use std::fmt;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteError, MietteSpanContents, SourceCode,
    SourceSpan, SpanContents,
};
use serde::Serialize;
use serde::ser::SerializeStruct;

use super::source::{Location, Source};

/// Longest part of a line that a report shows: a JSON file may be one line.
const SHOWN_LINE_BYTES_MAX: usize = 2000;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The object is refused.
    Error,
    /// The object is taken; its author should know.
    Warning,
}

/// One finding. Displays as `file:line:col: default/allow-db spec.ingress[1].ports[0].endPort: message (help)`.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where.
    pub location: Location,
    /// The object, as far as it is known: `default/allow-db`, or a name alone for objects without a namespace.
    pub object: String,
    /// The field: `spec.ingress[1].ports[0].endPort`; empty for the whole object or text.
    pub path: String,
    /// What is wrong, in the API server's words where it has some.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Several lines: the message, the lines of the text with the field underlined, the help. Ends with a line break.
    pub fn report(&self, color: bool) -> String {
        let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_links(false).with_width(120);
        let mut text = String::new();
        match handler.render_report(&mut text, &Report(self)) {
            Ok(()) => text,
            // A report is worth less than the finding: where the text cannot be shown, the line must do.
            Err(fmt::Error) => format!("{self}\n"),
        }
    }

    /// `default/allow-db spec.ingress[0]`: the object and the field.
    fn subject(&self) -> String {
        [self.object.as_str(), self.path.as_str()]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.location, self.location.column())?;
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        let subject = self.subject();
        if !subject.is_empty() {
            write!(f, "{subject}: ")?;
        }
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
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

/// The diagnostic as miette prints it: the heading is the object, the field and the message without the place,
/// which stands above the lines of text.
#[derive(Debug)]
struct Report<'d>(&'d Diagnostic);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subject().as_str() {
            "" => f.write_str(&self.0.message),
            subject => write!(f, "{subject}: {}", self.0.message),
        }
    }
}

impl std::error::Error for Report<'_> {}

impl miette::Diagnostic for Report<'_> {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.0.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        let source = self.0.location.source();
        (!source.text().is_empty()).then_some(source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.0.location.underlined();
        let label = LabeledSpan::new(None, span.start, (span.end - span.start).max(1));
        Some(Box::new(std::iter::once(label)))
    }
}

/// Shows whole lines, found through the source's line index: a report on a large file costs no more than on a small one.
impl SourceCode for Source {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        lines_before: usize,
        lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let line = self.line_index(span.offset());
        if (lines_before, lines_after) == (0, 0) {
            return Ok(Box::new(self.exactly(span, line)));
        }
        let first = line.saturating_sub(lines_before);
        let last = (line + lines_after).min(self.line_count() - 1);
        let mut start = self.line_span(first).start;
        let mut end = self.line_span(last).end;
        let mut column = 0;
        let text = self.text();
        if end - start > SHOWN_LINE_BYTES_MAX {
            let from = span.offset().saturating_sub(SHOWN_LINE_BYTES_MAX / 20);
            start = text.floor_char_boundary(from.max(self.line_span(line).start));
            end = text.ceil_char_boundary((start + SHOWN_LINE_BYTES_MAX / 10).min(self.line_span(line).end));
            column = start - self.line_span(line).start;
        }
        // The label of an empty span is one byte wide, and may be the line break or lie past the last byte.
        let end = end.max((span.offset() + span.len()).min(text.len()));
        let contents = MietteSpanContents::new_named(
            self.name().to_owned(),
            &text.as_bytes()[start..end],
            (start, end - start).into(),
            self.line_index(start),
            column,
            last - first + 1,
        );
        Ok(Box::new(contents))
    }
}

impl Source {
    /// The bytes of a span alone, with its line and column: what stands above the lines in a report.
    fn exactly(&self, span: &SourceSpan, line: usize) -> MietteSpanContents<'_> {
        let end = (span.offset() + span.len()).min(self.text().len());
        let before = &self.text()[self.line_span(line).start..span.offset()];
        MietteSpanContents::new_named(
            self.name().to_owned(),
            &self.text().as_bytes()[span.offset()..end],
            *span,
            line,
            before.chars().count(),
            1,
        )
    }
}
