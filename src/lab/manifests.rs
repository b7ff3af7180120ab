//! The pods of a lab as Kubernetes objects, for the policy compiler.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Lab, PodPlan};

/// Returns the pods and their namespaces as one YAML text. `labels` returns the labels of each pod.
pub fn manifests(lab: &Lab, labels: impl Fn(&PodPlan) -> Vec<(String, String)>) -> String {
    let plans: Vec<PodPlan> = lab.pods().map(|pod| pod.plan().clone()).collect();
    let namespaces: BTreeSet<&str> = plans.iter().map(|plan| plan.pod.namespace.as_str()).collect();
    let namespaces = namespaces.into_iter().map(namespace);
    let pods = plans.iter().map(|plan| pod(plan, labels(plan)));
    // JSON is YAML (YAML 1.2 section 1.2).
    let documents: Vec<String> = namespaces.chain(pods).map(|object| format!("{object:#}\n")).collect();
    documents.join("---\n")
}

fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
    })
}

fn pod(plan: &PodPlan, labels: Vec<(String, String)>) -> Value {
    let labels: serde_json::Map<String, Value> = labels.into_iter().map(|(k, v)| (k, v.into())).collect();
    let addresses: Vec<Value> = plan.addresses.iter().map(|address| json!({"ip": address})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": plan.pod.name, "namespace": plan.pod.namespace, "labels": labels},
        "spec": {"containers": [{"name": "lab", "image": "lab"}]},
        "status": {"phase": "Running", "podIP": plan.addresses.first(), "podIPs": addresses},
    })
}
