//! Rights of config/kubernetes/rbac.yaml, compared with the requests that an agent makes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::fixture::{Agent, admin_policy, eventually, policy, small_cluster};
use crate::server::ApiServer;
use crate::yaml::{documents, texts};

/// Right to one verb: `Role` or `ClusterRole`, API group, resource with its subresource, verb.
type Right = [String; 4];

/// Namespace of the agent at the fake server.
const OWN: &str = "default";

/// Right that a request needs, as the API server derives it from method, path and query. `None`: a list of APIs, which
/// each account may read (`system:discovery`).
fn right(request: &str) -> Option<Right> {
    let (method, target) = request.split_once(' ').unwrap();
    let (path, query) = target.split_once('?').unwrap();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, mut rest) = match parts[..] {
        ["api", _, ref rest @ ..] => ("", rest),
        ["apis", group, _, ref rest @ ..] => (group, rest),
        ["apis"] => return None,
        _ => panic!("{request} is no request for objects"),
    };
    let mut namespace = None;
    if let ["namespaces", name, inner @ ..] = rest
        && !inner.is_empty()
    {
        (namespace, rest) = (Some(*name), inner);
    }
    let (resource, name) = match *rest {
        [] => return None,
        [resource] => (resource.to_owned(), None),
        [resource, name] => (resource.to_owned(), Some(name)),
        [resource, name, part] => (format!("{resource}/{part}"), Some(name)),
        _ => panic!("{request} has a longer path"),
    };
    let verb = match (method, name) {
        ("GET", None) if query.contains("watch=1") => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", None) => "create",
        ("PUT", Some(_)) => "update",
        ("PATCH", Some(_)) => "patch",
        _ => panic!("{request} has another method"),
    };
    // Events stand in the namespaces of their objects.
    let role = if namespace == Some(OWN) && resource != "events" { "Role" } else { "ClusterRole" };
    Some([role, group, &resource, verb].map(str::to_owned))
}

/// Rights that the file grants, each once.
fn granted() -> BTreeSet<Right> {
    let mut granted = BTreeSet::new();
    for role in documents("rbac.yaml") {
        for rule in role["rules"].as_array().into_iter().flatten() {
            assert_eq!(rule.as_object().unwrap().len(), 3, "{rule}");
            let [groups, resources, verbs] =
                ["apiGroups", "resources", "verbs"].map(|name| texts(&rule[name]));
            for group in groups {
                for resource in &resources {
                    for verb in &verbs {
                        let right =
                            [role["kind"].as_str().unwrap(), group, resource, verb].map(str::to_owned);
                        assert!(granted.insert(right.clone()), "{right:?} is granted twice");
                    }
                }
            }
        }
    }
    granted
}

/// `ClusterNetworkPolicy` and `BaselineAdminNetworkPolicy` without rules.
fn other_policies_of_the_cluster() -> [Value; 2] {
    let subject = json!({"namespaces": {}});
    [
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "cluster"}, "spec": {"tier": "Admin", "priority": 1, "subject": subject}}),
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "BaselineAdminNetworkPolicy",
            "metadata": {"name": "default"}, "spec": {"subject": subject}}),
    ]
}

#[test]
fn the_files_grant_the_rights_that_the_agent_needs_and_no_others() {
    let server = ApiServer::start();
    server.set(|faults| faults.refuses_streams = true);
    small_cluster(&server);
    server.put(admin_policy("other", 6));
    other_policies_of_the_cluster().into_iter().for_each(|policy| server.put(policy));
    let mut unknown = policy("unknown", "cache", "web");
    unknown["spec"]["planet"] = json!("x");
    server.put(unknown);
    let _agent = Agent::start(&server);
    let is_policy_of_the_cluster =
        |object: &Value| object["apiVersion"].as_str().unwrap().starts_with("policy.networking.k8s.io/");
    eventually("all policies of the cluster have conditions", || {
        let policies: Vec<Value> = server.objects().into_iter().filter(is_policy_of_the_cluster).collect();
        policies.len() == 4 && policies.iter().all(|policy| policy["status"]["conditions"].is_array())
    });
    eventually("there is an Event", || server.posted().iter().any(|posted| posted["kind"] == "Event"));
    eventually("the Lease is renewed", || {
        server.requests().iter().any(|request| request.starts_with("PUT "))
    });
    eventually("each kind is watched", || server.has_watches_since(0));
    let used: BTreeSet<Right> = server.requests().iter().filter_map(|request| right(request)).collect();
    assert_eq!(used, granted());
}
