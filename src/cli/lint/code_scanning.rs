//! Findings as code hosts read them: workflow commands of GitHub Actions, and SARIF (OASIS, version 2.1.0).

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::located_finding::LocatedFinding;
use crate::policy::lint::{Check, LintFinding};
use crate::policy::parse::{Location, STDIN};

/// Schema of the SARIF that [`sarif`] prints.
const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// A line each: `::warning file=policies/db.yaml,line=7,title=shadowed-rule::NetworkPolicy shop/db spec.ingress[1]: …`.
pub(super) fn github(findings: &[LocatedFinding<'_>]) -> String {
    let line = |LocatedFinding { location, finding, .. }: &LocatedFinding<'_>| {
        let mut properties = String::new();
        if let Some(place) = in_a_file(*location) {
            // Writing to a string cannot fail.
            let _ = write!(properties, "file={},line={},", property(place.source().name()), place.line());
        }
        let LintFinding { policy, path, check, message } = finding;
        let message = data(&format!("{policy} {path}: {message}"));
        format!("::warning {properties}title={}::{message}\n", check.name())
    };
    findings.iter().map(line).collect()
}

/// The location, unless it is in standard input.
fn in_a_file(place: Option<&Location>) -> Option<&Location> {
    place.filter(|place| place.source().name() != STDIN)
}

/// Escapes the data of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// One run of one tool, with every check as a rule.
pub(super) fn sarif(findings: &[LocatedFinding<'_>]) -> Value {
    let results: Vec<Value> = findings.iter().map(result).collect();
    let rule = |check: &Check| json!({"id": check.name(), "shortDescription": {"text": check.summary()}});
    let rules: Vec<Value> = Check::ALL.iter().map(rule).collect();
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

fn result(LocatedFinding { location, finding, .. }: &LocatedFinding<'_>) -> Value {
    let LintFinding { policy, path, check, message } = finding;
    let mut place = json!({"logicalLocations": [{"fullyQualifiedName": format!("{policy} {path}")}]});
    if let Some(location) = in_a_file(*location) {
        place["physicalLocation"] = physical_location(location);
    }
    json!({
        "ruleId": check.name(),
        "level": "warning",
        "message": {"text": format!("{policy} {path}: {message}")},
        "locations": [place],
    })
}

fn physical_location(place: &Location) -> Value {
    let region = json!({"startLine": place.line(), "startColumn": place.column()});
    json!({"artifactLocation": {"uri": uri(place.source().name())}, "region": region})
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
        assert_eq!(property("a,b:c%\n"), "a%2Cb%3Ac%25%0A");
        assert_eq!(data("50 %: a,b"), "50 %25: a,b");
    }
}
