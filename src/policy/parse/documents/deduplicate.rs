//! Several objects with one name.

use std::collections::HashMap;

use crate::policy::objects::{Object, replicas};
use crate::policy::parse::{Diagnostic, Parsed, Severity};
use crate::tables::PolicyKind;

/// Keeps the last of several objects with the same kind and name, as `kubectl apply` does, with a warning.
pub(super) fn keep_last(parsed: &mut Parsed) {
    let mut last = HashMap::new();
    let mut is_replaced = vec![false; parsed.objects.len()];
    for (index, (object, location)) in parsed.objects.iter().enumerate() {
        if is_second_replica(object) {
            continue;
        }
        let Some(earlier) = last.insert(identity_of(object), index) else { continue };
        is_replaced[earlier] = true;
        let (_, namespace, name) = identity_of(object);
        parsed.warnings.push(Diagnostic {
            severity: Severity::Warning,
            location: location.clone(),
            object: if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") },
            path: "metadata.name".to_owned(),
            message: format!("replaces the object with the same name at {}", parsed.objects[earlier].1),
            help: Some("rename one of them if both are meant".to_owned()),
        });
    }
    // The second pod of a workload follows the first, and is removed with it.
    for index in 1..is_replaced.len() {
        is_replaced[index] |= is_second_replica(&parsed.objects[index].0) && is_replaced[index - 1];
    }
    let mut is_replaced = is_replaced.into_iter();
    parsed.objects.retain(|_| !is_replaced.next().unwrap_or(false));
}

fn is_second_replica(object: &Object) -> bool {
    matches!(object, Object::Pod(pod) if replicas::workload_of_second_replica(&pod.name).is_some())
}

/// Kind, namespace and name.
fn identity_of(object: &Object) -> (String, &str, &str) {
    match object {
        Object::Pod(pod) => ("Pod".to_owned(), &pod.name.namespace, &pod.name.name),
        Object::Namespace(namespace) => ("Namespace".to_owned(), "", &namespace.name),
        Object::Node(node) => ("Node".to_owned(), "", &node.name),
        Object::NetworkPolicy(policy) => {
            (PolicyKind::NetworkPolicy.to_string(), &policy.namespace, &policy.name)
        }
        Object::ClusterNetworkPolicy(policy) => (policy.kind.to_string(), "", &policy.name),
        Object::Service(service) => ("Service".to_owned(), &service.namespace, &service.name),
        Object::EndpointSlice(slice) => ("EndpointSlice".to_owned(), &slice.namespace, &slice.name),
    }
}
