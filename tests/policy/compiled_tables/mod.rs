//! Compilation of objects to tables, clause by clause: the verdict of a flow, and the rule that each side
//! names for it.
//!
//! Clause numbers are those of the semantics reference (`N` for `NetworkPolicy`, `C` for
//! `ClusterNetworkPolicy`, then section and item).

mod blocks;
mod compiler;
mod isolation;
mod lifecycle;
mod ports;
mod tiers;

use std::net::IpAddr;

use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::objects::{
    AssignedMetadata, ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule,
    ContainerPort, IpBlock, LabelSelector, Labels, Namespace, NetworkPolicy, NetworkPolicyRule, Node, Object,
    Peer, Peers, Pod, PodScope, PortMatch, Ports, Requirement, Tier,
};
use palisade::policy::{Change, Compiler, ObjectName, Options};
use palisade::tables::{Classifier, Direction, PodName, PolicyKind, Verdict};

const TCP: Protocol = Protocol::TCP;
const UDP: Protocol = Protocol::UDP;
const OPEN_OUT: &str = "allow: no policy isolates the pod for egress";
const OPEN_IN: &str = "allow: no policy isolates the pod for ingress";

/// Compiler with short methods to change objects and to evaluate flows.
struct Compiled {
    compiler: Compiler,
}

impl Compiled {
    /// Makes namespaces `x` (team=red) and `y` (team=blue) with pods `a` and `b` each, labelled `app=a` and
    /// `app=b`, on node `n`.
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

    /// Reasons of the source's egress and of the destination's ingress; `-` for an end that is no pod.
    fn ask(&self, from: &str, to: &str, protocol: Protocol, dst_port: u16) -> [String; 2] {
        let (src, dst) = (self.address(from), self.address(to));
        let tables = self.compiler.tables();
        let flow = FlowKey { src, dst, protocol, src_port: 50_000, dst_port };
        let judgement = Classifier::new(tables).unwrap().decide_flow(&flow);
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
        addresses: vec![address.parse().unwrap()],
        node: Some("n".to_owned()),
        ..Pod::new(PodName::new(namespace, app), labels(&[("app", app)]))
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

/// Policy in `x` for its pods `app=a`.
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
        audited: false,
        assigned: AssignedMetadata::default(),
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

/// Cluster-wide policy for the pods `app=a` of namespace `x`.
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
        audited: false,
    })
}

fn every_pod() -> ClusterPeer {
    ClusterPeer::Pods(scope(all(), all()))
}
