//! Flow offload by uplinks: the kernel forwards established flows of pods to the network and back, and nothing that policy, a
//! change of it, or of a route denies.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use palisade::control::protocol::{FlowQuery, PortInfo};
use palisade::dataplane::FlowInfo;
use palisade::lab::PodPorts;
use palisade::net::flow::Protocol;

use super::node::{Cluster, Namespace, Node, pod_address};
use super::origin::mac_of;
use super::{PORT, policy, tcp_crosses};
use crate::support::packet_socket::PacketSocket;
use crate::support::{INGRESS, TIMEOUT, eventually, isolated};

/// Two nodes whose pods have offloaded ports: `client` on the first, `server` and `neighbour` on the second.
fn rig(policies: &str) -> Cluster {
    let mut cluster = Cluster::with(PodPorts::Offload, [&["client"], &["server", "neighbour"]], policies);
    for node in &mut cluster.nodes {
        node.config += "[offload]\nmode = \"kernel\"\n";
    }
    cluster
}

fn open_rig() -> Cluster {
    let mut cluster = rig(&policy("none", "nobody", "  ingress: []\n"));
    cluster.start();
    cluster
}

/// Frames that workers have received.
fn upcalls(node: &Node) -> u64 {
    node.client().counters().unwrap().workers.values().map(|worker| worker.received).sum()
}

fn flows(node: &Node, protocol: Protocol) -> Vec<FlowInfo> {
    let flows = node.client().flows(&FlowQuery::first(100)).unwrap().flows.into_iter();
    flows.map(|record| record.flow).filter(|flow| flow.key.protocol == protocol).collect()
}

/// The flow of a socket.
fn flow_of(node: &Node, client: &UdpSocket) -> FlowInfo {
    let port = client.local_addr().unwrap().port();
    flows(node, Protocol::UDP).into_iter().find(|flow| flow.key.src_port == port).unwrap()
}

fn uplink(node: &Node) -> PortInfo {
    node.client().ports().unwrap().into_iter().find(|port| port.name == "uplink").unwrap()
}

/// Sockets of two pods, connected to each other.
fn udp_pair([one, other]: [&Namespace; 2], [client, server]: [IpAddr; 2]) -> [UdpSocket; 2] {
    let bind = |pod: &Namespace, address| pod.enter(|| UdpSocket::bind(SocketAddr::new(address, 0))).unwrap();
    let pair = [bind(one, client), bind(other, server)];
    pair[0].connect(pair[1].local_addr().unwrap()).unwrap();
    pair[1].connect(pair[0].local_addr().unwrap()).unwrap();
    pair.iter().for_each(|socket| socket.set_read_timeout(Some(TIMEOUT)).unwrap());
    pair
}

fn exchange(pair: &[UdpSocket; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        pair[from].send(b"hello").unwrap();
        assert_eq!(pair[to].recv(&mut [0; 16]).unwrap(), 5);
    }
}

/// Opens a flow: its first packets may meet a neighbour that the kernel resolves just then.
fn open_flow(pair: &[UdpSocket; 2]) {
    let heard = || {
        pair[0].send(b"hello").unwrap();
        pair[1].set_nonblocking(true).unwrap();
        pair[1].recv(&mut [0; 16]).is_ok()
    };
    eventually("the first datagram arrives", heard);
    let answered = || {
        pair[1].send(b"hello").unwrap();
        pair[0].set_nonblocking(true).unwrap();
        pair[0].recv(&mut [0; 16]).is_ok()
    };
    eventually("the first answer arrives", answered);
    // More of them may have come.
    while pair.iter().any(|socket| socket.recv(&mut [0; 16]).is_ok()) {}
    pair.iter().for_each(|socket| socket.set_nonblocking(false).unwrap());
}

fn pair_of(cluster: &Cluster, family: usize) -> [UdpSocket; 2] {
    let [one, two] = &cluster.nodes;
    let ends = [pod_address(1, 0)[family], pod_address(2, 0)[family]];
    let pair = udp_pair([&one.pods[0], &two.pods[0]], ends);
    open_flow(&pair);
    exchange(&pair);
    pair
}

fn connect(one: &Node, two: &Node) -> [TcpStream; 2] {
    let at = SocketAddr::new(pod_address(2, 0)[0], PORT);
    let listener = two.pods[0].listen(at);
    let client = one.pods[0].connect(at, TIMEOUT).unwrap();
    let server = listener.accept().unwrap().0;
    [&client, &server].iter().for_each(|end| end.set_read_timeout(Some(TIMEOUT)).unwrap());
    [client, server]
}

fn talk([client, server]: &mut [TcpStream; 2]) {
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    server.write_all(b"answer").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
}

/// A connection over IPv4, and a UDP flow of a family, which are offloaded.
fn flows_between(cluster: &Cluster, family: usize) -> ([TcpStream; 2], [UdpSocket; 2]) {
    let [one, two] = &cluster.nodes;
    let mut connection = connect(one, two);
    talk(&mut connection);
    (connection, pair_of(cluster, family))
}

#[test]
fn established_flows_cross_two_nodes_without_the_workers_and_every_packet_is_counted() {
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [one, two] = &cluster.nodes;
    assert!([one, two].into_iter().all(|node| uplink(node).report.offloaded));
    for family in [0, 1] {
        let before = [one, two].map(upcalls);
        assert!(tcp_crosses(&one.pods[0], &two.pods[0], pod_address(2, 0)[family]));
        for (node, before) in [one, two].into_iter().zip(before) {
            let upcalls = upcalls(node) - before;
            assert!(upcalls < 60, "{upcalls} packets of a connection came up");
        }
        let pair = pair_of(&cluster, family);
        let counts = |node| {
            let flow = flow_of(node, &pair[0]);
            assert!(flow.offloaded, "{flow:?}");
            [flow.packets, flow.reply_packets, flow.bytes, flow.reply_bytes]
        };
        let before = [one, two].map(|node| (upcalls(node), counts(node)));
        (0..500).for_each(|_| exchange(&pair));
        let bytes = 500 * [33, 53][family];
        for (node, (came_up, counted)) in [one, two].into_iter().zip(before) {
            let upcalls = upcalls(node) - came_up;
            assert!(upcalls < 20, "{upcalls} datagrams came up");
            assert_eq!(counts(node), [0, 1, 2, 3].map(|i| counted[i] + [500, 500, bytes, bytes][i]));
        }
    }
    for node in [one, two] {
        let has_ended = |flow: &FlowInfo| flow.state == "time-wait" && !flow.offloaded;
        eventually("the connections end", || flows(node, Protocol::TCP).iter().all(has_ended));
        let connections = flows(node, Protocol::TCP);
        assert_eq!(connections.len(), 2, "{connections:?}");
        for flow in connections {
            assert!(flow.bytes > 1 << 20 && flow.reply_bytes > 1 << 20, "{flow:?}");
        }
        let counters = node.client().counters().unwrap();
        let uplink = &counters.ports["uplink"];
        assert!(uplink.offloaded > 2000 && uplink.received_bytes > 2 << 20, "{uplink:?}");
        assert_eq!(counters.offload.unwrap().lost, 0);
    }
}

#[test]
fn a_change_of_policy_ends_flows_by_an_uplink_at_once() {
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [_, two] = &cluster.nodes;
    let (mut connection, pair) = flows_between(&cluster, 1);
    let before = two.client().status().unwrap().generation;
    cluster.write_policy(&policy("server", "server", "  policyTypes: [Ingress]\n"));
    eventually("the second node has the policy", || two.client().status().unwrap().generation > before);
    let denied = || two.drops("uplink").get(INGRESS).copied().unwrap_or(0);
    let counted = denied();
    pair[0].send(b"hello").unwrap();
    eventually("a datagram is denied", || denied() > counted);
    pair[1].set_nonblocking(true).unwrap();
    assert!(pair[1].recv(&mut [0; 16]).is_err());
    let counted = denied();
    connection[0].write_all(b"question").unwrap();
    eventually("a segment is denied", || denied() > counted);
    connection[1].set_nonblocking(true).unwrap();
    assert!(connection[1].read(&mut [0; 8]).is_err());
}

/// An Ethernet frame with an IP header.
fn frame_of(
    [destination, source]: [[u8; 6]; 2],
    [from, to]: [SocketAddr; 2],
    ttl: u8,
) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let builder = etherparse::PacketBuilder::ethernet2(source, destination);
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => builder.ipv4(from.octets(), to.octets(), ttl),
        (IpAddr::V6(from), IpAddr::V6(to)) => builder.ipv6(from.octets(), to.octets(), ttl),
        _ => panic!("addresses of two families"),
    }
}

/// A datagram in an Ethernet frame.
fn frame(macs: [[u8; 6]; 2], ends: [SocketAddr; 2], ttl: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let udp = frame_of(macs, ends, ttl).udp(ends[0].port(), ends[1].port());
    udp.write(&mut frame, b"false").unwrap();
    // Stations pad what is shorter.
    frame.resize(frame.len().max(60), 0);
    frame
}

#[test]
fn a_host_on_the_wire_gets_what_the_workers_would_give_it_and_no_more() {
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [one, two] = &cluster.nodes;
    let macs = [mac_of(&two.own, "up0"), mac_of(&one.own, "up0")];
    let wire = one.own.enter(|| PacketSocket::open("up0")).unwrap();
    let dropped = |reason: &str| two.drops("uplink").get(reason).copied().unwrap_or(0);
    for family in [0, 1] {
        let pair = pair_of(&cluster, family);
        let ends = [0, 1].map(|i: usize| pair[i].local_addr().unwrap());
        pair[1].set_nonblocking(true).unwrap();
        let hears = |from: &str| {
            let mut heard = [0; 16];
            let is_heard = pair[1].recv(&mut heard).is_ok_and(|bytes| &heard[..bytes] == b"false");
            assert!(!is_heard || from == "control", "{from}, family {family}");
            is_heard
        };
        // The end of its way.
        let before = dropped("ttl-exceeded");
        wire.send(&frame(macs, ends, 1)).unwrap();
        eventually("it is dropped", || dropped("ttl-exceeded") > before);
        hears("TTL 1");
        // For another station.
        wire.send(&frame([[2, 0, 0, 0, 0, 9], macs[1]], ends, 64)).unwrap();
        // As a pod of the same node that talks to this one.
        let addresses = [pod_address(2, 1)[family], pod_address(2, 0)[family]];
        let local = udp_pair([&two.pods[1], &two.pods[0]], addresses);
        exchange(&local);
        exchange(&local);
        local[1].set_nonblocking(true).unwrap();
        let before = dropped("spoofed");
        wire.send(&frame(macs, [0, 1].map(|i: usize| local[i].local_addr().unwrap()), 64)).unwrap();
        eventually("it is dropped", || dropped("spoofed") > before);
        assert!(local[1].recv(&mut [0; 16]).is_err());
        hears("another station's address");
        // The positive control.
        let before = upcalls(two);
        wire.send(&frame(macs, ends, 64)).unwrap();
        eventually("it arrives", || hears("control"));
        assert!(upcalls(two) - before < 5);
    }
}

#[test]
fn a_host_on_the_wire_that_guesses_numbers_ends_no_connection() {
    const GUESSES: u32 = 64;
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [one, two] = &cluster.nodes;
    let macs = [mac_of(&two.own, "up0"), mac_of(&one.own, "up0")];
    let wire = one.own.enter(|| PacketSocket::open("up0")).unwrap();
    let mut connection = connect(one, two);
    (0..200).for_each(|_| talk(&mut connection));
    let ends = [0, 1].map(|i: usize| connection[i].local_addr().unwrap());
    let state = |node: &Node| {
        let flows = flows(node, Protocol::TCP);
        assert_eq!(flows.len(), 1, "{flows:?}");
        (flows[0].state.to_string(), flows[0].offloaded)
    };
    let dropped = || two.drops("uplink").get("invalid-state").copied().unwrap_or(0);
    for guess in 0..GUESSES {
        let (sequence, acknowledged) = (guess << 26, guess.wrapping_mul(0x9e37_79b9));
        let segment = || frame_of(macs, ends, 64).tcp(ends[0].port(), ends[1].port(), sequence, 1000);
        // Neither does a segment that the kernel forwards make a number of the connection's.
        for segment in [segment().ack(acknowledged), segment().ack(acknowledged).fin(), segment().rst()] {
            let mut frame = Vec::new();
            segment.write(&mut frame, &[]).unwrap();
            wire.send(&frame).unwrap();
        }
    }
    // Few of them can be in the window by chance.
    eventually("resets are dropped", || dropped() > u64::from(GUESSES / 2));
    talk(&mut connection);
    assert_eq!(state(two), ("established".to_string(), true));
    // The positive control: the ends of the connection finish it.
    connection.iter().for_each(|end| end.shutdown(std::net::Shutdown::Write).unwrap());
    for node in [one, two] {
        eventually("the flow ends", || state(node) == ("time-wait".to_string(), false));
    }
}

#[test]
fn a_connection_that_is_reset_behind_its_data_ends_its_flow_on_both_nodes() {
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [one, two] = &cluster.nodes;
    // The kernel keeps packets for a while to put them together, and a reset comes up before them.
    for node in [one, two] {
        let settings = "mount -t sysfs sys /sys && cd /sys/class/net/up0 && echo 2 > napi_defer_hard_irqs && \
                        echo 20000000 > gro_flush_timeout";
        let set = node.own.command("unshare -m sh -c").arg(settings).output().unwrap();
        assert!(set.status.success(), "{set:?}");
    }
    for bytes in [1, 100, 3000, 60_000, 300_000] {
        let mut connection = connect(one, two);
        (0..10).for_each(|_| talk(&mut connection));
        let [mut client, _server] = connection;
        let port = client.local_addr().unwrap().port();
        client.set_nonblocking(true).unwrap();
        let _ = client.write(&vec![7; bytes]);
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        for node in [one, two] {
            eventually(&format!("the flow is reset behind {bytes} bytes"), || {
                let flow = flows(node, Protocol::TCP).into_iter().find(|flow| flow.key.src_port == port);
                flow.is_none_or(|flow| flow.state == "reset" && !flow.offloaded)
            });
        }
    }
}

#[test]
fn flows_by_an_uplink_follow_another_mtu_and_another_neighbour() {
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [one, two] = &cluster.nodes;
    let (mut connection, pair) = flows_between(&cluster, 0);
    // The kernel sends to the address that its neighbour table has now.
    two.own.run("ip link set dev up0 address 02:00:00:00:00:77");
    for address in super::node_address(2) {
        one.own.run(&format!("ip neigh replace {address} lladdr 02:00:00:00:00:77 dev up0 nud reachable"));
    }
    pair[1].set_nonblocking(true).unwrap();
    eventually("the second node has taken its new address", || {
        pair[0].send(b"hello").unwrap();
        pair[1].recv(&mut [0; 16]).is_ok()
    });
    talk(&mut connection);
    one.own.run("ip link set dev up0 mtu 1300");
    eventually("the port has the MTU", || uplink(one).report.mtu == 1300);
    let [client, server] = &mut connection;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| client.write_all(&[7; 100_000]).unwrap());
        server.read_exact(&mut [0; 100_000]).unwrap();
        sender.join().unwrap();
    });
    assert_eq!(one.client().counters().unwrap().offload.unwrap().lost, 0);
}

#[test]
fn flows_by_an_uplink_follow_another_gateway() {
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [one, two] = &cluster.nodes;
    let (mut connection, pair) = flows_between(&cluster, 0);
    let [former, next] = [super::node_address(2)[0].to_string(), "192.0.2.22".to_owned()];
    two.own.run(&format!("ip address add {next}/24 dev up0"));
    let file = one.socket().with_file_name("palisade.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let [from, to] = [&former, &next].map(|hop| format!("next_hop = \"{hop}\""));
    assert!(text.contains(&from), "{text}");
    std::fs::write(&file, text.replace(&from, &to)).unwrap();
    let generation = one.client().status().unwrap().generation;
    one.client().reload().unwrap();
    eventually("the route has changed", || one.client().status().unwrap().generation > generation);
    // Nobody is at the former one.
    one.own.run(&format!("ip neigh replace {former} lladdr 02:00:00:00:00:99 dev up0 nud permanent"));
    open_flow(&pair);
    talk(&mut connection);
    let before = upcalls(one);
    (0..100).for_each(|_| exchange(&pair));
    assert!(upcalls(one) - before < 20);
}

#[test]
fn flows_by_an_uplink_outlive_the_switch_and_nothing_new_passes_meanwhile() {
    const EXCHANGES: usize = 1000;
    let Some(_isolated) = isolated() else { return };
    let mut cluster = rig(&policy("none", "nobody", "  ingress: []\n"));
    cluster.nodes[1].keeps_flows = true;
    cluster.start();
    let mut connection = connect(&cluster.nodes[0], &cluster.nodes[1]);
    talk(&mut connection);
    let pair = pair_of(&cluster, 0);
    let [one, two] = &mut cluster.nodes;
    two.kill();
    (0..EXCHANGES).for_each(|_| exchange(&pair));
    talk(&mut connection);
    let at = SocketAddr::new(pod_address(2, 0)[0], PORT + 1);
    two.assert_closed(&one.pods[0], || crate::support::closed::FirstPacket::tcp(at.ip()));
    two.start();
    (0..EXCHANGES).for_each(|_| exchange(&pair));
    talk(&mut connection);
    eventually("the flow is the kernel's again", || {
        exchange(&pair);
        flows(two, Protocol::UDP).iter().any(|flow| flow.offloaded)
    });
    let [flow] = &flows(two, Protocol::UDP)[..] else { panic!("one flow") };
    assert!(flow.packets as usize > 2 * EXCHANGES, "{flow:?}");
    assert!(two.drops("uplink").is_empty(), "{:?}", two.drops("uplink"));
}

#[test]
fn a_program_that_is_taken_off_an_uplink_is_attached_again() {
    let Some(_isolated) = isolated() else { return };
    let cluster = open_rig();
    let [_, two] = &cluster.nodes;
    let pair = pair_of(&cluster, 0);
    let index = uplink(two).report.interface_index;
    let pins = std::fs::read_dir("/sys/fs/bpf/palisade").unwrap();
    let pins = pins.map(|entry| entry.unwrap().path().join(format!("{index}-ingress")));
    let mine = two.own.enter(palisade::xdp::namespace_cookie).unwrap();
    let pin =
        pins.filter(|pin| pin.to_string_lossy().contains(&format!("netns-{mine}/"))).find(|pin| pin.exists());
    let link = libbpf_rs::Link::open(pin.unwrap()).unwrap();
    link.detach().unwrap();
    eventually("the workers have the flow, or the kernel again", || {
        pair[0].send(b"hello").unwrap();
        pair[1].set_nonblocking(true).unwrap();
        pair[1].recv(&mut [0; 16]).is_ok()
    });
    eventually("the kernel forwards again", || {
        let before = upcalls(two);
        (0..100).for_each(|_| _ = pair[0].send(b"hello"));
        two.log().contains("its tc program was taken off") && upcalls(two) - before < 20
    });
}

#[test]
fn an_uplink_with_a_tag_tells_why_its_flows_stay_with_the_workers() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = rig(&policy("none", "nobody", "  ingress: []\n"));
    let node = &mut cluster.nodes[0];
    node.uplink_vlan = Some(5);
    node.start();
    let uplink = uplink(node);
    assert!(!uplink.report.offloaded);
    let says = |warning: &String| warning.contains("not offloaded: its frames have a VLAN tag");
    assert!(uplink.report.warnings.iter().any(says), "{:?}", uplink.report.warnings);
}
