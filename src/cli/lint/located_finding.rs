//! Findings of `palisade lint` with their locations: of the checks, and diagnostics of the parser.

use serde::Serialize;

use crate::policy::lint::{LintFinding, LintSubject};
use crate::policy::parse::{Diagnostic, FieldPosition, Severity};
use crate::printable;

/// Code of the errors of the parser.
pub(super) const INVALID: (&str, &str) = ("invalid", "Object is refused.");
/// Code of warnings about parts that are not enforced as written.
pub(super) const NOT_ENFORCED: (&str, &str) =
    ("not-enforced", "Part of an object is not enforced as written.");
/// Code of the other warnings of the parser.
pub(super) const SUSPICIOUS: (&str, &str) =
    ("suspicious", "Object is accepted, or passed over, and probably mistaken.");

/// Finding with its location.
#[derive(Debug, Serialize)]
pub(super) struct LocatedFinding {
    /// `error` or `warning`.
    pub(super) severity: &'static str,
    /// Name of the file, as given.
    pub(super) source: String,
    pub(super) line: usize,
    pub(super) column: usize,
    /// The location as text, `file:line`.
    place: String,
    /// Policy or Service of a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<LintSubject>,
    /// Object as text; empty if unknown.
    object: String,
    /// Field; empty for the whole object.
    path: String,
    /// Code of the check.
    pub(super) check: &'static str,
    /// State of the field and its consequence.
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
    /// Reason for which an annotation silences the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ignored: Option<String>,
}

impl LocatedFinding {
    /// Finding of a check, in this source. `ignored` is the reason for which an annotation silences it.
    pub(super) fn of_check(
        finding: LintFinding,
        source: &str,
        position: FieldPosition,
        ignored: Option<String>,
    ) -> LocatedFinding {
        let LintFinding { policy, path, check, message } = finding;
        let located = at("warning", source, position, check.name(), message);
        LocatedFinding { object: policy.to_string(), policy: Some(policy), path, ignored, ..located }
    }

    /// Diagnostic of the parser.
    pub(super) fn of_diagnostic(diagnostic: Diagnostic) -> LocatedFinding {
        let Diagnostic { severity, location, object, path, message, help } = diagnostic;
        let (severity, (code, _)) = match severity {
            Severity::Error => ("error", INVALID),
            Severity::Unenforced => ("warning", NOT_ENFORCED),
            Severity::Warning => ("warning", SUSPICIOUS),
        };
        let position = FieldPosition { line: location.line(), column: location.column() };
        LocatedFinding {
            object,
            path,
            help,
            ..at(severity, location.source().name(), position, code, message)
        }
    }

    /// Object, field, message and help in one line.
    pub(super) fn text(&self) -> String {
        let subject = [self.object.as_str(), self.path.as_str()];
        let subject: Vec<&str> = subject.into_iter().filter(|part| !part.is_empty()).collect();
        let colon = if subject.is_empty() { "" } else { ": " };
        let help = self.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("{}{colon}{}{help}", subject.join(" "), self.message)
    }

    /// Object and field.
    pub(super) fn qualified_field(&self) -> String {
        format!("{} {}", self.object, self.path).trim().to_owned()
    }
}

fn at(
    severity: &'static str,
    source: &str,
    FieldPosition { line, column }: FieldPosition,
    check: &'static str,
    message: String,
) -> LocatedFinding {
    LocatedFinding {
        severity,
        source: source.to_owned(),
        line,
        column,
        place: format!("{}:{line}", printable::line(source)),
        policy: None,
        object: String::new(),
        path: String::new(),
        check,
        message,
        help: None,
        ignored: None,
    }
}
