//! Nodes that share no network: their pods reach each other by tunnels.

use std::net::{IpAddr, SocketAddr};

use palisade::lab::PodPorts;
use serde_json::json;

use super::assert_path;
use super::exchange::{PORT, connects, exchange_at, ping_once};
use super::rig::{Backend, Cluster, FAR, Number, outside};
use crate::support::capture::Capture;
use crate::support::closed::drops;
use crate::support::verdict::INGRESS;
use crate::support::{eventually, isolated};

/// Waits until a node's switch has a tunnel to the pods of another one in each family.
fn wait_for_tunnels(cluster: &Cluster, node: Number, to: Number) {
    let pods: [ipnet::IpNet; 2] =
        [format!("10.244.{to}.0/24"), format!("fd00:244:{to}::/64")].map(|prefix| prefix.parse().unwrap());
    eventually("the switch has the tunnels", || {
        let routes = cluster.nodes[usize::from(node) - 1].client().routes().unwrap();
        pods.iter().all(|pods| routes.iter().any(|route| route.prefix == *pods && route.tunnel))
    });
}

fn paths_between_networks(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(3, ports);
    let [one, there, far] = [cluster.pod(1, "one"), cluster.pod(2, "there"), cluster.pod(FAR, "far")];
    cluster.wait_for_pods();
    for [node, to] in [[1, FAR], [FAR, 1], [FAR, 2]] {
        wait_for_tunnels(&cluster, node, to);
    }
    let [node, _, far_node] = &cluster.nodes[..] else { panic!("three nodes") };
    // The router sees nodes alone, and between those of different networks nothing but tunnels and what nodes say to each other.
    let pods = "net 10.244.0.0/16 or net fd00:244::/32";
    let between = Capture::on("node3", {
        let mut tcpdump = cluster.router.command("tcpdump");
        tcpdump.args(pods.split(' '));
        tcpdump
    });
    let tunnels = Capture::on("node3", {
        let mut tcpdump = cluster.router.command("tcpdump");
        tcpdump.args(["udp", "port", "4789"]);
        tcpdump
    });
    for family in [0, 1] {
        let [of_one, of_there, of_far] = [&one, &there, &far].map(|pod| pod.addresses[family]);
        let [of_node, of_far_node] = [node, far_node].map(|node| node.addresses[family]);
        assert_path("pod to pod of another network", &one, &far, of_far, of_one);
        assert_path("and back", &far, &one, of_one, of_far);
        assert_path("pod to pod of the same network", &one, &there, of_there, of_one);
        assert_path("node to pod of another network", &node.host, &far, of_far, of_node);
        assert_path("node of another network to pod", &far_node.host, &one, of_one, of_far_node);
        assert_path("pod to node of another network", &one, &far_node.host, of_far_node, of_one);
        assert_path("pod to own node", &far, &far_node.host, of_far_node, of_far);
        assert_path("node to node", &node.host, &far_node.host, of_far_node, of_node);
        assert_path("pod to the outside", &far, &cluster.outside, outside()[family], of_far_node);
    }
    assert_eq!(between.frames(), Vec::<String>::new());
    let heard = tunnels.frames();
    assert!(heard.iter().any(|line| line.contains("VXLAN") && line.contains("vni 1")), "{heard:?}");
    for node in &cluster.nodes {
        assert_eq!(node.client().status().unwrap().problems, Vec::<String>::new());
    }
}

#[test]
fn pods_of_nodes_that_share_no_network_reach_each_other_by_taps() {
    paths_between_networks(PodPorts::Tap);
}

#[test]
fn pods_of_nodes_that_share_no_network_reach_each_other_by_veth_pairs() {
    paths_between_networks(PodPorts::Offload);
}

#[test]
fn policy_and_services_hold_between_networks() {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(3, PodPorts::Tap);
    let [one, other, far] = [cluster.pod(1, "one"), cluster.pod(1, "other"), cluster.pod(FAR, "far")];
    cluster.wait_for_pods();
    wait_for_tunnels(&cluster, 1, FAR);
    wait_for_tunnels(&cluster, FAR, 1);
    let [node, _, far_node] = &cluster.nodes[..] else { panic!("three nodes") };
    let virtual_addresses: [IpAddr; 2] = ["10.96.0.7", "fd00:96::7"].map(|text| text.parse().unwrap());
    let backend = Backend { addresses: far.addresses, node: Some(FAR) };
    let spec = json!({"type": "NodePort", "nodePort": 30_080});
    cluster.put_service("web", virtual_addresses, &spec, &backend);
    far.addresses.iter().for_each(|address| cluster.wait_for_backend("web", *address));
    for address in virtual_addresses {
        let at = SocketAddr::new(address, 80);
        eventually("sockets have the backend", || connects(&node.host, &far, at));
    }
    for family in [0, 1] {
        let [of_node, of_far_node] = [node, far_node].map(|node| node.addresses[family]);
        let by_name = SocketAddr::new(virtual_addresses[family], 80);
        assert_eq!(exchange_at(&one, &far, by_name), Ok(one.addresses[family]), "pod to ClusterIP");
        assert_eq!(exchange_at(&node.host, &far, by_name), Ok(of_node), "node to ClusterIP");
        let asked = SocketAddr::new(of_node, 30_080);
        assert_eq!(exchange_at(&cluster.outside, &far, asked), Ok(of_node), "outside to NodePort");
        assert_eq!(
            exchange_at(&far_node.host, &far, asked),
            Ok(of_node),
            "the node of the backend to NodePort"
        );
        let asked = SocketAddr::new(of_far_node, 30_080);
        assert_eq!(exchange_at(&cluster.outside, &far, asked), Ok(outside()[family]), "outside to its node");
        assert_eq!(exchange_at(&one, &far, asked), Ok(one.addresses[family]), "pod to NodePort there");
    }
    // The far pod takes one of them.
    cluster.api.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": "one"},
        "spec": {"podSelector": {"matchLabels": {"app": "far"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "one"}}}]}]}}));
    for family in [0, 1] {
        let before = drops(&far_node.client(), "uplink", INGRESS);
        eventually("the other pod is denied", || {
            ping_once(&other, far.addresses[family]);
            drops(&far_node.client(), "uplink", INGRESS) > before
        });
        let at = SocketAddr::new(far.addresses[family], PORT);
        assert_eq!(exchange_at(&one, &far, at), Ok(one.addresses[family]));
    }
}

#[test]
fn the_other_end_of_a_tunnel_may_be_the_kernels() {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(1, PodPorts::Offload);
    let one = cluster.pod(1, "one");
    cluster.wait_for_pods();
    let kernel = cluster.bare_node(FAR);
    wait_for_tunnels(&cluster, 1, FAR);
    for (family, added) in [(0, 50), (1, 70)] {
        let [own, far] = [cluster.nodes[0].addresses[family], kernel.addresses[family]];
        let device = ["four", "six"][family];
        let [pods, address, gateway] = [
            ["10.244.1.0/24", "10.244.3.1/24", "10.244.3.254"],
            ["fd00:244:1::/64", "fd00:244:3::1/64", "fd00:244:3::fe"],
        ][family];
        for line in [
            format!("ip link add {device} type vxlan id 1 dstport 4789 local {far} remote {own} nolearning"),
            // The address of the switch of each node.
            format!("ip link set {device} address 02:50:41:4c:00:01 mtu {} up", 1500 - added),
            format!("ip address add {address} dev {device}"),
            format!("ip neigh replace {gateway} lladdr 02:50:41:4c:00:02 nud permanent dev {device}"),
            format!("ip route add {pods} via {gateway} dev {device} onlink"),
        ] {
            kernel.host.run(&line);
        }
        let to: IpAddr = address.split('/').next().unwrap().parse().unwrap();
        let pod = one.addresses[family];
        assert_path("pod to a pod behind a tunnel of the kernel", &one, &kernel.host, to, pod);
        assert_path("and back", &kernel.host, &one, pod, to);
    }
}
