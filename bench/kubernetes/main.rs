//! Benchmarks of the agent on a fake API server of another process: lists to tables, and events to tables.
//!
//! Prints one JSON object a line. Tables count as enforced when the control side has published them: no workers run.
//! Each case runs in a process of its own, so `peak_mib` is the memory of the agent alone. `--smoke` takes seconds.

#[path = "../../tests/kubernetes/server.rs"]
#[allow(dead_code)] // Tests use the rest.
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use palisade::control::protocol::{RouteInfo, RouteRequest, SourceReport};
use palisade::control::{Switch, SwitchSettings};
use palisade::dataplane::DryRun;
use palisade::source::kubernetes::{Access, Settings, SwitchTarget, Target, TargetError, run};
use palisade::tables::{PodName, PolicyRef, RuleTables, ServiceTable, ServicesDiff, TablesDiff};
use serde_json::{Value, json};

use server::ApiServer;

/// Name, pods, policies, and pods of the node.
const LISTS: [(&str, usize, usize, usize); 2] =
    [("lists-10k", 10_000, 1_000, 250), ("lists-100k", 100_000, 1_000, 250)];

/// Events a second.
const RATE: u32 = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let smoke = arguments.iter().any(|argument| argument == "--smoke");
    let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
    if let Some(pods) = value("--serve=") {
        return serve(pods.parse().expect("a number of pods"));
    }
    if let Some(case) = value("--case=") {
        let mut line = json!({"bench": "kubernetes", "case": case});
        let result = match LISTS.iter().find(|(name, ..)| *name == case) {
            Some((_, pods, ..)) => lists(if smoke { pods / 50 } else { *pods }),
            None => events(smoke),
        };
        line.as_object_mut().unwrap().extend(result.as_object().unwrap().clone());
        line["peak_mib"] = json!(peak_mib());
        println!("{line}");
        return;
    }
    let only = arguments.iter().find(|argument| !argument.starts_with('-'));
    for name in LISTS.iter().map(|(name, ..)| *name).chain(["events"]) {
        if only.is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let mut child = Command::new(std::env::current_exe().expect("the path of this program"));
        child.arg(format!("--case={name}")).args(smoke.then_some("--smoke"));
        assert!(child.status().expect("a process for the case").success(), "{name} failed");
    }
}

/// Switch whose published pods are noted with the time.
struct Noted<'s> {
    inner: SwitchTarget<'s>,
    loaded: Arc<Mutex<Option<Instant>>>,
    pods: Arc<Mutex<BTreeMap<String, Instant>>>,
}

impl Target for Noted<'_> {
    fn load(&mut self, tables: &RuleTables, counts: (usize, usize)) -> Result<(), TargetError> {
        self.inner.load(tables, counts)?;
        *self.loaded.lock().unwrap() = Some(Instant::now());
        Ok(())
    }

    fn change(&mut self, difference: &TablesDiff, counts: (usize, usize)) -> Result<(), TargetError> {
        self.inner.change(difference, counts)?;
        let now = Instant::now();
        let names = difference.pods.keys().map(|name| (name.name.clone(), now));
        let mut pods = self.pods.lock().unwrap();
        // The first time is that of the addition.
        names.for_each(|(name, at)| _ = pods.entry(name).or_insert(at));
        Ok(())
    }

    fn load_services(&mut self, table: &ServiceTable) -> Result<(), TargetError> {
        self.inner.load_services(table)
    }

    fn change_services(&mut self, difference: &ServicesDiff) -> Result<(), TargetError> {
        self.inner.change_services(difference)
    }

    fn audit(&mut self, policies: &[PolicyRef], tables: RuleTables) -> Result<(), TargetError> {
        self.inner.audit(policies, tables)
    }

    fn end_audit(&mut self) -> Result<(), TargetError> {
        self.inner.end_audit()
    }

    fn attached(&mut self) -> Option<BTreeMap<PodName, Vec<IpAddr>>> {
        self.inner.attached()
    }

    fn uplinks(&self) -> Result<Vec<String>, TargetError> {
        self.inner.uplinks()
    }

    fn routes(&self) -> Result<Vec<RouteInfo>, TargetError> {
        self.inner.routes()
    }

    fn put_routes(&self, routes: &[(IpNet, RouteRequest)]) -> Vec<(IpNet, TargetError)> {
        self.inner.put_routes(routes)
    }

    fn delete_route(&self, prefix: IpNet) -> Result<(), TargetError> {
        self.inner.delete_route(prefix)
    }

    fn report(&self, report: &SourceReport) -> Result<(), TargetError> {
        self.inner.report(report)
    }

    fn server(&mut self, server: &str) {
        self.inner.server(server);
    }
}

/// Runs an agent beside `work`, which gets the time of the first tables and those of changed pods.
fn with_agent<T>(
    kubeconfig: &str,
    work: impl FnOnce(&Mutex<Option<Instant>>, &Mutex<BTreeMap<String, Instant>>) -> T,
) -> T {
    let path = std::env::temp_dir().join(format!("palisade-bench-{}", std::process::id()));
    std::fs::write(&path, kubeconfig).expect("a file of credentials");
    let settings = Settings {
        access: Access { kubeconfig: Some(path.clone()), context: None },
        node: Some("n0".to_owned()),
        ..Settings::default()
    };
    let switch = Switch::new(
        Arc::new(DryRun::new(&palisade::dataplane::Settings::default()).expect("a dataplane")),
        SwitchSettings::default(),
    );
    let (loaded, pods) = (Arc::default(), Arc::default());
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let mut target =
            Noted { inner: SwitchTarget::new(&switch), loaded: Arc::clone(&loaded), pods: Arc::clone(&pods) };
        let (settings, stop) = (&settings, &stop);
        scope.spawn(move || {
            run(settings, &mut target, &mut |_: &BTreeSet<IpNet>| {}, stop).expect("an agent");
        });
        let result = work(&loaded, &pods);
        stop.store(true, Ordering::Release);
        result
    });
    let _ = std::fs::remove_file(path);
    result
}

/// Time from the start of the agent to the first tables.
fn lists(pods: usize) -> Value {
    let mut child = Command::new(std::env::current_exe().expect("the path of this program"));
    let mut child = child
        .arg(format!("--serve={pods}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut kubeconfig = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut kubeconfig).expect("its address");
    let started = Instant::now();
    let elapsed = with_agent(&kubeconfig, |loaded, _| {
        loop {
            if let Some(at) = *loaded.lock().unwrap() {
                return at - started;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    child.kill().expect("the server ends");
    child.wait().expect("the server has ended");
    json!({"pods": pods, "ms": elapsed.as_millis() as u64})
}

/// Serves a cluster until standard input ends.
fn serve(pods: usize) {
    let server = ApiServer::start();
    fill(&server, pods, LISTS[0].2.min(pods), LISTS[0].3.min(pods));
    println!("{}", server.kubeconfig(&json!({})));
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn fill(server: &ApiServer, pods: usize, policies: usize, local: usize) {
    for i in 0..100 {
        server.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("ns-{i}")}}));
    }
    for i in 0..pods {
        let node = if i < local { "n0".to_owned() } else { format!("n{}", 1 + i % 400) };
        server.put(pod(i, &node, 0));
    }
    for i in 0..policies {
        server.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": format!("ns-{}", i % 100), "name": format!("policy-{i}")},
            "spec": {"podSelector": {"matchLabels": {"app": format!("app-{}", i % 20)}}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": format!("app-{}", i % 7)}}},
                    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": format!("ns-{}", i % 13)}}}],
                    "ports": [{"port": 80}, {"port": "http"}]}],
                "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.96.0.0/12"]}}]}]}}));
    }
}

/// Pod of about the size that kubelets make them: 4 KB.
fn pod(i: usize, node: &str, version: usize) -> Value {
    let address = std::net::Ipv4Addr::from(0x0a00_0001 + i as u32);
    let environment: Vec<Value> = (0..12)
        .map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "some value of usual length"}))
        .collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": format!("ns-{}", i % 100), "name": format!("pod-{i}"),
            "labels": {"app": format!("app-{}", (i + version) % 20), "pod-template-hash": format!("{:x}", i / 10), "tier": "backend"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x".repeat(800)},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "x", "uid": "d7785d2b-adea-432f-be8c-b0ed113f7c48"}]},
        "spec": {"nodeName": node, "serviceAccountName": "default", "containers": [{"name": "main",
            "image": "registry.example.com/team/service@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "env": environment, "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}}}]},
        "status": {"phase": "Running", "podIP": address.to_string(), "podIPs": [{"ip": address.to_string()}], "hostIP": "192.0.2.1",
            "conditions": (0..4).map(|n| json!({"type": format!("Condition{n}"), "status": "True", "lastTransitionTime": "2026-11-21T02:13:15Z"})).collect::<Vec<_>>(),
            "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-21T02:13:15Z"}}}]}})
}

/// Time from the write of a pod of this node to its tables, at a steady rate.
fn events(smoke: bool) -> Value {
    let server = ApiServer::start();
    let (pods, seconds) = if smoke { (200, 1) } else { (10_000, 60) };
    let local = LISTS[0].3.min(pods);
    fill(&server, pods, if smoke { 50 } else { LISTS[0].2 }, local);
    let mut times = with_agent(&server.kubeconfig(&json!({})), |loaded, noted| {
        while loaded.lock().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500));
        let (started, count) = (Instant::now(), (RATE * seconds) as usize);
        let mut written = Vec::new();
        for i in 0..count {
            let due = started + Duration::from_secs(1) / RATE * i as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // A pod that comes is in its tables for the first time.
            let mut object = pod(1_000_000 + i, "n0", 0);
            object["metadata"]["name"] = json!(format!("event-{i}"));
            object["status"]["podIP"] = json!(std::net::Ipv4Addr::from(0x0b00_0000 + i as u32).to_string());
            object["status"]["podIPs"] = json!([{"ip": object["status"]["podIP"]}]);
            written.push(Instant::now());
            server.put(object.clone());
            if i >= 200 {
                let gone = json!({"kind": "Pod", "metadata": {"name": format!("event-{}", i - 200), "namespace": format!("ns-{}", (1_000_000 + i - 200) % 100)}});
                server.delete(&gone);
            }
        }
        let last = format!("event-{}", count - 1);
        while !noted.lock().unwrap().contains_key(&last) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let noted = noted.lock().unwrap();
        written
            .iter()
            .enumerate()
            .filter_map(|(i, at)| Some(noted.get(&format!("event-{i}"))?.saturating_duration_since(*at)))
            .collect::<Vec<_>>()
    });
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_micros() as f64 / 1000.0;
    json!({"pods": pods, "rate": RATE, "seconds": seconds, "events": times.len(),
        "median_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)})
}

/// Highest resident memory of this process so far (`VmHWM` of proc(5)).
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak memory");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") / 1024
}
