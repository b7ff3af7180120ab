//! A cluster as it is shipped: who reaches whom, and under which address.

mod exchange;
mod host;
mod offload;
mod port_mappings;
mod rig;
mod services;
mod tunnel;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use palisade::lab::PodPorts;
use serde_json::json;

use self::exchange::{PORT, exchange, exchange_at, ping_once, pings};
use self::host::Network;
use self::rig::{Cluster, outside};
use crate::support::closed::drops;
use crate::support::verdict::INGRESS;
use crate::support::{eventually, isolated};

/// Asserts that all traffic passes from one network to a server in another one, which sees the client at an address.
fn assert_path(what: &str, client: &impl Network, server: &impl Network, to: IpAddr, seen: IpAddr) {
    let found = exchange(client, server, to);
    assert_eq!(found, Ok(seen), "{what} at {to}");
    for bytes in [56, 3000] {
        assert!(pings(client, to, bytes), "{what} at {to}: echo of {bytes} bytes");
    }
}

fn paths_within_a_cluster(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(2, ports);
    let (one, other, far) = (cluster.pod(1, "one"), cluster.pod(1, "other"), cluster.pod(2, "far"));
    cluster.wait_for_pods();
    let [node, far_node] = &cluster.nodes[..] else { panic!("two nodes") };
    for family in [0, 1] {
        let [of_one, of_other, of_far] = [&one, &other, &far].map(|pod| pod.addresses[family]);
        let [of_node, of_far_node] = [node, far_node].map(|node| node.addresses[family]);
        assert_path("pod to pod", &one, &other, of_other, of_one);
        assert_path("pod to pod of the other node", &one, &far, of_far, of_one);
        assert_path("node to own pod", &node.host, &one, of_one, of_node);
        assert_path("node to pod of the other node", &node.host, &far, of_far, of_node);
        assert_path("pod to own node", &one, &node.host, of_node, of_one);
        assert_path("pod to other node", &one, &far_node.host, of_far_node, of_one);
        assert_path("pod to the outside", &one, &cluster.outside, outside()[family], of_node);
        assert_path(
            "pod of the other node to the outside",
            &far,
            &cluster.outside,
            outside()[family],
            of_far_node,
        );
        assert_path("node to the outside", &node.host, &cluster.outside, outside()[family], of_node);
        // The switch is a router, which tells of itself.
        let far = outside()[family].to_string();
        let ping = || Command::new("ping").args(["-n", "-c", "1", "-t", "1", "-W", "10", &far]).output();
        let said = String::from_utf8(one.enter(ping).unwrap().stdout).unwrap();
        assert!(said.contains("Time to live exceeded") || said.contains("Hop limit"), "{said}");
    }
}

#[test]
fn pods_and_nodes_reach_each_other_by_taps() {
    paths_within_a_cluster(PodPorts::Tap);
}

#[test]
fn pods_and_nodes_reach_each_other_by_veth_pairs() {
    paths_within_a_cluster(PodPorts::Offload);
}

#[test]
fn flows_that_the_node_masquerades_itself_keep_their_answers() {
    let Some(_isolated) = isolated() else { return };
    let beside = [["replace_kube_proxy = true", "replace_kube_proxy = false"]];
    let cluster = Cluster::up_with(2, PodPorts::Offload, &beside);
    let far = cluster.pod(2, "far");
    cluster.wait_for_pods();
    let node = &cluster.nodes[0];
    // As kube-proxy does for a port of the node whose backend is elsewhere, with ports that masqueraded flows of pods have.
    let (own, pod) = (node.addresses[0], far.addresses[0]);
    std::fs::write(
        node.host.file("/run/nat.nft"),
        format!(
            "table ip nat {{\nchain before {{ type nat hook prerouting priority -100;\n\
             ip daddr {own} meta l4proto {{ tcp, udp }} th dport 30080 dnat to {pod}:{PORT}\n}}\n\
             chain behind {{ type nat hook postrouting priority 100;\n\
             ip daddr {pod} meta l4proto {{ tcp, udp }} masquerade to :61000-61999\n}}\n}}\n"
        ),
    )
    .unwrap();
    node.host.run("nft -f /run/nat.nft");
    let at = SocketAddr::new(own, 30_080);
    assert_eq!(exchange_at(&cluster.outside, &far, at), Ok(own));
}

/// Routes of the switch in a node's table.
fn node_routes(cluster: &Cluster) -> Vec<String> {
    let host = &cluster.nodes[0].host;
    let both = [host.run("ip route show proto 80"), host.run("ip -6 route show proto 80")].concat();
    let destination = |line: &str| line.split_whitespace().next().map(str::to_owned);
    both.lines().filter_map(destination).collect()
}

#[test]
fn a_nodes_routes_follow_the_nodes_of_the_cluster_and_outlive_the_switch() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = Cluster::up(2, PodPorts::Offload);
    let all = ["10.244.2.0/24", "fd00:244:2::/64"];
    eventually("the node has the routes", || node_routes(&cluster) == all);
    cluster.nodes[0].host.run("ip route flush proto 80");
    eventually("the route is back", || node_routes(&cluster) == all);
    cluster.nodes[0].host.run("ip route replace 10.9.0.0/24 via 192.0.2.254");
    cluster.nodes[0].kill();
    let before = node_routes(&cluster);
    cluster.nodes[0].start();
    cluster.nodes[0].wait_until_ready();
    assert_eq!(node_routes(&cluster), before);
    // A prefix to which somebody else has a route stays theirs, and the status says so.
    cluster.put_node(3, "10.9.0.0/24");
    eventually("the status names the route", || {
        cluster.nodes[0]
            .client()
            .status()
            .unwrap()
            .problems
            .iter()
            .any(|problem| problem.contains("10.9.0.0/24"))
    });
    assert!(cluster.nodes[0].host.run("ip route show 10.9.0.0/24").contains("192.0.2.254"));
    cluster.put_node(3, "10.244.3.0/24");
    eventually("a node has joined", || node_routes(&cluster).contains(&"10.244.3.0/24".to_owned()));
    cluster.put_node(4, "10.244.3.0/24");
    cluster.remove_node(3);
    eventually("the prefix has moved to another node", || {
        cluster.nodes[0].host.run("ip route show 10.244.3.0/24").contains("via 192.0.2.4")
    });
    cluster.remove_node(4);
    eventually("a node has gone", || node_routes(&cluster) == before);
    eventually("nothing is left to say", || cluster.nodes[0].client().status().unwrap().problems.is_empty());
}

#[test]
fn a_pod_is_under_policy_and_open_when_add_returns() {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(1, PodPorts::Offload);
    let node = &cluster.nodes[0];
    let peer = cluster.pod(1, "peer");
    cluster.wait_for_pods();
    // No pod reaches closed ones; nothing says who they are but their objects, which have no addresses yet.
    cluster.api.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": "closed"},
        "spec": {"podSelector": {"matchLabels": {"app": "closed"}}, "policyTypes": ["Ingress"]}}));
    let port = node.client().pods().unwrap().into_iter().find(|info| info.pod.name == "peer").unwrap().port;
    for name in ["open", "closed"] {
        let pod = cluster.pending_pod(1, name, &json!([]));
        let known = node.client().pods().unwrap().iter().any(|info| info.pod.name == name && info.known);
        assert!(known, "ADD has returned, and the tables do not know the pod");
        for family in [0, 1] {
            let [own, other] = [pod.addresses[family], peer.addresses[family]];
            assert_eq!(exchange(&pod, &peer, other), Ok(own), "{name} as a client");
            if name == "open" {
                assert_eq!(exchange(&peer, &pod, own), Ok(other));
                continue;
            }
            let before = drops(&node.client(), &port, INGRESS);
            ping_once(&peer, own);
            eventually("the pod is closed", || drops(&node.client(), &port, INGRESS) > before);
        }
    }
}

#[test]
fn an_api_server_whose_packets_vanish_is_noticed() {
    let Some(_isolated) = isolated() else { return };
    let cluster = Cluster::up(1, PodPorts::Offload);
    let client = cluster.nodes[0].client();
    let away = || client.status().unwrap().source.is_some_and(|source| !source.report.away.is_empty());
    assert!(!away());
    // No reset, no error: packets vanish. A watch may be silent for longer than this test waits.
    cluster.outside.run("ip link set eth0 down");
    eventually("the agent says so", away);
}
