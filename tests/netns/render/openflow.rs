//! Renderings in Open vSwitch: a bridge of its userspace datapath between the pods, with the node at its port `LOCAL`.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use super::{AFTER, ALWAYS, BEFORE, BLOCKED_TOO, DENIED, FRAGMENTED, NODE, Pods, RANGE};
use super::{connected, is_answered, succeeded};
use crate::open_vswitch::{BRIDGE, OpenVswitch};
use crate::support::{PATIENCE, isolated};
use crate::tools::run_if_installed;

/// Other addresses of the interface that is `LOCAL`. They are not the node's in the manifests.
const NOT_NODE: [&str; 2] = ["10.77.255.2", "fd77::ff02"];

/// Pods on a bridge without flows. The switch stops first.
fn bridged() -> (OpenVswitch, Pods) {
    let mut pods = Pods::up();
    let (namespace, directory) = (pods.node.namespace().name().to_owned(), pods.directory.clone());
    let switch = OpenVswitch::start(&namespace, &directory, &[], |pid| {
        pods.lab.note_process(pid).map_err(io::Error::other)
    });
    let switch = switch.unwrap();
    switch.add_ports(&pods.host_ends(), &[]).unwrap();
    let [[node4, node6], [other4, other6]] = [NODE, NOT_NODE];
    // A deprecated address is used by those who ask for it alone (RFC 4862, section 5.5.4).
    pods.shell(&format!(
        "ip link set {BRIDGE} up
        for address in {node4}/16 {node6}/64 '{other4}/16 preferred_lft 0' '{other6}/64 preferred_lft 0'; do
            ip address add $address dev {BRIDGE} nodad
        done"
    ));
    for pod in pods.lab.pods() {
        // Its packet sockets do not finish checksums that a veth leaves to the hardware.
        let script = "ethtool -K eth0 tx off >/dev/null
            ip route add 10.77.0.0/16 dev eth0
            ip route add fd77::/64 dev eth0";
        succeeded(pod.output(Command::new("sh").args(["-euc", script])).unwrap());
    }
    (switch, pods)
}

#[test]
fn openflow_decides_as_the_tables_in_open_vswitch() {
    let Some(_isolated) = isolated() else { return };
    if run_if_installed("ovs-vswitchd", &["--version"], b"").is_none() {
        return;
    }
    let (switch, pods) = bridged();
    let old = pods.manifests("old.yaml", RANGE);
    let new = pods.manifests("new.yaml", BLOCKED_TOO);
    let interfaces = pods.interfaces(&["db", "client", "other", "blocked"]);
    let load = |verb: &str, arguments: &[&str]| {
        let files = pods.render("openflow", &[&["--interfaces", &interfaces], arguments].concat());
        let file = files.join("palisade.flows").display().to_string();
        switch.flows(&["--bundle", verb, BRIDGE, &file], "").unwrap();
    };
    let state = || {
        let text = switch.flows(&["--no-stats", "dump-flows", BRIDGE], "").unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    load("replace-flows", &[&old]);
    pods.check(&[&ALWAYS[..], &BEFORE].concat());
    pods.check_icmp_and_node();
    other_addresses_of_the_node_are_denied(&pods);
    fragments_follow_their_connection(&pods);
    load("add-flows", &["--since", &old, &new]);
    pods.check(&[&ALWAYS[..], &AFTER].concat());
    let changed = state();
    load("replace-flows", &[&new]);
    assert_eq!(changed, state());
    pods.guards_against_forged_addresses(|| {
        let open = "delete table=0\nadd table=0,priority=0,actions=goto_table:2\n";
        switch.flows(&["--bundle", "add-flows", BRIDGE, "-"], open).unwrap();
    });
}

/// Asserts that the exception for the node is one for its address.
fn other_addresses_of_the_node_are_denied(pods: &Pods) {
    for (address, [from, other]) in
        pods.addresses("db").into_iter().zip([0, 1].map(|n| [NODE[n], NOT_NODE[n]]))
    {
        let is_answered_to = |from: &str, patience| {
            let from = SocketAddr::new(from.parse::<IpAddr>().unwrap(), 0);
            let socket = pods.node.run(|| UdpSocket::bind(from)).unwrap().unwrap();
            socket.connect((address, 5353)).unwrap();
            is_answered(&socket, 10, patience)
        };
        assert!(is_answered_to(from, PATIENCE), "{from}");
        assert!(!is_answered_to(other, DENIED), "{other}");
    }
}

/// Asserts that a rule with ports does not allow a connection that begins in fragments, but denies it, and that fragments
/// pass within a connection, or where all traffic is allowed.
fn fragments_follow_their_connection(pods: &Pods) {
    for address in pods.addresses("db") {
        let begun = connected(&pods.pod("client"), address, 5353);
        assert!(is_answered(&begun, 10, PATIENCE), "{address}");
        assert!(is_answered(&begun, FRAGMENTED, PATIENCE), "{address}");
        let new = connected(&pods.pod("client"), address, 5353);
        assert!(!is_answered(&new, FRAGMENTED, DENIED), "{address}");
    }
    for address in pods.addresses("other") {
        let denied = connected(&pods.pod("blocked"), address, 7011);
        assert!(!is_answered(&denied, FRAGMENTED, DENIED), "{address}");
        let new = connected(&pods.pod("blocked"), address, 5353);
        assert!(is_answered(&new, FRAGMENTED, PATIENCE), "{address}");
    }
}
