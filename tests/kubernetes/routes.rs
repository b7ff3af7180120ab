//! Routes to the pods of other nodes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use serde_json::json;

use crate::fixture::{Agent, Recorded, eventually, namespace, node, policy};
use crate::server::ApiServer;

fn prefixes(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn three_nodes() -> ApiServer {
    let server = ApiServer::start();
    server.put(namespace("shop"));
    server.put(node("n1", &["10.1.0.0/24"], "192.0.2.1"));
    server.put(node("n2", &["10.2.0.0/24"], "192.0.2.2"));
    server.put(node("n3", &["10.3.0.0/24"], "192.0.2.3"));
    server
}

#[test]
fn tables_of_another_writer_disown_no_route() {
    let server = three_nodes();
    let agent = Agent::start(&server);
    eventually("both routes", || agent.see(|recorded| recorded.routes.len()) == 2);
    let both = prefixes(&["10.2.0.0/24", "10.3.0.0/24"]);
    assert_eq!(*agent.recorded_routes.lock().unwrap(), both);
    let put = agent.see(|recorded| recorded.route_changes.clone());
    for number in 0..3 {
        let loads = agent.see(|recorded| {
            recorded.has_other_tables = true;
            recorded.loads
        });
        eventually("whole tables", || agent.see(|recorded| recorded.loads) > loads);
        server.put(policy(&format!("next-{number}"), "web", "db"));
        agent.converges(&server);
    }
    assert_eq!(*agent.recorded_routes.lock().unwrap(), both, "they are this agent's");
    assert_eq!(agent.see(|recorded| recorded.route_changes.clone()), put, "nothing is put or deleted again");
    server.delete(&node("n2", &[], ""));
    eventually("the route of a removed node goes", || agent.see(|recorded| recorded.routes.len()) == 1);
    eventually("the record has it no more", || {
        *agent.recorded_routes.lock().unwrap() == prefixes(&["10.3.0.0/24"])
    });
}

#[test]
fn the_next_agent_adopts_the_routes_that_are_right() {
    let server = three_nodes();
    let agent = Agent::start(&server);
    eventually("both routes", || agent.see(|recorded| recorded.routes.len()) == 2);
    let switch = agent.recorded.clone();
    drop(agent);
    switch.lock().unwrap().route_changes.clear();
    server.put(node("n3", &["10.4.0.0/24"], "192.0.2.3"));
    let earlier = prefixes(&["10.2.0.0/24", "10.3.0.0/24"]);
    let agent = Agent::start_on(switch, &server, &json!({}), |settings| {
        settings.earlier_routes = earlier.into_iter().collect();
    });
    eventually("the route of the other prefix", || {
        agent.see(|recorded| recorded.route_changes.clone()) == ["delete 10.3.0.0/24", "put 10.4.0.0/24"]
    });
    eventually("the record has both", || {
        *agent.recorded_routes.lock().unwrap() == prefixes(&["10.2.0.0/24", "10.4.0.0/24"])
    });
}

#[test]
fn routes_that_fail_are_tried_again() {
    let server = three_nodes();
    let earlier = prefixes(&["10.8.0.0/24", "10.9.0.0/24"]);
    let switch = Recorded { refuses_routes: true, ..Recorded::default() };
    let switch = Arc::new(Mutex::new(switch));
    for prefix in &earlier {
        let route = serde_json::from_value(json!({"port": "up"})).unwrap();
        switch.lock().unwrap().routes.insert(*prefix, route);
    }
    let agent = Agent::start_on(switch, &server, &json!({}), |settings| {
        settings.earlier_routes = earlier.into_iter().collect();
    });
    agent.converges(&server);
    // The uplink comes later than the tables.
    agent.see(|recorded| recorded.uplinks.push("up".to_owned()));
    eventually("each is tried", || {
        let tried = agent.see(|recorded| recorded.route_changes.iter().cloned().collect::<BTreeSet<_>>());
        tried.iter().map(String::as_str).eq([
            "delete 10.8.0.0/24",
            "delete 10.9.0.0/24",
            "put 10.2.0.0/24",
            "put 10.3.0.0/24",
        ])
    });
    agent.see(|recorded| recorded.refuses_routes = false);
    eventually("the routes are there, and no other", || {
        agent.see(|recorded| recorded.routes.keys().copied().collect::<BTreeSet<_>>())
            == prefixes(&["10.2.0.0/24", "10.3.0.0/24"])
    });
}

#[test]
fn routes_follow_the_other_nodes() {
    let server = ApiServer::start();
    server.put(namespace("shop"));
    server.put(node("n1", &["10.1.0.0/24"], "192.0.2.1"));
    server.put(node("n2", &["10.2.0.0/24"], "192.0.2.2"));
    let earlier = "10.9.0.0/24".parse().unwrap();
    let agent = Agent::start_as(&server, &json!({}), |settings| settings.earlier_routes = vec![earlier]);
    agent.see(|recorded| {
        drop(recorded.routes.insert(earlier, serde_json::from_value(json!({"port": "up"})).unwrap()));
    });
    let routes = || {
        agent.see(|recorded| {
            let shown = |(prefix, route): (&_, &palisade::control::protocol::RouteRequest)| {
                format!("{prefix} {} {}", route.port, route.next_hop.unwrap())
            };
            recorded
                .routes
                .iter()
                .filter(|(_, route)| route.next_hop.is_some())
                .map(shown)
                .collect::<Vec<_>>()
        })
    };
    eventually("the route to the other node", || routes() == ["10.2.0.0/24 up 192.0.2.2"]);
    server.put(node("n3", &["10.3.0.0/24"], "192.0.2.3"));
    server.put(node("n2", &["10.2.0.0/24"], "192.0.2.22"));
    eventually("the changed routes", || {
        routes() == ["10.2.0.0/24 up 192.0.2.22", "10.3.0.0/24 up 192.0.2.3"]
    });
    assert_eq!(agent.recorded_routes.lock().unwrap().len(), 2);
    server.delete(&node("n2", &[], ""));
    eventually("the route of a removed node goes", || routes() == ["10.3.0.0/24 up 192.0.2.3"]);
}
