//! Objects that cannot be enforced as written, and objects that are meant to do harm.

use palisade::tables::{Classifier, Verdict};
use serde_json::{Value, json};

use crate::fixture::{
    Agent, admin_policy, compiled, eventually, namespace, pod, policy, small_cluster, unenforced,
};
use crate::server::ApiServer;

/// Policy of these pods with a field that no version knows.
fn newer(name: &str, app: &str) -> Value {
    let mut object = policy(name, app, "web");
    object["spec"]["ingress"][0]["from"][0]["serviceAccounts"] = json!({"x": 1});
    object
}

#[test]
fn a_policy_of_a_newer_version_closes_its_pods_and_has_an_event() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    server.put(newer("newer", "cache"));
    eventually("it is reported", || unenforced(&agent).len() == 1);
    let said = unenforced(&agent).remove(0);
    assert!(said.contains("spec.ingress[0].from[0].serviceAccounts: unknown field"), "{said}");
    assert!(said.contains("it allows the pods that it selects no ingress"), "{said}");
    // The other policies go on.
    server.put(policy("other", "web", "db"));
    let mut expected = server.objects();
    let substitute = expected.iter_mut().find(|object| object["metadata"]["name"] == "newer").unwrap();
    substitute["spec"] =
        json!({"podSelector": {"matchLabels": {"app": "cache"}}, "policyTypes": ["Ingress"]});
    let expected = crate::fixture::compiled(&expected);
    eventually("its pods are closed, and no others", || {
        agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical() == expected)
    });
    eventually("an event is written", || !server.posted().is_empty());
    let event = server.posted().remove(0);
    assert_eq!(event["regarding"]["name"], "newer");
    assert_eq!(event["metadata"]["namespace"], "shop");
    assert!(event["note"].as_str().unwrap().contains("unknown field"), "{event}");
    server.put(policy("newer", "cache", "web"));
    agent.converges(&server);
    eventually("it is no longer reported", || unenforced(&agent).is_empty());
}

#[test]
fn a_large_annotation_is_dropped_and_a_policy_that_is_too_large_closes_its_namespace() {
    let server = ApiServer::start();
    small_cluster(&server);
    let mut annotated = pod("annotated", "n1", "web", "10.1.0.77");
    annotated["metadata"]["annotations"] = json!({"x": "\"}]\\".repeat(2 << 20)});
    server.put(annotated);
    let agent = Agent::start(&server);
    agent.converges(&server);
    let mut large = policy("large", "web", "db");
    let peers: Vec<Value> = (0..100_000_u32)
        .map(|i| json!({"ipBlock": {"cidr": format!("{}/32", std::net::Ipv4Addr::from(i * 256))}}))
        .collect();
    large["spec"]["ingress"][0]["from"] = json!(peers);
    server.put(large);
    eventually("it is reported", || {
        unenforced(&agent).iter().any(|text| text.contains("more than 3145728 bytes"))
    });
    eventually("all pods of the namespace are closed", || !allows(&agent, "10.2.0.2", "10.1.0.77"));
    server.delete(&policy("large", "", ""));
    agent.converges(&server);
}

#[test]
fn a_name_without_end_and_an_object_without_sense_stop_no_other() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    server.put(policy(&"x".repeat(100_000), "db", "web"));
    let mut bad = pod("bad", "n1", "web", "10.1.0.300");
    bad["metadata"]["labels"]["\u{1b}[2J"] = json!("\u{202e}");
    server.put(bad);
    eventually("both are reported", || unenforced(&agent).len() == 2);
    let said = agent.see(|recorded| serde_json::to_string(&recorded.report).unwrap());
    assert!(said.len() < 5000 && !said.contains('\u{202e}') && !said.contains("\\u001b"), "{said}");
    server.put(policy("after", "web", "cache"));
    eventually("others go on", || agent.see(|recorded| recorded.report.policies) == 4);
    server.delete(&policy(&"x".repeat(100_000), "", ""));
    server.delete(&pod("bad", "", "", ""));
    agent.converges(&server);
}

/// Namespace with these labels.
fn labelled(name: &str, labels: &Value) -> Value {
    let mut object = namespace(name);
    object["metadata"]["labels"] = labels.clone();
    object
}

/// Object with a label that cannot be read.
fn unreadable(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({"app": ["no", "text"]});
    object
}

fn has_tables(agent: &Agent, pod: &str) -> bool {
    agent.see(|recorded| recorded.tables.as_ref().unwrap().pods.keys().any(|known| known.name == pod))
}

#[test]
fn an_unreadable_pod_is_closed_and_matches_no_rule_of_absent_labels() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.delete(&admin_policy("admin", 5));
    // Pods without the label `app: web` reach the caches.
    let mut absent = policy("absent", "cache", "");
    absent["spec"]["ingress"] = json!([{"from": [{"podSelector": {"matchExpressions":
        [{"key": "app", "operator": "NotIn", "values": ["web"]}, {"key": "role", "operator": "DoesNotExist"}]}}]}]);
    server.put(absent);
    server.put(pod("guarded", "n1", "cache", "10.1.0.90"));
    server.put(pod("remote", "n2", "db", "10.2.0.90"));
    server.put(pod("local", "n1", "db", "10.1.0.91"));
    let agent = Agent::start(&server);
    agent.converges(&server);
    assert!(allows(&agent, "10.2.0.90", "10.1.0.90") && has_tables(&agent, "local"));
    server.put(unreadable(pod("remote", "n2", "web", "10.2.0.90")));
    server.put(unreadable(pod("local", "n1", "db", "10.1.0.91")));
    eventually("both are reported", || unenforced(&agent).len() == 2);
    eventually("no rule matches the pod of the other node", || !allows(&agent, "10.2.0.90", "10.1.0.90"));
    eventually("the pod of this node has no tables", || !has_tables(&agent, "local"));
    server.put(pod("remote", "n2", "db", "10.2.0.90"));
    server.put(pod("local", "n1", "db", "10.1.0.91"));
    agent.converges(&server);
}

#[test]
fn an_unreadable_namespace_keeps_its_labels_and_without_any_its_pods_are_closed() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.put(labelled("shop", &json!({"tier": "restricted"})));
    let mut deny = admin_policy("restricted", 1);
    deny["spec"]["subject"] = json!({"namespaces": {"matchLabels": {"tier": "restricted"}}});
    deny["spec"]["ingress"][0]["from"] = json!([{"namespaces": {"matchExpressions":
        [{"key": "tier", "operator": "DoesNotExist"}]}}]);
    server.put(deny);
    server.put(namespace("plain"));
    let in_namespace = |name: &str, namespace: &str, node: &str, address: &str| {
        let mut object = pod(name, node, "other", address);
        object["metadata"]["namespace"] = json!(namespace);
        object
    };
    server.put(in_namespace("plain", "plain", "n2", "10.2.0.70"));
    let agent = Agent::start(&server);
    agent.converges(&server);
    let before = compiled(&server.objects());
    assert!(!allows(&agent, "10.2.0.70", "10.1.0.3"), "the policy denies it");
    server.put(unreadable(namespace("shop")));
    server.put(unreadable(namespace("plain")));
    eventually("both are reported", || unenforced(&agent).len() == 2);
    // A later change shows that those before are in force.
    server.put(unreadable(namespace("late")));
    server.put(in_namespace("late", "late", "n1", "10.1.0.71"));
    server.put(in_namespace("far", "late", "n2", "10.2.0.72"));
    server.put(in_namespace("missing", "missing", "n1", "10.1.0.73"));
    eventually("it is reported", || unenforced(&agent).len() == 3);
    eventually("the agent knows the pods", || agent.see(|recorded| recorded.report.objects) >= 20);
    let of_switch = agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical());
    assert_eq!(of_switch, before, "the last readable labels stay, and pods without any wait");
    server.put(labelled("shop", &json!({"tier": "restricted"})));
    server.put(namespace("plain"));
    server.put(labelled("late", &json!({"tier": "restricted"})));
    server.put(namespace("missing"));
    agent.converges(&server);
    assert!(has_tables(&agent, "late") && has_tables(&agent, "missing"));
    // A namespace that has been removed with its pods has no labels any more.
    server.delete(&namespace("late"));
    for (name, node, address) in [("late", "n1", "10.1.0.71"), ("far", "n2", "10.2.0.72")] {
        server.delete(&in_namespace(name, "late", node, address));
    }
    let objects = server.objects().len();
    eventually("its pods are gone", || agent.see(|recorded| recorded.report.objects) == objects);
    server.put(in_namespace("again", "late", "n1", "10.1.0.75"));
    server.put(in_namespace("marker", "missing", "n1", "10.1.0.76"));
    agent.converges(&server);
    assert!(has_tables(&agent, "marker") && !has_tables(&agent, "again"));
    // A namespace whose removal is seen before those of its pods keeps its labels until they are gone.
    server.delete(&namespace("shop"));
    server.put(in_namespace("later", "missing", "n1", "10.1.0.74"));
    eventually("the agent is up to date", || has_tables(&agent, "later"));
    assert!(!allows(&agent, "10.2.0.70", "10.1.0.3"), "the policy goes on to deny it");
}

#[test]
fn policies_of_a_namespace_with_too_many_prefixes_together_are_closed_and_open_again() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    let large = |name: &str, first: u32| {
        let mut object = policy(name, "cache", "web");
        let peers = (0..7000_u32).map(|i| {
            let cidr = format!("{}/32", std::net::Ipv4Addr::from(0xac10_0000 + (first + i) * 4));
            json!({"ipBlock": {"cidr": cidr}})
        });
        object["spec"]["ingress"][0]["from"] = peers.collect();
        object
    };
    server.put(large("large-1", 0));
    server.put(large("large-2", 7000));
    agent.converges(&server);
    server.put(large("large-3", 14_000));
    eventually("it is reported", || unenforced(&agent).len() == 1);
    let said = unenforced(&agent).remove(0);
    assert!(
        said.starts_with("large-3: with it the policies of its namespace have more than 20000"),
        "{said}"
    );
    assert!(said.ends_with("it allows the pods that it selects no ingress"), "{said}");
    eventually("an event is written", || !server.posted().is_empty());
    assert_eq!(server.posted()[0]["regarding"]["name"], "large-3");
    // Policies of other namespaces, and small ones of this one, are enforced as written.
    server.put(policy("small", "web", "db"));
    let mut expected = server.objects();
    let closed = expected.iter_mut().find(|object| object["metadata"]["name"] == "large-3").unwrap();
    closed["spec"]["ingress"] = json!([]);
    let expected = compiled(&expected);
    eventually("it is closed, and no other one", || {
        agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical() == expected)
    });
    server.delete(&policy("large-1", "", ""));
    agent.converges(&server);
    eventually("it is no longer reported", || unenforced(&agent).is_empty());
}

/// Object in another namespace.
fn inside(mut object: Value, namespace: &str) -> Value {
    object["metadata"]["namespace"] = json!(namespace);
    object
}

#[test]
fn a_namespace_whose_pods_need_most_rows_is_closed_when_there_are_too_many() {
    const ROWS_MAX: usize = 1000;
    let server = ApiServer::start();
    small_cluster(&server);
    server.put(namespace("evil"));
    // Many classes of addresses, and policies of which each tells them from the rest.
    let mut classes = policy("classes", "none", "none");
    let blocks = (0..300_u32).map(|i| {
        let cidr = format!("{}/32", std::net::Ipv4Addr::from(0xac10_0000 + i * 4));
        json!({"ipBlock": {"cidr": cidr}})
    });
    classes["spec"]["podSelector"] = json!({});
    classes["spec"]["ingress"] = json!([{"from": blocks.collect::<Vec<_>>(), "ports": [{"port": 1}]}]);
    let wide = |i: usize, port: usize| {
        let mut object = policy(&format!("wide-{i}"), &format!("evil-{i}"), "none");
        object["spec"]["ingress"] =
            json!([{"from": [{"ipBlock": {"cidr": "172.16.0.0/12"}}], "ports": [{"port": port}]}]);
        inside(object, "evil")
    };
    server.put(inside(classes, "evil"));
    for i in 0..5 {
        let evil = pod(&format!("evil-{i}"), "n1", &format!("evil-{i}"), &format!("10.1.0.{}", 100 + i));
        server.put(inside(evil, "evil"));
    }
    let agent = Agent::start_as(&server, &json!({}), |settings| settings.acl_entries_max = Some(ROWS_MAX));
    agent.see(|recorded| recorded.acl_entries_max = Some(ROWS_MAX));
    agent.converges(&server);
    (0..5).for_each(|i| server.put(wide(i, 100 + i)));
    eventually("all of its policies are reported", || unenforced(&agent).len() == 6);
    let said = unenforced(&agent).remove(0);
    let bound = "rows of ACL tables, most of all namespaces, and there are 1000 for all";
    assert!(
        said.starts_with("classes: the policies of its namespace need 1") && said.contains(bound),
        "{said}"
    );
    assert!(said.ends_with("it allows the pods that it selects no ingress"), "{said}");
    eventually("an event is written", || !server.posted().is_empty());
    assert_eq!(server.posted()[0]["metadata"]["namespace"], "evil");
    // Policies of other namespaces are enforced as written, and change.
    let has_expected = || {
        let mut expected = server.objects();
        let closed = expected
            .iter_mut()
            .filter(|object| object["kind"] == "NetworkPolicy" && object["metadata"]["namespace"] == "evil");
        closed.for_each(|object| object["spec"]["ingress"] = json!([]));
        let expected = compiled(&expected);
        eventually("it is closed, and no other one", || {
            agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical() == expected)
        });
    };
    has_expected();
    server.put(policy("other", "web", "db"));
    has_expected();
    // Changes of its own policies are tried, and open nothing.
    server.put(wide(5, 105));
    server.put(wide(0, 200));
    eventually("the change is tried and reported", || unenforced(&agent).len() == 7);
    has_expected();
    // With fewer it is as written again.
    (2..6).for_each(|i| server.delete(&wide(i, 0)));
    agent.converges(&server);
    eventually("nothing is reported", || unenforced(&agent).is_empty());
}

#[test]
fn an_event_that_the_server_does_not_take_is_sent_again() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| faults.statuses = vec![("/events", 503)]);
    server.put(newer("newer", "cache"));
    let agent = Agent::start(&server);
    eventually("it is reported", || unenforced(&agent).len() == 1);
    let attempts = || server.requests().iter().filter(|text| text.starts_with("POST")).count();
    eventually("it is tried again", || attempts() >= 3);
    assert!(server.posted().is_empty());
    server.set(|faults| faults.statuses.clear());
    eventually("it is written", || server.posted().len() == 1);
}

/// Whether the tables of a pod allow anything from an address.
fn allows(agent: &Agent, src: &str, dst: &str) -> bool {
    let tables = agent.see(|recorded| recorded.tables.clone()).unwrap();
    let [src, dst]: [std::net::IpAddr; 2] = [src, dst].map(|address| address.parse().unwrap());
    let class = Classifier::new(&tables).unwrap().class(src);
    let pod = tables.pods.values().find(|pod| pod.addresses.contains(&dst)).unwrap();
    let acl = &tables.acls[&pod.ingress];
    let row = &tables.rows[acl.rows.get(&class).unwrap_or(&acl.default)];
    row.decisions().any(|decision| decision.verdict() == Verdict::Allow)
}
