//! Tables of docs/reference.md and docs/lint.md that come from the code. `PALISADE_WRITE_REFERENCE=1` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::UdpSocket;
use std::time::Duration;
use std::{env, fs};

use palisade::control::protocol::{SourceReport, UnfollowedKind};
use palisade::control::{IpfixSettings, MetricsFormat, SwitchSettings};
use palisade::dataplane::{DropReason, LOSSES, OffloadCounters};
use palisade::policy::lint::Check;

use crate::audit;
use crate::fixture::{on_port, pod, pod_port, switch};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference.md");
const LINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/lint.md");
/// Comment behind a table.
const END: &str = "<!-- end -->\n";

/// Replaces the table behind the comment `name`.
fn with_table(document: &str, name: &str, table: &str) -> String {
    let comment = format!("<!-- {name} -->\n");
    let (before, rest) = document.split_once(&comment).unwrap_or_else(|| panic!("there is no {comment}"));
    let (_, after) = rest.split_once(END).expect("a comment behind the table");
    format!("{before}{comment}\n{table}\n{END}{after}")
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    rows.into_iter().for_each(|row| _ = writeln!(text, "| {} |", row.join(" | ")));
    text
}

/// Metrics of switches with everything that has some: a port, an agent, a collector of flows, offload, policies in force and
/// in audit mode.
fn metrics() -> String {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ipfix = IpfixSettings {
        collector: collector.local_addr().unwrap(),
        observation_domain: 1,
        active_timeout: Duration::from_mins(1),
        template_interval: Duration::from_mins(1),
    };
    let (dataplane, switch) = switch(SwitchSettings { ipfix: Some(ipfix), ..SwitchSettings::default() });
    *dataplane.offload.lock().unwrap() = Some(OffloadCounters::default());
    switch.put_port("veth-db", &pod_port()).unwrap();
    switch.put_pod(&pod("db"), &on_port("veth-db", "10.1.0.2")).unwrap();
    let away = UnfollowedKind { kind: "Pod".to_owned(), since_unix_s: 1, reason: String::new() };
    let port = crate::services::port("10.96.0.1:80", &["10.1.0.2:80"]);
    switch.replace_services(&crate::services::table(&[("web", port)])).unwrap();
    switch.set_source(SourceReport { away: vec![away], ..SourceReport::default() });
    let audited = audit::Watched::start(&audit::objects("audit", 6379));
    switch.metrics(MetricsFormat::OpenMetrics) + &audited.switch.metrics(MetricsFormat::OpenMetrics)
}

/// Families of metrics: name, type, labels and meaning.
fn families() -> BTreeMap<String, [String; 3]> {
    let text = metrics();
    let mut families = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            families
                .entry(name.to_owned())
                .or_insert_with(|| [String::new(), String::new(), help.to_owned()]);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            kind.clone_into(&mut families.get_mut(name).unwrap()[0]);
        }
    }
    for (name, family) in &mut families {
        let ends = ["", "_total", "_info", "_bucket"].map(|end| format!("{name}{end}{{"));
        let samples = text.lines().filter_map(|line| ends.iter().find_map(|start| line.strip_prefix(start)));
        let labels: BTreeSet<&str> = samples
            .flat_map(|sample| sample.split("\",").filter_map(|label| label.split_once("=\"")))
            .map(|(label, _)| label)
            .collect();
        family[1] = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
    }
    families
}

#[test]
fn the_reference_is_that_of_the_code() {
    let reasons = DropReason::ALL.iter();
    let reasons = reasons.map(|reason| vec![format!("`{}`", reason.name()), reason.description().to_owned()]);
    let losses = LOSSES.map(|(name, meaning)| vec![format!("`{name}`"), meaning.to_owned()]);
    let metrics = families().into_iter().map(|(name, family)| {
        let [kind, labels, help] = family;
        vec![format!("`{name}`"), kind, labels, help]
    });
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let mut wanted = with_table(&document, "drop reasons", &table(&["reason", "means"], reasons));
    wanted = with_table(&wanted, "losses", &table(&["place", "means"], losses));
    wanted = with_table(&wanted, "metrics", &table(&["metric", "type", "labels", "means"], metrics));
    check(DOCUMENT, &document, &wanted);
}

#[test]
fn the_reference_of_lint_is_that_of_the_code() {
    let document = fs::read_to_string(LINT).unwrap();
    let checks = Check::ALL.iter().map(|check| {
        let name = check.name();
        vec![format!("<a id=\"{name}\"></a>`{name}`"), check.summary().to_owned(), check.advice().to_owned()]
    });
    check(LINT, &document, &with_table(&document, "checks", &table(&["check", "finds", "do"], checks)));
}

/// Compares a document with the one that the code says, and writes it if the environment asks.
fn check(path: &str, document: &str, wanted: &str) {
    if env::var_os("PALISADE_WRITE_REFERENCE").is_some() {
        fs::write(path, wanted).unwrap();
    }
    assert!(
        wanted == document,
        "{path} is not that of the code: PALISADE_WRITE_REFERENCE=1 cargo test the_reference writes it"
    );
}
