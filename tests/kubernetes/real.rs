//! Agent on a real API server.

use std::time::Duration;

use palisade::source::kubernetes::Timing;
use serde_json::{Value, json};

use crate::fixture::{Agent, admin_policy, eventually, namespace, node, pod, policy, unenforced};
use crate::histories::object;
use crate::random::Random;
use crate::real_server::{AGENT, RealServer};
use crate::tools::skipped;

/// Reads a cluster, and changes nothing in it.
#[test]
fn a_cluster_is_followed() {
    let Some(kubeconfig) = std::env::var_os("PALISADE_TEST_KUBECONFIG") else {
        return skipped("PALISADE_TEST_KUBECONFIG names no real API server");
    };
    let agent = Agent::start_at(kubeconfig.into(), |settings| {
        settings.node = None;
        settings.timing = Timing::default();
    });
    eventually("the real cluster has tables", || agent.see(|recorded| recorded.tables.is_some()));
}

/// Definition of a kind, without a schema.
fn definition(kind: &str, plural: &str, group: &str, version: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {"group": group, "scope": "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": version, "served": true, "storage": true, "schema":
                {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

/// Starts a server with the kinds, the rights of config/kubernetes, and a small cluster.
fn small_cluster() -> Option<RealServer> {
    let server = RealServer::start()?;
    server.define(&definition(
        "AdminNetworkPolicy",
        "adminnetworkpolicies",
        "policy.networking.k8s.io",
        "v1alpha1",
    ));
    server.apply("namespace.yaml");
    server.apply("rbac.yaml");
    server.put(&namespace("shop"));
    server.put(&namespace("other"));
    server.put(&node("n1", &["10.1.0.0/24"], "192.0.2.1"));
    for (i, app) in ["db", "web", "cache"].into_iter().enumerate() {
        server.put(&pod(&format!("pod-{i}"), "n1", app, &format!("10.1.0.{}", i + 1)));
    }
    server.put(&policy("db", "db", "web"));
    server.put(&admin_policy("admin", 5));
    Some(server)
}

/// Agent with the rights of config/kubernetes alone.
fn agent_of(server: &RealServer) -> Agent {
    Agent::start_at(server.kubeconfig(AGENT), |_| {})
}

/// Waits until the switch has the tables and Services of the server's objects. Servers before 1.21 have
/// `EndpointSlice` in an earlier version only.
#[track_caller]
fn converges(agent: &Agent, server: &RealServer) {
    let objects = server.objects();
    if server.serves("EndpointSlice") {
        agent.gets_services_of(&objects);
    }
    agent.gets_tables_of(&objects);
}

/// Name of the agent's role binding.
fn binding() -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "palisade"}})
}

#[test]
fn random_changes_on_a_real_server_end_in_the_tables_of_its_objects() {
    let Some(mut server) = small_cluster() else { return };
    let mut random = Random(7);
    let agent = agent_of(&server);
    converges(&agent, &server);
    for step in 0..200 {
        let mut object = object(&mut random);
        if object["kind"] == "EndpointSlice" && !server.serves("EndpointSlice") {
            continue;
        }
        if object["kind"] == "Service" {
            // A server gives an address to one Service only.
            let name = object["metadata"]["name"].as_str().unwrap();
            let address = format!("10.96.1.{}", name.trim_start_matches("service-"));
            (object["spec"]["clusterIP"], object["spec"]["clusterIPs"]) = (json!(address), json!([address]));
        }
        if random.below(4) == 0 && object["kind"] != "Namespace" {
            server.delete(&object);
        } else {
            server.put(&object);
        }
        match random.below(40) {
            0 => server.restart(),
            1 => {
                server.compact();
                server.restart();
            }
            2 => {
                server.kill();
                std::thread::sleep(Duration::from_millis(random.below(2_000)));
                server.restart();
            }
            _ => {}
        }
        if step % 20 == 19 {
            converges(&agent, &server);
        }
    }
    assert_eq!(unenforced(&agent), [""; 0]);
}

#[test]
fn a_real_server_without_the_rights_of_the_agent_is_named_with_what_is_missing() {
    let Some(mut server) = small_cluster() else { return };
    let agent = agent_of(&server);
    converges(&agent, &server);
    let loads = agent.see(|recorded| recorded.loads);
    server.delete(&binding());
    server.restart();
    let is_missing = |report: &str| report.contains("the right to") && report.contains("networkpolicies");
    eventually("the report names the rights", || {
        agent.see(|recorded| is_missing(&format!("{:?}", recorded.report)))
    });
    assert_eq!(agent.see(|recorded| recorded.loads), loads, "the last tables hold");
    server.put(&policy("late", "cache", "web"));
    server.apply("rbac.yaml");
    converges(&agent, &server);
}

#[test]
fn an_object_of_a_real_server_that_is_not_enforced_as_written_has_an_event() {
    let Some(server) = small_cluster() else { return };
    let agent = agent_of(&server);
    converges(&agent, &server);
    let mut newer = admin_policy("newer", 7);
    newer["spec"]["ingress"][0]["unless"] = json!([{"moon": "full"}]);
    let mut unknown = policy("unknown", "cache", "web");
    unknown["metadata"]["annotations"] = json!({"palisade.dev/mode": "at-full-moon"});
    for (object, reason) in [(newer, "unless"), (unknown, "at-full-moon")] {
        server.put(&object);
        let [kind, name] = [&object["kind"], &object["metadata"]["name"]].map(|name| name.as_str().unwrap());
        eventually("the object is reported", || unenforced(&agent).iter().any(|said| said.contains(reason)));
        // Servers before 1.21 take no event in the namespace `default` about an object without a namespace.
        if server.serves("EndpointSlice") || object["metadata"]["namespace"].is_string() {
            eventually("the object has an event", || {
                let events = server.events(kind);
                events.iter().any(|event| event["regarding"]["name"] == name && event["type"] == "Warning")
            });
        }
    }
}
