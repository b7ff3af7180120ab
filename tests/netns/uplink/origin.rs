//! Packets that the node's kernel forwards to pods by the host port, and those of the node's own sockets: only the
//! latter reach pods whatever policy says (clause N1).

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use super::node::{Cluster, Namespace, Node, node_address, pod_address};
use super::{PORT, policy};
use crate::support::closed::{FirstPacket, assert_counted};
use crate::support::packet_socket::PacketSocket;
use crate::support::{INGRESS, isolated};
use crate::support::{TIMEOUT, eventually};

/// Time of one of several attempts.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Port of the node that its kernel translates to a pod.
const HOST_PORT: u16 = 8080;
/// Pods of the node: nobody but the node reaches the first.
const PODS: [&str; 3] = ["closed", "open", "client"];
const CLOSED: usize = 0;
const OPEN: usize = 1;
const CLIENT: usize = 2;

/// The node with its addresses, which tables therefore contain, a pod that is closed, and one that is open to every
/// address.
fn policies() -> String {
    let [v4, v6] = node_address(2);
    let any = "  ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: \"::/0\"}}]}]\n";
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node2}}\n\
         status: {{addresses: [{{type: InternalIP, address: {v4}}}, {{type: InternalIP, address: \"{v6}\"}}]}}\n\
         ---\n{}---\n{}",
        policy("closed", "closed", "  policyTypes: [Ingress]\n"),
        policy("open", "open", any)
    )
}

/// A host without a switch, and a node with three pods and a host port.
fn rig() -> Cluster {
    let mut cluster = rig_without_switch();
    make_host_port(&cluster.nodes[1]);
    cluster.nodes[1].start();
    cluster
}

/// The same without the host port's interface, and without a running switch.
fn rig_without_switch() -> Cluster {
    let mut cluster = Cluster::up([&[], &PODS], &policies());
    let node = &mut cluster.nodes[1];
    let [v4, v6] = node_address(2);
    node.config.extend([format!(
        "[[ports]]\nname = \"node\"\nkind = \"host\"\ninterface = \"palisade-host\"\naddresses = [\"{v4}\", \"{v6}\"]\n"
    )]);
    node.keeps_flows = true;
    cluster
}

/// Makes the veth pair between switch and node, with the routes that the CNI plugin makes.
fn make_host_port(node: &Node) {
    for line in [
        "ip link add palisade-host type veth peer name palisade-node",
        "ip link set palisade-host up",
        "ip link set palisade-node up",
    ] {
        node.own.run(line);
    }
    for pod in 0..PODS.len() {
        let [v4, v6] = pod_address(2, pod);
        node.own.run(&format!("ip route add {v4}/32 via 169.254.1.1 dev palisade-node onlink"));
        node.own.run(&format!("ip route add {v6}/128 via fe80::1 dev palisade-node onlink"));
    }
}

/// Translates the node's port to a pod: its destination, and, with `masquerades`, its source to the node's address.
fn translate(node: &Node, pod: usize, masquerades: bool) {
    let [node_v4, node_v6] = node_address(2);
    let [v4, v6] = pod_address(2, pod);
    let source = if masquerades { "oifname palisade-node masquerade" } else { "" };
    let rules = format!(
        "flush ruleset\ntable inet nat {{\n\
         chain before {{ type nat hook prerouting priority -100;\n\
         ip daddr {node_v4} tcp dport {HOST_PORT} dnat ip to {v4}:{PORT}\n\
         ip6 daddr {node_v6} tcp dport {HOST_PORT} dnat ip6 to [{v6}]:{PORT}\n}}\n\
         chain after {{ type nat hook postrouting priority 100;\n{source}\n}}\n}}\n"
    );
    let file = node.write("nat.nft", &rules);
    node.own.run(&format!("nft -f {}", file.display()));
}

fn dropped(node: &Node, reason: &str) -> u64 {
    node.drops("node").get(reason).copied().unwrap_or(0)
}

/// Asserts that connections to the node's port end at the host port of the switch for this reason.
fn assert_dropped(node: &Node, from: &Namespace, family: usize, reason: &str) {
    let at = SocketAddr::new(node_address(2)[family], HOST_PORT);
    assert_counted(reason, || dropped(node, reason), || from.enter(|| FirstPacket::to(at)));
}

/// Opens a connection, whose server is in `to`.
fn open(from: &Namespace, to: &Namespace, at: SocketAddr, by: SocketAddr) -> [TcpStream; 2] {
    let listener = to.listen(at);
    let client = from.connect(by, TIMEOUT).unwrap_or_else(|error| panic!("{by}: {error}"));
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    [client, server]
}

fn talk([client, server]: &mut [TcpStream; 2]) {
    for (from, to) in [(&*client, &*server), (&*server, &*client)] {
        let (mut from, mut to, mut heard) = (from, to, [0; 5]);
        from.write_all(b"hello").unwrap();
        to.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
}

/// Asserts that the node's own sockets reach the closed pod: TCP, UDP, echo, and a reset in each direction.
fn assert_node_reaches(node: &Node, pod: usize) {
    for family in [0, 1] {
        let (own, address) = (node_address(2)[family], pod_address(2, pod)[family]);
        let at = SocketAddr::new(address, PORT);
        let there = &node.pods[pod];
        talk(&mut open(&node.own, there, at, at));
        let (client, server) = (node.own.udp(SocketAddr::new(own, 0)), there.udp(at));
        let mut heard = [0; 8];
        eventually("a datagram and its answer cross", || {
            client.send_to(b"hello", at).unwrap();
            let Ok((bytes, peer)) = server.recv_from(&mut heard) else { return false };
            server.send_to(&heard[..bytes], peer).unwrap();
            client.recv(&mut heard).is_ok()
        });
        eventually("an echo is answered", || {
            node.own.command(&format!("ping -n -c 1 -W 1 {address}")).output().unwrap().status.success()
        });
        let refused = |from: &Namespace, to: IpAddr| {
            let error = from.connect(SocketAddr::new(to, 9), TIMEOUT).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{to}: {error}");
        };
        refused(&node.own, address);
        refused(there, own);
    }
}

#[test]
fn a_host_port_that_the_kernel_translates_does_not_open_a_closed_pod_to_pods_or_clients_outside() {
    let Some(_isolated) = isolated() else { return };
    let cluster = rig();
    let [outside, node] = &cluster.nodes;
    for family in [0, 1] {
        // "pod -> node:hostPort" of a local pod, and a load-balancer port that kube-proxy serves.
        translate(node, CLOSED, true);
        let at = SocketAddr::new(pod_address(2, CLOSED)[family], PORT);
        let listener = node.pods[CLOSED].listen(at);
        listener.set_nonblocking(true).unwrap();
        assert_dropped(node, &node.pods[CLIENT], family, "policy-ingress");
        assert_dropped(node, &outside.own, family, "policy-ingress");
        // A local pod's address is not one of the host port.
        translate(node, CLOSED, false);
        assert_dropped(node, &node.pods[CLIENT], family, "spoofed");
        assert!(listener.accept().is_err(), "a connection has come");

        // Policy admits every address to the other pod, and so what the node has masqueraded.
        translate(node, OPEN, true);
        let at = SocketAddr::new(pod_address(2, OPEN)[family], PORT);
        let by = SocketAddr::new(node_address(2)[family], HOST_PORT);
        talk(&mut open(&node.pods[CLIENT], &node.pods[OPEN], at, by));
        talk(&mut open(&outside.own, &node.pods[OPEN], at, by));
    }
    assert_node_reaches(node, CLOSED);
}

#[test]
fn the_nodes_own_sockets_reach_a_closed_pod_before_and_after_restarts_and_a_new_host_port() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = rig();
    let node = &mut cluster.nodes[1];
    assert_node_reaches(node, CLOSED);
    let at = SocketAddr::new(pod_address(2, CLOSED)[0], PORT);
    let mut kept = open(&node.own, &node.pods[CLOSED], at, at);
    talk(&mut kept);
    node.kill();
    node.start();
    talk(&mut kept);
    assert_node_reaches(node, CLOSED);
    node.stop();
    node.start();
    assert_node_reaches(node, CLOSED);
    node.own.run("ip link delete palisade-node");
    let is_up = |node: &Node| {
        let ports = node.client().ports().unwrap();
        ports.iter().any(|port| port.name == "node" && format!("{:?}", port.state) == "Up")
    };
    eventually("the port loses its interface", || !is_up(node));
    make_host_port(node);
    eventually("the port has the new interface", || is_up(node));
    assert_node_reaches(node, CLOSED);
    assert!(node.client().status().unwrap().problems.iter().all(|problem| !problem.contains("host port")));
}

/// Files of links that hold the program which marks the node's sockets.
fn pins() -> usize {
    let directories = std::fs::read_dir("/sys/fs/bpf/palisade").into_iter().flatten().flatten();
    let files =
        directories.flat_map(|directory| std::fs::read_dir(directory.path()).into_iter().flatten().flatten());
    files.filter(|file| file.file_name().to_string_lossy().ends_with("-egress")).count()
}

#[test]
fn the_program_at_the_nodes_end_outlives_the_switch_and_goes_with_the_port() {
    let Some(_isolated) = isolated() else { return };
    let filter = "tc filter show dev palisade-node egress";
    for has_links in [true, false] {
        let mut cluster = rig_without_switch();
        let node = &mut cluster.nodes[1];
        make_host_port(node);
        if !has_links {
            let directory = node.socket().with_file_name("pins");
            node.config.extend([format!("[xdp]\npin_directory = \"{}\"\n", directory.display())]);
        }
        let programs = |node: &Node| (pins(), usize::from(node.own.output(filter).contains("palisade_node")));
        let expected = (usize::from(has_links), usize::from(!has_links));
        for _ in 0..2 {
            node.start();
            assert_eq!(programs(node), expected);
            assert_node_reaches(node, CLOSED);
            node.kill();
            assert_eq!(programs(node), expected);
        }
        node.start();
        if !has_links {
            // Another program of the node removes it: the switch attaches it again.
            node.own.run("tc qdisc delete dev palisade-node clsact");
            eventually("the program is back", || programs(node) == expected);
            assert_node_reaches(node, CLOSED);
        }
        // `on_stop = "detach"`.
        node.kill();
        node.config = node.config.replace("on_stop = \"closed\"", "on_stop = \"detach\"");
        node.start();
        assert_eq!(programs(node), expected);
        node.stop();
        assert_eq!(programs(node), (0, 0));
    }
}

#[test]
fn without_marks_policy_applies_to_the_node_and_the_status_says_so() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = rig_without_switch();
    let node = &mut cluster.nodes[1];
    // Its own stack is in another network namespace, which has no name at first.
    let stack = Namespace::new();
    node.own
        .run(&format!("ip link add palisade-host type veth peer name palisade-node netns {}", stack.pid()));
    node.own.run("ip link set palisade-host up");
    let ([v4, v6], closed) = (node_address(2), pod_address(2, CLOSED));
    for line in [
        "ip link set palisade-node up".to_owned(),
        format!("ip address add {v4}/32 dev palisade-node"),
        format!("ip address add {v6}/128 dev palisade-node nodad"),
        format!("ip route add {}/32 via 169.254.1.1 dev palisade-node onlink", closed[0]),
        format!("ip route add {}/128 via fe80::1 dev palisade-node onlink", closed[1]),
    ] {
        stack.run(&line);
    }
    node.start();
    let problem = |node: &Node| {
        let problems = node.client().status().unwrap().problems;
        problems.into_iter().find(|problem| problem.contains("policy applies to them"))
    };
    assert!(problem(node).unwrap().contains("without a name"), "{:?}", problem(node));
    for address in closed {
        let at = SocketAddr::new(address, PORT);
        assert_counted(INGRESS, || dropped(node, INGRESS), || stack.enter(|| FirstPacket::to(at)));
    }
    let name = format!("palisade-origin-{}", std::process::id());
    node.own.run(&format!("ip netns attach {name} {}", stack.pid()));
    eventually("the monitor finds the other end", || problem(node).is_none());
    for address in closed {
        let at = SocketAddr::new(address, PORT);
        eventually("the port is open again", || {
            let opened = stack.connect(at, ATTEMPT);
            opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        });
        talk(&mut open(&stack, &node.pods[CLOSED], at, at));
    }
}

#[test]
fn a_policy_cuts_connections_that_the_node_forwards_and_none_of_its_own() {
    let Some(_isolated) = isolated() else { return };
    let cluster = rig();
    let [outside, node] = &cluster.nodes;
    translate(node, OPEN, true);
    for family in [0, 1] {
        cluster.write_policy(&policies());
        let at = SocketAddr::new(pod_address(2, OPEN)[family], PORT);
        let by = SocketAddr::new(node_address(2)[family], HOST_PORT);
        eventually("policy admits", || {
            outside.own.connect(by, ATTEMPT).is_ok() || {
                // A refused connection has passed, too.
                let refused = outside.own.connect(by, ATTEMPT).map_err(|error| error.kind());
                refused.is_err_and(|kind| kind == std::io::ErrorKind::ConnectionRefused)
            }
        });
        let mut forwarded = open(&outside.own, &node.pods[OPEN], at, by);
        let mut own = open(&node.own, &node.pods[OPEN], at, at);
        talk(&mut forwarded);
        talk(&mut own);
        // The flow ends with the first packet that is denied: one of the client, or an acknowledgement of the server.
        let denied = || {
            let of = |port| node.drops(port).get("policy-ingress").copied().unwrap_or(0);
            of("node") + of("pod1")
        };
        let before = denied();
        let none = policy("open", "open", "  policyTypes: [Ingress]\n");
        cluster.write_policy(&format!("{}---\n{none}", policies().split("---\n").next().unwrap()));
        let [client, _] = &mut forwarded;
        eventually("the connection is cut", || {
            client.write_all(b"more").unwrap();
            denied() > before
        });
        talk(&mut own);
    }
}

/// Tags before the type of a frame: 802.1ad and 802.1Q, with their identifiers.
type Tags = &'static [(u16, u16)];
const S_TAG: u16 = 0x88a8;
const C_TAG: u16 = 0x8100;

/// A UDP datagram over IPv6 in an Ethernet frame with tags.
fn datagram([destination, source]: [[u8; 6]; 2], tags: Tags, from: IpAddr, to: IpAddr) -> Vec<u8> {
    let mut frame = [destination, source].concat();
    for (kind, identifier) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(identifier.to_be_bytes());
    }
    let (kind, ip) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ([0x08, 0x00], etherparse::PacketBuilder::ipv4(from.octets(), to.octets(), 64))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ([0x86, 0xdd], etherparse::PacketBuilder::ipv6(from.octets(), to.octets(), 64))
        }
        _ => panic!("addresses of two families"),
    };
    frame.extend(kind);
    ip.udp(4321, PORT).write(&mut frame, b"hello").unwrap();
    frame
}

pub(super) fn mac_of(namespace: &Namespace, interface: &str) -> [u8; 6] {
    let line = namespace.output(&format!("ip -oneline link show dev {interface}"));
    let mac = line.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Counts what the node forwards to its pods, and to an address behind another interface.
fn watch(node: &Node) {
    for line in ["ip link add far0 type veth peer name far1", "ip link set far0 up", "ip link set far1 up"] {
        node.own.run(line);
    }
    node.own.run("ip route add 2001:db8:7::/64 dev far0");
    let rules = "table ip6 watch {\ncounter pods {}\ncounter far {}\n\
                 chain forward { type filter hook forward priority 0;\n\
                 ip6 daddr fd00:244:2::/64 counter name pods\nip6 daddr 2001:db8:7::/64 counter name far\n}\n}\n";
    let file = node.write("watch.nft", rules);
    node.own.run(&format!("nft -f {}", file.display()));
}

fn counted(node: &Node, counter: &str) -> u64 {
    let text = node.own.output(&format!("nft list counter ip6 watch {counter}"));
    text.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn no_tag_leads_frames_of_an_uplink_past_the_switch_to_a_pod() {
    let Some(_isolated) = isolated() else { return };
    let cluster = rig();
    let [outside, node] = &cluster.nodes;
    watch(node);
    let own = node_address(2)[1];
    let closed = pod_address(2, CLOSED)[1];
    let server = node.pods[CLOSED].udp(SocketAddr::new(closed, PORT));
    let macs = [mac_of(&node.own, "up0"), mac_of(&outside.own, "up0")];
    let socket = outside.own.enter(|| PacketSocket::open("up0")).unwrap();
    let chains: [Tags; 7] = [
        &[(S_TAG, 0)],
        &[(C_TAG, 0), (C_TAG, 0)],
        &[(S_TAG, 0), (C_TAG, 0)],
        &[(C_TAG, 0), (S_TAG, 0), (C_TAG, 0)],
        &[(C_TAG, 0); 4],
        &[(C_TAG, 0); 5],
        &[(S_TAG, 0); 9],
    ];
    for tags in chains {
        // The kernel takes the tags off, and forwards whatever source a packet has. Longer chains are dropped unread.
        let far = "2001:db8:7::7".parse().unwrap();
        let before = counted(node, "far");
        if tags.len() <= 4 {
            eventually("the kernel forwards the same frame elsewhere", || {
                socket.send(&datagram(macs, tags, own, far)).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
                counted(node, "far") > before
            });
        }
        socket.send(&datagram(macs, tags, own, closed)).unwrap();
    }
    // Without a tag the switch drops the frame: the node is not behind the uplink.
    let spoofed = |node: &Node| node.drops("uplink").get("spoofed").copied().unwrap_or(0);
    let before = spoofed(node);
    eventually("the switch has the last frame", || {
        socket.send(&datagram(macs, &[], own, closed)).unwrap();
        spoofed(node) > before
    });
    assert_eq!(counted(node, "pods"), 0, "the kernel has frames for pods");
    assert_eq!(node.drops("uplink").get("unknown-ethertype"), Some(&7), "{:?}", node.drops("uplink"));
    assert!(server.recv(&mut [0; 8]).is_err(), "a frame has reached the closed pod");
}

#[test]
fn frames_of_a_card_that_is_no_port_are_not_the_nodes_own() {
    let Some(_isolated) = isolated() else { return };
    let cluster = rig();
    let [outside, node] = &cluster.nodes;
    watch(node);
    node.own.run(&format!("ip link add up1 type veth peer name up1 netns {}", outside.own.pid()));
    node.own.run("ip link set up1 up");
    outside.own.run("ip link set up1 up");
    let macs = [mac_of(&node.own, "up1"), mac_of(&outside.own, "up1")];
    let socket = outside.own.enter(|| PacketSocket::open("up1")).unwrap();
    for family in [0, 1] {
        let closed = pod_address(2, CLOSED)[family];
        let server = node.pods[CLOSED].udp(SocketAddr::new(closed, PORT));
        let [client, outsider, own] =
            [pod_address(2, CLIENT), node_address(1), node_address(2)].map(|addresses| addresses[family]);
        let other_node = pod_address(1, 0)[family];
        let mut sources = vec![(client, "spoofed"), (other_node, "spoofed"), (outsider, "policy-ingress")];
        if family == 1 {
            // The kernel itself drops its own address of IPv4 from a wire.
            sources.push((own, "policy-ingress"));
        }
        let chains: [Tags; 3] = [&[], &[(C_TAG, 0)], &[(S_TAG, 0), (C_TAG, 0)]];
        for ((source, reason), tags) in sources.into_iter().flat_map(|from| chains.map(|tags| (from, tags))) {
            let before = dropped(node, reason);
            eventually("the switch drops a frame that the node forwards", || {
                socket.send(&datagram(macs, tags, source, closed)).unwrap();
                assert!(
                    server.recv(&mut [0; 8]).is_err(),
                    "a frame from {source} has reached the closed pod"
                );
                dropped(node, reason) > before
            });
        }
    }
    assert!(counted(node, "pods") >= 3, "the kernel forwards them");
    assert_node_reaches(node, CLOSED);
}
