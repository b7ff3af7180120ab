//! Tests of two nodes as network namespaces, each with its own switch and pods, joined by their uplinks.

mod agent;
mod node;
mod offload;
mod origin;
mod services;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};

use palisade::lab::PodPorts;
use palisade::limits::PORT_UNRESOLVED_MAX;
use palisade::net::flow::Protocol;

use self::node::{Cluster, Namespace, node_address, pod_address};
use crate::support::capture::Capture;
use crate::support::closed::FirstPacket;
use crate::support::{EGRESS, INGRESS, isolated};
use crate::support::{TIMEOUT, eventually};

const PORT: u16 = 6379;

/// Tells whether a megabyte crosses a new TCP connection and comes back.
fn tcp_crosses(from: &Namespace, to: &Namespace, address: IpAddr) -> bool {
    let at = SocketAddr::new(address, PORT);
    let listener = to.listen(at);
    let mut client = from.connect(at, TIMEOUT).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let message: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    for end in [&client, &server] {
        end.set_read_timeout(Some(TIMEOUT)).unwrap();
        end.set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut heard = vec![0; message.len()];
            server.read_exact(&mut heard).unwrap();
            server.write_all(&heard).unwrap();
        });
        client.write_all(&message).unwrap();
        let mut heard = vec![0; message.len()];
        client.read_exact(&mut heard).unwrap();
        echo.join().unwrap();
        heard == message
    })
}

/// Tells whether a datagram and its reply cross within `tries` attempts.
fn udp_crosses(from: &Namespace, to: &Namespace, addresses: [IpAddr; 2], tries: usize) -> bool {
    let [client, server] = addresses;
    let (client, at) = (from.udp(SocketAddr::new(client, 0)), SocketAddr::new(server, PORT));
    let server = to.udp(at);
    (0..tries).any(|_| {
        client.send_to(b"hello", at).unwrap();
        let mut heard = [0; 16];
        let Ok((bytes, peer)) = server.recv_from(&mut heard) else { return false };
        server.send_to(&heard[..bytes], peer).unwrap();
        client.recv_from(&mut heard).is_ok_and(|(bytes, from)| &heard[..bytes] == b"hello" && from == at)
    })
}

fn policy(name: &str, app: &str, rules: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: default}}\n\
         spec:\n  podSelector: {{matchLabels: {{app: {app}}}}}\n{rules}"
    )
}

#[test]
fn pods_of_two_nodes_talk_under_policy_on_both_sides() {
    two_nodes(PodPorts::Veth);
}

#[test]
fn pods_of_two_nodes_talk_under_policy_on_both_sides_on_taps() {
    two_nodes(PodPorts::Tap);
}

fn two_nodes(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    // Policy: only `front` reaches `web`, and `locked` opens nothing but DNS.
    let ingress = policy("web", "web", "  ingress: [{from: [{podSelector: {matchLabels: {app: front}}}]}]\n");
    let egress = policy(
        "locked",
        "locked",
        "  policyTypes: [Egress]\n  egress: [{ports: [{protocol: UDP, port: 53}]}]\n",
    );
    let policies = format!("{ingress}---\n{egress}");
    let mut cluster = Cluster::with(ports, [&["front", "stranger", "locked"], &["web", "open"]], &policies);
    cluster.start();
    let [one, two] = &cluster.nodes;
    let [front, stranger, locked] = &one.pods[..] else { panic!("three pods") };
    let [web, open] = &two.pods[..] else { panic!("two pods") };
    for family in [0, 1] {
        let of = |node, pod| pod_address(node, pod)[family];
        assert!(tcp_crosses(front, web, of(2, 0)), "front to web, family {family}");
        assert!(tcp_crosses(open, front, of(1, 0)), "open to front");
        assert!(tcp_crosses(stranger, open, of(2, 1)), "stranger to open");
        assert!(udp_crosses(front, web, [of(1, 0), of(2, 0)], 10));
        assert!(udp_crosses(open, stranger, [of(2, 1), of(1, 1)], 10));
        // The other node enforces the ingress of its pod, this node the egress of its own.
        for protocol in [Protocol::TCP, Protocol::UDP] {
            two.assert_denied(("uplink", INGRESS), stranger, || FirstPacket::send(protocol, of(2, 0), PORT));
            one.assert_denied(("pod2", EGRESS), locked, || FirstPacket::send(protocol, of(2, 1), PORT));
        }
    }
    // No other frame is dropped, except packets to a neighbour that the kernel resolves just then.
    let only = |drops: std::collections::BTreeMap<String, u64>, allowed: &[&str]| {
        assert!(drops.keys().all(|reason| allowed.contains(&reason.as_str())), "{drops:?}");
    };
    only(two.drops("uplink"), &["policy-ingress"]);
    only(one.drops("uplink"), &[]);
    only(one.drops("pod0"), &["unresolved"]);
    only(one.drops("pod1"), &["unresolved"]);
    // A policy change denies an open connection.
    let at = SocketAddr::new(pod_address(2, 0)[0], PORT);
    let listener = web.listen(at);
    let mut client = front.connect(at, TIMEOUT).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"one").unwrap();
    server.read_exact(&mut [0; 3]).unwrap();
    // The flow ends with the first packet that is denied: one of the client, or a delayed acknowledgement of the server.
    let denied = || {
        ["uplink", "pod0"]
            .map(|port| two.drops(port).get("policy-ingress").copied().unwrap_or(0))
            .iter()
            .sum::<u64>()
    };
    let before = denied();
    cluster.write_policy(&policy("web", "web", "  policyTypes: [Ingress]\n"));
    eventually("the open connection is denied", || {
        client.write_all(b"two").unwrap();
        denied() > before
    });
}

#[test]
fn a_connection_to_the_node_lives_on_while_its_switch_dies_and_nothing_for_pods_leaks() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = Cluster::up([&["client"], &["server"]], &policy("none", "nobody", "  ingress: []\n"));
    cluster.start();
    let [one, two] = &mut cluster.nodes;
    let pod = pod_address(2, 0);
    assert!(pod.iter().all(|address| tcp_crosses(&one.pods[0], &two.pods[0], *address)));

    // The nodes themselves reach each other by the NICs that they share with the switches.
    let talks: Vec<_> = node_address(2)
        .into_iter()
        .map(|address| {
            let at = SocketAddr::new(address, 22);
            let listener = two.own.listen(at);
            let client = one.own.connect(at, TIMEOUT).unwrap();
            (client, listener.accept().unwrap().0)
        })
        .collect();
    let talk = |when: &str| {
        for (client, server) in &talks {
            for (mut from, mut to) in [(client, server), (server, client)] {
                to.set_read_timeout(Some(TIMEOUT)).unwrap();
                from.write_all(&[7; 9000]).unwrap();
                let mut heard = [0; 9000];
                assert!(to.read_exact(&mut heard).is_ok() && heard == [7; 9000], "{when}");
            }
        }
    };
    talk("while all is well");

    let addresses = [pod_address(1, 0), pod].map(|pair| pair[0]);
    let flood = one.pods[0].udp(SocketAddr::new(addresses[0], 0));
    let target = SocketAddr::new(addresses[1], PORT);
    let sink = two.pods[0].udp(target);
    flood.send_to(b"before", target).unwrap();
    eventually("a datagram crosses", || {
        flood.send_to(b"before", target).unwrap();
        sink.recv(&mut [0; 16]).is_ok()
    });
    two.kill();
    sink.set_nonblocking(true).unwrap();
    while sink.recv(&mut [0; 16]).is_ok() {}
    let tap = Capture::on("up0", two.own.command("tcpdump"));
    // Flushes the neighbours, so that ARP and neighbour discovery, which are the kernel's, start again. (The
    // command reports failure after ten rounds if neighbours return at once.)
    for node in [&*one, &*two] {
        node.own.output("ip neigh flush dev up0");
    }
    let before = two.dropped_by_program();
    eventually(
        "the first switch goes on, with the next hop resolved anew, and nobody takes its frames",
        || {
            (0..10).for_each(|_| _ = flood.send_to(b"against a wall", target).unwrap());
            two.dropped_by_program() > before + 50
        },
    );
    // An address within the pod prefixes that no pod has, from the other node's own stack: dropped as well.
    let unassigned = SocketAddr::new("10.244.2.77".parse().unwrap(), PORT);
    one.own.udp(SocketAddr::new(node_address(1)[0], 0)).send_to(b"unassigned", unassigned).unwrap();
    talk("while the switch is dead");
    assert!(sink.recv(&mut [0; 16]).is_err(), "a frame reached the pod without a switch");
    let heard = tap.frames();
    let leaked: Vec<&String> =
        heard.iter().filter(|line| line.contains("10.244.2.") || line.contains("fd00:244:2:")).collect();
    // An ARP request for a pod's address is for the node, and no packet for a pod.
    assert!(leaked.is_empty(), "{leaked:?} reached the node's stack");
    assert!(heard.iter().any(|line| line.contains("ARP")), "ARP is the kernel's: {heard:?}");
    assert!(
        heard.iter().any(|line| line.contains("192.0.2.2.22")),
        "what is for the node arrives: {heard:?}"
    );

    two.start();
    talk("after the restart");
    assert!(pod.iter().all(|address| tcp_crosses(&one.pods[0], &two.pods[0], *address)));
    two.stop();
    talk("after a clean stop");
    // Pods stay closed as before.
    two.assert_closed(&one.pods[0], || FirstPacket::tcp(pod[0]));
}

#[test]
fn a_next_hop_that_gets_another_ethernet_address_is_followed() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = Cluster::up([&["client"], &["server"]], &policy("none", "nobody", "  ingress: []\n"));
    cluster.start();
    let [one, two] = &mut cluster.nodes;
    let crosses = |one: &node::Node, two: &node::Node| {
        (0..2).all(|family| {
            let ends = [pod_address(1, 0)[family], pod_address(2, 0)[family]];
            udp_crosses(&one.pods[0], &two.pods[0], ends, 20)
        })
    };
    assert!(crosses(one, two));
    // No packet from the first node's stack has resolved the next hop: the switch had it resolved.
    let neighbors = one.own.output("ip neigh show dev up0");
    assert!(
        neighbors.contains("192.0.2.2 lladdr") && neighbors.contains("2001:db8:2::2 lladdr"),
        "{neighbors}"
    );
    // A switch with another NIC replaces the second node.
    two.kill();
    two.own.run("ip link set dev up0 address 02:00:00:00:00:77");
    two.start();
    for address in node_address(2) {
        one.own.run(&format!("ip neigh replace {address} lladdr 02:00:00:00:00:77 dev up0 nud reachable"));
    }
    assert!(crosses(one, two));
    // A destination on the NIC's own link needs no router: the other node's stack receives from a pod.
    let at = SocketAddr::new(node_address(2)[0], PORT);
    let listener = two.own.listen(at);
    let client = one.pods[0].connect(at, TIMEOUT).unwrap();
    assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    assert!(one.log().lines().any(|line| line.contains("no zero-copy")), "{}", one.log());
}

#[test]
fn a_pod_that_tries_every_address_leaves_others_new_neighbours() {
    const TRIED: u32 = 2000;
    let Some(_isolated) = isolated() else { return };
    let mut cluster =
        Cluster::up([&["hostile", "other"], &["server"]], &policy("none", "nobody", "  ingress: []\n"));
    cluster.start();
    let [one, two] = &cluster.nodes;
    let [hostile, other] = &one.pods[..] else { panic!("two pods") };
    let tried =
        |number: u32| IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0xbad, (number >> 8) as u16, number as u16]);
    let flood = hostile.udp(SocketAddr::new(pod_address(1, 0)[1], 0));
    let unresolved = || {
        let table = one.own.output("ip -6 neigh show dev up0");
        table.lines().filter(|line| line.contains(":bad:")).count()
    };
    let mut most = 0;
    for round in 0..8_u32 {
        for number in round * TRIED..(round + 1) * TRIED {
            flood.send_to(b"hello", SocketAddr::new(tried(number), PORT)).unwrap();
        }
        most = most.max(unresolved());
        // Another station of the link appears, and another pod reaches it.
        let station = IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0xace, round as u16]);
        two.own.run(&format!("ip address add {station}/64 dev up0 nodad"));
        let ends = [pod_address(1, 1)[1], station];
        assert!(udp_crosses(other, &two.own, ends, 20), "{station}");
    }
    assert!(most > 0 && most <= 2 * PORT_UNRESOLVED_MAX, "{most} neighbours in the kernel's table");
    eventually("the kernel forgets neighbours that nobody has answered for", || unresolved() == 0);
}
