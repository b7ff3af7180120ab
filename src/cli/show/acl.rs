//! Command `palisade show acl`: the tables in force of one pod.

use std::fmt::Write;

use crate::cli::CliError;
use crate::cli::output::{Output, json, list, text};
use crate::control::Client;
use crate::control::protocol::{AclDecision, AclDirection, AclReport, Peers, hits_text};
use crate::tables::{Direction, PodName, Verdict};

/// Number of pods, and of prefixes, that a line names.
const LISTED: usize = 8;

pub(super) fn acl(client: &Client, pod: &PodName, output: Output) -> Result<(), CliError> {
    let report = client.acl(pod)?;
    if output == Output::Json {
        return Ok(json(&report)?);
    }
    Ok(text(&report_text(&report))?)
}

fn report_text(report: &AclReport) -> String {
    let addresses = list(&report.addresses);
    let port = match &report.port {
        Some(port) => format!("on port {port}"),
        None => "not attached to this switch".to_owned(),
    };
    let mut out = format!("{} ({addresses}), {port}, generation {}\n", report.pod, report.generation);
    // Writing to a string cannot fail.
    report.warnings.iter().for_each(|warning| _ = writeln!(out, "warning: {warning}"));
    add_direction(&mut out, Direction::Ingress, &report.ingress);
    add_direction(&mut out, Direction::Egress, &report.egress);
    out
}

fn add_direction(out: &mut String, direction: Direction, table: &AclDirection) {
    let isolation = match table.isolated {
        Some(true) => format!("isolated by {}", list(&table.isolated_by)),
        Some(false) => "not isolated".to_owned(),
        None => "rules decide on everything".to_owned(),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{direction}: {isolation}");
    let side = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    for entry in &table.entries {
        let except = match peers(&entry.except) {
            none if none.is_empty() => none,
            some => format!(" except {some}"),
        };
        let ports = list(&entry.ports);
        let peers = peers(&entry.peers);
        let _ = writeln!(out, "  {} {ports} {side} {peers}{except}", word(&entry.decision));
        add_origin(out, &entry.decision);
    }
    if table.left_out > 0 {
        let _ = writeln!(out, "  ({} more entries are not shown)", table.left_out);
    }
    if direction == Direction::Ingress {
        let _ = writeln!(out, "  allow everything from the pod's own node");
    }
    let rest = if table.entries.is_empty() { "everything" } else { "everything else" };
    let _ = writeln!(out, "  {} {rest}", word(&table.default));
    add_origin(out, &table.default);
}

fn add_origin(out: &mut String, decision: &AclDecision) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "      {} ({})", decision.reason, hits_text(decision.verdict, decision.hits));
}

fn word(decision: &AclDecision) -> &'static str {
    match decision.verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny ",
    }
}

/// Names the first peers; empty for none.
pub(super) fn peers(peers: &Peers) -> String {
    if peers.any {
        return "any address".to_owned();
    }
    let pods = peers.pods.iter().take(LISTED).map(ToString::to_string);
    let named: Vec<String> = pods.chain(peers.prefixes.iter().take(LISTED).cloned()).collect();
    let left_out = peers.left_out + peers.pods.len() + peers.prefixes.len() - named.len();
    // A prefix with exceptions has commas.
    let between = if named.iter().any(|text| text.contains(" except ")) { "; " } else { ", " };
    let more = if left_out > 0 { format!(" and {left_out} more") } else { String::new() };
    named.join(between) + &more
}
