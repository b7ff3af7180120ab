//! Command `palisade show status`: the switch in short, and the policy in force.

use std::fmt::Write;
use std::time::SystemTime;

use crate::cli::CliError;
use crate::cli::output::{Output, json, list, render, table, text};
use crate::control::Client;
use crate::control::protocol::{PolicySource, PolicyStatus, RejectedReload, SourceStatus};
use crate::dataplane::Backend;
use crate::printable;

/// Most ports, pods and routes to name of those that a restart forgets.
const FORGOTTEN_SHOWN: usize = 5;

pub(super) fn status(client: &Client, output: Output) -> Result<(), CliError> {
    let status = client.status()?;
    if output == Output::Json {
        return Ok(json(&status)?);
    }
    let mut table = table(["version", "pid", "uptime", "cores", "generation", "tables"]);
    table.add_row([
        status.version.clone(),
        status.pid.to_string(),
        format!("{} s", status.uptime_s),
        list(&status.cores),
        status.generation.to_string(),
        if status.tables_loaded { "loaded" } else { "none" }.to_owned(),
    ]);
    let first = match status.backend {
        Backend::AfXdp => format!("flows: {}", status.flow_table),
        backend @ Backend::Nftables => format!(
            "backend: {backend}: the kernel forwards the packets of pods and tracks their flows, slower than AF_XDP"
        ),
    };
    let mut out = format!("{}{first}\n", render(&table, ""));
    // Writing to a string cannot fail.
    if let Some(policy) = &status.policy {
        let _ = writeln!(out, "{}", policy_line(policy));
    }
    status.ipfix.iter().for_each(|report| _ = writeln!(out, "ipfix: {report}"));
    out += &source_lines(status.source.as_ref());
    out += &rejected_lines(status.rejected_reload.as_ref());
    out += &forgotten_line(&status.forgotten);
    status.problems.iter().for_each(|problem| _ = writeln!(out, "problem: {problem}"));
    Ok(text(&out)?)
}

/// Describes a rejected reload; empty for none.
pub(super) fn rejected_lines(rejected: Option<&RejectedReload>) -> String {
    let Some(rejected) = rejected else { return String::new() };
    let (path, ago) = (rejected.path.display(), ago(rejected.at_unix_s));
    let mut out = format!("rejected: the reload of directory {path}, {ago} ago; what was in force stays:\n");
    // Writing to a string cannot fail.
    rejected.errors.iter().for_each(|error| _ = writeln!(out, "  {error}"));
    if rejected.left_out > 0 {
        let _ = writeln!(out, "  {} more errors are not shown", rejected.left_out);
    }
    out
}

/// Names what a restart forgets; empty for nothing.
pub(super) fn forgotten_line(forgotten: &[String]) -> String {
    if forgotten.is_empty() {
        return String::new();
    }
    let shown = &forgotten[..forgotten.len().min(FORGOTTEN_SHOWN)];
    let more = match forgotten.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = printable::line(&shown.join(", ")).into_owned();
    format!("restart: forgets {names}{more}; `palisade config export` prints them for the file\n")
}

/// Describes the state of an agent; empty for none.
pub(super) fn source_lines(source: Option<&SourceStatus>) -> String {
    let Some(SourceStatus { report, age_s }) = source else { return String::new() };
    let mut out = format!(
        "agent: {} objects, {} policies of {}, reported {age_s} s ago\n",
        report.objects,
        report.policies,
        printable::line(&report.server)
    );
    // Writing to a string cannot fail.
    for object in &report.unenforced {
        let namespace =
            if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
        let text = format!(
            "{} {namespace}{} is not enforced as written: {}: {}",
            object.kind, object.name, object.reason, object.consequence
        );
        let _ = writeln!(out, "  {}", printable::line(&text));
    }
    if report.unenforced_left_out > 0 {
        let _ = writeln!(out, "  {} more such objects are not shown", report.unenforced_left_out);
    }
    out
}

/// Describes the policy in force in one line.
pub(super) fn policy_line(policy: &PolicyStatus) -> String {
    let source = match &policy.origin.source {
        PolicySource::Directory { path } => format!("directory {}", path.display()),
        PolicySource::Kubernetes { server } => format!("the Kubernetes API at {}", printable::line(server)),
        PolicySource::ControlSocket { uid: Some(uid), pid: Some(pid) } => {
            format!("control socket (user {uid}, process {pid})")
        }
        PolicySource::ControlSocket { .. } => "control socket".to_owned(),
    };
    let PolicyStatus { generation, rules, pods, .. } = policy;
    let counts = match (policy.origin.objects, policy.origin.policies) {
        (Some(objects), Some(policies)) => format!("{objects} objects, {policies} policies, "),
        _ => String::new(),
    };
    let ago = ago(policy.since_unix_s);
    format!(
        "policy: from {source}, in force since {ago} ago as generation {generation}: {counts}{rules} rules, {pods} pods"
    )
}

/// Time since a moment, by this machine's clock, which is the switch's too.
fn ago(unix_s: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    format!("{} s", now.saturating_sub(unix_s))
}
