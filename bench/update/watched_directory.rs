//! A changed file of the watched directory: time from its rename until every worker has the tables. The path
//! is the switch's own, with the threads of its workers: inotify, reader, compiler, validation and
//! publication.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::config::Policy;
use palisade::control::protocol::PolicyOrigin;
use palisade::control::{CoverageCheck, Switch, SwitchSettings};
use palisade::dataplane::{Dataplane, Settings};
use palisade::source::{PolicyDirectory, Requests};
use serde::Serialize;

use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::policy::PolicySpec;
use crate::common::statistics::rounded;
use crate::policy_change::pods;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Longest wait for a change.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two changes. The worker sleeps meanwhile, as it does between two edits.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    rules: usize,
    files: u16,
    changes: usize,
    in_force_us_p50: f64,
    in_force_us_p99: f64,
    in_force_us_max: f64,
}

/// Renames a policy over another one `changes` times, beside `rules` rules and `files` files of a pod each.
pub(crate) fn measure(rules: usize, files: u16, changes: usize) {
    let scratch = Scratch::new();
    let shape = PolicySpec { rules, pods: 3, seed: 1 };
    let small = PolicySpec::changed_policy(CLIENT);
    let other = small.replace("6500", "6501");
    assert_ne!(small, other, "the policy has a port to change");
    let root = scratch.0.join("policies");
    std::fs::create_dir(&root).expect("a directory");
    write(&root.join("pods.yaml"), &pods());
    write(&root.join("large.yaml"), &shape.network_policy(CLIENT));
    write(&root.join("small.yaml"), &small);
    for file in 0..files {
        let [high, low] = file.to_be_bytes();
        let pod = format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{name: of{file}}}\nstatus: {{podIP: 10.1.{high}.{low}}}\n"
        );
        write(&root.join(format!("of{file}.yaml")), &pod);
    }
    let settings = Settings { frames_per_worker: 4096, ..Settings::default() };
    let dataplane = match Dataplane::start(&settings) {
        Ok(dataplane) => Arc::new(dataplane),
        Err(error) => return eprintln!("directory: not measured, no worker starts: {error}"),
    };
    let switch =
        Switch::new(dataplane, SwitchSettings { cores: settings.cores, ..SwitchSettings::default() });
    let mut directory = PolicyDirectory::of(&Policy { directory: Some(root.clone()), ..Policy::default() })
        .expect("the configuration names a directory");
    let tables = directory.load().expect("the manifests are right").tables;
    switch
        .replace_tables(tables, PolicyOrigin::directory(&root), CoverageCheck::Require)
        .expect("the tables are right");
    directory.started(&switch);
    let requests = Requests::new().expect("an eventfd");
    let mut took = Latencies::default();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| directory.run(&switch, &requests, || ()));
        let next = scratch.0.join("next.yaml");
        for number in 0..changes {
            write(&next, if number % 2 == 0 { &other } else { &small });
            std::thread::sleep(PAUSE);
            let before = switch.status().generation;
            let start = Instant::now();
            std::fs::rename(&next, root.join("small.yaml")).expect("the directory takes the name");
            while switch.status().generation == before {
                assert!(start.elapsed() < TIMEOUT, "change {number} is not in force in time");
                std::thread::sleep(Duration::from_micros(20));
            }
            took.record(start.elapsed());
        }
        requests.stop();
        thread.join().expect("the thread ends");
    });
    json_lines::print(&Line {
        bench: "update",
        case: "directory",
        rules,
        files,
        changes,
        in_force_us_p50: rounded(took.us(0.5), 0),
        in_force_us_p99: rounded(took.us(0.99), 0),
        in_force_us_max: rounded(took.max_us(), 0),
    });
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file to write");
}

/// Temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("palisade-bench-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory of its own");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
