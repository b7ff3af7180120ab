//! Policy with real connections: denied ones fail, allowed ones work, and a change takes effect at once.

use std::io::Read;
use std::time::Duration;

use palisade::control::protocol::PortRequest;
use palisade::dataplane::PortKind;
use palisade::lab::traffic::{Outcome, Server, Services, tcp_connect};
use palisade::net::flow::Protocol;

use crate::support::connection::Connection;
use crate::support::{
    EGRESS, INGRESS, PATIENCE, PORT, Rig, SILENCE, assert_accounted, assert_allowed, assert_denied,
    assert_protocol_denied, eventually, isolated, isolated_on_veth, only_from,
};

#[test]
fn a_denied_connection_times_out_and_is_counted_under_its_policy() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "friend", "stranger"], 1);
    let (db, friend, stranger) = (rig.pod("db"), rig.pod("friend"), rig.pod("stranger"));
    let _server = Server::start(&db, &[PORT], Services::Both).unwrap();
    for address in db.addresses() {
        assert_allowed(&stranger, address);
    }
    rig.apply(&only_from("db", "friend"));
    for address in db.addresses() {
        assert_allowed(&friend, address);
        assert_denied(&rig.switch, &stranger, address, INGRESS);
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    let drops = rig.drops();
    assert!(drops["policy-ingress"] >= 4, "{drops:?}");
    assert_eq!(drops.len(), 1, "nothing else is dropped: {drops:?}");
    let said: Vec<String> = counters.decisions.iter().map(|count| count.origin.to_string()).collect();
    let denies = "isolated for ingress by NetworkPolicy default/to-db; no rule matched";
    assert!(said.iter().any(|origin| origin == denies), "{said:?}");
    assert!(said.iter().any(|origin| origin == "NetworkPolicy default/to-db ingress[0]"), "{said:?}");
    // The isolated pod opens connections and receives replies.
    let _server = Server::start(&stranger, &[PORT], Services::Tcp).unwrap();
    assert_allowed(&db, stranger.v4().into());
}

#[test]
fn a_connection_survives_a_change_that_allows_it_and_ends_with_one_that_denies_it() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "friend", "stranger"], 1);
    let (db, friend) = (rig.pod("db"), rig.pod("friend"));
    let mut talk = Connection::open(&friend, &db);
    assert!(talk.goes_on(PATIENCE));
    rig.apply(&only_from("db", "friend"));
    assert!(talk.goes_on(PATIENCE), "still allowed");
    // Policy denies a new connection in the reply direction, and replies pass.
    rig.apply(&format!("{}---\n{}", only_from("db", "friend"), only_from("friend", "nobody")));
    assert!(talk.goes_on(PATIENCE), "replies pass whatever the other direction's policy says");
    rig.apply(&only_from("db", "stranger"));
    assert!(!talk.goes_on(Duration::from_secs(1)), "denied now");
    assert!(rig.drops()["policy-ingress"] >= 1);
    // The connection is allowed again, but retransmitted segments belong to no flow.
    rig.apply(&only_from("db", "friend"));
    eventually("segments outside any flow", || rig.drops().contains_key("invalid-state"));
    assert!(!talk.goes_on(Duration::from_secs(1)));
    drop(Connection::open(&friend, &db));
}

#[test]
fn where_connections_are_picked_up_one_that_was_denied_goes_on_when_it_is_allowed_again() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["db", "friend", "stranger"], 1, "[conntrack]\ntcp_pickup = true\n");
    let (db, friend) = (rig.pod("db"), rig.pod("friend"));
    let mut talk = Connection::open(&friend, &db);
    assert!(talk.goes_on(PATIENCE));
    let to_nobody = format!("{}---\n{}", only_from("db", "stranger"), only_from("friend", "nobody"));
    rig.apply(&to_nobody);
    assert!(!talk.goes_on(Duration::from_secs(1)), "denied now, in both directions");
    // The kernel retransmits unacknowledged data.
    rig.apply(&only_from("db", "friend"));
    let mut word = [0; 5];
    talk.server.set_read_timeout(Some(PATIENCE)).unwrap();
    talk.server.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hello");
}

#[test]
fn nothing_passes_before_tables_are_loaded_nor_after_they_are_unloaded() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "friend"], 1);
    let (db, friend) = (rig.pod("db"), rig.pod("friend"));
    let mut talk = Connection::open(&friend, &db);
    assert!(talk.goes_on(PATIENCE));
    rig.switch.client().delete_tables().unwrap();
    assert!(!talk.goes_on(Duration::from_millis(500)));
    eventually("drops of an unknown pod", || rig.drops().contains_key("unknown-pod"));
}

#[test]
fn the_node_behind_a_host_port_reaches_its_pods_whatever_policy_says() {
    let Some(_isolated) = isolated_on_veth() else { return };
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
    let rig = Rig::up(&["db", "liar"], 1);
    let (db, liar) = (rig.pod("db"), rig.pod("liar"));
    let _server = Server::start(&db, &[PORT], Services::Both).unwrap();
    let lie = ["addr", "replace", "10.77.9.9/32", "dev", "eth0"];
    assert!(liar.status(std::process::Command::new("ip").args(lie)).unwrap().success());
    let route = format!("route replace {} via 169.254.1.1 dev eth0 onlink src 10.77.9.9", db.v4());
    assert!(liar.status(std::process::Command::new("ip").args(route.split(' '))).unwrap().success());
    // Its ARP request for the gateway has a spoofed sender, too, and gets no reply.
    let outcome = tcp_connect(&liar, db.v4().into(), PORT, SILENCE).unwrap();
    assert!(matches!(outcome, Outcome::TimedOut | Outcome::Failed(_)), "{outcome:?}");
    let drops = rig.drops();
    assert!(drops["spoofed"] >= 2 && drops.len() == 1, "{drops:?}");
}
