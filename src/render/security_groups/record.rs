//! Recorded states, which may be cut off or edited.

use std::collections::BTreeSet;

use super::model::{API_VERSION, Document, STATE_KIND};

/// Reads a state and checks that it refers to nothing that it lacks.
pub(super) fn read(text: &str) -> Result<Document, String> {
    let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if (document.api_version.as_str(), document.kind.as_str()) != (API_VERSION, STATE_KIND) {
        return Err(format!(
            "it is a {} of {}, not {STATE_KIND} of {API_VERSION}",
            document.kind, document.api_version
        ));
    }
    let groups: BTreeSet<&str> = document.security_groups.iter().map(|group| group.id.as_str()).collect();
    if groups.len() < document.security_groups.len() {
        return Err("two of its groups have one id".to_owned());
    }
    let known = |of: &str, id: &str| {
        if groups.contains(id) {
            return Ok(());
        }
        Err(format!("{of} names group {id}, which is not in it"))
    };
    for group in &document.security_groups {
        let mut rules = BTreeSet::new();
        for rule in &group.rules {
            if rule.security_group_id != group.id || rule.content_id() != rule.id {
                return Err(format!(
                    "rule {} of group {} has other fields than its id says",
                    rule.id, group.name
                ));
            }
            if !rules.insert(&rule.id) {
                return Err(format!("group {} has rule {} twice", group.name, rule.id));
            }
            rule.remote_group_id.iter().try_for_each(|id| known(&format!("rule {}", rule.id), id))?;
        }
    }
    let mut ports = BTreeSet::new();
    for port in &document.ports {
        if !ports.insert(&port.name) {
            return Err(format!("port {} stands in it twice", port.name));
        }
        port.security_groups.iter().try_for_each(|id| known(&format!("port {}", port.name), id))?;
    }
    for resource in &document.kuryrnetpolicies {
        known(&format!("resource {}", resource.metadata.name), &resource.spec.security_group_id)?;
    }
    Ok(document)
}
