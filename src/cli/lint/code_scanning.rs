//! Findings as code hosts read them: workflow commands of GitHub Actions, and SARIF (OASIS, version 2.1.0).

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::located_finding::{INVALID, LocatedFinding, NOT_ENFORCED, SUSPICIOUS};
use crate::cli::output::annotations;
use crate::policy::lint::Check;
use crate::policy::parse::STDIN;

/// Schema of the SARIF that [`sarif`] prints.
const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// Page about the checks.
const PAGE: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/lint.md");

/// A line each: `::warning file=policies/db.yaml,line=7,col=5,title=shadowed-rule::NetworkPolicy shop/db spec.ingress[1]: …`.
/// Findings that annotations silence are left out.
pub(super) fn github(findings: &[LocatedFinding]) -> String {
    let line = |finding: &LocatedFinding| {
        let LocatedFinding { severity, source, line, column, check, .. } = finding;
        let place = is_file(source).then_some((source.as_str(), *line, Some(*column)));
        annotations::line(severity, place, check, &finding.text())
    };
    findings.iter().filter(|finding| finding.ignored.is_none()).map(line).collect()
}

/// Whether a source is a file, not standard input.
fn is_file(source: &str) -> bool {
    !source.is_empty() && source != STDIN
}

/// One run of one tool, with every check as a rule. Results that annotations silence have a suppression.
pub(super) fn sarif(findings: &[LocatedFinding]) -> Value {
    let results: Vec<Value> = findings.iter().map(result).collect();
    let of_parser = [INVALID, NOT_ENFORCED, SUSPICIOUS]
        .map(|(code, summary)| json!({"id": code, "shortDescription": {"text": summary}, "helpUri": format!("{PAGE}#{code}")}));
    let of_check = |check: &Check| {
        json!({
            "id": check.name(),
            "shortDescription": {"text": check.summary()},
            "help": {"text": check.advice()},
            "helpUri": format!("{PAGE}#{}", check.name()),
        })
    };
    let rules: Vec<Value> = of_parser.into_iter().chain(Check::ALL.iter().map(of_check)).collect();
    let driver = json!({
        "name": "palisade lint",
        "informationUri": env!("CARGO_PKG_REPOSITORY"),
        "semanticVersion": env!("CARGO_PKG_VERSION"),
        "rules": rules,
    });
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    })
}

fn result(finding: &LocatedFinding) -> Value {
    let mut place = json!({"logicalLocations": [{"fullyQualifiedName": finding.qualified_field()}]});
    if is_file(&finding.source) {
        let region = json!({"startLine": finding.line, "startColumn": finding.column});
        place["physicalLocation"] =
            json!({"artifactLocation": {"uri": uri(&finding.source)}, "region": region});
    }
    let mut result = json!({
        "ruleId": finding.check,
        "level": finding.severity,
        "message": {"text": finding.text()},
        "locations": [place],
    });
    if let Some(reason) = &finding.ignored {
        result["suppressions"] = json!([{"kind": "inSource", "justification": reason}]);
    }
    result
}

/// URI of a file: relative for a relative path, from which the host finds the file in the repository.
fn uri(file: &str) -> String {
    let scheme = if Path::new(file).is_absolute() { "file://" } else { "" };
    let mut uri = scheme.to_owned();
    for byte in file.bytes() {
        if byte.is_ascii_alphanumeric() || b"/.-_~".contains(&byte) {
            uri.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_escaped() {
        assert_eq!(uri("policies/a b:ü.yaml"), "policies/a%20b%3A%C3%BC.yaml");
        assert_eq!(uri("/etc/x.yaml"), "file:///etc/x.yaml");
    }
}
