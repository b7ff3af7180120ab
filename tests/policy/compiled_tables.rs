//! Objects to tables, clause by clause: what a flow comes to, and the rule that each side names for it.
//!
//! Clause numbers are those of the semantics reference (`N` for `NetworkPolicy`, `C` for `ClusterNetworkPolicy`, then section
//! and item).

use std::net::IpAddr;

use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, ContainerPort, IpBlock,
    LabelSelector, Labels, Namespace, NetworkPolicy, NetworkPolicyRule, Node, Object, Peer, Peers, Pod,
    PodScope, PortMatch, Ports, Requirement, Tier,
};
use palisade::policy::{Change, Compiler, ObjectName, Options};
use palisade::tables::{Classifier, Direction, PodName, PolicyKind, Verdict};

const TCP: Protocol = Protocol::TCP;
const UDP: Protocol = Protocol::UDP;
const OPEN_OUT: &str = "allow: no policy isolates the pod for egress";
const OPEN_IN: &str = "allow: no policy isolates the pod for ingress";

/// A compiler, and short ways to tell it things and to ask.
struct Compiled {
    compiler: Compiler,
}

impl Compiled {
    /// Namespaces `x` (team=red) and `y` (team=blue) with pods `a` and `b` each, labelled `app=a` and `app=b`, on node `n`.
    fn new() -> Compiled {
        let mut compiled = Compiled { compiler: Compiler::new(Options::default()) };
        for (i, (namespace, team)) in [("x", "red"), ("y", "blue")].into_iter().enumerate() {
            compiled.put(Object::Namespace(Namespace {
                name: namespace.into(),
                labels: labels(&[("team", team)]),
            }));
            for (j, app) in ["a", "b"].into_iter().enumerate() {
                compiled.put(Object::Pod(pod(namespace, app, &format!("10.0.{i}.{}", j + 1))));
            }
        }
        compiled
    }

    fn put(&mut self, object: Object) -> usize {
        self.compiler.apply(Change::Upsert(object)).len()
    }

    fn with(mut self, objects: impl IntoIterator<Item = Object>) -> Compiled {
        for object in objects {
            self.put(object);
        }
        self
    }

    fn address(&self, end: &str) -> IpAddr {
        end.parse().unwrap_or_else(|_| {
            let name: PodName = end.parse().unwrap();
            self.compiler.pods().find(|pod| pod.name == name).unwrap().addresses[0]
        })
    }

    /// What the source says on the way out and the destination on the way in; `-` where that is no pod.
    fn ask(&self, from: &str, to: &str, protocol: Protocol, dst_port: u16) -> [String; 2] {
        let (src, dst) = (self.address(from), self.address(to));
        let tables = self.compiler.tables();
        let flow = FlowKey { src, dst, protocol, src_port: 50_000, dst_port };
        let judgement = Classifier::new(tables).unwrap().judge(&flow);
        [judgement.egress, judgement.ingress].map(|decision| match decision {
            None => "-".to_owned(),
            Some(decision) => {
                let verdict = if decision.is_allow() { "allow" } else { "deny" };
                format!("{verdict}: {}", tables.rules[&decision.rule()])
            }
        })
    }

    fn on_ingress(&self, from: &str, to: &str, protocol: Protocol, port: u16) -> String {
        let [_, ingress] = self.ask(from, to, protocol, port);
        ingress
    }

    fn on_egress(&self, from: &str, to: &str, protocol: Protocol, port: u16) -> String {
        let [egress, _] = self.ask(from, to, protocol, port);
        egress
    }

    fn passes(&self, from: &str, to: &str, protocol: Protocol, port: u16) -> bool {
        !self.ask(from, to, protocol, port).iter().any(|side| side.starts_with("deny"))
    }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn pod(namespace: &str, app: &str, address: &str) -> Pod {
    Pod {
        name: PodName::new(namespace, app),
        labels: labels(&[("app", app)]),
        addresses: vec![address.parse().unwrap()],
        placeholder: false,
        node: Some("n".to_owned()),
        host_ips: Vec::new(),
        host_network: false,
        finished: false,
        ports: Vec::new(),
    }
}

fn port(name: &str, protocol: Protocol, port: u16) -> ContainerPort {
    ContainerPort { name: Some(name.to_owned()), protocol, port }
}

fn is(key: &str, value: &str) -> LabelSelector {
    LabelSelector { requirements: vec![Requirement::In { key: key.into(), values: vec![value.into()] }] }
}

fn all() -> LabelSelector {
    LabelSelector::default()
}

fn tcp(first: u16, last: u16) -> PortMatch {
    PortMatch::Range { protocol: TCP, first, last }
}

fn named(protocol: Protocol, name: &str) -> PortMatch {
    PortMatch::Named { protocol, name: name.to_owned() }
}

fn app(app: &str) -> Peer {
    Peer::Pods { namespaces: None, pods: is("app", app) }
}

fn block(cidr: &str, except: &[&str]) -> Peer {
    let except = except.iter().map(|cidr| cidr.parse().unwrap()).collect();
    Peer::IpBlock(IpBlock { cidr: cidr.parse().unwrap(), except })
}

fn rule(peers: &[Peer], ports: &[PortMatch]) -> NetworkPolicyRule {
    NetworkPolicyRule {
        peers: if peers.is_empty() { Peers::Everyone } else { Peers::Any(peers.to_vec()) },
        ports: if ports.is_empty() { Ports::All } else { Ports::Any(ports.to_vec()) },
    }
}

/// A policy in `x` for its pods `app=a`.
fn policy(
    name: &str,
    ingress: Option<Vec<NetworkPolicyRule>>,
    egress: Option<Vec<NetworkPolicyRule>>,
) -> Object {
    Object::NetworkPolicy(NetworkPolicy {
        namespace: "x".into(),
        name: name.into(),
        pod_selector: is("app", "a"),
        ingress,
        egress,
        ignored: Vec::new(),
    })
}

fn ingress(name: &str, rules: &[NetworkPolicyRule]) -> Object {
    policy(name, Some(rules.to_vec()), None)
}

fn egress(name: &str, rules: &[NetworkPolicyRule]) -> Object {
    policy(name, None, Some(rules.to_vec()))
}

fn scope(namespaces: LabelSelector, pods: LabelSelector) -> PodScope {
    PodScope { namespaces, pods }
}

fn cluster_rule(action: ClusterAction, peers: &[ClusterPeer], ports: &[ClusterPort]) -> ClusterRule {
    let ports = if ports.is_empty() { None } else { Some(ports.to_vec()) };
    ClusterRule { name: None, action, peers: peers.to_vec(), ports }
}

fn cluster_tcp(port: u16) -> [ClusterPort; 1] {
    [ClusterPort::Range { protocol: TCP, first: port, last: port }]
}

/// A cluster-wide policy for the pods `app=a` of namespace `x`.
fn cluster(
    name: &str,
    tier: Tier,
    priority: u32,
    ingress: Vec<ClusterRule>,
    egress: Vec<ClusterRule>,
) -> Object {
    Object::ClusterNetworkPolicy(ClusterNetworkPolicy {
        kind: PolicyKind::ClusterNetworkPolicy,
        name: name.into(),
        tier,
        priority,
        subject: scope(is("team", "red"), is("app", "a")),
        ingress,
        egress,
    })
}

fn every_pod() -> ClusterPeer {
    ClusterPeer::Pods(scope(all(), all()))
}

mod isolation {
    use super::*;

    #[test]
    fn n1_1_both_sides_are_asked_and_either_denies() {
        let compiled = Compiled::new().with([ingress("in", &[]), egress("out", &[])]);
        assert_eq!(
            compiled.ask("x/b", "x/a", TCP, 80),
            [OPEN_OUT, "deny: isolated for ingress by NetworkPolicy x/in; no rule matched"]
        );
        assert_eq!(
            compiled.ask("x/a", "x/b", TCP, 80),
            ["deny: isolated for egress by NetworkPolicy x/out; no rule matched", OPEN_IN]
        );
        assert_eq!(compiled.ask("192.0.2.1", "x/b", TCP, 80), ["-", OPEN_IN]);
    }

    #[test]
    fn n1_2_only_policies_of_the_own_namespace_isolate_and_only_their_direction() {
        let compiled = Compiled::new().with([ingress("in", &[])]);
        assert_eq!(compiled.on_ingress("x/b", "y/a", TCP, 80), OPEN_IN);
        assert_eq!(compiled.on_egress("x/a", "y/a", TCP, 80), OPEN_OUT);
        assert_eq!(compiled.on_ingress("x/a", "x/b", TCP, 80), OPEN_IN);
    }

    #[test]
    fn n1_3_policies_add_up_and_the_first_by_name_and_rule_is_named() {
        let compiled = Compiled::new().with([
            ingress("q", &[rule(&[], &[tcp(80, 80)])]),
            ingress("p", &[rule(&[app("b")], &[tcp(443, 443)]), rule(&[], &[tcp(80, 90)])]),
            ingress("deny", &[]),
        ]);
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[1]");
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 443), "allow: NetworkPolicy x/p ingress[0]");
        assert_eq!(
            compiled.on_ingress("y/b", "x/a", TCP, 443),
            "deny: isolated for ingress by NetworkPolicy x/deny, NetworkPolicy x/p, NetworkPolicy x/q; no rule matched"
        );
    }

    #[test]
    fn n3_absent_peers_are_everyone_and_absent_ports_everything() {
        let compiled = Compiled::new().with([ingress("p", &[rule(&[], &[])])]);
        for (from, protocol) in [("x/b", TCP), ("192.0.2.1", UDP), ("y/a", Protocol::ICMP)] {
            assert_eq!(compiled.on_ingress(from, "x/a", protocol, 0), "allow: NetworkPolicy x/p ingress[0]");
        }
    }

    #[test]
    fn n3_selectors_of_peers_reach_as_far_as_they_say() {
        let peers = |namespaces, pods| [rule(&[Peer::Pods { namespaces, pods }], &[])];
        let who = |rules: &[NetworkPolicyRule]| -> Vec<&str> {
            let compiled = Compiled::new().with([ingress("p", rules)]);
            let candidates = ["x/b", "y/a", "y/b", "192.0.2.1"];
            candidates.into_iter().filter(|from| compiled.passes(from, "x/a", TCP, 1)).collect()
        };
        assert_eq!(who(&peers(None, all())), ["x/b"]);
        assert_eq!(who(&peers(Some(all()), all())), ["x/b", "y/a", "y/b"]);
        assert_eq!(who(&peers(Some(is("team", "blue")), all())), ["y/a", "y/b"]);
        assert_eq!(who(&peers(Some(is("team", "blue")), is("app", "b"))), ["y/b"]);
        let either = [Peer::Pods { namespaces: Some(is("team", "blue")), pods: all() }, app("b")];
        assert_eq!(who(&[rule(&either, &[])]), ["x/b", "y/a", "y/b"]);
    }

    #[test]
    fn n4_a_namespace_has_its_name_as_a_label_even_if_only_spoken_of() {
        let peer = Peer::Pods { namespaces: Some(is("kubernetes.io/metadata.name", "z")), pods: all() };
        let compiled = Compiled::new()
            .with([ingress("p", &[rule(&[peer], &[])]), Object::Pod(pod("z", "a", "10.0.9.1"))]);
        assert!(compiled.passes("z/a", "x/a", TCP, 1));
        assert!(!compiled.passes("y/a", "x/a", TCP, 1));
    }

    #[test]
    fn n4_labels_of_pods_and_namespaces_are_followed() {
        let peer = Peer::Pods { namespaces: Some(is("team", "blue")), pods: is("app", "a") };
        let mut compiled = Compiled::new().with([ingress("p", &[rule(&[peer], &[])])]);
        assert!(compiled.passes("y/a", "x/a", TCP, 1));
        compiled.put(Object::Namespace(Namespace { name: "y".into(), labels: Labels::new() }));
        assert!(!compiled.passes("y/a", "x/a", TCP, 1));
        compiled.put(Object::Namespace(Namespace { name: "y".into(), labels: labels(&[("team", "blue")]) }));
        compiled.put(Object::Pod(Pod { labels: Labels::new(), ..pod("y", "a", "10.0.1.1") }));
        assert!(!compiled.passes("y/a", "x/a", TCP, 1));
        compiled.put(Object::Pod(Pod { labels: Labels::new(), ..pod("x", "a", "10.0.0.1") }));
        assert_eq!(compiled.on_ingress("y/a", "x/a", TCP, 1), OPEN_IN);
    }
}

mod blocks {
    use super::*;

    #[test]
    fn n5_1_except_narrows_its_own_entry_and_denies_nothing() {
        let compiled = Compiled::new().with([ingress(
            "p",
            &[
                rule(&[block("192.0.2.0/24", &["192.0.2.128/25"])], &[tcp(80, 80)]),
                rule(&[block("192.0.2.192/26", &[])], &[tcp(80, 80)]),
            ],
        )]);
        assert_eq!(compiled.on_ingress("192.0.2.1", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[0]");
        assert!(!compiled.passes("192.0.2.129", "x/a", TCP, 80));
        assert_eq!(compiled.on_ingress("192.0.2.200", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[1]");
        assert!(!compiled.passes("192.0.3.1", "x/a", TCP, 80));
    }

    #[test]
    fn n5_2_blocks_match_pods_and_selectors_add_to_them() {
        let compiled = Compiled::new().with([ingress(
            "p",
            &[
                rule(&[block("10.0.0.0/23", &["10.0.1.2/32"])], &[tcp(80, 80)]),
                rule(&[app("b")], &[tcp(81, 81)]),
            ],
        )]);
        assert!(compiled.passes("x/b", "x/a", TCP, 80) && compiled.passes("x/b", "x/a", TCP, 81));
        assert!(compiled.passes("y/a", "x/a", TCP, 80) && !compiled.passes("y/a", "x/a", TCP, 81));
        assert!(!compiled.passes("y/b", "x/a", TCP, 80));
    }

    #[test]
    fn n5_5_families_never_mix() {
        let compiled = Compiled::new().with([
            Object::Pod(Pod {
                addresses: vec!["fd00::1".parse().unwrap(), "10.0.0.1".parse().unwrap()],
                ..pod("x", "a", "10.0.0.1")
            }),
            ingress("p", &[rule(&[block("0.0.0.0/0", &[])], &[])]),
        ]);
        assert!(!compiled.passes("2001:db8::1", "fd00::1", TCP, 80));
        assert!(compiled.passes("192.0.2.1", "10.0.0.1", TCP, 80));
        let compiled = compiled.with([ingress("p", &[rule(&[block("::/0", &["fd00::/8"])], &[])])]);
        assert!(compiled.passes("2001:db8::1", "fd00::1", TCP, 80));
        assert!(!compiled.passes("fd00::2", "fd00::1", TCP, 80));
        assert!(!compiled.passes("192.0.2.1", "10.0.0.1", TCP, 80));
    }

    #[test]
    fn n5_an_address_has_an_entry_only_where_its_prefix_does_not_say_it() {
        let compiled =
            Compiled::new().with([ingress("p", &[rule(&[block("10.0.0.0/8", &["10.0.1.0/24"])], &[])])]);
        let prefixes: Vec<String> =
            compiled.compiler.tables().prefixes.keys().map(ToString::to_string).collect();
        assert_eq!(prefixes, ["10.0.0.0/8", "10.0.1.0/24"]);
    }
}

mod ports {
    use super::*;

    #[test]
    fn n6_2_a_range_is_one_span_whatever_its_length() {
        let compiled = Compiled::new().with([ingress("p", &[rule(&[], &[tcp(1, 65_535)])])]);
        let spans = compiled.compiler.tables().rows.values().map(|row| row.tcp.len()).max();
        assert_eq!(spans, Some(1));
        assert!(compiled.passes("x/b", "x/a", TCP, 65_535) && !compiled.passes("x/b", "x/a", TCP, 0));
        assert!(!compiled.passes("x/b", "x/a", UDP, 80));
    }

    #[test]
    fn n6_3_a_name_means_what_the_destination_pod_calls_so() {
        let with_port = |namespace, app, address, number| {
            Object::Pod(Pod { ports: vec![port("http", TCP, number)], ..pod(namespace, app, address) })
        };
        let mut compiled = Compiled::new().with([
            with_port("x", "b", "10.0.0.2", 80),
            with_port("y", "a", "10.0.1.1", 8080),
            egress(
                "p",
                &[rule(&[Peer::Pods { namespaces: Some(all()), pods: all() }], &[named(TCP, "http")])],
            ),
        ]);
        assert!(compiled.passes("x/a", "x/b", TCP, 80) && !compiled.passes("x/a", "x/b", TCP, 8080));
        assert!(compiled.passes("x/a", "y/a", TCP, 8080) && !compiled.passes("x/a", "y/a", TCP, 80));
        assert!(!compiled.passes("x/a", "y/b", TCP, 80), "the pod has no port of that name");
        compiled.put(with_port("x", "b", "10.0.0.2", 81));
        assert!(compiled.passes("x/a", "x/b", TCP, 81) && !compiled.passes("x/a", "x/b", TCP, 80));
    }

    #[test]
    fn n6_3_on_the_way_in_the_selected_pods_own_ports_count() {
        let pods = |number| {
            [("x", "a", "10.0.0.1"), ("x", "a2", "10.0.0.9")].map(|(namespace, name, address)| {
                let number = if name == "a" { number } else { 8080 };
                let labels = labels(&[("app", "a")]);
                Object::Pod(Pod {
                    ports: vec![port("http", TCP, number)],
                    labels,
                    ..pod(namespace, name, address)
                })
            })
        };
        let compiled =
            Compiled::new().with(pods(80)).with([ingress("p", &[rule(&[], &[named(TCP, "http")])])]);
        assert!(compiled.passes("x/b", "x/a", TCP, 80) && !compiled.passes("x/b", "x/a", TCP, 8080));
        assert!(compiled.passes("x/b", "x/a2", TCP, 8080) && !compiled.passes("x/b", "x/a2", TCP, 80));
    }

    #[test]
    fn n6_4_a_name_needs_the_protocol_and_never_widens() {
        let compiled = Compiled::new().with([
            Object::Pod(Pod { ports: vec![port("dns", UDP, 53)], ..pod("x", "a", "10.0.0.1") }),
            ingress("p", &[rule(&[], &[named(TCP, "dns")]), rule(&[app("b")], &[tcp(80, 80)])]),
        ]);
        assert!(!compiled.passes("x/b", "x/a", TCP, 53) && !compiled.passes("x/b", "x/a", UDP, 53));
        assert!(compiled.passes("x/b", "x/a", TCP, 80), "other entries still count");
    }

    #[test]
    fn n6_5_every_container_port_of_the_name_counts() {
        let ports = vec![port("web", TCP, 80), port("web", TCP, 8080), port("web", UDP, 443)];
        let compiled = Compiled::new().with([
            Object::Pod(Pod { ports: ports.clone(), ..pod("x", "a", "10.0.0.1") }),
            Object::Pod(Pod { ports, ..pod("y", "a", "10.0.1.1") }),
            policy(
                "p",
                Some(vec![rule(&[], &[named(TCP, "web")])]),
                Some(vec![rule(&[], &[named(UDP, "web")])]),
            ),
        ]);
        assert!(compiled.passes("x/b", "x/a", TCP, 80) && compiled.passes("x/b", "x/a", TCP, 8080));
        assert!(!compiled.passes("x/b", "x/a", UDP, 443));
        assert!(compiled.passes("x/a", "y/a", UDP, 443) && !compiled.passes("x/a", "y/a", TCP, 80));
    }

    #[test]
    fn n6_6_a_name_without_peers_or_with_a_block_finds_pods_and_nobody_else() {
        for peers in [vec![], vec![block("0.0.0.0/0", &[])]] {
            let compiled = Compiled::new().with([
                Object::Pod(Pod { ports: vec![port("http", TCP, 80)], ..pod("y", "a", "10.0.1.1") }),
                egress("p", &[rule(&peers, &[named(TCP, "http")])]),
            ]);
            assert!(compiled.passes("x/a", "y/a", TCP, 80) && !compiled.passes("x/a", "y/b", TCP, 80));
            assert!(!compiled.passes("x/a", "192.0.2.1", TCP, 80));
        }
    }

    #[test]
    fn n7_what_has_no_ports_matches_rules_without_ports_only() {
        let compiled = Compiled::new().with([ingress(
            "p",
            &[rule(&[app("b")], &[tcp(0, 65_535)]), rule(&[block("192.0.2.0/24", &[])], &[])],
        )]);
        assert!(!compiled.passes("x/b", "x/a", Protocol::ICMP, 0));
        assert!(compiled.passes("192.0.2.1", "x/a", Protocol::ICMP, 0));
        assert!(compiled.passes("192.0.2.1", "x/a", Protocol(47), 0));
    }
}

mod life {
    use super::*;

    #[test]
    fn n8_pods_on_the_hosts_network_are_neither_subjects_nor_peers() {
        let compiled = Compiled::new().with([
            Object::Pod(Pod { host_network: true, ..pod("x", "b", "192.168.0.1") }),
            Object::Pod(Pod {
                host_network: true,
                labels: labels(&[("app", "a")]),
                ..pod("x", "h", "192.168.0.2")
            }),
            ingress(
                "p",
                &[rule(&[app("b")], &[tcp(80, 80)]), rule(&[block("192.168.0.1/32", &[])], &[tcp(81, 81)])],
            ),
        ]);
        assert!(!compiled.passes("192.168.0.1", "x/a", TCP, 80));
        assert!(compiled.passes("192.168.0.1", "x/a", TCP, 81), "blocks match the node's address");
        assert_eq!(compiled.ask("x/a", "192.168.0.2", TCP, 1), [OPEN_OUT, "-"]);
    }

    #[test]
    fn n9_the_own_node_gets_in_and_nothing_else_of_it_is_special() {
        let node = |name: &str, address: &str| {
            Object::Node(Node {
                name: name.into(),
                labels: Labels::new(),
                addresses: vec![address.parse().unwrap()],
            })
        };
        let compiled = Compiled::new().with([
            node("n", "192.168.0.1"),
            node("m", "192.168.0.2"),
            policy("p", Some(vec![]), Some(vec![])),
        ]);
        assert_eq!(
            compiled.on_ingress("192.168.0.1", "x/a", UDP, 9),
            "allow: traffic from the pod's own node"
        );
        assert!(!compiled.passes("192.168.0.2", "x/a", TCP, 80), "another node is an ordinary address");
        assert!(!compiled.passes("x/a", "192.168.0.1", TCP, 80), "the way out is judged");
        assert_eq!(compiled.on_ingress("192.168.0.1", "x/b", TCP, 80), OPEN_IN);
    }

    #[test]
    fn n11_a_pod_without_an_address_waits_and_a_finished_one_leaves() {
        let name = PodName::new("y", "a");
        let mut compiled = Compiled::new().with([ingress(
            "p",
            &[rule(&[Peer::Pods { namespaces: Some(is("team", "blue")), pods: is("app", "a") }], &[])],
        )]);
        assert!(compiled.passes("10.0.1.1", "x/a", TCP, 80));
        compiled.put(Object::Pod(Pod { addresses: Vec::new(), ..pod("y", "a", "10.0.1.1") }));
        assert!(!compiled.passes("10.0.1.1", "x/a", TCP, 80));
        assert!(!compiled.compiler.tables().pods.contains_key(&name));
        compiled.put(Object::Pod(pod("y", "a", "10.0.1.7")));
        assert!(compiled.passes("10.0.1.7", "x/a", TCP, 80));
        assert!(compiled.compiler.tables().pods.contains_key(&name));
        compiled.put(Object::Pod(Pod { finished: true, ..pod("y", "a", "10.0.1.7") }));
        assert!(!compiled.passes("10.0.1.7", "x/a", TCP, 80));
        assert!(!compiled.compiler.tables().pods.contains_key(&name));
    }

    #[test]
    fn n11_an_address_used_again_inherits_nothing() {
        let mut compiled = Compiled::new().with([ingress("p", &[rule(&[app("b")], &[])])]);
        assert!(compiled.passes("10.0.0.2", "x/a", TCP, 80));
        compiled.compiler.apply(Change::Remove(ObjectName::Pod(PodName::new("x", "b"))));
        assert!(!compiled.passes("10.0.0.2", "x/a", TCP, 80));
        compiled.put(Object::Pod(pod("y", "c", "10.0.0.2")));
        assert!(!compiled.passes("10.0.0.2", "x/a", TCP, 80));
    }

    #[test]
    fn n11_an_address_that_two_pods_claim_may_do_what_both_may() {
        let compiled = Compiled::new().with([
            ingress("p", &[rule(&[app("b")], &[tcp(80, 81)]), rule(&[app("c")], &[tcp(81, 82)])]),
            Object::Pod(pod("x", "c", "10.0.0.2")),
        ]);
        let may = |port| compiled.passes("10.0.0.2", "x/a", TCP, port);
        assert_eq!([80, 81, 82].map(may), [false, true, false]);
        assert_eq!(compiled.on_ingress("10.0.0.2", "x/a", TCP, 81), "allow: NetworkPolicy x/p ingress[0]");
        let deny = cluster_rule(ClusterAction::Deny, &[ClusterPeer::Pods(scope(all(), is("app", "c")))], &[]);
        let compiled = compiled.with([cluster("deny-c", Tier::Admin, 1, vec![deny], vec![])]);
        assert!(!compiled.passes("10.0.0.2", "x/a", TCP, 81), "a deny for one of them is enough");
    }

    #[test]
    fn n11_what_a_policy_did_goes_with_it() {
        let mut compiled = Compiled::new();
        let before = compiled.compiler.tables().clone();
        compiled.put(policy("p", Some(vec![rule(&[app("b")], &[])]), Some(vec![])));
        assert!(!compiled.passes("y/a", "x/a", TCP, 80));
        let name = ObjectName::NetworkPolicy { namespace: "x".into(), name: "p".into() };
        compiled.compiler.apply(Change::Remove(name));
        assert_eq!(compiled.compiler.tables(), &before);
    }

    #[test]
    fn ids_that_became_free_are_taken_again_the_smallest_first() {
        let mut compiled = Compiled::new();
        let before = compiled.compiler.tables().clone();
        for _ in 0..50 {
            compiled.put(policy("p", Some(vec![rule(&[app("b")], &[tcp(80, 80)])]), Some(vec![])));
            let last = compiled.compiler.tables().acls.last_key_value().unwrap().0.index();
            assert_eq!(last, before.acls.len() + 1, "one table for each direction, no more");
            let name = ObjectName::NetworkPolicy { namespace: "x".into(), name: "p".into() };
            compiled.compiler.apply(Change::Remove(name));
        }
    }

    #[test]
    fn n12_selectors_match_every_address_of_a_pod() {
        let compiled = Compiled::new().with([
            Object::Pod(Pod {
                addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
                ..pod("x", "b", "10.0.0.2")
            }),
            Object::Pod(Pod {
                addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                ..pod("x", "a", "10.0.0.1")
            }),
            ingress("p", &[rule(&[app("b")], &[])]),
        ]);
        assert!(
            compiled.passes("10.0.0.2", "10.0.0.1", TCP, 80)
                && compiled.passes("fd00::2", "fd00::1", TCP, 80)
        );
        assert!(!compiled.passes("fd00::3", "fd00::1", TCP, 80));
    }
}

mod tiers {
    use super::*;
    use ClusterAction::{Accept, Deny, Pass};

    #[test]
    fn c1_1_the_admin_tier_decides_first_by_priority_then_rule() {
        let compiled = Compiled::new().with([
            ingress("p", &[]),
            cluster("late", Tier::Admin, 2, vec![cluster_rule(Deny, &[every_pod()], &[])], vec![]),
            cluster(
                "early",
                Tier::Admin,
                1,
                vec![
                    ClusterRule {
                        name: Some("web".into()),
                        ..cluster_rule(Accept, &[every_pod()], &cluster_tcp(80))
                    },
                    cluster_rule(Deny, &[every_pod()], &cluster_tcp(80)),
                ],
                vec![],
            ),
        ]);
        assert_eq!(
            compiled.on_ingress("x/b", "x/a", TCP, 80),
            "allow: ClusterNetworkPolicy early ingress[0] \"web\""
        );
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 81), "deny: ClusterNetworkPolicy late ingress[0]");
        assert_eq!(
            compiled.on_ingress("192.0.2.1", "x/a", TCP, 80),
            "deny: isolated for ingress by NetworkPolicy x/p; no rule matched"
        );
    }

    #[test]
    fn c1_1_pass_skips_the_rest_of_the_tier_for_what_it_matches() {
        let admin = cluster(
            "admin",
            Tier::Admin,
            1,
            vec![
                cluster_rule(Pass, &[every_pod()], &cluster_tcp(80)),
                cluster_rule(Deny, &[every_pod()], &[]),
            ],
            vec![],
        );
        let compiled = Compiled::new().with([admin, ingress("p", &[rule(&[app("b")], &[tcp(80, 81)])])]);
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[0]");
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 81), "deny: ClusterNetworkPolicy admin ingress[1]");
        assert_eq!(
            compiled.on_ingress("y/b", "x/a", TCP, 80),
            "deny: isolated for ingress by NetworkPolicy x/p; no rule matched"
        );
    }

    #[test]
    fn c1_2_what_a_network_policy_says_is_final() {
        let baseline =
            || cluster("base", Tier::Baseline, 1, vec![cluster_rule(Deny, &[every_pod()], &[])], vec![]);
        let compiled = Compiled::new().with([baseline(), ingress("p", &[rule(&[], &[])])]);
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[0]");
        let accept = cluster_rule(Accept, &[every_pod()], &[]);
        let compiled = Compiled::new()
            .with([cluster("base", Tier::Baseline, 1, vec![accept], vec![]), ingress("p", &[])]);
        assert!(!compiled.passes("x/b", "x/a", TCP, 80));
        let compiled = Compiled::new().with([baseline()]);
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "deny: ClusterNetworkPolicy base ingress[0]");
        assert_eq!(
            compiled.on_ingress("192.0.2.1", "x/a", TCP, 80),
            OPEN_IN,
            "external addresses are no pods"
        );
    }

    #[test]
    fn c1_3_pass_in_the_baseline_tier_lets_the_default_decide() {
        let rules = vec![
            cluster_rule(Pass, &[every_pod()], &cluster_tcp(80)),
            cluster_rule(Deny, &[every_pod()], &[]),
        ];
        let compiled = Compiled::new().with([cluster("base", Tier::Baseline, 1, rules, vec![])]);
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), OPEN_IN);
        assert!(!compiled.passes("x/b", "x/a", TCP, 81));
    }

    #[test]
    fn c1_6_a_policy_without_a_matching_rule_changes_nothing() {
        let compiled = Compiled::new().with([cluster(
            "admin",
            Tier::Admin,
            1,
            vec![],
            vec![cluster_rule(Deny, &[every_pod()], &cluster_tcp(1))],
        )]);
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), OPEN_IN);
        assert_eq!(compiled.on_egress("x/a", "x/b", TCP, 80), OPEN_OUT);
        assert!(compiled.compiler.policies_selecting(&PodName::new("x", "a"), Direction::Ingress).is_empty());
    }

    #[test]
    fn c1_7_ties_go_by_name() {
        let of = |name, action| {
            cluster(name, Tier::Admin, 1, vec![cluster_rule(action, &[every_pod()], &[])], vec![])
        };
        let compiled = Compiled::new().with([of("b", Deny), of("a", Accept)]);
        assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: ClusterNetworkPolicy a ingress[0]");
    }

    #[test]
    fn c2_networks_match_pods_and_nodes_match_their_addresses() {
        let compiled = Compiled::new().with([
            Object::Node(Node {
                name: "n".into(),
                labels: labels(&[("role", "worker")]),
                addresses: vec!["192.168.0.1".parse().unwrap()],
            }),
            cluster(
                "admin",
                Tier::Admin,
                1,
                vec![],
                vec![
                    cluster_rule(Accept, &[ClusterPeer::Nodes(is("role", "worker"))], &[]),
                    cluster_rule(
                        Accept,
                        &[ClusterPeer::Pods(scope(is("team", "blue"), is("app", "b")))],
                        &[],
                    ),
                    cluster_rule(Deny, &[ClusterPeer::Network("0.0.0.0/0".parse().unwrap())], &[]),
                ],
            ),
        ]);
        assert_eq!(
            compiled.on_egress("x/a", "192.168.0.1", TCP, 1),
            "allow: ClusterNetworkPolicy admin egress[0]"
        );
        assert!(compiled.passes("x/a", "y/b", TCP, 1));
        assert!(
            !compiled.passes("x/a", "x/b", Protocol::ICMP, 0) && !compiled.passes("x/a", "192.0.2.1", TCP, 1)
        );
    }

    #[test]
    fn c2_a_domain_name_matches_nothing_and_an_unknown_peer_that_denies_everything() {
        let accept = cluster_rule(Accept, &[ClusterPeer::DomainName("example.com".into())], &[]);
        let compiled =
            Compiled::new().with([egress("p", &[]), cluster("admin", Tier::Admin, 1, vec![], vec![accept])]);
        assert!(!compiled.passes("x/a", "192.0.2.1", TCP, 443));
        let deny = cluster_rule(Deny, &[ClusterPeer::Everyone], &[]);
        let compiled = Compiled::new().with([cluster("admin", Tier::Admin, 1, vec![deny], vec![])]);
        assert!(!compiled.passes("192.0.2.1", "x/a", TCP, 443) && !compiled.passes("y/a", "x/a", UDP, 1));
    }

    #[test]
    fn ports_that_rules_ask_of_some_pods_concern_no_others_when_a_policy_comes_beside_them_and_goes() {
        let nobody = ClusterPeer::Pods(scope(all(), is("app", "nobody")));
        let dns = [ClusterPort::Named { protocol: None, name: "dns".into() }];
        let every = cluster(
            "every",
            Tier::Admin,
            2,
            vec![],
            vec![cluster_rule(Deny, &[every_pod()], &cluster_tcp(80))],
        );
        // Somebody else's rule has the port of y/a known by its name.
        let of_others = Object::NetworkPolicy(NetworkPolicy {
            namespace: "y".into(),
            name: "others".into(),
            pod_selector: all(),
            ingress: None,
            egress: Some(vec![rule(
                &[Peer::Pods { namespaces: Some(all()), pods: all() }],
                &[named(TCP, "dns")],
            )]),
            ignored: Vec::new(),
        });
        let mut compiled = Compiled::new().with([
            Object::Pod(Pod { ports: vec![port("dns", TCP, 53)], ..pod("y", "a", "10.0.1.1") }),
            of_others,
            cluster("some", Tier::Admin, 1, vec![], vec![cluster_rule(Deny, &[nobody], &dns)]),
        ]);
        for _ in 0..2 {
            assert!([53, 80].iter().all(|&port| compiled.passes("x/a", "y/a", TCP, port)));
            compiled.put(every.clone());
            assert!(compiled.passes("x/a", "y/a", TCP, 53) && !compiled.passes("x/a", "y/a", TCP, 80));
            compiled.compiler.apply(Change::Remove(ObjectName::of(&every)));
        }
    }

    #[test]
    fn c3_a_named_port_has_the_protocol_of_the_container_port() {
        let ports = vec![port("dns", UDP, 53), port("dns", TCP, 54)];
        let of = |protocol| [ClusterPort::Named { protocol, name: "dns".into() }];
        let rules = |protocol| vec![cluster_rule(Deny, &[every_pod()], &of(protocol))];
        let compiled = Compiled::new().with([
            Object::Pod(Pod { ports: ports.clone(), ..pod("x", "a", "10.0.0.1") }),
            Object::Pod(Pod { ports, ..pod("y", "a", "10.0.1.1") }),
            cluster("admin", Tier::Admin, 1, rules(None), rules(Some(TCP))),
        ]);
        assert!(!compiled.passes("x/b", "x/a", UDP, 53) && !compiled.passes("x/b", "x/a", TCP, 54));
        assert!(compiled.passes("x/b", "x/a", TCP, 53));
        assert!(!compiled.passes("x/a", "y/a", TCP, 54) && compiled.passes("x/a", "y/a", UDP, 53));
    }
}

mod compiler {
    use super::*;

    #[test]
    fn only_pods_of_the_node_have_tables_and_only_their_rules_make_classes() {
        let objects = |node: &str| {
            let compiled = Compiled::new();
            let mut pods: Vec<Object> = compiled.compiler.pods().cloned().map(Object::Pod).collect();
            for object in &mut pods {
                let Object::Pod(pod) = object else { unreachable!() };
                if pod.name == PodName::new("x", "a") {
                    pod.node = Some(node.to_owned());
                }
            }
            pods.push(ingress("p", &[rule(&[app("b")], &[])]));
            pods
        };
        let options = || Options { node: Some("n".to_owned()) };
        let elsewhere = Compiler::from_objects(objects("m"), options());
        assert_eq!(elsewhere.tables().pods.len(), 3);
        assert!(elsewhere.tables().prefixes.is_empty(), "nothing here tells addresses apart");
        let here = Compiler::from_objects(objects("n"), options());
        assert_eq!(here.tables().pods.len(), 4);
        assert_eq!(here.tables().prefixes.len(), 1);
    }

    #[test]
    fn pods_with_equal_rules_share_their_tables() {
        let mut compiled = Compiled::new();
        assert_eq!(compiled.compiler.tables().acls.len(), 2, "one for each direction");
        compiled.put(ingress("p", &[rule(&[app("b")], &[])]));
        compiled.put(Object::Pod(Pod { labels: labels(&[("app", "a")]), ..pod("x", "a2", "10.0.0.9") }));
        let tables = compiled.compiler.tables();
        let of = |name: &str| &tables.pods[&PodName::new("x", name)];
        assert_eq!(of("a").ingress, of("a2").ingress);
        assert_ne!(of("a").ingress, of("b").ingress);
        assert_eq!((tables.acls.len(), tables.rows.len()), (3, 4));
    }

    #[test]
    fn a_change_costs_what_it_touches() {
        let mut compiled = Compiled::new().with([ingress("p", &[rule(&[app("b")], &[])])]);
        let twin = Pod { labels: labels(&[("app", "b")]), ..pod("x", "b2", "10.0.0.9") };
        assert_eq!(compiled.put(Object::Pod(twin.clone())), 2, "its prefix and its tables");
        assert_eq!(compiled.put(Object::Pod(twin)), 0, "nothing has changed");
    }

    #[test]
    fn a_policy_beside_a_large_one_changes_what_it_is_about() {
        let large = (1..60).map(|i| rule(&[block(&format!("192.0.2.{i}/32"), &[])], &[tcp(i, 1000)]));
        let mut compiled = Compiled::new().with([ingress("p", &large.collect::<Vec<_>>())]);
        let small = ingress("q", &[rule(&[block("192.0.2.7/32", &[])], &[tcp(2000, 2000)])]);
        let changes =
            "its rule, what denies by default, the address's row, the one it had, the table's entry";
        assert_eq!(compiled.put(small.clone()), 5, "{changes}");
        assert_eq!(compiled.on_ingress("192.0.2.7", "x/a", TCP, 2000), "allow: NetworkPolicy x/q ingress[0]");
        assert_eq!(compiled.on_ingress("192.0.2.7", "x/a", TCP, 1000), "allow: NetworkPolicy x/p ingress[6]");
        let denied = "deny: isolated for ingress by NetworkPolicy x/p, NetworkPolicy x/q; no rule matched";
        assert_eq!(compiled.on_ingress("192.0.2.8", "x/a", TCP, 2000), denied);
        assert_eq!(compiled.compiler.apply(Change::Remove(ObjectName::of(&small))).len(), 5, "{changes}");
        assert!(!compiled.passes("192.0.2.7", "x/a", TCP, 2000));
    }

    #[test]
    fn classes_are_called_what_rules_call_them() {
        let compiled = Compiled::new()
            .with([ingress("p", &[rule(&[app("b"), block("10.0.0.0/24", &["10.0.0.9/32"])], &[])])]);
        let class = compiled.compiler.class_of(compiled.address("x/b"));
        let groups = compiled.compiler.groups_of_class(class);
        let mut names: Vec<String> = groups[0].iter().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(names, ["10.0.0.0/24 except 10.0.0.9/32", "pods app=b in namespace x"]);
        let selecting = compiled.compiler.policies_selecting(&PodName::new("x", "a"), Direction::Ingress);
        assert_eq!(selecting.iter().map(ToString::to_string).collect::<Vec<_>>(), ["NetworkPolicy x/p"]);
    }

    #[test]
    fn tables_pass_their_check_and_default_deny_is_a_deny() {
        let compiled = Compiled::new().with([policy("p", Some(vec![]), Some(vec![]))]);
        assert_eq!(compiled.compiler.tables().check(), Ok(()));
        let pod = &compiled.compiler.tables().pods[&PodName::new("x", "a")];
        for acl in [pod.ingress, pod.egress] {
            let row = &compiled.compiler.tables().rows[&compiled.compiler.tables().acls[&acl].default];
            assert_eq!(row.other.verdict(), Verdict::Deny);
        }
    }
}
