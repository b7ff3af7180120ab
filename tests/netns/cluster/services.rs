//! Services of a cluster without kube-proxy: who reaches which backend, and under which address.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use palisade::lab::PodPorts;
use serde_json::{Value, json};

use super::exchange::{RESEND, connects, exchange_at};
use super::host::Network;
use super::rig::{Backend, Cluster, Pod, outside};
use crate::support::{eventually, isolated};

const NODE_PORT: u16 = 30_080;

/// Virtual addresses inside the cluster.
fn cluster_addresses() -> [IpAddr; 2] {
    ["10.96.0.7", "fd00:96::7"].map(|text| text.parse().unwrap())
}

/// Virtual addresses for the outside, to which the router leads by the first node.
fn external_addresses() -> [IpAddr; 2] {
    ["203.0.113.7", "2001:db8:113::7"].map(|text| text.parse().unwrap())
}

fn spec() -> Value {
    json!({"type": "NodePort", "nodePort": NODE_PORT, "externalIPs": external_addresses()})
}

/// Places of a backend, as the first node sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    PodHere,
    PodThere,
    HostHere,
    HostThere,
    Outside,
}

/// Network of a server.
pub(super) struct Server(pub(super) PathBuf);

impl Network for Server {
    fn network(&self) -> PathBuf {
        self.0.clone()
    }
}

/// Cluster with pods on both nodes.
struct Paths {
    cluster: Cluster,
    /// Client and server on the first node, and a pod on the second one.
    pods: [Pod; 3],
}

impl Paths {
    fn up(ports: PodPorts) -> Paths {
        Paths::of(Cluster::up(2, ports))
    }

    fn of(cluster: Cluster) -> Paths {
        let pods = [cluster.pod(1, "client"), cluster.pod(1, "server"), cluster.pod(2, "far")];
        cluster.wait_for_pods();
        for (address, length, node) in [
            (external_addresses()[0], 32, cluster.nodes[0].addresses[0]),
            (external_addresses()[1], 128, cluster.nodes[0].addresses[1]),
        ] {
            cluster.router.run(&format!("ip route add {address}/{length} via {node}"));
        }
        for gateway in ["198.51.100.254", "2001:db8:99::fe"] {
            cluster.outside.run(&format!("ip route add default via {gateway}"));
        }
        Paths { cluster, pods }
    }

    /// Gives the Service a backend at this place, and nothing else.
    fn put(&self, place: Place, spec: &Value) {
        for address in self.put_unseen(place, spec) {
            self.cluster.wait_for_backend("web", address);
        }
    }

    /// Does so while no switch may run. Returns the addresses of the backend.
    fn put_unseen(&self, place: Place, spec: &Value) -> [IpAddr; 2] {
        let [here, there] = [0, 1].map(|node: usize| self.cluster.nodes[node].addresses);
        let (addresses, node) = match place {
            Place::PodHere => (self.pods[1].addresses, Some(1)),
            Place::PodThere => (self.pods[2].addresses, Some(2)),
            Place::HostHere => (here, Some(1)),
            Place::HostThere => (there, Some(2)),
            Place::Outside => (outside(), None),
        };
        self.cluster.put_service("web", cluster_addresses(), spec, &Backend { addresses, node });
        addresses
    }

    /// Network of the backend at a place.
    fn server(&self, place: Place) -> Server {
        let nodes = &self.cluster.nodes;
        Server(match place {
            Place::PodHere => self.pods[1].network(),
            Place::PodThere => self.pods[2].network(),
            Place::HostHere => nodes[0].host.network(),
            Place::HostThere => nodes[1].host.network(),
            Place::Outside => self.cluster.outside.network(),
        })
    }

    /// Exchanges data with the backend at a place. Returns the address that it has seen.
    fn exchange(&self, client: &impl Network, place: Place, to: SocketAddr) -> Result<IpAddr, String> {
        exchange_at(client, &self.server(place), to)
    }

    /// Waits until sockets of the first node get the backends at a place, too: each family has an object of its own.
    fn wait_for_sockets(&self, place: Place) {
        for address in cluster_addresses() {
            let at = SocketAddr::new(address, 80);
            eventually("sockets have the backend", || {
                connects(&self.cluster.nodes[0].host, &self.server(place), at)
            });
        }
    }
}

fn services_within_a_cluster(ports: PodPorts, workers: usize) {
    let Some(_isolated) = isolated() else { return };
    let paths = Paths::of(Cluster::up_with(2, ports, super::rig::workers(workers)));
    assert_eq!(paths.cluster.nodes[0].client().status().unwrap().cores.len(), workers);
    let [node, far_node] = &paths.cluster.nodes[..] else { panic!("two nodes") };
    let [client, _, far] = &paths.pods;
    for place in [Place::PodHere, Place::PodThere, Place::HostHere, Place::HostThere, Place::Outside] {
        paths.put(place, &spec());
        paths.wait_for_sockets(place);
        for family in [0, 1] {
            let [inside, external, of_node] =
                [(cluster_addresses(), 80), (external_addresses(), 80), (node.addresses, NODE_PORT)]
                    .map(|(addresses, port)| SocketAddr::new(addresses[family], port));
            let [of_far_node, of_outside] = [far_node.addresses[family], outside()[family]];
            let assert_seen = |who: &str, seen: Result<IpAddr, String>, expected: IpAddr| {
                assert_eq!(seen, Ok(expected), "{who}, backend {place:?}");
            };
            for to in [inside, external, of_node] {
                // Processes of the node have its address everywhere.
                let seen = paths.exchange(&node.host, place, to);
                assert_seen(&format!("node to {to}"), seen, of_node.ip());
                let seen = paths.exchange(client, place, to);
                let masked = if place == Place::Outside { of_node.ip() } else { client.addresses[family] };
                assert_seen(&format!("pod to {to}"), seen, masked);
            }
            if place == Place::HostHere {
                continue;
            }
            // A client outside is no backend of its own: nobody reaches itself by a node.
            for to in [external, of_node].into_iter().filter(|_| place != Place::Outside) {
                // A backend elsewhere sees the node that has been asked.
                let masked = |own: IpAddr| if place == Place::PodHere { own } else { of_node.ip() };
                let seen = paths.exchange(&paths.cluster.outside, place, to);
                assert_seen(&format!("outside to {to}"), seen, masked(of_outside));
            }
            let masked = |own: IpAddr| if place == Place::PodHere { own } else { of_node.ip() };
            if place != Place::HostThere {
                let seen = paths.exchange(&far_node.host, place, of_node);
                assert_seen(&format!("other node to {of_node}"), seen, masked(of_far_node));
            }
            if place != Place::PodThere {
                let seen = paths.exchange(far, place, of_node);
                assert_seen(
                    &format!("pod of the other node to {of_node}"),
                    seen,
                    masked(far.addresses[family]),
                );
            }
        }
    }
}

#[test]
fn services_are_reached_without_kube_proxy_by_taps() {
    services_within_a_cluster(PodPorts::Tap, 1);
}

#[test]
fn services_are_reached_without_kube_proxy_by_veth_pairs() {
    services_within_a_cluster(PodPorts::Offload, 1);
}

#[test]
fn services_are_reached_without_kube_proxy_by_taps_and_two_workers() {
    services_within_a_cluster(PodPorts::Tap, 2);
}

#[test]
fn services_are_reached_without_kube_proxy_by_veth_pairs_and_two_workers() {
    services_within_a_cluster(PodPorts::Offload, 2);
}

#[test]
fn sockets_keep_their_services_while_no_switch_runs() {
    let Some(_isolated) = isolated() else { return };
    let mut paths = Paths::up(PodPorts::Tap);
    let at = cluster_addresses().map(|address| SocketAddr::new(address, 80));
    let [of_node, of_far_node] = [0, 1].map(|node: usize| paths.cluster.nodes[node].addresses);
    // The API server's own Service has such a backend.
    paths.put(Place::HostHere, &json!({}));
    paths.wait_for_sockets(Place::HostHere);
    paths.cluster.nodes[0].kill();
    for (at, own) in at.into_iter().zip(of_node) {
        assert_eq!(paths.exchange(&paths.cluster.nodes[0].host, Place::HostHere, at), Ok(own));
    }
    paths.put_unseen(Place::HostThere, &json!({}));
    paths.cluster.nodes[0].start();
    paths.cluster.nodes[0].wait_until_ready();
    paths.wait_for_sockets(Place::HostThere);
    for (at, own) in at.into_iter().zip(of_node) {
        assert_eq!(paths.exchange(&paths.cluster.nodes[0].host, Place::HostThere, at), Ok(own));
        assert_eq!(
            paths.exchange(&paths.cluster.nodes[1].host, Place::HostThere, at),
            Ok(of_far_node[usize::from(at.is_ipv6())])
        );
    }
    // Without the setting the programs go.
    paths.cluster.nodes[0].kill();
    let node = &mut paths.cluster.nodes[0];
    node.edit("replace_kube_proxy = true", "replace_kube_proxy = false");
    assert_eq!(node.host.run("find /sys/fs/bpf -name sockets-*").lines().count(), 9);
    node.start();
    node.wait_until_ready();
    let node = &paths.cluster.nodes[0];
    eventually("no program is left", || node.host.run("find /sys/fs/bpf -name sockets-*").is_empty());
}

#[test]
fn sockets_of_the_node_alone_get_backends_and_are_refused_without_one() {
    let Some(_isolated) = isolated() else { return };
    let paths = Paths::up(PodPorts::Tap);
    let node = &paths.cluster.nodes[0];
    let opened = || {
        let services = node.client().services().unwrap();
        services.ports.iter().map(|port| port.flows_opened).sum::<u64>()
    };
    paths.put(Place::PodThere, &json!({}));
    paths.wait_for_sockets(Place::PodThere);
    for (family, address) in cluster_addresses().into_iter().enumerate() {
        let at = SocketAddr::new(address, 80);
        let before = opened();
        assert_eq!(paths.exchange(&node.host, Place::PodThere, at), Ok(node.addresses[family]));
        assert_eq!(opened(), before, "packets of the node's sockets need no translation");
        let client = &paths.pods[0];
        assert_eq!(paths.exchange(client, Place::PodThere, at), Ok(client.addresses[family]));
        assert_eq!(opened(), before + 2, "the switch translates what pods send, under policy");
    }
    // A socket of IPv6 that connects to an address of IPv4.
    let IpAddr::V4(address) = cluster_addresses()[0] else { panic!("IPv4") };
    let mapped = SocketAddr::new(address.to_ipv6_mapped().into(), 80);
    assert!(connects(&node.host, &paths.server(Place::PodThere), mapped));
    paths.cluster.remove_endpoints("web");
    for address in cluster_addresses() {
        let refused = || {
            let result = node.host.enter(|| {
                TcpStream::connect_timeout(&SocketAddr::new(address, 80), Duration::from_millis(500))
            });
            result.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        eventually("connections are refused", refused);
    }
}

/// Status of a health check of a load balancer at the nodes, from outside.
fn health(paths: &Paths, port: u16) -> Vec<u16> {
    let nodes = paths.cluster.nodes.iter().flat_map(|node| node.addresses);
    let ask = |address: IpAddr| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), RESEND).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    };
    nodes.map(|address| paths.cluster.outside.enter(|| ask(address)).unwrap_or(0)).collect()
}

#[test]
fn a_load_balancer_learns_which_nodes_have_a_backend_and_clients_keep_their_addresses_there() {
    let Some(_isolated) = isolated() else { return };
    let paths = Paths::up(PodPorts::Tap);
    let spec = json!({"type": "LoadBalancer", "nodePort": NODE_PORT, "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31_000, "externalIPs": external_addresses()});
    paths.put(Place::PodHere, &spec);
    // Both families of each node.
    eventually("the first node has the backend", || health(&paths, 31_000) == [200, 200, 503, 503]);
    for family in [0, 1] {
        for (address, port) in [(external_addresses(), 80), (paths.cluster.nodes[0].addresses, NODE_PORT)] {
            let to = SocketAddr::new(address[family], port);
            let seen = paths.exchange(&paths.cluster.outside, Place::PodHere, to);
            assert_eq!(seen, Ok(outside()[family]), "{to}");
        }
    }
    paths.put(Place::PodThere, &spec);
    eventually("the other node has the backend", || health(&paths, 31_000) == [503, 503, 200, 200]);
    paths.put(Place::PodThere, &json!({}));
    eventually("nobody asks any more", || health(&paths, 31_000) == [0; 4]);
}
