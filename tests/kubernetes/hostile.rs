//! Objects that cannot be enforced as written, and objects that are meant to do harm.

use palisade::tables::{Classifier, Verdict};
use serde_json::{Value, json};

use crate::fixture::{Agent, eventually, pod, policy, small_cluster, unenforced};
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
