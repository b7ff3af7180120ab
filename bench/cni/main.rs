//! Benchmark of the CNI plugin: ADD and DEL of one container alone, and of 250 containers, eight at a time, with a real
//! switch and host-local of containernetworking-plugins.
//!
//! Prints one JSON object a line for each kind of interface. `--smoke` takes some seconds. It needs root.

#[path = "../common/mod.rs"]
mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use palisade::lab::{Lab, LabSpec, Switch, SwitchSpec, require_root};
use serde_json::{Value, json};

use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::statistics::rounded;

/// Directory of the IPAM plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// Calls at the same time.
const AT_ONCE: usize = 8;

fn main() {
    // Cargo passes `--bench`.
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    if let Err(error) = require_root() {
        eprintln!("{error}");
        std::process::exit(2);
    }
    if !std::path::Path::new(PLUGINS).join("host-local").exists() {
        eprintln!("{PLUGINS}/host-local is missing: apt-get install containernetworking-plugins");
        std::process::exit(2);
    }
    let (alone, many) = if smoke { (5, 10) } else { (300, 250) };
    for kind in ["tap", "veth"] {
        measure(kind, alone, many);
    }
}

fn measure(kind: &str, alone: usize, many: usize) {
    let mut lab = Lab::up(&LabSpec::of(&["bystander"]).expect("a name")).expect("a lab");
    let spec = SwitchSpec { small: false, ..SwitchSpec::of(env!("CARGO_BIN_EXE_palisade")) };
    let switch = Switch::start(&mut lab, &spec).expect("a switch");
    let directory = lab.directory();
    let config = json!({
        "cniVersion": "1.0.0",
        "name": "bench",
        "type": "palisade-cni",
        "interface": kind,
        "socket": directory.join("control.sock"),
        "ipam": {"type": "host-local", "dataDir": directory.join("leases"), "ranges": [[{"subnet": "10.88.0.0/16"}]]},
    });
    let names: Vec<String> = (0..many).map(|number| format!("palbench{}-{number}", lab.id())).collect();
    names.iter().for_each(|name| ip(&["netns", "add", name]));
    let mut add = Latencies::default();
    let mut delete = Latencies::default();
    for _ in 0..alone {
        add.record(call("ADD", &names[0], &config));
        delete.record(call("DEL", &names[0], &config));
    }
    let start = Instant::now();
    let among_others = all(&names, |name| call("ADD", name, &config));
    let added = start.elapsed();
    assert_eq!(switch.client().pods().expect("the switch answers").len(), many);
    let start = Instant::now();
    all(&names, |name| call("DEL", name, &config));
    let deleted = start.elapsed();
    assert_eq!(switch.client().pods().expect("the switch answers").len(), 0);
    names.iter().for_each(|name| ip(&["netns", "delete", name]));
    let ms = |latencies: &Latencies, share| rounded(latencies.us(share) / 1e3, 2);
    json_lines::print(&json!({
        "benchmark": "cni",
        "interface": kind,
        "calls": alone,
        "add_ms_p50": ms(&add, 0.5),
        "add_ms_p99": ms(&add, 0.99),
        "add_ms_max": rounded(add.max_us() / 1e3, 2),
        "del_ms_p50": ms(&delete, 0.5),
        "del_ms_p99": ms(&delete, 0.99),
        "pods": many,
        "at_once": AT_ONCE,
        "pods_add_s": rounded(added.as_secs_f64(), 2),
        "pods_add_ms_p99": ms(&among_others, 0.99),
        "pods_del_s": rounded(deleted.as_secs_f64(), 2),
    }));
}

/// Calls `f` for all names, [`AT_ONCE`] at a time.
fn all(names: &[String], f: impl Fn(&str) -> Duration + Sync) -> Latencies {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut times = Vec::new();
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            times.push(f(name));
        }
        times
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no call fails")).collect()
    })
}

/// Calls the plugin as a runtime does. Returns the time from its start to its end.
fn call(verb: &str, name: &str, config: &Value) -> Duration {
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_palisade-cni"))
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", name)
        .env("CNI_NETNS", format!("/run/netns/{name}"))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", PLUGINS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the plugin starts");
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(config.to_string().as_bytes()));
    assert!(written.is_some_and(|written| written.is_ok()), "the plugin does not read its input");
    let output = child.wait_with_output().expect("the plugin ends");
    let time = start.elapsed();
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stdout));
    time
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status();
    assert!(status.is_ok_and(|status| status.success()), "ip {arguments:?}");
}
