//! Services for clients outside: a host behind the uplink, and a node that serves node ports, external addresses and
//! load-balancer addresses.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use palisade::lab::PodPorts;
use palisade::net::flow::Protocol;

use super::node::{Cluster, Namespace, node_address, pod_address};
use super::{PORT, policy};
use crate::support::closed::FirstPacket;
use crate::support::isolated;
use crate::support::{TIMEOUT, eventually};

const NODE_PORT: u16 = 30_080;
/// Port of the Service at its addresses.
const SERVICE: u16 = 80;

/// External address, and load-balancer address, of each family.
const EXTERNAL: [[&str; 2]; 2] = [["203.0.113.9", "203.0.113.10"], ["2001:db8:9::9", "2001:db8:9::10"]];

/// Second address of the host, which policy does not let in.
const STRANGER: [&str; 2] = ["192.0.2.111", "2001:db8:2::111"];

/// The node, the Service `web`, and policy that admits the host's first address.
fn manifests(has_service: bool) -> String {
    let [v4, v6] = node_address(2);
    let [from_v4, from_v6] = node_address(1);
    let rules = format!(
        "  ingress: [{{from: [{{ipBlock: {{cidr: {from_v4}/32}}}}, {{ipBlock: {{cidr: \"{from_v6}/128\"}}}}]}}]\n"
    );
    let node = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node2}}\n\
         status: {{addresses: [{{type: InternalIP, address: {v4}}}, {{type: InternalIP, address: \"{v6}\"}}]}}\n"
    );
    let [[external_v4, balancer_v4], [external_v6, balancer_v6]] = EXTERNAL;
    let service = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\n\
         spec:\n  type: LoadBalancer\n  selector: {{app: web}}\n  ipFamilyPolicy: RequireDualStack\n\
         \x20 ipFamilies: [IPv4, IPv6]\n  clusterIP: 10.96.0.1\n  clusterIPs: [10.96.0.1, \"fd00:96::1\"]\n\
         \x20 externalIPs: [{external_v4}, \"{external_v6}\"]\n  ports:\n\
         \x20 - {{name: tcp, port: {SERVICE}, targetPort: {PORT}, nodePort: {NODE_PORT}}}\n\
         \x20 - {{name: udp, protocol: UDP, port: {SERVICE}, targetPort: {PORT}, nodePort: {NODE_PORT}}}\n\
         status: {{loadBalancer: {{ingress: [{{ip: {balancer_v4}}}, {{ip: \"{balancer_v6}\"}}]}}}}\n"
    );
    format!("{}---\n{node}{}", policy("web", "web", &rules), if has_service { &service } else { "" })
}

/// A host without a switch, and a node with the Service.
fn rig(ports: PodPorts, workers: usize) -> Cluster {
    let mut cluster = Cluster::with(ports, [&[], &["web"]], &manifests(true));
    cluster.nodes[1].workers = workers;
    let host = &cluster.nodes[0].own;
    let [v4, v6] = node_address(2);
    for line in [
        format!("ip route add 203.0.113.0/24 via {v4}"),
        format!("ip route add 2001:db8:9::/64 via {v6}"),
        format!("ip address add {}/24 dev up0", STRANGER[0]),
        format!("ip address add {}/64 dev up0 nodad preferred_lft 0", STRANGER[1]),
    ] {
        host.run(&line);
    }
    cluster.nodes[1].keeps_flows = true;
    cluster.nodes[1].start();
    let client = cluster.nodes[1].client();
    eventually("Services are loaded", || client.services().is_ok_and(|report| !report.ports.is_empty()));
    cluster
}

/// Destinations of the Service of a family.
fn destinations(family: usize) -> [SocketAddr; 3] {
    let [external, balancer] = EXTERNAL[family].map(|text| text.parse::<IpAddr>().unwrap());
    [(node_address(2)[family], NODE_PORT), (external, SERVICE), (balancer, SERVICE)].map(SocketAddr::from)
}

fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
}

/// Opens a connection from the host to a server in `to` that listens at `at`. The server sees the host's address, and another
/// port where the backend knows the host's own by another address of the Service.
fn open(host: &Namespace, to: &Namespace, at: SocketAddr, by: SocketAddr) -> [TcpStream; 2] {
    let listener = to.listen(at);
    let client = host.connect(by, TIMEOUT).unwrap_or_else(|error| panic!("{by}: {error}"));
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer.ip(), client.local_addr().unwrap().ip());
    [&client, &server].into_iter().for_each(patient);
    [client, server]
}

/// Sends both ways over a connection.
fn talk([client, server]: &mut [TcpStream; 2]) {
    let message: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
    let cross = |from: &mut TcpStream, to: &mut TcpStream| {
        let mut heard = vec![0; message.len()];
        from.write_all(&message).unwrap();
        to.read_exact(&mut heard).unwrap();
        assert_eq!(heard, message);
    };
    cross(client, server);
    cross(server, client);
}

/// Whether a datagram reaches the server, and its reply the client.
fn udp_answers(client: &UdpSocket, server: &UdpSocket, by: SocketAddr) -> bool {
    let mut heard = [0; 16];
    while server.recv_from(&mut heard).is_ok() {}
    client.send_to(b"hello", by).unwrap();
    let Ok((bytes, peer)) = server.recv_from(&mut heard) else { return false };
    assert_eq!(peer, client.local_addr().unwrap());
    server.send_to(&heard[..bytes], peer).unwrap();
    client.recv_from(&mut heard).is_ok_and(|(_, from)| from == by)
}

#[test]
fn a_host_outside_reaches_services_under_policy_and_the_node_keeps_its_other_ports() {
    let Some(_isolated) = isolated() else { return };
    reaches_services_under_policy(PodPorts::Veth, 1);
}

#[test]
fn a_host_outside_reaches_services_of_a_tap_under_policy_by_two_workers() {
    let Some(_isolated) = isolated() else { return };
    reaches_services_under_policy(PodPorts::Tap, 2);
}

fn reaches_services_under_policy(ports: PodPorts, workers: usize) {
    let cluster = rig(ports, workers);
    let [outside, node] = &cluster.nodes;
    let (host, web) = (&outside.own, &node.pods[0]);
    for family in [0, 1] {
        let pod = SocketAddr::new(pod_address(2, 0)[family], PORT);
        let own = node_address(1)[family];
        // Sockets may have the address at once.
        let at_once = ["", " nodad"][family];
        let server = web.udp(pod);
        for by in destinations(family) {
            talk(&mut open(host, web, pod, by));
            let client = host.udp(SocketAddr::new(own, 0));
            eventually("a datagram crosses", || udp_answers(&client, &server, by));
            // Policy sees the host's own address.
            let stranger = host.udp(SocketAddr::new(STRANGER[family].parse().unwrap(), 0));
            let denied = || node.drops("uplink").get("policy-ingress").copied().unwrap_or(0);
            let before = denied();
            stranger.send_to(b"hello", by).unwrap();
            eventually("policy denies the stranger", || denied() > before);
            server.set_nonblocking(true).unwrap();
            assert!(server.recv(&mut [0; 16]).is_err());
            server.set_nonblocking(false).unwrap();
            // A pod's address is nobody's outside.
            host.run(&format!("ip address add {} dev lo{at_once}", pod.ip()));
            let spoofer = host.udp(SocketAddr::new(pod.ip(), 0));
            let spoofed = || node.drops("uplink").get("spoofed").copied().unwrap_or(0);
            let before = spoofed();
            spoofer.send_to(b"hello", by).unwrap();
            eventually("the packet is spoofed", || spoofed() > before);
            host.run(&format!("ip address delete {} dev lo", pod.ip()));
        }
        // Other ports are the node's own, at its address and at an external one that its kernel has.
        let external = destinations(family)[1].ip();
        node.own.run(&format!("ip address add {external} dev lo{at_once}"));
        for address in [node_address(2)[family], external] {
            let at = SocketAddr::new(address, 22);
            talk(&mut open(host, &node.own, at, at));
        }
        node.own.run(&format!("ip address delete {external} dev lo"));
    }
}

#[test]
fn a_host_outside_reaches_each_address_of_a_service_from_one_port() {
    let Some(_isolated) = isolated() else { return };
    let cluster = rig(PodPorts::Veth, 1);
    let [outside, node] = &cluster.nodes;
    let host = &outside.own;
    // The kernel takes a port anew as soon as the other end of the connection is another one.
    host.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000")).unwrap();
    for family in [0, 1] {
        let at = SocketAddr::new(pod_address(2, 0)[family], PORT);
        for by in destinations(family) {
            let mut connection = open(host, &node.pods[0], at, by);
            assert_eq!(connection[0].local_addr().unwrap().port(), 40_000);
            talk(&mut connection);
        }
    }
}

#[test]
fn a_service_that_goes_returns_its_ports_to_the_kernel() {
    let Some(_isolated) = isolated() else { return };
    let cluster = rig(PodPorts::Veth, 1);
    let [outside, node] = &cluster.nodes;
    let (host, web) = (&outside.own, &node.pods[0]);
    for family in [0, 1] {
        let [by, ..] = destinations(family);
        talk(&mut open(host, web, SocketAddr::new(pod_address(2, 0)[family], PORT), by));
    }
    cluster.write_policy(&manifests(false));
    for family in [0, 1] {
        let [by, ..] = destinations(family);
        let kernel = node.own.udp(by);
        let client = host.udp(SocketAddr::new(node_address(1)[family], 0));
        eventually("the kernel has the port", || udp_answers(&client, &kernel, by));
        talk(&mut open(host, &node.own, by, by));
    }
    cluster.write_policy(&manifests(true));
    for family in [0, 1] {
        let [by, ..] = destinations(family);
        let at = SocketAddr::new(pod_address(2, 0)[family], PORT);
        let server = web.udp(at);
        let client = host.udp(SocketAddr::new(node_address(1)[family], 0));
        eventually("the switch has the port", || udp_answers(&client, &server, by));
    }
}

#[test]
fn connections_from_outside_outlive_the_switch() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = rig(PodPorts::Veth, 1);
    let [outside, node] = &mut cluster.nodes;
    let host = &outside.own;
    let by: Vec<[SocketAddr; 2]> = [0, 1]
        .into_iter()
        .flat_map(|family| {
            let at = SocketAddr::new(pod_address(2, 0)[family], PORT);
            destinations(family).map(|by| [at, by])
        })
        .collect();
    // All connections of a family have one port of the host, so that the backend knows all but one by another.
    let set_ports = |first: u16, last: u16| {
        let range = format!("{first} {last}");
        host.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range)).unwrap();
    };
    set_ports(41_000, 41_000);
    let mut connections: Vec<_> = by.iter().map(|[at, by]| open(host, &node.pods[0], *at, *by)).collect();
    set_ports(42_000, 60_999);
    connections.iter_mut().for_each(talk);
    node.kill();
    for [_, by] in &by {
        node.assert_closed(host, || FirstPacket::send(Protocol::TCP, by.ip(), by.port()));
    }
    // Nothing of a connection reaches the kernel, which would reset it.
    for [client, _] in &mut connections {
        client.write_all(b"while the switch is down").unwrap();
    }
    node.start();
    for connection in &mut connections {
        let mut heard = [0; 24];
        connection[1].read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"while the switch is down");
        talk(connection);
    }
}

/// Has the kernel refuse changes of a map of the program on an interface.
fn freeze(interface: &str, map: &str) {
    use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
    use libbpf_rs::{MapCore, MapHandle, Xdp, XdpFlags};
    use std::os::fd::AsFd;
    let index = palisade::netlink::Interface::find(interface).unwrap().index.cast_signed();
    // The kernel answers for the interface; the descriptor does not matter.
    let anything = std::fs::File::open("/dev/null").unwrap();
    let id = Xdp::new(anything.as_fd()).query_id(index, XdpFlags::NONE).unwrap();
    let mut programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let maps = programs.find(|info| info.id == id).unwrap().map_ids;
    let maps = maps.into_iter().map(|id| MapHandle::from_map_id(id).unwrap());
    maps.filter(|found| found.name() == map).for_each(|map| map.freeze().unwrap());
}

#[test]
fn ports_that_an_uplink_cannot_take_are_a_problem_in_the_status() {
    let Some(_isolated) = isolated() else { return };
    let cluster = rig(PodPorts::Veth, 1);
    let node = &cluster.nodes[1];
    let problems = || node.client().status().unwrap().problems;
    assert!(problems().is_empty(), "{:?}", problems());
    node.own.enter(|| freeze("up0", "service_ports"));
    cluster.write_policy(&manifests(false));
    eventually("the status says so", || {
        problems().iter().any(|problem| problem.contains("up0 does not take all that is for Services"))
    });
}
