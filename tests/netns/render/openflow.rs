//! Renderings in Open vSwitch: a bridge of its userspace datapath between the pods, with the node at its port `LOCAL`.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use super::{AFTER, ALWAYS, BEFORE, BLOCKED_TOO, Drops, FRAGMENTED, NODE, Pods, RANGE};
use super::{connected, is_answered, succeeded};
use palisade::net::flow::Protocol;

use crate::open_vswitch::{BRIDGE, OpenVswitch};
use crate::support::packet_log::Packet;
use crate::support::{eventually, isolated};
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
    let drops = |packets: &[Packet], send: &mut dyn FnMut()| {
        let before = dropped(&switch);
        send();
        eventually("the packets are dropped", || dropped(&switch) >= before + packets.len() as u64);
    };
    load("replace-flows", &[&old]);
    pods.check(&[&ALWAYS[..], &BEFORE].concat(), &drops);
    pods.check_icmp_and_node(&drops);
    other_addresses_of_the_node_are_denied(&pods, &drops);
    fragments_follow_their_connection(&pods, &drops);
    load("add-flows", &["--since", &old, &new]);
    pods.check(&[&ALWAYS[..], &AFTER].concat(), &drops);
    let changed = state();
    load("replace-flows", &[&new]);
    assert_eq!(changed, state());
    pods.guards_against_forged_addresses(&drops, || {
        let open = "delete table=0\nadd table=0,priority=0,actions=goto_table:2\n";
        switch.flows(&["--bundle", "add-flows", BRIDGE, "-"], open).unwrap();
    });
}

/// Packets of IP that flows of the bridge have dropped.
fn dropped(switch: &OpenVswitch) -> u64 {
    let flows = switch.flows(&["dump-flows", BRIDGE], "").unwrap();
    let drops = flows.lines().filter(|flow| flow.ends_with("actions=drop") && !flow.contains("table=2, "));
    let packets = |flow: &str| flow.split_once("n_packets=")?.1.split_once(',')?.0.parse::<u64>().ok();
    drops.map(|flow| packets(flow).expect("a number of packets")).sum()
}

/// Asserts that the exception for the node is one for its address.
fn other_addresses_of_the_node_are_denied(pods: &Pods, drops: &Drops<'_>) {
    for (address, [from, other]) in
        pods.addresses("db").into_iter().zip([0, 1].map(|n| [NODE[n], NOT_NODE[n]]))
    {
        let socket_at = |from: &str| {
            let from = SocketAddr::new(from.parse::<IpAddr>().unwrap(), 0);
            let socket = pods.node.run(|| UdpSocket::bind(from)).unwrap().unwrap();
            socket.connect((address, 5353)).unwrap();
            socket
        };
        assert!(is_answered(&socket_at(from), 10), "{from}");
        is_dropped(&socket_at(other), 10, pods.packet("db", Protocol::UDP, (address, 5353)), drops);
    }
}

/// Asserts that a datagram of this length is dropped.
fn is_dropped(socket: &UdpSocket, length: usize, packet: Packet, drops: &Drops<'_>) {
    drops(&[packet], &mut || _ = socket.send(&vec![7; length]).unwrap());
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 16]).is_err(), "{length} bytes are answered");
}

/// Asserts that a rule with ports does not allow a connection that begins in fragments, but denies it, and that fragments
/// pass within a connection, or where all traffic is allowed.
fn fragments_follow_their_connection(pods: &Pods, drops: &Drops<'_>) {
    for address in pods.addresses("db") {
        let begun = connected(&pods.pod("client"), address, 5353);
        assert!(is_answered(&begun, 10), "{address}");
        assert!(is_answered(&begun, FRAGMENTED), "{address}");
        let new = connected(&pods.pod("client"), address, 5353);
        is_dropped(&new, FRAGMENTED, pods.packet("client", Protocol::UDP, (address, 5353)), drops);
    }
    for address in pods.addresses("other") {
        let denied = connected(&pods.pod("blocked"), address, 7011);
        is_dropped(&denied, FRAGMENTED, pods.packet("blocked", Protocol::UDP, (address, 7011)), drops);
        let new = connected(&pods.pod("blocked"), address, 5353);
        assert!(is_answered(&new, FRAGMENTED), "{address}");
    }
}
