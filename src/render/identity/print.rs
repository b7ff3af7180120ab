//! Text of a state and of changes: JSON with an entry on each line.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::json;

use super::changes::Changes;
use super::model::{Endpoint, Key, State, Value};
use super::ports::mask;
use crate::tables::{PodName, Verdict};

/// Text of a state.
pub(super) fn state(state: &State) -> String {
    let largest = state.policies.values().map(super::model::Policy::len).max().unwrap_or(0);
    let summary = format!(
        "{}, {}, {} with at most {}, {}",
        count(state.identities.len(), "identity", "identities"),
        count(state.ipcache.len(), "prefix", "prefixes"),
        count(state.policies.len(), "policy map", "policy maps"),
        count(largest, "entry", "entries"),
        count(state.endpoints.len(), "endpoint", "endpoints"),
    );
    let mut text = head("Identities", &summary);
    list(&mut text, " ", "identities", state.identities.iter(), |text, (number, labels)| {
        identity(text, *number, Some(labels));
    });
    text.push_str(",\n");
    list(&mut text, " ", "ipcache", state.ipcache.iter(), |text, (prefix, number)| {
        cached(text, prefix, Some(*number));
    });
    text.push_str(",\n");
    list(&mut text, " ", "policies", state.policies.iter(), |text, (name, policy)| {
        entries(text, "  ", name, policy.entries(), |text, (key, value)| entry(text, key, Some(value)));
    });
    text.push_str(",\n");
    list(&mut text, " ", "endpoints", state.endpoints.iter(), |text, (name, value)| {
        endpoint(text, name, Some(value));
    });
    text.push_str("\n}\n");
    text
}

/// Text of changes.
pub(super) fn changes(changes: &Changes) -> String {
    let mut text = head("IdentityChanges", &summary(changes));
    text.push_str(" \"write\": {\n");
    list(&mut text, "  ", "identities", changes.identities.written.iter(), |text, (number, labels)| {
        identity(text, **number, Some(labels));
    });
    text.push_str(",\n");
    list(&mut text, "  ", "policies", changes.policies.iter(), |text, (name, written)| {
        entries(text, "   ", name, written.iter(), |text, (key, value)| entry(text, key, Some(value)));
    });
    text.push_str(",\n");
    list(&mut text, "  ", "ipcache", changes.ipcache.written.iter(), |text, (prefix, number)| {
        cached(text, prefix, Some(**number));
    });
    text.push_str(",\n");
    list(&mut text, "  ", "endpoints", changes.endpoints.written.iter(), |text, (name, value)| {
        endpoint(text, name, Some(value));
    });
    text.push_str("\n },\n \"delete\": {\n");
    list(&mut text, "  ", "endpoints", changes.endpoints.deleted.iter(), |text, name| {
        endpoint(text, name, None);
    });
    text.push_str(",\n");
    list(&mut text, "  ", "ipcache", changes.ipcache.deleted.iter(), |text, prefix| {
        cached(text, prefix, None);
    });
    text.push_str(",\n");
    list(&mut text, "  ", "entries", changes.deleted_entries.iter(), |text, (name, deleted)| {
        entries(text, "   ", name, deleted.iter(), |text, key| entry(text, key, None));
    });
    text.push_str(",\n");
    list(&mut text, "  ", "policies", changes.deleted_policies.iter(), |text, name| {
        text.push_str(&json!(name).to_string());
    });
    text.push_str(",\n");
    list(&mut text, "  ", "identities", changes.identities.deleted.iter(), |text, number| {
        identity(text, **number, None);
    });
    text.push_str("\n }\n}\n");
    text
}

fn summary(changes: &Changes) -> String {
    let entries = |found: usize, verb: &str| format!("{verb} {}", count(found, "entry", "entries"));
    let written = changes.policies.iter().map(|(_, entries)| entries.len()).sum::<usize>()
        + changes.identities.written.len()
        + changes.ipcache.written.len()
        + changes.endpoints.written.len();
    let deleted = changes.deleted_entries.iter().map(|(_, entries)| entries.len()).sum::<usize>()
        + changes.identities.deleted.len()
        + changes.ipcache.deleted.len()
        + changes.endpoints.deleted.len()
        + changes.deleted_policies.len();
    match (written + changes.policies.len(), deleted) {
        (0, 0) => "nothing to do".to_owned(),
        _ => format!("{}, {}", entries(written, "write"), entries(deleted, "delete")),
    }
}

fn head(kind: &str, summary: &str) -> String {
    format!(
        "{{\n \"apiVersion\": \"palisade.dev/v1\",\n \"kind\": \"{kind}\",\n \"summary\": \"{summary}\",\n"
    )
}

/// Number of things, in words.
fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Prints a list with each of its items on a line.
fn list<T>(
    text: &mut String,
    indent: &str,
    name: &str,
    items: impl Iterator<Item = T>,
    print: impl Fn(&mut String, T),
) {
    let _ = write!(text, "{indent}\"{name}\": ");
    listed(text, indent, "", items, print);
}

/// Prints items behind a text, each on a line.
fn listed<T>(
    text: &mut String,
    indent: &str,
    before: &str,
    items: impl Iterator<Item = T>,
    print: impl Fn(&mut String, T),
) {
    text.push_str(before);
    text.push('[');
    let start = text.len();
    for item in items {
        text.push_str(if text.len() == start { "\n" } else { ",\n" });
        let _ = write!(text, "{indent} ");
        print(text, item);
    }
    if text.len() > start {
        let _ = write!(text, "\n{indent}");
    }
    text.push(']');
}

fn identity(text: &mut String, number: u32, labels: Option<&Vec<String>>) {
    let _ = write!(text, "{{\"identity\":{number}");
    if let Some(labels) = labels {
        let _ = write!(text, ",\"labels\":{}", json!(labels));
    }
    text.push('}');
}

fn cached(text: &mut String, prefix: &IpNet, number: Option<u32>) {
    let _ = write!(text, "{{\"prefix\":\"{prefix}\"");
    if let Some(number) = number {
        let _ = write!(text, ",\"identity\":{number}");
    }
    text.push('}');
}

/// Prints entries of a policy map.
fn entries<T>(
    text: &mut String,
    indent: &str,
    name: &str,
    items: impl Iterator<Item = T>,
    print: impl Fn(&mut String, T),
) {
    let _ = write!(text, "{{\"policy\":{},", json!(name));
    listed(text, indent, "\"entries\":", items, print);
    text.push('}');
}

fn entry(text: &mut String, key: &Key, value: Option<&Value>) {
    let _ = write!(text, "{{\"direction\":\"{}\",\"identity\":{},\"protocol\":", key.direction, key.identity);
    let _ = match key.service.protocol {
        None => write!(text, "\"ANY\""),
        Some(6) => write!(text, "\"TCP\""),
        Some(17) => write!(text, "\"UDP\""),
        Some(132) => write!(text, "\"SCTP\""),
        Some(number) => write!(text, "{number}"),
    };
    let _ = write!(text, ",\"port\":{},\"mask\":\"{:#06x}\"", key.service.port, mask(key.service.bits));
    if let Some(value) = value {
        let action = match value.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        };
        let _ = write!(text, ",\"action\":\"{action}\",\"derived_from\":{}", value.derived_from);
    }
    text.push('}');
}

fn endpoint(text: &mut String, name: &PodName, value: Option<&Endpoint>) {
    let _ = write!(text, "{{\"pod\":{}", json!(name.to_string()));
    if let Some(value) = value {
        let strings = |addresses: &[IpAddr]| json!(addresses).to_string();
        let (addresses, host) = (strings(&value.addresses), strings(&value.host));
        let _ = write!(
            text,
            ",\"identity\":{},\"addresses\":{addresses},\"host\":{host},\"policy\":{}",
            value.identity,
            json!(value.policy)
        );
    }
    text.push('}');
}
