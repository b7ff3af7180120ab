//! Selectors and policies as the JSON of the API, from their reduced form.

use serde_json::{Map, Value, json};

use crate::policy::objects::{
    LabelSelector, NetworkPolicy, NetworkPolicyRule, Peer, Peers, PortMatch, Ports, Requirement,
};
use crate::policy::{NamespaceScope, PodSet};

/// Selector.
pub(super) fn selector(selector: &LabelSelector) -> Value {
    let (mut labels, mut expressions) = (Map::new(), Vec::new());
    for requirement in &selector.requirements {
        let (key, operator, values) = match requirement {
            // A second value of a key is no entry of `matchLabels`.
            Requirement::In { key, values } if values.len() == 1 && !labels.contains_key(key) => {
                labels.insert(key.clone(), values[0].clone().into());
                continue;
            }
            Requirement::In { key, values } => (key, "In", Some(values)),
            Requirement::NotIn { key, values } => (key, "NotIn", Some(values)),
            Requirement::Exists { key } => (key, "Exists", None),
            Requirement::DoesNotExist { key } => (key, "DoesNotExist", None),
        };
        let mut expression = json!({"key": key, "operator": operator});
        if let Some(values) = values {
            expression["values"] = json!(values);
        }
        expressions.push(expression);
    }
    let mut object = Map::new();
    if !labels.is_empty() {
        object.insert("matchLabels".to_owned(), labels.into());
    }
    if !expressions.is_empty() {
        object.insert("matchExpressions".to_owned(), expressions.into());
    }
    object.into()
}

/// Text that identifies a set of pods.
pub(super) fn pod_set_key(set: &PodSet) -> String {
    let namespaces = match &set.namespaces {
        NamespaceScope::Named(name) => json!(name),
        NamespaceScope::Matching(labels) => selector(labels),
    };
    json!([namespaces, selector(&set.pods)]).to_string()
}

/// `spec` of a policy.
pub(super) fn policy(policy: &NetworkPolicy) -> Value {
    let mut spec = Map::new();
    let mut types = Vec::new();
    for (name, kind, peers, rules) in
        [("ingress", "Ingress", "from", &policy.ingress), ("egress", "Egress", "to", &policy.egress)]
    {
        let Some(rules) = rules else { continue };
        types.push(kind);
        let rules: Vec<Value> = rules.iter().map(|entry| rule(entry, peers)).collect();
        if !rules.is_empty() {
            spec.insert(name.to_owned(), rules.into());
        }
    }
    spec.insert("podSelector".to_owned(), selector(&policy.pod_selector));
    spec.insert("policyTypes".to_owned(), types.into());
    spec.into()
}

fn rule(rule: &NetworkPolicyRule, word: &str) -> Value {
    let mut object = Map::new();
    if let Peers::Any(peers) = &rule.peers {
        object.insert(word.to_owned(), peers.iter().map(peer).collect());
    }
    if let Ports::Any(ports) = &rule.ports {
        object.insert("ports".to_owned(), ports.iter().map(port).collect());
    }
    object.into()
}

fn peer(peer: &Peer) -> Value {
    match peer {
        Peer::Pods { namespaces: None, pods } => json!({"podSelector": selector(pods)}),
        Peer::Pods { namespaces: Some(namespaces), pods } => {
            json!({"namespaceSelector": selector(namespaces), "podSelector": selector(pods)})
        }
        Peer::IpBlock(block) if block.except.is_empty() => json!({"ipBlock": {"cidr": block.cidr}}),
        Peer::IpBlock(block) => json!({"ipBlock": {"cidr": block.cidr, "except": block.except}}),
    }
}

fn port(port: &PortMatch) -> Value {
    match port {
        PortMatch::Range { protocol, first: 0, last: u16::MAX } => json!({"protocol": protocol}),
        PortMatch::Range { protocol, first, last } if first == last => {
            json!({"protocol": protocol, "port": first})
        }
        PortMatch::Range { protocol, first, last } => {
            json!({"protocol": protocol, "port": first, "endPort": last})
        }
        PortMatch::Named { protocol, name } => json!({"protocol": protocol, "port": name}),
    }
}
