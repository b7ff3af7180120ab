//! Lists, watches, and everything that goes wrong with them.

use palisade::tables::PodName;
use serde_json::json;

use crate::fixture::{Agent, Recorded, Scratch, admin_policy, eventually, pod, policy, small_cluster};
use crate::server::{ApiServer, COLLECTIONS};

#[test]
fn objects_come_by_streaming_lists_where_the_server_offers_them() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    let requests = server.requests();
    let is_list =
        |request: &str| COLLECTIONS.iter().any(|(path, ..)| request.starts_with(&format!("GET {path}?")));
    let lists = |request: &&String| is_list(request) && !request.contains("watch=1");
    assert_eq!(requests.iter().filter(lists).count(), 0, "{requests:?}");
    assert!(requests.iter().any(|request| is_list(request)));
    assert_eq!(agent.see(|recorded| recorded.loads), 1);
    server.put(pod("late", "n1", "db", "10.1.0.100"));
    server.put(policy("late", "cache", "db"));
    server.delete(&policy("db", "", ""));
    agent.converges(&server);
    assert_eq!(agent.see(|recorded| recorded.loads), 1, "changes are differences");
}

#[test]
fn objects_come_in_pages_where_the_server_refuses_streaming_lists() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| faults.refuses_streams = true);
    let agent = Agent::start(&server);
    agent.converges(&server);
    assert!(
        server.requests().iter().any(|request| request.contains("continue=") && request.contains("pods"))
    );
    server.put(pod("late", "n1", "db", "10.1.0.100"));
    server.delete(&pod("pod-0", "", "", ""));
    agent.converges(&server);
}

#[test]
fn a_server_that_ignores_streaming_lists_is_read_in_pages_after_a_while() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| faults.ignores_streams = true);
    let agent = Agent::start(&server);
    agent.converges(&server);
}

#[test]
fn expired_pages_are_followed_by_a_list_without_pages() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| (faults.refuses_streams, faults.expires_pages) = (true, true));
    let agent = Agent::start(&server);
    agent.converges(&server);
}

#[test]
fn a_relist_after_410_is_one_snapshot_and_clears_nothing() {
    for refuses_streams in [false, true] {
        let server = ApiServer::start();
        small_cluster(&server);
        server.set(|faults| faults.refuses_streams = refuses_streams);
        let agent = Agent::start(&server);
        agent.converges(&server);
        let before = agent.see(|recorded| (recorded.loads, recorded.changes));
        let watches =
            |server: &ApiServer| server.requests().iter().filter(|text| text.contains("watch=1")).count();
        let seen = watches(&server);
        server.set(|faults| faults.is_away = true);
        server.bookmark();
        server.compact();
        server.cut();
        server.set(|faults| faults.is_away = false);
        eventually("all kinds are watched again", || watches(&server) >= seen + 18);
        server.set(|faults| faults.is_away = true);
        server.cut();
        server.put(policy("new", "web", "db"));
        server.delete(&pod("pod-0", "", "", ""));
        server.compact();
        assert_eq!(agent.see(|recorded| (recorded.loads, recorded.changes)), before, "nothing was cleared");
        server.set(|faults| faults.is_away = false);
        agent.converges(&server);
        assert_eq!(agent.see(|recorded| recorded.loads), 1);
    }
}

#[test]
fn connections_that_are_cut_in_a_line_lose_nothing() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    for i in 0..10 {
        server.cut();
        server.put(pod(&format!("cut-{i}"), "n1", "web", &format!("10.1.0.{}", 50 + i)));
        agent.converges(&server);
    }
    assert_eq!(agent.see(|recorded| recorded.loads), 1);
}

#[test]
fn events_before_an_error_of_the_same_watch_are_not_lost() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    for (number, code) in [500, 410, 400].into_iter().enumerate() {
        server.set(|faults| faults.error_after_events = Some(("NetworkPolicy", code)));
        server.put(policy(&format!("before-{code}"), ["db", "web", "cache"][number], "web"));
        agent.converges(&server);
        assert!(server.see_faults(|faults| faults.error_after_events.is_none()), "the error was sent");
    }
    assert_eq!(agent.see(|recorded| recorded.loads), 1);
}

#[test]
fn pods_wait_while_policies_are_not_followed() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    server.set(|faults| faults.statuses = vec![("networkpolicies", 403)]);
    server.cut();
    let reasons = |agent: &Agent| {
        agent.see(|recorded| recorded.report.away.iter().map(|away| away.reason.clone()).collect::<String>())
    };
    eventually("policies are away", || reasons(&agent).contains("the right to watch networkpolicies"));
    let pod_names = |agent: &Agent| {
        agent.see(|recorded| {
            let pods = recorded.tables.as_ref().unwrap().pods.keys();
            pods.map(|pod| pod.name.clone()).collect::<Vec<_>>()
        })
    };
    assert!(pod_names(&agent).contains(&"pod-0".to_owned()));
    let mut deny = policy("late", "late", "web");
    deny["spec"]["ingress"] = json!([]);
    server.put(deny);
    server.put(pod("late", "n1", "late", "10.1.0.200"));
    server.put(pod("pod-2", "n1", "late", "10.1.0.3"));
    eventually("both pods wait", || reasons(&agent).contains("; 2 new or changed pods and namespaces wait"));
    server.delete(&pod("pod-0", "", "", ""));
    eventually("a pod that is gone goes", || !pod_names(&agent).contains(&"pod-0".to_owned()));
    assert!(!pod_names(&agent).contains(&"late".to_owned()), "its policy is not known yet");
    server.set(|faults| faults.statuses.clear());
    agent.converges(&server);
    eventually("nothing is away", || reasons(&agent).is_empty());
}

#[test]
fn a_pod_without_an_address_gets_that_of_its_attachment() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    let name = |name: &str| PodName::new("shop".to_owned(), name.to_owned());
    let attach = |names: &[(&str, &str)]| {
        let attached = names.iter().map(|(of, address)| (name(of), vec![address.parse().unwrap()]));
        agent.see(|recorded| recorded.attached = attached.collect());
    };
    let known = |of: &str| {
        agent.see(|recorded| {
            let tables = recorded.tables.as_ref().unwrap();
            tables.pods.get(&name(of)).map(|pod| pod.addresses.clone())
        })
    };
    let unaddressed = |of: &str, node: &str| {
        let mut pod = pod(of, node, "web", "");
        pod["status"] = json!({"phase": "Pending"});
        pod
    };
    for (of, node) in [("here", "n1"), ("there", "n2")] {
        server.put(unaddressed(of, node));
    }
    attach(&[("here", "10.1.0.200"), ("there", "10.1.0.201"), ("pod-2", "10.1.0.99")]);
    let expected = pod("here", "n1", "web", "10.1.0.200");
    eventually("the tables know the pod", || known("here").is_some());
    // Whatever its attachment: the API knows the addresses of the others, or another node has them.
    server.put(expected);
    agent.converges(&server);
    // Policies are away: a pod that is attached now waits, since one that is not known may select it.
    server.put(unaddressed("late", "n1"));
    server.put(pod("marker", "n1", "web", "10.1.0.150"));
    eventually("the agent has both pods", || known("marker").is_some());
    server.set(|faults| faults.statuses = vec![("networkpolicies", 403)]);
    server.cut();
    eventually("policies are away", || agent.see(|recorded| !recorded.report.away.is_empty()));
    attach(&[("here", "10.1.0.200"), ("late", "10.1.0.202")]);
    server.delete(&pod("marker", "", "", ""));
    eventually("the agent goes on", || known("marker").is_none());
    assert_eq!(known("late"), None);
    server.set(|faults| faults.statuses.clear());
    eventually("the pod is known", || known("late").is_some());
    // An attachment that goes takes its addresses.
    attach(&[]);
    eventually("the pod is not known", || known("late").is_none());
    agent.converges(&server);
}

#[test]
fn a_server_whose_watches_are_always_too_old_is_reported() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| (faults.refuses_streams, faults.is_gone) = (true, true));
    let agent = Agent::start(&server);
    eventually("all kinds are away", || agent.see(|recorded| recorded.report.away.len()) == 9);
    assert!(agent.see(|recorded| recorded.report.away.iter().all(|away| away.reason.contains("410"))));
    server.set(|faults| faults.is_gone = false);
    agent.converges(&server);
    eventually("all kinds are followed", || agent.see(|recorded| recorded.report.away.is_empty()));
}

#[test]
fn a_silent_connection_is_opened_again() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    server.set(|faults| faults.is_stalled = true);
    server.put(policy("silent", "web", "db"));
    eventually("the silence is noticed", || {
        agent.see(|recorded| recorded.report.away.iter().any(|away| away.reason.contains("silent for")))
    });
    server.set(|faults| faults.is_stalled = false);
    agent.converges(&server);
    eventually("all is followed again", || agent.see(|recorded| recorded.report.away.is_empty()));
}

#[test]
fn while_the_api_is_away_the_tables_hold_and_the_report_says_since_when() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    let changes = |recorded: &mut Recorded| {
        let routes = recorded.route_changes.len();
        (recorded.loads, recorded.changes, recorded.service_loads, recorded.service_changes, routes)
    };
    eventually("the routes are there", || agent.see(|recorded| recorded.routes.len()) == 1);
    let before = agent.see(changes);
    server.set(|faults| faults.is_away = true);
    server.cut();
    eventually("all kinds are away", || agent.see(|recorded| recorded.report.away.len()) == 9);
    let since: Vec<u64> =
        agent.see(|recorded| recorded.report.away.iter().map(|away| away.since_unix_s).collect());
    assert!(since.iter().all(|since| *since > 1_700_000_000));
    // The server that comes back has none of the versions that the agent knows.
    server.bookmark();
    server.compact();
    server.set(|faults| faults.is_away = false);
    let lists = |text: &String| text.contains("/pods?") && text.contains("sendInitialEvents");
    eventually("all kinds are followed", || agent.see(|recorded| recorded.report.away.is_empty()));
    assert!(server.requests().iter().filter(|text| lists(text)).count() >= 2, "pods are listed again");
    assert_eq!(agent.see(changes), before);
}

#[test]
fn a_missing_right_is_named_and_nothing_is_loaded_until_it_is_there() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| faults.statuses = vec![("networkpolicies", 403)]);
    let agent = Agent::start(&server);
    let named = "the right to watch networkpolicies.networking.k8s.io is missing";
    eventually("the right is named", || {
        agent.see(|recorded| recorded.report.away.iter().any(|away| away.reason.contains(named)))
    });
    assert!(agent.see(|recorded| recorded.tables.is_none()), "without its policies a cluster has no tables");
    assert!(agent.see(|recorded| recorded.report.unlisted.contains(&"NetworkPolicy".to_owned())));
    server.set(|faults| faults.statuses.clear());
    agent.converges(&server);
}

#[test]
fn errors_of_the_server_are_tried_again() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| faults.statuses = vec![("pods", 500), ("nodes", 429), ("namespaces", 503)]);
    let agent = Agent::start(&server);
    eventually("three kinds are away", || agent.see(|recorded| recorded.report.away.len()) == 3);
    server.set(|faults| faults.statuses.clear());
    agent.converges(&server);
}

#[test]
fn a_token_is_read_again_after_401() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| faults.token = Some("second".to_owned()));
    let scratch = Scratch::new();
    let token = scratch.write("token", "first");
    let agent = Agent::start_as(&server, &json!({"tokenFile": token}), |_| {});
    eventually("the credentials are refused", || {
        agent.see(|recorded| {
            recorded.report.away.iter().any(|away| away.reason.contains("does not accept the credentials"))
        })
    });
    let shown = agent.see(|recorded| format!("{:?}", recorded.report));
    assert!(!shown.contains("first"), "no token is shown");
    scratch.write("token", "second");
    agent.converges(&server);
}

#[test]
fn custom_resources_come_later_and_go() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.delete(&admin_policy("admin", 5));
    server.set(|faults| {
        faults.absent.extend(["ClusterNetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"]);
    });
    let agent = Agent::start(&server);
    agent.converges(&server);
    server.set(|faults| faults.absent.clear());
    server.put(admin_policy("later", 7));
    agent.converges(&server);
    // The objects of a definition that goes are removed with it.
    server.set(|faults| faults.absent.extend(["AdminNetworkPolicy"]));
    server.cut();
    eventually("the absence is reported before it counts", || {
        agent.see(|recorded| recorded.report.away.iter().any(|away| away.reason.contains("no longer has")))
    });
    server.delete(&admin_policy("later", 7));
    agent.converges(&server);
}

#[test]
fn an_answer_404_for_a_kind_of_the_list_of_apis_removes_nothing() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.set(|faults| faults.statuses = vec![("/adminnetworkpolicies", 404)]);
    let agent = Agent::start(&server);
    let is_named = |what: &str| {
        agent.see(|recorded| {
            recorded
                .report
                .away
                .iter()
                .any(|away| away.kind == "AdminNetworkPolicy" && away.reason.contains(what))
        })
    };
    eventually("the answer is reported", || is_named("v1alpha1 has them"));
    // Other kinds are followed before the last one is there.
    eventually("one kind is missing", || agent.see(|recorded| recorded.report.unlisted.len()) == 1);
    assert!(agent.see(|recorded| recorded.tables.is_none()), "the kind may have objects that deny something");
    server.set(|faults| faults.statuses.clear());
    agent.converges(&server);
    // The report follows the tables.
    let has_both = || agent.see(|recorded| recorded.report.policies == 2);
    eventually("the policies of both kinds are counted", has_both);
    // Another version is served, or the list of APIs is not.
    server.set(|faults| {
        faults.absent.insert("AdminNetworkPolicy");
        faults.other_version = Some("v1beta7");
    });
    server.cut();
    eventually("the version is named", || is_named("it has them in version v1beta7"));
    server.set(|faults| faults.statuses = vec![("/apis", 404)]);
    eventually("the list is named", || is_named("/apis cannot be read"));
    let attempts = || server.requests().iter().filter(|text| text.ends_with(" /apis?")).count();
    let seen = attempts();
    eventually("there are more attempts", || attempts() >= seen + 4);
    assert!(has_both());
    agent.converges(&server);
}

#[test]
fn a_kind_that_has_moved_to_its_next_version_is_followed_there() {
    let server = ApiServer::start();
    small_cluster(&server);
    let policy = |name: &str, priority: u32, action: &str| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": name},
            "spec": {"tier": "Admin", "priority": priority, "subject": {"namespaces": {}},
                "ingress": [{"action": action, "from": [{"namespaces": {}}]}]}})
    };
    server.put(policy("before", 2, "Deny"));
    let agent = Agent::start(&server);
    agent.converges(&server);
    server.set(|faults| {
        faults.absent.insert("ClusterNetworkPolicy");
        faults.other_version = Some("v1beta1");
    });
    server.cut();
    let is_of_next = |line: &String| line.contains("/v1beta1/clusternetworkpolicies");
    eventually("the next version is asked for", || server.requests().iter().any(is_of_next));
    server.put(policy("after", 1, "Accept"));
    agent.converges(&server);
    eventually("the kind is followed", || agent.see(|recorded| recorded.report.away.is_empty()));
}

#[test]
fn a_switch_with_other_tables_gets_all_of_them() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    eventually("the routes are there", || agent.see(|recorded| recorded.routes.len()) == 1);
    agent.see(|recorded| {
        recorded.has_other_tables = true;
        recorded.tables = None;
        recorded.routes.clear();
    });
    agent.converges(&server);
    eventually("the routes are there again", || agent.see(|recorded| recorded.routes.len()) == 1);
    agent.see(|recorded| recorded.refuses = true);
    server.put(policy("meanwhile", "web", "db"));
    eventually("the agent sees the policy", || agent.see(|recorded| recorded.report.policies) == 3);
    let refused = || agent.see(|recorded| recorded.report.refused.clone());
    eventually("the refusal is reported", || refused().as_deref() == Some("it is asleep"));
    agent.see(|recorded| recorded.refuses = false);
    agent.converges(&server);
    eventually("it is taken back", || refused().is_none());
}
