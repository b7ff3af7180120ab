//! Ports of a node that lead to pods (`hostPort`), by the switch: who reaches them, under which address, and under whose policy.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use palisade::control::protocol::PodRequest;
use palisade::lab::PodPorts;
use palisade::tables::PodName;
use serde_json::{Value, json};

use super::exchange::{PORT, connects, exchange_at};
use super::host::Network;
use super::rig::{Backend, Cluster, Node, outside};
use super::services::Server;
use crate::support::closed::{FirstPacket, drops};
use crate::support::verdict::INGRESS;
use crate::support::{TIMEOUT, eventually, isolated};

const HOST_PORT: u16 = 8080;

/// The port of the node, TCP and UDP, that leads to that of the servers.
fn both() -> Value {
    ["tcp", "udp"].map(|protocol| mapping("", HOST_PORT, protocol)).to_vec().into()
}

fn mapping(host_ip: &str, host_port: u16, protocol: &str) -> Value {
    json!({"hostIP": host_ip, "hostPort": host_port, "containerPort": PORT, "protocol": protocol})
}

/// Waits until sockets of a node find its ports.
fn wait_for_sockets(node: &Node, server: &impl Network) {
    let at = SocketAddr::new(node.addresses[0], HOST_PORT);
    eventually("sockets of the node have the port", || connects(&node.host, server, at));
}

fn everybody_reaches_a_pod_by_ports_of_its_node(ports: PodPorts, workers: usize) {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up_with(2, ports, super::rig::workers(workers));
    let web = cluster.pod_with(1, "web", &both());
    let (one, far) = (cluster.pod(1, "one"), cluster.pod(2, "far"));
    cluster.wait_for_pods();
    let [node, far_node] = &cluster.nodes[..] else { panic!("two nodes") };
    wait_for_sockets(node, &web);
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for family in [0, 1] {
        let at = SocketAddr::new(node.addresses[family], HOST_PORT);
        let own = node.addresses[family];
        assert_eq!(exchange_at(&cluster.outside, &web, at), Ok(outside()[family]), "from outside");
        assert_eq!(
            exchange_at(&far_node.host, &web, at),
            Ok(far_node.addresses[family]),
            "from the other node"
        );
        assert_eq!(exchange_at(&far, &web, at), Ok(far.addresses[family]), "from a pod of the other node");
        assert_eq!(exchange_at(&one, &web, at), Ok(one.addresses[family]), "from a pod of the node");
        assert_eq!(exchange_at(&node.host, &web, at), Ok(own), "from the node");
        let at = SocketAddr::new(loopback[family], HOST_PORT);
        assert_eq!(exchange_at(&node.host, &web, at), Ok(own), "from the node, by its loopback address");
    }
    let at = SocketAddr::new(node.addresses[0], HOST_PORT);
    assert!(exchange_at(&web, &web, at).is_ok(), "from the pod itself");
    assert!(node.client().status().unwrap().problems.is_empty());

    // Policy knows the clients by their own addresses.
    cluster.api.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": "one"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "one"}}}]}]}}));
    for family in [0, 1] {
        let at = SocketAddr::new(node.addresses[family], HOST_PORT);
        let denied = || drops(&node.client(), "uplink", INGRESS);
        let before = denied();
        eventually("clients outside are denied", || {
            let _packet = cluster.outside.enter(|| FirstPacket::to(at));
            denied() > before
        });
        assert!(!connects(&far, &web, at), "a pod of the other node connects");
        assert_eq!(exchange_at(&one, &web, at), Ok(one.addresses[family]), "the pod that may");
    }
}

#[test]
fn everybody_reaches_a_pod_on_a_tap_by_ports_of_its_node() {
    everybody_reaches_a_pod_by_ports_of_its_node(PodPorts::Tap, 2);
}

#[test]
fn everybody_reaches_a_pod_on_a_veth_pair_by_ports_of_its_node() {
    everybody_reaches_a_pod_by_ports_of_its_node(PodPorts::Offload, 1);
}

#[test]
fn connections_by_a_port_of_the_node_outlive_the_switch_and_the_port_goes_with_its_pod() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = Cluster::up(1, PodPorts::Offload);
    let web = cluster.pod_with(1, "web", &both());
    cluster.wait_for_pods();
    let at = cluster.nodes[0].addresses.map(|address| SocketAddr::new(address, HOST_PORT));
    let mut connections: Vec<[TcpStream; 2]> = at
        .iter()
        .map(|at| {
            let any = if at.is_ipv4() { "0.0.0.0" } else { "::" };
            let listener = web.enter(|| TcpListener::bind((any, PORT)).unwrap());
            let client = cluster.outside.enter(|| TcpStream::connect_timeout(at, TIMEOUT).unwrap());
            [client, listener.accept().unwrap().0]
        })
        .collect();
    let mut go_on = || {
        for [client, server] in &mut connections {
            server.set_read_timeout(Some(TIMEOUT)).unwrap();
            client.write_all(b"hello").unwrap();
            server.read_exact(&mut [0; 5]).unwrap();
        }
    };
    go_on();
    for _ in 0..2 {
        cluster.nodes[0].kill();
        cluster.nodes[0].start();
        cluster.nodes[0].wait_until_ready();
        go_on();
        assert_eq!(exchange_at(&cluster.outside, &web, at[0]), Ok(outside()[0]), "a new client");
    }
    let node = &cluster.nodes[0];
    assert_eq!(exchange_at(&cluster.outside, &web, at[1]), Ok(outside()[1]));
    let services = node.client().services().unwrap();
    let mapped: Vec<_> = services.port_mappings.iter().map(|port| port.service.to_string()).collect();
    assert_eq!(
        mapped,
        [format!("default/web:{HOST_PORT}:{PORT}/tcp"), format!("default/web:{HOST_PORT}:{PORT}/udp")]
    );

    // Without the pod the port is the node's own again.
    node.client().delete_pod(&PodName::new("default", "web")).unwrap();
    eventually("the node has its port", || {
        let listener = node.host.enter(|| TcpListener::bind(("0.0.0.0", HOST_PORT)).unwrap());
        let client = cluster.outside.enter(|| TcpStream::connect_timeout(&at[0], TIMEOUT));
        client.is_ok() && listener.accept().is_ok()
    });
}

#[test]
fn beside_a_kube_proxy_sockets_of_the_node_get_ports_of_pods_alone() {
    let Some(_isolated) = isolated() else { return };
    let beside = [["replace_kube_proxy = true", "replace_kube_proxy = false"]];
    let cluster = Cluster::up_with(1, PodPorts::Offload, &beside);
    let node = &cluster.nodes[0];
    let programs = || node.host.run("find /sys/fs/bpf -name sockets-*").lines().count();
    assert_eq!(programs(), 0);
    let web = cluster.pod_with(1, "web", &both());
    let inside = ["10.96.0.7", "fd00:96::7"].map(|text| text.parse().unwrap());
    cluster.put_service("web", inside, &json!({}), &Backend { addresses: web.addresses, node: Some(1) });
    cluster.wait_for_pods();
    cluster.wait_for_backend("web", web.addresses[0]);
    wait_for_sockets(node, &web);
    for family in [0, 1] {
        let at = SocketAddr::new(node.addresses[family], HOST_PORT);
        assert_eq!(exchange_at(&node.host, &web, at), Ok(node.addresses[family]));
        assert_eq!(exchange_at(&cluster.outside, &web, at), Ok(outside()[family]));
    }
    assert!(!connects(&node.host, &web, SocketAddr::new(inside[0], 80)), "kube-proxy has the Services");
    node.client().delete_pod(&PodName::new("default", "web")).unwrap();
    eventually("the programs go with the last port", || programs() == 0);
}

/// As the conformance test of Kubernetes for `hostPort` with several addresses and protocols.
#[test]
fn one_port_leads_to_several_pods_by_address_and_protocol() {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(1, PodPorts::Offload);
    let node = &cluster.nodes[0];
    let own = node.addresses[0].to_string();
    let pods = [("127.0.0.1", "tcp"), (&own, "tcp"), (&own, "udp")];
    let pods = pods.map(|(address, protocol)| {
        let name = format!("{protocol}-{}", if address == own { "node" } else { "loopback" });
        cluster.pod_with(1, &name, &json!([mapping(address, HOST_PORT, protocol)]))
    });
    let client = cluster.pod(1, "client");
    cluster.wait_for_pods();
    let [loopback, of_node] =
        ["127.0.0.1", &own].map(|address| SocketAddr::new(address.parse().unwrap(), HOST_PORT));
    eventually("sockets have the first port", || connects(&node.host, &pods[0], loopback));
    eventually("sockets have the second port", || connects(&node.host, &pods[1], of_node));
    for from in [&client.network(), &cluster.outside.network()] {
        let from = Server(from.clone());
        assert!(connects(&from, &pods[1], of_node));
        assert!(!connects(&from, &pods[0], of_node));
        assert!(hears_datagram(&from, &pods[2], of_node));
    }
    assert!(hears_datagram(&node.host, &pods[2], of_node));
    // A port that another pod has.
    let taken = PodRequest {
        port: "none".to_owned(),
        addresses: vec!["10.244.1.200".parse().unwrap()],
        port_mappings: vec![format!("{HOST_PORT}:80").parse().unwrap()],
        ..PodRequest::default()
    };
    let refused = node.client().put_pod(&PodName::new("default", "late"), &taken);
    assert!(refused.is_err(), "{refused:?}");
    let problems = || node.client().status().unwrap().problems;
    assert!(problems().is_empty(), "{:?}", problems());
    // An address that the node does not have.
    cluster.pod_with(1, "strange", &json!([mapping("192.0.2.77", 9090, "tcp")]));
    eventually("the status says so", || problems().iter().any(|problem| problem.contains("192.0.2.77")));
}

/// Whether a datagram to this address arrives at a server.
fn hears_datagram(client: &impl Network, server: &impl Network, to: SocketAddr) -> bool {
    let serving = server.enter(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
    let asking = client.enter(|| UdpSocket::bind(("0.0.0.0", 0)).unwrap());
    serving.set_read_timeout(Some(TIMEOUT)).unwrap();
    asking.send_to(b"hello", to).unwrap();
    serving.recv(&mut [0; 16]).is_ok()
}
