//! Benchmarks of the policy compiler, on clusters from a seed.
//!
//! Prints one JSON object a line. `ms` is the time of one compile, or the median of changes where `p99_ms`
//! stands beside it. Each case runs in a process of its own, so `peak_mib` is the memory of that case,
//! objects included. `--smoke` takes a few seconds; a word runs only the cases that contain it.

mod changes;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod objects;
mod render;

use std::process::Command;
use std::time::Instant;

use cluster::{Cluster, on_first_node};
use common::random::{SEED, SplitMix64};
use common::statistics::{median, rounded};
use objects::{everything, label, pod, policy, rule, tcp, v4};
use palisade::policy::objects::{IpBlock, Labels, NetworkPolicy, Object, Peer, Peers};
use palisade::policy::{Compiler, Options};
use palisade::render::Format;
use serde_json::{Value, json};

/// Name of a case, and its measurement, whose argument is true in a smoke test.
type Case = (&'static str, fn(bool) -> Value);

const CASES: [Case; 18] = [
    ("full-10k", |smoke| full(if smoke { 1_000 } else { 10_000 }, 5, smoke)),
    ("full-100k", |smoke| full(if smoke { 2_000 } else { 100_000 }, 2, smoke)),
    ("full-10k-every-pod-local", |smoke| every_pod_local(if smoke { 500 } else { 10_000 })),
    ("render-nftables-10k", |smoke| render::measure(if smoke { 500 } else { 10_000 }, Format::Nftables)),
    ("render-iptables-10k", |smoke| render::measure(if smoke { 500 } else { 10_000 }, Format::Iptables)),
    ("render-openflow-10k", |smoke| render::measure(if smoke { 500 } else { 10_000 }, Format::Openflow)),
    ("render-identity-10k", |smoke| render::measure(if smoke { 500 } else { 10_000 }, Format::Identity)),
    ("render-contiv-1k", |smoke| render::measure(if smoke { 500 } else { 1_000 }, Format::Contiv)),
    ("render-vpp-acl-1k", |smoke| render::measure(if smoke { 500 } else { 1_000 }, Format::VppAcl)),
    ("render-vpptcp-1k", |smoke| render::measure(if smoke { 500 } else { 1_000 }, Format::Vpptcp)),
    ("render-security-groups-10k", |smoke| {
        render::measure(if smoke { 500 } else { 10_000 }, Format::SecurityGroups)
    }),
    ("lint-50k", |smoke| lint(if smoke { 1_000 } else { 50_000 }, smoke)),
    ("change-anywhere", |smoke| changes::measure(smoke, false)),
    ("change-local", |smoke| changes::measure(smoke, true)),
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
    rounded(kib / 1024.0, 1)
}

/// Milliseconds since `start`.
fn ms(start: Instant) -> f64 {
    rounded(start.elapsed().as_secs_f64() * 1e3, 4)
}

/// Compiles a cluster from scratch for one of its nodes, and gives the median.
fn full(pods: usize, samples: usize, smoke: bool) -> Value {
    let cluster = Cluster::new(pods);
    let mut times = Vec::new();
    let mut table_sizes = json!({});
    for _ in 0..if smoke { 1 } else { samples } {
        let objects = cluster.objects();
        let start = Instant::now();
        let compiler = Compiler::from_objects(objects, on_first_node());
        times.push(ms(start));
        table_sizes = sizes(&compiler);
    }
    let median_ms = median(&mut times);
    json!({"pods": pods, "policies": cluster.policies(), "ms": median_ms, "max_ms": times.last(), "tables": table_sizes})
}

/// Compiles a cluster from scratch with tables for every pod.
fn every_pod_local(pods: usize) -> Value {
    let cluster = Cluster::new(pods);
    let objects = cluster.objects();
    let start = Instant::now();
    let compiler = Compiler::from_objects(objects, Options::default());
    let time = ms(start);
    json!({"pods": pods, "policies": cluster.policies(), "ms": time, "tables": sizes(&compiler)})
}

/// Looks for mistakes in the policies of a cluster, and gives the median.
fn lint(pods: usize, smoke: bool) -> Value {
    let cluster = Cluster::new(pods);
    let objects = cluster.objects();
    let mut times = Vec::new();
    let mut findings = 0;
    for _ in 0..if smoke { 1 } else { 5 } {
        let start = Instant::now();
        findings = palisade::policy::lint::lint(&objects, &[]).len();
        times.push(ms(start));
    }
    let median_ms = median(&mut times);
    json!({"pods": pods, "policies": cluster.policies(), "ms": median_ms, "max_ms": times.last(), "findings": findings})
}

/// Sizes of the compiled tables.
fn sizes(compiler: &Compiler) -> Value {
    let tables = compiler.tables();
    let classes = tables.prefixes.values().max().map_or(1, |class| class.0 + 1);
    let acl_rows: usize = tables.acls.values().map(|acl| acl.rows.len()).sum();
    json!({
        "pods": tables.pods.len(), "prefixes": tables.prefixes.len(), "classes": classes, "rows": tables.rows.len(),
        "acls": tables.acls.len(), "acl_rows": acl_rows, "rules": tables.rules.len(),
    })
}

/// Compiles the port range from 1 to 65535.
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

/// Compiles an `ipBlock` with a thousand exceptions.
fn excepts() -> Value {
    let except = (0..1_000_u32).map(|i| v4(0x0a00_0000 + (i << 8), 24)).collect();
    let peers = Peers::Any(vec![Peer::IpBlock(IpBlock { cidr: v4(0x0a00_0000, 8), except })]);
    let policy =
        policy("default", "excepts", everything(), None, Some(vec![rule(peers, vec![tcp(443, 443)])]));
    let (compiler, time) = alone(vec![policy]);
    json!({"pods": 1, "policies": 1, "ms": time, "tables": sizes(&compiler)})
}

/// Compiles one policy whose rules have a selector with ports of its own each, and a pod for each selector.
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
    json!({"pods": count, "policies": 1, "ms": ms(start), "tables": sizes(&compiler)})
}

/// Compiles a policy of `count` blocks that overlap.
fn overlapping_blocks(count: usize) -> Value {
    let mut random = SplitMix64(SEED);
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
    json!({"pods": 1, "policies": 1, "ms": time, "tables": sizes(&compiler)})
}

/// Compiles policies that select the only pod, and gives the time in milliseconds.
fn alone(policies: Vec<NetworkPolicy>) -> (Compiler, f64) {
    let mut objects: Vec<Object> = policies.into_iter().map(Object::NetworkPolicy).collect();
    objects.push(Object::Pod(pod("default", "alone", Labels::new(), 0x0a00_0001, 0)));
    let start = Instant::now();
    let compiler = Compiler::from_objects(objects, on_first_node());
    (compiler, ms(start))
}
