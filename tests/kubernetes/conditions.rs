//! Conditions in the status of policies of the cluster, which one agent writes for all.

use serde_json::{Value, json};

use crate::fixture::{Agent, eventually};
use crate::server::ApiServer;

fn policy(name: &str, generation: u32, protocols: &Value) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name, "generation": generation},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}], "protocols": protocols}]}})
}

fn enforced(name: &str, generation: u32) -> Value {
    policy(name, generation, &json!([{"tcp": {"destinationPort": {"number": 80}}}]))
}

/// Condition of a policy: status, reason, message and observed generation.
fn condition(server: &ApiServer, name: &str) -> Option<(String, String, String, u64)> {
    let policy = server.objects().into_iter().find(|object| object["metadata"]["name"] == name)?;
    let [condition] = &policy["status"]["conditions"].as_array()?[..] else { return None };
    assert_eq!(condition["type"], "Accepted");
    assert!(condition["lastTransitionTime"].as_str().unwrap().ends_with('Z'), "{condition}");
    let text = |name: &str| condition[name].as_str().unwrap().to_owned();
    Some((text("status"), text("reason"), text("message"), condition["observedGeneration"].as_u64()?))
}

fn is(server: &ApiServer, name: &str, status: &str, generation: u64) -> bool {
    condition(server, name).is_some_and(|(known, .., observed)| known == status && observed == generation)
}

fn patches(server: &ApiServer) -> usize {
    server.requests().iter().filter(|line| line.starts_with("PATCH ")).count()
}

#[test]
fn a_policy_says_whether_it_is_enforced_as_written() {
    let server = ApiServer::start();
    server.put(enforced("good", 1));
    server.put(policy("bad", 7, &json!([{"tcp": {"destinationPort": {"number": 0}}}])));
    let _agent = Agent::start(&server);
    eventually("both have conditions", || is(&server, "good", "True", 1) && is(&server, "bad", "False", 7));
    let (_, reason, message, _) = condition(&server, "bad").unwrap();
    assert_eq!(reason, "NotEnforcedAsWritten");
    assert!(message.contains("destinationPort"), "{message}");
    // A condition changes with its policy.
    server.put(enforced("bad", 8));
    eventually("it is mended", || is(&server, "bad", "True", 8));
    assert_eq!(condition(&server, "bad").unwrap().1, "Accepted");
    server.put(enforced("late", 1));
    eventually("a new policy has one", || is(&server, "late", "True", 1));
    // A change of the status alone is no reason to write again.
    assert_eq!(patches(&server), 4);
}

#[test]
fn one_agent_writes_for_all_and_another_one_takes_its_place() {
    let server = ApiServer::start();
    server.put(enforced("first", 1));
    let start = |node: &str| {
        let node = node.to_owned();
        Agent::start_as(&server, &json!({}), |settings| settings.node = Some(node))
    };
    let one = start("one");
    eventually("the first agent writes", || is(&server, "first", "True", 1));
    let two = start("two");
    server.put(enforced("second", 1));
    eventually("the holder writes", || is(&server, "second", "True", 1));
    two.converges(&server);
    assert_eq!((server.holder().as_deref(), patches(&server)), (Some("one"), 2));
    drop(one);
    server.put(enforced("third", 1));
    eventually("the other one takes the Lease", || is(&server, "third", "True", 1));
    assert_eq!(
        (server.holder().as_deref(), patches(&server)),
        (Some("two"), 3),
        "what is there is not written again"
    );
}

#[test]
fn a_cluster_without_such_policies_has_no_lease_and_missing_rights_cost_nothing_else() {
    let server = ApiServer::start();
    let agent = Agent::start(&server);
    agent.converges(&server);
    server.set(|faults| faults.statuses.push(("/leases", 403)));
    server.put(enforced("first", 1));
    agent.converges(&server);
    eventually("it has tried", || server.requests().iter().any(|line| line.contains("/leases")));
    assert_eq!((server.holder(), patches(&server)), (None, 0));
    server.put(enforced("second", 1));
    agent.converges(&server);
    server.set(|faults| faults.statuses.clear());
    eventually("it has the right", || is(&server, "first", "True", 1) && is(&server, "second", "True", 1));
}

/// A server that has the kind as `v1beta1` alone. The fake server refuses a patch in another version than that of its path.
#[test]
fn policies_that_are_read_as_v1beta1_have_conditions() {
    let server = ApiServer::start();
    server.set(|faults| {
        faults.absent.insert("ClusterNetworkPolicy");
        faults.other_version = Some("v1beta1");
    });
    server.put(enforced("good", 1));
    server.put(policy("bad", 7, &json!([{"tcp": {"destinationPort": {"number": 0}}}])));
    let agent = Agent::start(&server);
    eventually("both have conditions", || is(&server, "good", "True", 1) && is(&server, "bad", "False", 7));
    let written: Vec<String> =
        server.requests().into_iter().filter(|line| line.starts_with("PATCH ")).collect();
    assert!(written.len() == 2 && written.iter().all(|line| line.contains("/v1beta1/")), "{written:?}");
    eventually("an Event names the version", || {
        let mut events = server.posted().into_iter().filter(|event| event["kind"] == "Event");
        events.any(|event| event["regarding"]["apiVersion"] == "policy.networking.k8s.io/v1beta1")
    });
    // The kind comes in its former version as well, and is written in that which is read.
    server.set(|faults| faults.other_version = None);
    server.set(|faults| faults.absent.clear());
    server.cut();
    server.put(enforced("late", 1));
    eventually("a new policy has one", || is(&server, "late", "True", 1));
    drop(agent);
}
