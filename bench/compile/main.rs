//! The policy compiler, measured on clusters made from a seed.
//!
//! Prints one JSON object per line; `ms` is the time of one compile, or of one change where `p99_ms` stands beside it.
//! Each case runs in a process of its own, so that `peak_mib` is what that case needed, objects included. `--smoke` takes
//! a few seconds; a word runs only the cases that contain it.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Instant;

use ipnet::{IpNet, Ipv4Net};
use palisade::net::flow::Protocol;
use palisade::pktgen::median;
use palisade::policy::objects::{
    ContainerPort, IpBlock, LabelSelector, Labels, Namespace, NetworkPolicy, NetworkPolicyRule, Node, Object,
    Peer, Peers, Pod, PortMatch, Ports, Requirement,
};
use palisade::policy::{Change, Compiler, ObjectName, Options};
use palisade::tables::PodName;
use serde_json::{Value, json};

const SEED: u64 = 0x9a11_5ade;
const PODS_PER_NODE: usize = 250;
const PODS_PER_NAMESPACE: usize = 50;

type Case = (&'static str, fn(bool) -> Value);

const CASES: [Case; 9] = [
    ("full-10k", |smoke| full(if smoke { 1_000 } else { 10_000 }, 5, smoke)),
    ("full-100k", |smoke| full(if smoke { 2_000 } else { 100_000 }, 2, smoke)),
    ("full-10k-every-pod-local", |smoke| every_pod_local(if smoke { 500 } else { 10_000 })),
    ("change-anywhere", |smoke| changes(smoke, false)),
    ("change-local", |smoke| changes(smoke, true)),
    ("end-port-1-65535", |_| end_port()),
    ("block-1000-excepts", |_| excepts()),
    ("512-selectors-512-ports", |smoke| selectors_and_ports(if smoke { 32 } else { 512 })),
    ("10000-overlapping-blocks", |smoke| overlapping_blocks(if smoke { 200 } else { 10_000 })),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let smoke = arguments.iter().any(|argument| argument == "--smoke");
    if let Some(case) = arguments.iter().find_map(|argument| argument.strip_prefix("--case=")) {
        let (name, run) = CASES.into_iter().find(|(name, _)| *name == case).expect("a case of this bench");
        let mut line = json!({"bench": "compile", "case": name, "seed": SEED});
        line.as_object_mut().unwrap().extend(run(smoke).as_object().unwrap().clone());
        line["peak_mib"] = json!(peak_mib());
        println!("{line}");
        return;
    }
    let only = arguments.iter().find(|argument| !argument.starts_with('-'));
    for (name, _) in
        CASES.into_iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only.as_str())))
    {
        let mut child = Command::new(std::env::current_exe().expect("the path of this program"));
        child.arg(format!("--case={name}")).args(smoke.then_some("--smoke"));
        assert!(child.status().expect("a process for the case").success(), "{name} failed");
    }
}

/// Highest resident memory of this process so far (`VmHWM` of proc(5)).
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux process");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("proc(5) gives VmHWM");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number of kB");
    (kib / 102.4).round() / 10.0
}

fn ms(start: Instant) -> f64 {
    round(start.elapsed().as_secs_f64() * 1e3)
}

fn round(ms: f64) -> f64 {
    (ms * 1e4).round() / 1e4
}

fn node(number: usize) -> String {
    format!("node-{number}")
}

fn on_first_node() -> Options {
    Options { node: Some(node(0)) }
}

/// A compile from scratch of a cluster with the usual mix of policies, for one of its nodes.
fn full(pods: usize, samples: usize, smoke: bool) -> Value {
    let cluster = Cluster::new(pods);
    let mut times = Vec::new();
    let mut sizes = json!({});
    for _ in 0..if smoke { 1 } else { samples } {
        let objects = cluster.objects();
        let start = Instant::now();
        let compiler = Compiler::from_objects(objects, on_first_node());
        times.push(ms(start));
        sizes = measure(&compiler);
    }
    let median_ms = median(&mut times);
    json!({"pods": pods, "policies": cluster.policies(), "ms": median_ms, "max_ms": times.last(), "tables": sizes})
}

/// The same, with tables for every pod.
fn every_pod_local(pods: usize) -> Value {
    let cluster = Cluster::new(pods);
    let objects = cluster.objects();
    let start = Instant::now();
    let compiler = Compiler::from_objects(objects, Options::default());
    let time = ms(start);
    json!({"pods": pods, "policies": cluster.policies(), "ms": time, "tables": measure(&compiler)})
}

fn measure(compiler: &Compiler) -> Value {
    let tables = compiler.tables();
    let classes = tables.prefixes.values().max().map_or(1, |class| class.0 + 1);
    let acl_rows: usize = tables.acls.values().map(|acl| acl.rows.len()).sum();
    json!({
        "pods": tables.pods.len(), "prefixes": tables.prefixes.len(), "classes": classes, "rows": tables.rows.len(),
        "acls": tables.acls.len(), "acl_rows": acl_rows, "rules": tables.rules.len(),
    })
}

/// One pod added, relabelled or removed at a time, all over the cluster or only on the node of the tables.
fn changes(smoke: bool, local: bool) -> Value {
    let pods = if smoke { 1_000 } else { 10_000 };
    let mut cluster = Cluster::new(pods);
    let mut compiler = Compiler::from_objects(cluster.objects(), on_first_node());
    let mut kinds: [Vec<(f64, usize)>; 3] = Default::default();
    for round in 0..if smoke { 60 } else { 6_000 } {
        let kind = round % 3;
        let change = match kind {
            0 => {
                let pod = cluster.new_pod(local.then_some(0));
                cluster.pods.push(pod.clone());
                Change::Upsert(Object::Pod(pod))
            }
            1 => {
                let at = cluster.any_pod(local);
                let app = cluster.random.below(APPS);
                cluster.pods[at].labels.insert("app".to_owned(), format!("app-{app}"));
                Change::Upsert(Object::Pod(cluster.pods[at].clone()))
            }
            _ => {
                let at = cluster.any_pod(local);
                Change::Remove(ObjectName::Pod(cluster.pods.swap_remove(at).name))
            }
        };
        let start = Instant::now();
        let difference = compiler.apply(change);
        kinds[kind].push((start.elapsed().as_secs_f64() * 1e3, difference.len()));
    }
    let figures = |samples: &[(f64, usize)]| {
        let (mut times, mut entries): (Vec<f64>, Vec<usize>) = samples.iter().copied().unzip();
        times.sort_by(f64::total_cmp);
        entries.sort_unstable();
        let at = |share: f64| ((times.len() - 1) as f64 * share) as usize;
        json!({
            "ms": round(times[at(0.5)]), "p99_ms": round(times[at(0.99)]), "max_ms": round(times[at(1.0)]),
            "entries": entries[at(0.5)], "p99_entries": entries[at(0.99)], "max_entries": entries[at(1.0)],
        })
    };
    let [added, relabelled, removed] = kinds.each_ref().map(|samples| figures(samples));
    let all: Vec<(f64, usize)> = kinds.into_iter().flatten().collect();
    let mut line = figures(&all);
    let more = json!({"pods": pods, "policies": cluster.policies(), "added": added, "relabelled": relabelled, "removed": removed});
    line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    line
}

fn end_port() -> Value {
    let policy = policy(
        "default",
        "all-ports",
        everything(),
        Some(vec![rule(Peers::Everyone, vec![tcp(1, 65_535)])]),
        None,
    );
    let (compiler, time) = alone(vec![policy]);
    let spans = compiler.tables().rows.values().map(|row| row.tcp.len()).max();
    json!({"pods": 1, "policies": 1, "ms": time, "spans": spans})
}

fn excepts() -> Value {
    let except = (0..1_000_u32).map(|i| v4(0x0a00_0000 + (i << 8), 24)).collect();
    let peers = Peers::Any(vec![Peer::IpBlock(IpBlock { cidr: v4(0x0a00_0000, 8), except })]);
    let policy =
        policy("default", "excepts", everything(), None, Some(vec![rule(peers, vec![tcp(443, 443)])]));
    let (compiler, time) = alone(vec![policy]);
    json!({"pods": 1, "policies": 1, "ms": time, "tables": measure(&compiler)})
}

/// Every selector with ports of its own, all in rules of one policy, and a pod for each selector.
fn selectors_and_ports(count: usize) -> Value {
    let rules = (0..count).map(|i| {
        let peers = Peers::Any(vec![Peer::Pods { namespaces: None, pods: label("group", &format!("g{i}")) }]);
        rule(
            peers,
            (0..count as u16).map(|port| tcp(2 * port + 1 + i as u16, 2 * port + 1 + i as u16)).collect(),
        )
    });
    let policy = policy("default", "many", everything(), Some(rules.collect()), None);
    let mut objects = vec![Object::NetworkPolicy(policy)];
    for i in 0..count {
        let labels = Labels::from([("group".to_owned(), format!("g{i}"))]);
        objects.push(Object::Pod(pod("default", &format!("pod-{i}"), labels, 0x0a00_0000 + i as u32, 0)));
    }
    let start = Instant::now();
    let compiler = Compiler::from_objects(objects, Options::default());
    json!({"pods": count, "policies": 1, "ms": ms(start), "tables": measure(&compiler)})
}

fn overlapping_blocks(count: usize) -> Value {
    let mut random = Random(SEED);
    let blocks = (0..count).map(|_| {
        let length = 8 + random.below(25) as u8;
        Peer::IpBlock(IpBlock {
            cidr: v4(0x0a00_0000 | random.next() as u32 & 0x00ff_ffff, length),
            except: Vec::new(),
        })
    });
    let peers = Peers::Any(blocks.collect());
    let policy =
        policy("default", "blocks", everything(), None, Some(vec![rule(peers, vec![tcp(443, 443)])]));
    let (compiler, time) = alone(vec![policy]);
    json!({"pods": 1, "policies": 1, "ms": time, "tables": measure(&compiler)})
}

/// Policies that select the only pod there is.
fn alone(policies: Vec<NetworkPolicy>) -> (Compiler, f64) {
    let mut objects: Vec<Object> = policies.into_iter().map(Object::NetworkPolicy).collect();
    objects.push(Object::Pod(pod("default", "alone", Labels::new(), 0x0a00_0001, 0)));
    let start = Instant::now();
    let compiler = Compiler::from_objects(objects, on_first_node());
    (compiler, ms(start))
}

const APPS: usize = 8;
const TEAMS: usize = 20;

/// A cluster: namespaces of 50 pods in eight applications each, five policies a namespace, nodes of 250 pods.
struct Cluster {
    random: Random,
    namespaces: usize,
    nodes: usize,
    pods: Vec<Pod>,
    made: usize,
}

impl Cluster {
    fn new(pods: usize) -> Cluster {
        let nodes = pods.div_ceil(PODS_PER_NODE);
        let namespaces = pods.div_ceil(PODS_PER_NAMESPACE);
        let mut cluster = Cluster { random: Random(SEED), namespaces, nodes, pods: Vec::new(), made: 0 };
        for i in 0..pods {
            let pod = cluster.new_pod(Some(i / PODS_PER_NODE));
            cluster.pods.push(pod);
        }
        cluster
    }

    fn policies(&self) -> usize {
        (0..self.namespaces).map(|i| self.policies_in(i)).sum()
    }

    /// Five in a namespace; two or three in a cluster of more than a thousand of them.
    fn policies_in(&self, namespace: usize) -> usize {
        if self.namespaces > 1_000 { 2 + namespace % 2 } else { 5 }
    }

    fn new_pod(&mut self, node: Option<usize>) -> Pod {
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

    fn any_pod(&mut self, local: bool) -> usize {
        let first = node(0);
        loop {
            let at = self.random.below(self.pods.len());
            if !local || self.pods[at].node.as_ref() == Some(&first) {
                return at;
            }
        }
    }

    fn objects(&self) -> Vec<Object> {
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

/// The usual mix. A third of the namespaces deny egress too, and let DNS through to every namespace.
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

fn pod(namespace: &str, name: &str, labels: Labels, address: u32, on_node: usize) -> Pod {
    let port =
        |name: &str, port| ContainerPort { name: Some(name.to_owned()), protocol: Protocol::TCP, port };
    Pod {
        name: PodName::new(namespace, name),
        labels,
        addresses: vec![IpAddr::V4(Ipv4Addr::from_bits(address))],
        placeholder: false,
        node: Some(node(on_node)),
        host_ips: Vec::new(),
        host_network: false,
        finished: false,
        ports: vec![port("http", 8080), port("metrics", 9090)],
    }
}

fn policy(
    namespace: &str,
    name: &str,
    pod_selector: LabelSelector,
    ingress: Option<Vec<NetworkPolicyRule>>,
    egress: Option<Vec<NetworkPolicyRule>>,
) -> NetworkPolicy {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    NetworkPolicy { namespace, name, pod_selector, ingress, egress, ignored: Vec::new() }
}

fn rule(peers: Peers, ports: Vec<PortMatch>) -> NetworkPolicyRule {
    NetworkPolicyRule { peers, ports: Ports::Any(ports) }
}

fn tcp(first: u16, last: u16) -> PortMatch {
    PortMatch::Range { protocol: Protocol::TCP, first, last }
}

fn udp(port: u16) -> PortMatch {
    PortMatch::Range { protocol: Protocol::UDP, first: port, last: port }
}

fn named(name: &str) -> PortMatch {
    PortMatch::Named { protocol: Protocol::TCP, name: name.to_owned() }
}

fn everything() -> LabelSelector {
    LabelSelector::default()
}

fn label(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        requirements: vec![Requirement::In { key: key.to_owned(), values: vec![value.to_owned()] }],
    }
}

fn v4(bits: u32, length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from_bits(bits), length).trunc())
}

/// The generator `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
