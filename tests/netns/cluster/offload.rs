//! Flow offload in a cluster as it is shipped, of pods on veth pairs: what the nodes forward without their workers.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use palisade::control::protocol::FlowQuery;
use palisade::lab::PodPorts;
use palisade::net::flow::Protocol;
use serde_json::json;

use super::exchange::exchange;
use super::host::Network;
use super::rig::{Backend, Cluster, Node, outside};
use crate::support::{TIMEOUT, eventually, isolated};

const EXCHANGES: u64 = 300;
const PORT: u16 = 7000;
const NODE_PORT: u16 = 30_080;

/// Frames that the workers of a node have received.
fn upcalls(node: &Node) -> u64 {
    node.client().counters().unwrap().workers.values().map(|worker| worker.received).sum()
}

/// A flow between a client and a server.
struct Talk {
    client: UdpSocket,
    server: UdpSocket,
    /// Client, as the server sees it.
    peer: SocketAddr,
}

impl Talk {
    /// Opens a flow to an address of the server, or one that is translated to it.
    fn open(client: &impl Network, server: &impl Network, at: SocketAddr, port: u16) -> Talk {
        let any: IpAddr = if at.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
        let server = server.enter(|| UdpSocket::bind(SocketAddr::new(any, port))).unwrap();
        let client = client.enter(|| UdpSocket::bind(SocketAddr::new(any, 0))).unwrap();
        client.connect(at).unwrap();
        server.set_nonblocking(true).unwrap();
        let mut peer = at;
        eventually("a datagram arrives", || {
            client.send(b"hello").unwrap();
            server.recv_from(&mut [0; 16]).map(|(_, from)| peer = from).is_ok()
        });
        client.set_nonblocking(true).unwrap();
        eventually("an answer arrives", || {
            server.send_to(b"hello", peer).unwrap();
            client.recv(&mut [0; 16]).is_ok()
        });
        let talk = Talk { client, server, peer };
        while [&talk.client, &talk.server].iter().any(|end| end.recv(&mut [0; 16]).is_ok()) {}
        for end in [&talk.client, &talk.server] {
            end.set_nonblocking(false).unwrap();
            end.set_read_timeout(Some(TIMEOUT)).unwrap();
        }
        talk.exchange();
        talk
    }

    fn exchange(&self) {
        self.client.send(b"question").unwrap();
        assert_eq!(self.server.recv(&mut [0; 16]).unwrap(), 8);
        self.server.send_to(b"answer", self.peer).unwrap();
        assert_eq!(self.client.recv(&mut [0; 16]).unwrap(), 6);
    }

    /// Asserts that the workers of a node do not get the datagrams of the flow, and count them all the same.
    fn assert_offloaded(&self, what: &str, node: &Node) {
        let ports = [self.client.local_addr().unwrap().port(), self.peer.port()];
        let flow = || {
            let flows = node.client().flows(&FlowQuery::first(1000)).unwrap().flows;
            let mut flows = flows.into_iter().map(|record| record.flow);
            flows
                .find(|flow| flow.key.protocol == Protocol::UDP && ports.contains(&flow.key.src_port))
                .unwrap()
        };
        let counts = || [flow().packets, flow().reply_packets];
        assert!(flow().offloaded, "{what}: {:?}", flow());
        let (came_up, before) = (upcalls(node), counts());
        (0..EXCHANGES).for_each(|_| self.exchange());
        // The agent and the neighbours talk meanwhile.
        let upcalls = upcalls(node) - came_up;
        assert!(upcalls < EXCHANGES / 2, "{what}: {upcalls} frames came up");
        assert_eq!(counts(), before.map(|count| count + EXCHANGES), "{what}");
    }
}

#[test]
fn what_pods_send_outside_and_to_services_elsewhere_is_forwarded_without_the_workers() {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(2, PodPorts::Offload);
    let (client, here, far) = (cluster.pod(1, "client"), cluster.pod(1, "here"), cluster.pod(2, "far"));
    cluster.wait_for_pods();
    let [node, far_node] = &cluster.nodes[..] else { panic!("two nodes") };
    let service = |name: &str, address: [&str; 2], backend: &super::rig::Pod, number, node_port: u16| {
        let addresses = address.map(|address| address.parse().unwrap());
        let spec = json!({"type": "NodePort", "nodePort": node_port});
        let backend = Backend { addresses: backend.addresses, node: Some(number) };
        cluster.put_service(name, addresses, &spec, &backend);
        cluster.wait_for_backend(name, backend.addresses[0]);
        addresses
    };
    let to_far = service("far", ["10.96.0.20", "fd00:96::20"], &far, 2, NODE_PORT + 1);
    service("here", ["10.96.0.21", "fd00:96::21"], &here, 1, NODE_PORT);
    for family in [0, 1] {
        let at = |addresses: [IpAddr; 2], port| SocketAddr::new(addresses[family], port);
        let talk = Talk::open(&client, &cluster.outside, at(outside(), PORT), PORT);
        assert_eq!(talk.peer.ip(), node.addresses[family], "the node stands for the pod");
        talk.assert_offloaded("pod to the outside", node);
        drop(talk);
        let talk = Talk::open(&client, &far, at(far.addresses, PORT), PORT);
        talk.assert_offloaded("pod to a pod elsewhere", node);
        talk.assert_offloaded("pod to a pod elsewhere, there", far_node);
        drop(talk);
        let talk = Talk::open(&client, &far, at(to_far, 80), PORT);
        talk.assert_offloaded("pod to a Service elsewhere", node);
        drop(talk);
        let talk = Talk::open(&cluster.outside, &here, at(node.addresses, NODE_PORT), PORT);
        assert_eq!(talk.peer.ip(), outside()[family], "the pod sees the client");
        talk.assert_offloaded("the outside to a port of the node", node);
        drop(talk);
        // TCP, whole transfers, and what has to be fragmented.
        assert_eq!(exchange(&client, &cluster.outside, outside()[family]), Ok(node.addresses[family]));
    }
    let counters = node.client().counters().unwrap();
    assert_eq!(counters.offload.unwrap().lost, 0);
    assert!(counters.ports["uplink"].offloaded > 8 * EXCHANGES, "{:?}", counters.ports["uplink"]);
    // A listener on the node's card, as tcpdump is one, changes nothing.
    let socket = node.host.enter(|| crate::support::packet_socket::PacketSocket::open("eth0")).unwrap();
    let talk = Talk::open(&client, &cluster.outside, SocketAddr::new(outside()[0], PORT + 1), PORT + 1);
    talk.assert_offloaded("beside a listener", node);
    drop(socket);
}
