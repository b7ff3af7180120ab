//! Clusters from a seed, with the usual mix of policies.

use std::net::{IpAddr, Ipv4Addr};

use palisade::policy::Options;
use palisade::policy::objects::{IpBlock, Labels, Namespace, NetworkPolicy, Node, Object, Peer, Peers, Pod};

use crate::common::random::{SEED, SplitMix64};
use crate::objects::{everything, label, named, node, pod, policy, rule, tcp, udp, v4};

const PODS_PER_NODE: usize = 250;
const PODS_PER_NAMESPACE: usize = 50;
/// Applications of a namespace.
pub(crate) const APPS: usize = 8;
/// Values of the namespaces' label `team`.
const TEAMS: usize = 20;

/// Cluster from a seed: namespaces of 50 pods in eight applications each, five policies a namespace, nodes of
/// 250 pods.
pub(crate) struct Cluster {
    pub(crate) random: SplitMix64,
    namespaces: usize,
    nodes: usize,
    pub(crate) pods: Vec<Pod>,
    /// Number of the next pod, which is part of its name.
    made: usize,
}

impl Cluster {
    /// Makes a cluster of this many pods.
    pub(crate) fn new(pods: usize) -> Cluster {
        let nodes = pods.div_ceil(PODS_PER_NODE);
        let namespaces = pods.div_ceil(PODS_PER_NAMESPACE);
        let mut cluster = Cluster { random: SplitMix64(SEED), namespaces, nodes, pods: Vec::new(), made: 0 };
        for i in 0..pods {
            let pod = cluster.new_pod(Some(i / PODS_PER_NODE));
            cluster.pods.push(pod);
        }
        cluster
    }

    /// Number of policies.
    pub(crate) fn policies(&self) -> usize {
        (0..self.namespaces).map(|i| self.policies_in(i)).sum()
    }

    /// Number of policies of a namespace: five, or two or three in a cluster of more than a thousand
    /// namespaces.
    fn policies_in(&self, namespace: usize) -> usize {
        if self.namespaces > 1_000 { 2 + namespace % 2 } else { 5 }
    }

    /// Makes one more pod, on any node where none is given. It is not yet part of the cluster.
    pub(crate) fn new_pod(&mut self, node: Option<usize>) -> Pod {
        let i = self.made;
        self.made += 1;
        let node = node.unwrap_or_else(|| self.random.below(self.nodes));
        let namespace = self.random.below(self.namespaces);
        let app = self.random.below(APPS);
        let labels = [
            ("app", format!("app-{app}")),
            ("tier", ["front", "back", "data"][app % 3].to_owned()),
            ("pod-template-hash", format!("{:08x}", namespace * APPS + app)),
        ];
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let address = 0x0a80_0000 + (node as u32) * 1024 + (i as u32 % 1_000);
        let address = if i < self.nodes * PODS_PER_NODE { address } else { 0x0af0_0000 + i as u32 };
        pod(&format!("ns-{namespace}"), &format!("app-{app}-{i}"), labels, address, node)
    }

    /// Draws the index of a pod, on the first node only where `local`.
    pub(crate) fn any_pod(&mut self, local: bool) -> usize {
        let first = node(0);
        loop {
            let at = self.random.below(self.pods.len());
            if !local || self.pods[at].node.as_ref() == Some(&first) {
                return at;
            }
        }
    }

    /// Returns all objects.
    pub(crate) fn objects(&self) -> Vec<Object> {
        let mut objects: Vec<Object> = (0..self.nodes)
            .map(|i| {
                let addresses = vec![IpAddr::V4(Ipv4Addr::from_bits(0xc0a8_0000 + i as u32))];
                Object::Node(Node { name: node(i), labels: Labels::new(), addresses })
            })
            .collect();
        for i in 0..self.namespaces {
            let labels =
                [("team", format!("team-{}", i % TEAMS)), ("env", ["prod", "dev"][i % 2].to_owned())];
            let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            objects.push(Object::Namespace(Namespace { name: format!("ns-{i}"), labels }));
            let policies = namespace_policies(i);
            objects.extend(policies.into_iter().take(self.policies_in(i)).map(Object::NetworkPolicy));
        }
        objects.extend(self.pods.iter().cloned().map(Object::Pod));
        objects
    }
}

/// Options of a compile for the first node.
pub(crate) fn on_first_node() -> Options {
    Options { node: Some(node(0)) }
}

/// Makes the five policies of a namespace. A third of the namespaces isolate egress too, and allow DNS to
/// every namespace.
fn namespace_policies(i: usize) -> Vec<NetworkPolicy> {
    let namespace = format!("ns-{i}");
    let app = |app: usize| label("app", &format!("app-{}", app % APPS));
    let in_namespace = |pods| Peer::Pods { namespaces: None, pods };
    let of_team = |team: usize, pods| Peer::Pods {
        namespaces: Some(label("team", &format!("team-{}", team % TEAMS))),
        pods,
    };
    let anywhere = |pods| Peer::Pods { namespaces: Some(everything()), pods };
    let isolates_egress = i.is_multiple_of(3);
    let default_deny =
        policy(&namespace, "default-deny", everything(), Some(Vec::new()), isolates_egress.then(Vec::new));
    let outside = IpBlock {
        cidr: v4(0, 0),
        except: vec![v4(0x0a00_0000, 8), v4(0xc0a8_0000, 16), v4(0xac10_0000 + ((i as u32 % 16) << 16), 16)],
    };
    let by_label = policy(
        &namespace,
        "by-label",
        app(i),
        Some(vec![
            rule(
                Peers::Any(vec![in_namespace(app(i + 1)), in_namespace(label("tier", "front"))]),
                vec![tcp(8080, 8080), tcp(9000, 9099)],
            ),
            rule(Peers::Any(vec![in_namespace(everything())]), vec![named("metrics")]),
        ]),
        None,
    );
    let by_namespace = policy(
        &namespace,
        "by-namespace",
        label("tier", "back"),
        Some(vec![rule(
            Peers::Any(vec![of_team(i, everything()), of_team(i + 7, label("tier", "front"))]),
            vec![named("http"), tcp(443, 443)],
        )]),
        None,
    );
    let from_outside = policy(
        &namespace,
        "from-outside",
        label("tier", "front"),
        Some(vec![rule(
            Peers::Any(vec![Peer::IpBlock(outside.clone())]),
            vec![tcp(80, 80), tcp(443, 443), tcp(30_000, 32_767)],
        )]),
        None,
    );
    let mut egress = vec![
        rule(
            Peers::Any(vec![in_namespace(app(i + 2)), of_team(i, label("tier", "data"))]),
            vec![named("http"), tcp(5432, 5432)],
        ),
        rule(Peers::Any(vec![Peer::IpBlock(outside)]), vec![tcp(443, 443)]),
    ];
    if isolates_egress {
        egress.push(rule(Peers::Any(vec![anywhere(everything())]), vec![udp(53), tcp(53, 53)]));
    }
    let egress = policy(&namespace, "egress", app(i + 1), None, Some(egress));
    vec![default_deny, egress, by_label, by_namespace, from_outside]
}
