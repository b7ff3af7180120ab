//! Substitutes of policies that cannot be enforced as written: they select the same pods, or more, and allow nothing
//! in the directions that cannot be read.

use serde_json::{Map, Value, json};

use super::kinds::Kind;
use super::parse::{Key, parse};
use crate::policy::objects::{
    AssignedMetadata, ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterRule, LabelSelector,
    NetworkPolicy, Object, PodScope, Tier,
};
use crate::tables::PolicyKind;

/// Directions of rules with the entries of `policyTypes`.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "Ingress"), ("egress", "Egress")];

/// Substitute of an object that cannot be read, and the consequence in words. Objects that are no policies have none.
pub(super) fn closed(kind: &Kind, key: &Key, text: &str) -> (Option<Object>, String) {
    let policy = Policy { kind, key, spec: spec_of(text) };
    let cluster_kind = match kind.name {
        "NetworkPolicy" => return policy.network(),
        "ClusterNetworkPolicy" => PolicyKind::ClusterNetworkPolicy,
        "AdminNetworkPolicy" => PolicyKind::AdminNetworkPolicy,
        "BaselineAdminNetworkPolicy" => PolicyKind::BaselineAdminNetworkPolicy,
        "Service" => return (None, "the switch does not serve it".to_owned()),
        "EndpointSlice" => return (None, "its endpoints are no backends".to_owned()),
        "Pod" => return (None, "its node drops its traffic, and no rule matches it".to_owned()),
        "Namespace" => {
            let consequence =
                "its labels are those of its last readable version; without one its pods have no tables";
            return (None, consequence.to_owned());
        }
        _ => return (None, "rules match its last readable version, if there is one".to_owned()),
    };
    policy.cluster(cluster_kind)
}

/// `spec` of an object. Empty where the text cannot be read.
fn spec_of(text: &str) -> Map<String, Value> {
    let object = serde_json::from_str::<Value>(text).unwrap_or_default();
    object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Policy of which only parts can be read.
struct Policy<'p> {
    kind: &'p Kind,
    key: &'p Key,
    spec: Map<String, Value>,
}

impl Policy<'_> {
    /// Parses the policy with another `spec`.
    fn with(&self, spec: &Map<String, Value>) -> Option<Object> {
        let metadata = match self.key.namespace.as_str() {
            "" => json!({"name": "policy"}),
            _ => json!({"name": "policy", "namespace": "namespace"}),
        };
        // The name of a baseline policy is given.
        let metadata = match self.kind.name {
            "BaselineAdminNetworkPolicy" => json!({"name": "default"}),
            _ => metadata,
        };
        parse(self.kind, &json!({"metadata": metadata, "spec": spec}).to_string())
            .ok()
            .map(|(object, _)| object)
    }

    /// Fields of these names.
    fn only(&self, names: &[&str]) -> Map<String, Value> {
        let kept = self.spec.iter().filter(|(name, _)| names.contains(&name.as_str()));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// All fields but these.
    fn without(&self, name: &str) -> Map<String, Value> {
        let kept = self.spec.iter().filter(|(other, _)| *other != name);
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn network(&self) -> (Option<Object>, String) {
        let selected = match self.with(&self.only(&["podSelector"])) {
            // A spec without a selector has lost it: an API object has one.
            Some(Object::NetworkPolicy(policy)) if self.spec.contains_key("podSelector") => {
                Some(policy.pod_selector)
            }
            _ => None,
        };
        let types = self.types();
        let mut rules = DIRECTIONS.map(|(field, name)| {
            let is_isolated = types.as_ref().is_none_or(|types| types.contains(&name));
            if !is_isolated {
                return (None, false);
            }
            let other = if field == "ingress" { "egress" } else { "ingress" };
            let mut spec = self.without(other);
            spec.insert("policyTypes".to_owned(), json!([name]));
            match self.with(&spec).filter(|_| types.is_some()) {
                Some(Object::NetworkPolicy(policy)) => {
                    (if field == "ingress" { policy.ingress } else { policy.egress }, false)
                }
                _ => (Some(Vec::new()), true),
            }
        });
        // Errors outside of the spec, or in fields that the parts do not have.
        if selected.is_none() || !rules.iter().any(|(_, is_closed)| *is_closed) {
            rules = [(Some(Vec::new()), true), (Some(Vec::new()), true)];
        }
        let directions = direction_names(rules.iter().map(|(_, is_closed)| *is_closed));
        let pods = match &selected {
            Some(_) => "the pods that it selects".to_owned(),
            None => format!("all pods of namespace {}", self.key.namespace),
        };
        let [(ingress, _), (egress, _)] = rules;
        let policy = NetworkPolicy {
            audited: false,
            assigned: AssignedMetadata::default(),
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
            pod_selector: selected.unwrap_or_default(),
            ingress,
            egress,
            ignored: Vec::new(),
        };
        (Some(Object::NetworkPolicy(policy)), format!("it allows {pods} no {directions}"))
    }

    /// `policyTypes` with the default of the API server. `None` if they cannot be read.
    fn types(&self) -> Option<Vec<&'static str>> {
        let known = |value: &Value| DIRECTIONS.iter().map(|(_, name)| *name).find(|name| value == name);
        match self.spec.get("policyTypes").unwrap_or(&Value::Null) {
            Value::Array(types) if !types.is_empty() => types.iter().map(known).collect(),
            Value::Null | Value::Array(_) => match self.spec.get("egress").unwrap_or(&Value::Null) {
                Value::Null => Some(vec!["Ingress"]),
                Value::Array(rules) if rules.is_empty() => Some(vec!["Ingress"]),
                _ => Some(vec!["Ingress", "Egress"]),
            },
            _ => None,
        }
    }

    fn cluster(&self, kind: PolicyKind) -> (Option<Object>, String) {
        let base = match self.with(&self.only(&["tier", "priority", "subject"])) {
            Some(Object::ClusterNetworkPolicy(policy)) => Some(policy),
            _ => None,
        };
        let deny = || {
            vec![ClusterRule {
                name: None,
                action: ClusterAction::Deny,
                peers: vec![ClusterPeer::Everyone],
                ports: None,
            }]
        };
        let mut rules = ["egress", "ingress"].map(|other| {
            match self.with(&self.without(other)).filter(|_| base.is_some()) {
                Some(Object::ClusterNetworkPolicy(policy)) => {
                    (if other == "egress" { policy.ingress } else { policy.egress }, false)
                }
                _ => (deny(), true),
            }
        });
        if !rules.iter().any(|(_, is_closed)| *is_closed) {
            rules = [(deny(), true), (deny(), true)];
        }
        let directions = direction_names(rules.iter().map(|(_, is_closed)| *is_closed));
        let pods = if base.is_some() { "the pods that it selects" } else { "all pods" };
        let is_baseline = kind == PolicyKind::BaselineAdminNetworkPolicy
            || base.is_none() && self.spec.get("tier").is_some_and(|tier| tier == "Baseline");
        let [(ingress, _), (egress, _)] = rules;
        let everything = PodScope { namespaces: LabelSelector::default(), pods: LabelSelector::default() };
        let policy = ClusterNetworkPolicy {
            audited: false,
            kind,
            name: self.key.name.clone(),
            tier: base
                .as_ref()
                .map_or(if is_baseline { Tier::Baseline } else { Tier::Admin }, |base| base.tier),
            priority: base.as_ref().map_or(0, |base| base.priority),
            subject: base.map_or(everything, |base| base.subject),
            ingress,
            egress,
        };
        (Some(Object::ClusterNetworkPolicy(policy)), format!("it denies {pods} all {directions}"))
    }
}

fn direction_names(closed: impl Iterator<Item = bool>) -> String {
    let names: Vec<&str> =
        DIRECTIONS.iter().zip(closed).filter(|(_, is)| *is).map(|((name, _), _)| *name).collect();
    names.join(" and ")
}
