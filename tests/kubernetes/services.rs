//! Services and their slices, policies in audit mode, and a switch behind its control socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade::control::{Client, Server, Switch};
use palisade::source::kubernetes::{Access, ClientTarget, Settings, run};
use palisade::tables::{ServicePort, ServiceTable};
use serde_json::json;

use crate::commands::{StopWhenDropped, switch};
use crate::fixture::{
    Agent, Scratch, compiled, eventually, node, pod, policy, served, service, slice, small_cluster, timing,
    unenforced,
};
use crate::server::ApiServer;

/// Backends of the only port of the Services of a table.
fn backends(table: &ServiceTable) -> Vec<String> {
    let of = |port: &ServicePort| port.internal_backends.iter().map(ToString::to_string).collect::<Vec<_>>();
    table.ports.values().flat_map(of).collect()
}

#[test]
fn a_service_and_its_slices_reach_the_switch_change_move_and_go() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.put(service("web", "10.96.0.1"));
    server.put(slice("web-1", "web", &["10.1.0.1"]));
    let agent = Agent::start(&server);
    agent.converges(&server);
    let has = |expected: &[&str]| {
        agent.see(|recorded| recorded.services.as_ref().map(backends))
            == Some(expected.iter().map(ToString::to_string).collect())
    };
    assert!(has(&["10.1.0.1:8080"]));
    server.put(slice("web-2", "web", &["10.2.0.2"]));
    eventually("slices add up", || has(&["10.1.0.1:8080", "10.2.0.2:8080"]));
    server.put(slice("web-1", "web", &["10.1.0.3"]));
    eventually("a slice changes", || has(&["10.1.0.3:8080", "10.2.0.2:8080"]));
    let loads = |recorded: &mut crate::fixture::Recorded| (recorded.loads, recorded.service_loads);
    assert_eq!(agent.see(loads), (1, 1), "changes are differences");
    // While the API is away a slice goes over to another Service, and one goes.
    server.set(|faults| faults.is_away = true);
    server.cut();
    server.put(service("other", "10.96.0.2"));
    server.put(slice("web-1", "other", &["10.1.0.3"]));
    server.delete(&slice("web-2", "", &[]));
    server.compact();
    server.set(|faults| faults.is_away = false);
    agent.converges(&server);
    assert!(has(&["10.1.0.3:8080"]));
    server.delete(&service("other", ""));
    server.delete(&service("web", ""));
    agent.converges(&server);
    assert!(agent.see(|recorded| recorded.services.as_ref().unwrap().ports.is_empty()));
    assert_eq!(agent.see(loads), (1, 1));
}

#[test]
fn every_field_that_the_backends_depend_on_is_followed() {
    let server = ApiServer::start();
    small_cluster(&server);
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        let mut object = node(name, &[], "192.0.2.1");
        object["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": zone});
        server.put(object);
    }
    let mut full = service("full", "10.96.0.1");
    let fields = json!({"type": "LoadBalancer", "externalIPs": ["198.51.100.1"], "externalTrafficPolicy": "Local",
    "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}},
    "allocateLoadBalancerNodePorts": true, "healthCheckNodePort": 30_999, "trafficDistribution": "PreferSameZone",
    "ports": [
        {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http", "nodePort": 30_080, "appProtocol": "h2"},
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353, "nodePort": 30_053},
    ]});
    full["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    full["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.2", "ipMode": "VIP"},
        {"ip": "198.51.100.3", "ipMode": "Proxy"}]}});
    server.put(full.clone());
    let mut of_full = slice("full-1", "full", &["10.1.0.1", "10.2.0.2", "10.2.0.4", "10.1.0.9"]);
    of_full["ports"] = json!([{"name": "http", "protocol": "TCP", "port": 8081, "appProtocol": "h2"},
        {"name": "dns", "protocol": "UDP", "port": 5353}]);
    let endpoints = of_full["endpoints"].as_array_mut().unwrap();
    for (endpoint, zone) in endpoints.iter_mut().zip(["a", "a", "b", "a"]) {
        endpoint["hints"] = json!({"forZones": [{"name": zone}]});
        endpoint["zone"] = json!(zone);
    }
    endpoints[1]["nodeName"] = json!("n2");
    endpoints[3]["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
    server.put(of_full.clone());
    let agent = Agent::start(&server);
    agent.converges(&server);
    let ports = agent.see(|recorded| recorded.services.clone()).unwrap().ports;
    let http = ports.values().find(|port| port.node_port == Some(30_080)).unwrap();
    let shown = |list: &[std::net::SocketAddr]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown(&http.internal_backends), ["10.1.0.1:8081", "10.2.0.2:8081"], "those of the zone");
    assert_eq!(shown(&http.external_backends), ["10.1.0.1:8081", "10.2.0.4:8081"], "those of the node");
    assert_eq!(shown(&http.external), ["198.51.100.1:80", "198.51.100.2:80"]);
    // The node moves to another zone, and the Service shows endpoints that are not ready.
    let mut moved = node("n1", &[], "192.0.2.1");
    moved["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "b"});
    server.put(moved);
    full["spec"]["publishNotReadyAddresses"] = json!(true);
    full["spec"]["internalTrafficPolicy"] = json!("Local");
    server.put(full);
    agent.converges(&server);
    of_full["endpoints"][0]["conditions"]["ready"] = json!(false);
    server.put(of_full);
    agent.converges(&server);
    // An API server writes empty lists as null, and Services without an address in several forms.
    let mut empty = slice("empty", "full", &[]);
    (empty["endpoints"], empty["ports"]) = (json!(null), json!(null));
    server.put(empty);
    let mut headless = service("headless", "None");
    headless["spec"]["ports"][0]["name"] = json!("http");
    server.put(headless);
    server.put(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "elsewhere"},
        "spec": {"type": "ExternalName", "externalName": "example.net", "sessionAffinity": "None"}, "status": {"loadBalancer": {}}}),
    );
    server.put(service("last", "10.96.0.9"));
    agent.converges(&server);
    assert_eq!(unenforced(&agent), Vec::<String>::new());
}

#[test]
fn a_switch_with_other_services_or_none_gets_all_of_them() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.put(service("web", "10.96.0.1"));
    let agent = Agent::start(&server);
    agent.converges(&server);
    agent.see(|recorded| (recorded.has_other_services, recorded.services) = (true, None));
    agent.converges(&server);
    assert_eq!(agent.see(|recorded| (recorded.loads, recorded.service_loads)), (1, 2));
    // A switch that has started again has neither tables nor Services.
    agent.see(|recorded| {
        (recorded.has_other_tables, recorded.tables) = (true, None);
        (recorded.has_other_services, recorded.services) = (true, None);
    });
    agent.converges(&server);
    agent.see(|recorded| recorded.refuses = true);
    server.put(slice("web-1", "web", &["10.1.0.1"]));
    server.put(policy("meanwhile", "web", "db"));
    eventually("the agent sees the policy", || agent.see(|recorded| recorded.report.policies) == 3);
    agent.see(|recorded| recorded.refuses = false);
    agent.converges(&server);
}

#[test]
fn services_that_cannot_be_read_and_those_that_lose_an_address_are_reported_and_stop_no_other() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.put(service("good", "10.96.0.1"));
    let mut bad = service("bad", "10.96.0.2");
    bad["spec"]["ports"][0]["port"] = json!(70_000);
    server.put(bad);
    let mut bad = slice("bad-slice", "good", &["10.1.0.300"]);
    bad["metadata"]["labels"]["x"] = json!("\u{1b}[2J");
    server.put(bad);
    server.put(service("loser", "10.96.0.1"));
    let agent = Agent::start(&server);
    let named = |text: &str| unenforced(&agent).iter().any(|said| said.contains(text));
    eventually("the Service is reported", || named("bad: spec.ports[0].port: "));
    eventually("with the consequence", || named("the switch does not serve it"));
    eventually("the slice is reported", || named("its endpoints are no backends"));
    eventually("the loser is reported", || {
        named("loser: service shop/loser does not get TCP 10.96.0.1:80: service shop/good has it")
    });
    let names = || -> Option<Vec<String>> {
        let table = agent.see(|recorded| recorded.services.clone())?;
        Some(table.ports.keys().map(ToString::to_string).collect())
    };
    eventually("the others are served", || names() == Some(vec!["shop/good".to_owned()]));
    server.put(slice("good-1", "good", &["10.1.0.1"]));
    eventually("and get backends", || {
        agent.see(|recorded| recorded.services.as_ref().map(backends))
            == Some(vec!["10.1.0.1:8080".to_owned()])
    });
    // A Service that can no longer be read is no longer served.
    let mut broken = service("good", "10.96.0.1");
    broken["spec"]["sessionAffinity"] = json!("Sometimes");
    server.put(broken);
    eventually("the other one gets the address", || names() == Some(vec!["shop/loser".to_owned()]));
    for name in ["good", "bad"] {
        server.delete(&service(name, ""));
    }
    server.delete(&slice("bad-slice", "", &[]));
    agent.converges(&server);
    eventually("nothing is reported", || unenforced(&agent).is_empty());
}

#[test]
fn without_the_right_to_services_policy_is_enforced() {
    let server = ApiServer::start();
    small_cluster(&server);
    server.put(service("web", "10.96.0.1"));
    server.set(|faults| faults.statuses = vec![("endpointslices", 403)]);
    let agent = Agent::start(&server);
    eventually("the tables are loaded", || agent.see(|recorded| recorded.tables.is_some()));
    eventually("the right is named", || {
        agent.see(|recorded| {
            let named = "the right to watch endpointslices.discovery.k8s.io is missing";
            recorded.report.away.iter().any(|away| away.reason.contains(named))
        })
    });
    assert!(agent.see(|recorded| recorded.services.is_none()), "Services wait for their slices");
    server.set(|faults| faults.statuses.clear());
    agent.converges(&server);
}

#[test]
fn a_policy_in_audit_mode_denies_nothing_even_where_it_cannot_be_read() {
    let server = ApiServer::start();
    small_cluster(&server);
    let agent = Agent::start(&server);
    agent.converges(&server);
    let before = agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical());
    let audited = |name: &str| {
        let mut object = policy(name, "cache", "web");
        object["metadata"]["annotations"] = json!({"palisade.dev/mode": "audit"});
        object
    };
    server.put(audited("audited"));
    let mut newer = audited("newer");
    newer["spec"]["x"] = json!(1);
    server.put(newer);
    eventually("the agent sees both", || agent.see(|recorded| recorded.report.policies) == 4);
    eventually("the one that cannot be read is reported", || {
        let said = unenforced(&agent);
        said.len() == 1
            && said[0].starts_with("newer: spec.x: unknown field")
            && said[0].ends_with(": it is in audit mode, and denies nothing")
    });
    let now = agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical());
    assert_eq!(now, before);
    server.delete(&policy("newer", "", ""));
    // It is enforced as soon as it loses the annotation, and no longer when it has it again.
    server.put(policy("audited", "cache", "web"));
    agent.converges(&server);
    let enforced = agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical());
    assert_ne!(enforced, before);
    server.put(audited("audited"));
    eventually("it is not enforced", || {
        agent.see(|recorded| recorded.tables.as_ref().unwrap().canonical()) == before
    });
}

#[test]
fn policies_in_audit_mode_are_judged_beside_the_tables_and_follow_their_changes() {
    let server = ApiServer::start();
    small_cluster(&server);
    let mut audited = policy("audited", "cache", "web");
    audited["metadata"]["annotations"] = json!({"palisade.dev/mode": "audit"});
    server.put(audited.clone());
    let agent = Agent::start(&server);
    // The audit of the objects is what enforcement of the policy would give.
    let judged_as = |objects: &[serde_json::Value]| {
        let wanted = compiled(objects);
        agent.see(|recorded| recorded.audit.as_ref().map(|(_, tables)| tables.canonical())) == Some(wanted)
    };
    let enforced = || {
        let mut objects = server.objects();
        objects
            .iter_mut()
            .for_each(|object| _ = object["metadata"].as_object_mut().unwrap().remove("annotations"));
        objects
    };
    eventually("the audit is loaded", || judged_as(&enforced()));
    let policies = agent.see(|recorded| recorded.audit.as_ref().unwrap().0.clone());
    assert_eq!(policies.iter().map(ToString::to_string).collect::<Vec<_>>(), ["NetworkPolicy shop/audited"]);
    server.put(pod("late", "n1", "cache", "10.1.0.77"));
    eventually("the audit follows a new pod", || judged_as(&enforced()));
    agent.see(|recorded| recorded.has_other_tables = true);
    agent.see(|recorded| recorded.audit = None);
    eventually("a switch that has started again gets the audit again", || judged_as(&enforced()));
    // An audit that is too large is named, and the tables in force stay as they are.
    let block = |i: usize| json!({"ipBlock": {"cidr": format!("10.{}.{}.0/24", i / 250, i % 250)}});
    let large = ["large-1", "large-2", "large-3"].map(|name| {
        let mut large = audited.clone();
        large["metadata"]["name"] = json!(name);
        large["spec"]["ingress"] = json!([{"from": (0..7_000).map(block).collect::<Vec<_>>()}]);
        large
    });
    large.iter().for_each(|large| server.put(large.clone()));
    eventually("the audit is refused", || {
        let said = unenforced(&agent);
        said.iter()
            .any(|said| said.contains("more than 20000 prefixes") && said.contains("no flow is judged"))
    });
    large.iter().for_each(|large| server.delete(large));
    server.delete(&audited);
    eventually("the audit ends", || {
        agent.see(|recorded| recorded.audit.is_none()) && unenforced(&agent).is_empty()
    });
    agent.converges(&server);
}

#[test]
fn a_switch_behind_its_control_socket_gets_the_services_and_again_after_its_restart() {
    let (server, scratch) = (ApiServer::start(), Scratch::new());
    small_cluster(&server);
    server.put(service("web", "10.96.0.1"));
    let socket = scratch.0.join("control.sock");
    let start = || {
        let switch = Arc::new(switch());
        (Server::start(&socket, 0o600, switch.clone()).unwrap(), switch)
    };
    let (listener, switch) = start();
    let kubeconfig = Some(scratch.write("kubeconfig", &server.kubeconfig(&json!({}))));
    let access = Access { kubeconfig, context: None };
    let settings = Settings { access, node: Some("n1".to_owned()), timing: timing(), ..Settings::default() };
    let (stop, mut target) = (AtomicBool::new(false), ClientTarget::new(Client::new(&socket)));
    std::thread::scope(|scope| {
        let _stop = StopWhenDropped(&stop);
        scope.spawn(|| run(&settings, &mut target, &mut |_| {}, &stop).unwrap());
        let has_services =
            |switch: &Switch| switch.services().is_some_and(|(_, table)| table == served(&server.objects()));
        eventually("the switch has the Services", || has_services(&switch));
        server.put(slice("web-1", "web", &["10.1.0.1"]));
        eventually("the switch has the backend", || has_services(&switch));
        // Another client loads Services.
        Client::new(&socket).put_services(&ServiceTable::default()).unwrap();
        eventually("the switch has the Services again", || has_services(&switch));
        drop((listener, switch));
        let (_listener, switch) = start();
        eventually("the next switch has the Services", || has_services(&switch));
        assert!(switch.tables().is_some());
        stop.store(true, Ordering::Release);
    });
}
