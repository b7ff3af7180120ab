use serde_json::{Value, json};

use super::super::filter::Piece;
use super::super::object::entry;
use super::*;
use crate::net::flow::Protocol;
use crate::tables::Classifier;

/// Message with an object that has come or changed, as an item of a list: without its kind.
fn upsert(index: usize, object: &Value) -> (usize, Message) {
    let piece = Piece { text: object.to_string(), is_cut: false, is_item: true };
    let kind = &KINDS[index];
    (index, Message::Events(vec![Event::Upsert(entry(kind, kind.versions[0], &piece).unwrap())]))
}

fn namespace(name: &str, label: &str) -> (usize, Message) {
    upsert(NAMESPACE, &json!({"metadata": {"name": name, "labels": {"label": label}}}))
}

fn take<const N: usize>(cluster: &mut Cluster, messages: [(usize, Message); N]) {
    messages.into_iter().for_each(|(index, message)| cluster.take(index, message));
}

fn away(index: usize) -> (usize, Message) {
    (index, Message::Away("no route".to_owned()))
}

/// Namespaces from whose pod a connection to the pod of `one` is allowed.
fn allowed(cluster: &Cluster) -> Vec<&'static str> {
    let tables = cluster.tables().unwrap();
    let classifier = Classifier::new(tables).unwrap();
    let acl = tables.pods[&PodName::new("one", "pod")].ingress;
    let is_allowed =
        |net| classifier.decide(acl, classifier.class([10, net, 0, 1].into()), Protocol::TCP, 80).is_allow();
    [("one", 1), ("two", 2)].into_iter().filter(|(_, net)| is_allowed(*net)).map(|(name, _)| name).collect()
}

/// Two namespaces with a pod each, and a policy that allows those with the label `in`.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(Some("n1".to_owned()), 1000, Duration::ZERO);
    for index in 0..KINDS.len() {
        cluster.take(index, Message::Begin);
    }
    let policy = json!({
        "metadata": {"name": "in", "namespace": "one"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"label": "in"}}}]}]},
    });
    let objects = [namespace("one", "out"), namespace("two", "in"), upsert(NETWORK_POLICY, &policy)];
    take(&mut cluster, objects);
    for (name, address) in [("one", "10.1.0.1"), ("two", "10.2.0.1")] {
        let pod = json!({"metadata": {"name": "pod", "namespace": name},
            "spec": {"nodeName": "n1"}, "status": {"podIP": address, "podIPs": [{"ip": address}]}});
        take(&mut cluster, [upsert(POD, &pod)]);
    }
    for index in 0..KINDS.len() {
        cluster.take(index, Message::End);
    }
    assert!(cluster.compile().is_some());
    cluster
}

#[test]
fn no_label_overtakes_one_that_waits_for_policies() {
    let mut cluster = cluster();
    assert_eq!(allowed(&cluster), ["two"]);
    take(&mut cluster, [away(NETWORK_POLICY), namespace("two", "out")]);
    drop(cluster.compile());
    assert_eq!(allowed(&cluster), ["two"], "labels wait while policies are not followed");
    // Policies are followed for a moment, in which the tables are not compiled.
    take(&mut cluster, [(NETWORK_POLICY, Message::Following), namespace("one", "in"), away(NETWORK_POLICY)]);
    drop(cluster.compile());
    assert_eq!(allowed(&cluster), ["two"], "both labels at no time");
    take(&mut cluster, [(NETWORK_POLICY, Message::Following)]);
    drop(cluster.compile());
    assert_eq!(allowed(&cluster), ["one"]);
}
