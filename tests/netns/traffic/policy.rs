//! Policy with real connections: denied ones are dropped, allowed ones work, and a change takes effect at once.

use std::io::Read;

use palisade::control::protocol::PortRequest;
use palisade::dataplane::{Gateway, PortKind};
use palisade::lab::PodPorts;
use palisade::lab::traffic::{Server, Services};
use palisade::net::flow::Protocol;

use super::rig_of;
use crate::support::connection::Connection;
use crate::support::{
    EGRESS, INGRESS, PORT, Rig, TIMEOUT, assert_accounted, assert_allowed, assert_denied,
    assert_protocol_denied, eventually, isolated, only_from,
};

#[test]
fn a_denied_connection_is_dropped_and_counted_under_its_policy() {
    let Some(_isolated) = isolated() else { return };
    denied_connection(PodPorts::Veth);
}

pub(super) fn denied_connection(ports: PodPorts) {
    let rig = rig_of(ports, &["db", "friend", "stranger"], 1, "");
    let (db, friend, stranger) = (rig.pod("db"), rig.pod("friend"), rig.pod("stranger"));
    let _server = Server::start(&db, &[PORT], Services::Both).unwrap();
    for address in db.addresses() {
        assert_allowed(&stranger, address);
    }
    // A connection that still closes would have its last segments denied.
    eventually("the connections have ended", || {
        let mut flows = rig.flows(100).into_iter().filter(|flow| flow.key.protocol == Protocol::TCP);
        flows.all(|flow| ["time-wait", "reset"].contains(&&*flow.state))
    });
    rig.apply(&only_from("db", "friend"));
    for address in db.addresses() {
        assert_allowed(&friend, address);
        assert_denied(&rig.switch, &stranger, address, INGRESS);
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    assert_eq!(rig.drops().into_keys().collect::<Vec<_>>(), [INGRESS], "nothing else is dropped");
    let said: Vec<String> = counters.decisions.iter().map(|count| count.origin.to_string()).collect();
    let denies = "isolated for ingress by NetworkPolicy default/to-db; no rule matched";
    assert!(said.iter().any(|origin| origin == denies), "{said:?}");
    assert!(said.iter().any(|origin| origin == "NetworkPolicy default/to-db ingress[0]"), "{said:?}");
    rig.apply(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-stranger, namespace: default}
spec: {podSelector: {matchLabels: {app: stranger}}, policyTypes: [Egress]}
",
    );
    assert_denied(&rig.switch, &stranger, db.v4().into(), EGRESS);
    // An isolated pod opens connections and receives replies.
    rig.apply(&only_from("db", "friend"));
    let _server = Server::start(&stranger, &[PORT], Services::Tcp).unwrap();
    assert_allowed(&db, stranger.v4().into());
}

#[test]
fn a_connection_survives_a_change_that_allows_it_and_ends_with_one_that_denies_it() {
    let Some(_isolated) = isolated() else { return };
    changed_policy(PodPorts::Veth);
}

pub(super) fn changed_policy(ports: PodPorts) {
    let rig = rig_of(ports, &["db", "friend", "stranger"], 1, "");
    let (db, friend) = (rig.pod("db"), rig.pod("friend"));
    let mut talk = Connection::open(&friend, &db);
    assert!(talk.goes_on(TIMEOUT));
    rig.apply(&only_from("db", "friend"));
    assert!(talk.goes_on(TIMEOUT), "still allowed");
    // Policy denies a new connection in the reply direction, and replies pass.
    rig.apply(&format!("{}---\n{}", only_from("db", "friend"), only_from("friend", "nobody")));
    assert!(talk.goes_on(TIMEOUT), "replies pass whatever the other direction's policy says");
    rig.apply(&only_from("db", "stranger"));
    talk.assert_ended(&rig.switch, &friend, INGRESS);
    // The connection is allowed again, but retransmitted segments belong to no flow.
    rig.apply(&only_from("db", "friend"));
    talk.assert_ended(&rig.switch, &friend, "invalid-state");
    drop(Connection::open(&friend, &db));
}

#[test]
fn where_connections_are_picked_up_one_that_was_denied_goes_on_when_it_is_allowed_again() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["db", "friend", "stranger"], 1, "[conntrack]\ntcp_pickup = true\n");
    let (db, friend) = (rig.pod("db"), rig.pod("friend"));
    let mut talk = Connection::open(&friend, &db);
    assert!(talk.goes_on(TIMEOUT));
    let to_nobody = format!("{}---\n{}", only_from("db", "stranger"), only_from("friend", "nobody"));
    rig.apply(&to_nobody);
    talk.assert_ended(&rig.switch, &friend, INGRESS);
    // The kernel retransmits unacknowledged data.
    rig.apply(&only_from("db", "friend"));
    let mut word = [0; 5];
    talk.server.set_read_timeout(Some(TIMEOUT)).unwrap();
    talk.server.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hello");
}

#[test]
fn a_connection_ends_when_the_tables_are_unloaded() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "friend"], 1);
    let (db, friend) = (rig.pod("db"), rig.pod("friend"));
    let mut talk = Connection::open(&friend, &db);
    assert!(talk.goes_on(TIMEOUT));
    rig.switch.client().delete_tables().unwrap();
    talk.assert_ended(&rig.switch, &friend, "unknown-pod");
}

#[test]
fn the_node_behind_a_host_port_reaches_its_pods_whatever_policy_says() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "node", "stranger"], 1);
    let (db, node, stranger) = (rig.pod("db"), rig.pod("node"), rig.pod("stranger"));
    rig.switch.detach(&node).unwrap();
    let request = PortRequest { addresses: node.addresses(), ..PortRequest::of(PortKind::Host) };
    rig.switch.client().put_port(&node.plan().host_interface, &request).unwrap();
    let _server = Server::start(&db, &[PORT], Services::Tcp).unwrap();
    rig.apply(&only_from("db", "nobody"));
    for address in db.addresses() {
        assert_allowed(&node, address);
        assert_denied(&rig.switch, &stranger, address, INGRESS);
    }
    // Connections to the node are allowed as well: the pod is not isolated for egress.
    let _server = Server::start(&node, &[PORT], Services::Tcp).unwrap();
    for address in node.addresses() {
        assert_allowed(&db, address);
    }
    let mute = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: mute, namespace: default}\n\
                spec: {podSelector: {matchLabels: {app: stranger}}, policyTypes: [Egress]}\n";
    rig.apply(mute);
    for address in node.addresses() {
        assert_protocol_denied(&rig.switch, &stranger, (Protocol::UDP, address, PORT), EGRESS);
    }
    assert_accounted(&rig.counters());
}

#[test]
fn a_pod_that_sends_from_another_address_is_not_heard() {
    let Some(_isolated) = isolated() else { return };
    spoofs(PodPorts::Veth);
}

pub(super) fn spoofs(ports: PodPorts) {
    let rig = rig_of(ports, &["db", "liar"], 1, "");
    let (db, liar) = (rig.pod("db"), rig.pod("liar"));
    let _server = Server::start(&db, &[PORT], Services::Both).unwrap();
    let lie = ["addr", "replace", "10.77.9.9/32", "dev", "eth0"];
    assert!(liar.status(std::process::Command::new("ip").args(lie)).unwrap().success());
    let route = format!("route replace {} via 169.254.1.1 dev eth0 onlink src 10.77.9.9", db.v4());
    assert!(liar.status(std::process::Command::new("ip").args(route.split(' '))).unwrap().success());
    // Its ARP request for the gateway has a spoofed sender, too, and gets no reply.
    assert_denied(&rig.switch, &liar, db.v4().into(), "spoofed");
    let gateway = format!("neigh replace 169.254.1.1 lladdr {} dev eth0", Gateway::default().mac);
    assert!(liar.status(std::process::Command::new("ip").args(gateway.split(' '))).unwrap().success());
    assert_denied(&rig.switch, &liar, db.v4().into(), "spoofed");
    assert_eq!(rig.drops().into_keys().collect::<Vec<_>>(), ["spoofed"]);
}
