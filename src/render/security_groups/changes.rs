//! Changes that lead from one state to another, in the order in which they are applied.
//!
//! Groups and rules are added before ports change, and removed after it. Each port changes at once. Traffic that both
//! states allow passes at all times, and until the last step old rules may admit traffic to ports with new groups.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::model::{API_VERSION, Document, KuryrNetPolicy, Metadata, Port, SecurityGroup, SecurityGroupRule};

/// Changes from an old state to a new one.
pub(super) fn between(old: &Document, new: &Document) -> Value {
    let groups = Pairs::of(&old.security_groups, &new.security_groups, |group| group.id.clone());
    let ports = Pairs::of(&old.ports, &new.ports, |port| port.name.clone());
    let of = |metadata: &Metadata| [metadata.namespace.clone(), metadata.name.clone()];
    let policy = |resource: &KuryrNetPolicy| of(&resource.metadata);
    let resources = Pairs::of(&old.kuryrnetpolicies, &new.kuryrnetpolicies, policy);
    let pods = Pairs::of(&old.pods, &new.pods, |pod| of(&pod.metadata));
    let (added_rules, removed_rules) = rules(&groups);
    let updated: Vec<Value> = groups
        .changed()
        .filter(|(old, new)| properties(old) != properties(new))
        .map(|(_, group)| properties(group))
        .collect();
    let counts = [
        ("create", groups.added.len(), "group"),
        ("create", added_rules.len(), "rule"),
        ("update", ports.added.len() + ports.changed().count(), "port"),
        ("forget", ports.removed.len(), "port"),
        ("delete", removed_rules.len(), "rule"),
        ("delete", groups.removed.len(), "group"),
        ("apply", resources.added.len() + resources.changed().count(), "resource"),
        ("delete", resources.removed.len(), "resource"),
        ("annotate", pods.added.len() + pods.changed().count(), "pod"),
    ];
    let port = |old: Option<&Port>, new: &Port| port_change(old, new);
    let steps = [
        ("create_security_groups", groups.added.iter().map(|group| properties(group)).collect()),
        ("create_security_group_rules", added_rules),
        (
            "update_ports",
            ports
                .added
                .iter()
                .map(|new| port(None, new))
                .chain(ports.changed().map(|(old, new)| port(Some(old), new)))
                .collect(),
        ),
        ("forget_ports", ports.removed.iter().map(|port| json!(port.name)).collect()),
        ("delete_security_group_rules", removed_rules),
        // The generation of a group follows its rules.
        ("update_security_groups", updated),
        (
            "delete_security_groups",
            groups.removed.iter().map(|group| json!({"id": group.id, "name": group.name})).collect(),
        ),
        ("apply_kuryrnetpolicies", resources.wanted().map(|resource| json!(resource)).collect()),
        (
            "delete_kuryrnetpolicies",
            resources
                .removed
                .iter()
                .map(|gone| json!({"namespace": gone.metadata.namespace, "name": gone.metadata.name}))
                .collect(),
        ),
        ("annotate_pods", pods.wanted().map(|pod| json!(pod)).collect()),
    ];
    let filled = steps.into_iter().filter(|(_, step): &(&str, Vec<Value>)| !step.is_empty());
    let steps: Vec<Value> = filled.map(|(name, step)| json!({name: step})).collect();
    json!({
        "apiVersion": API_VERSION, "kind": "SecurityGroupChanges", "summary": summary(&counts), "steps": steps,
    })
}

/// Summary in words.
fn summary(counts: &[(&str, usize, &str)]) -> String {
    let counts = counts.iter().filter(|(_, count, _)| *count > 0);
    let words: Vec<String> = counts
        .map(|(verb, count, noun)| format!("{verb} {count} {noun}{}", if *count == 1 { "" } else { "s" }))
        .collect();
    if words.is_empty() { "nothing to do".to_owned() } else { words.join(", ") }
}

/// Group without its rules.
fn properties(group: &SecurityGroup) -> Value {
    json!({"id": group.id, "name": group.name, "description": group.description, "tags": group.tags})
}

fn port_change(old: Option<&Port>, new: &Port) -> Value {
    let before = old.map_or(&[][..], |port| &port.security_groups);
    let lacks = |groups: &[String], group: &&String| !groups.contains(group);
    let attach: Vec<&String> = new.security_groups.iter().filter(|group| lacks(before, group)).collect();
    let detach: Vec<&String> = before.iter().filter(|group| lacks(&new.security_groups, group)).collect();
    json!({
        "name": new.name, "fixed_ips": new.fixed_ips, "security_groups": new.security_groups, "attach": attach,
        "detach": detach,
    })
}

/// Rules to create, and rules to delete of groups that stay.
fn rules(groups: &Pairs<SecurityGroup, String>) -> (Vec<Value>, Vec<Value>) {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    added.extend(groups.added.iter().flat_map(|group| &group.rules).map(|rule| json!(rule)));
    for (old, new) in groups.changed() {
        let id = |rule: &SecurityGroupRule| rule.id.clone();
        let rules = Pairs::of(&old.rules, &new.rules, id);
        added.extend(rules.added.iter().map(|rule| json!(rule)));
        let gone = rules.removed.iter();
        removed.extend(gone.map(|rule| json!({"id": rule.id, "security_group_id": rule.security_group_id})));
    }
    (added, removed)
}

/// Entries of two lists by key.
struct Pairs<'d, T, K> {
    added: Vec<&'d T>,
    removed: Vec<&'d T>,
    both: BTreeMap<K, (&'d T, &'d T)>,
}

impl<'d, T: PartialEq, K: Ord> Pairs<'d, T, K> {
    fn of(old: &'d [T], new: &'d [T], key: impl Fn(&T) -> K) -> Pairs<'d, T, K> {
        let mut before: BTreeMap<K, &T> = old.iter().map(|entry| (key(entry), entry)).collect();
        let (mut added, mut both) = (Vec::new(), BTreeMap::new());
        for entry in new {
            match before.remove_entry(&key(entry)) {
                Some((key, old)) => _ = both.insert(key, (old, entry)),
                None => added.push(entry),
            }
        }
        Pairs { added, removed: before.into_values().collect(), both }
    }

    /// Entries of both that differ.
    fn changed(&self) -> impl Iterator<Item = (&'d T, &'d T)> {
        self.both.values().copied().filter(|(old, new)| old != new)
    }

    /// Entries that are new or differ.
    fn wanted(&self) -> impl Iterator<Item = &'d T> {
        self.added.iter().copied().chain(self.changed().map(|(_, new)| new))
    }
}
