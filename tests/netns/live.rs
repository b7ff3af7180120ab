//! Runs of `palisade test --live`: real packets between namespaces, through a switch.
//!
//! With `PALISADE_LIVE_E2E=1` the cases of Kubernetes' own tests run, too, if they are present. They take a
//! minute or two.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use palisade::lab::Journal;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::isolated;

/// Longest wait for a lab to appear.
const TIMEOUT: Duration = Duration::from_mins(1);

fn live(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(["test", "--live"]).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

fn report(output: &Output) -> Value {
    let problems = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {problems}"))
}

/// Runs the cases, asserts that all pass, and returns the number of probes.
fn assert_all_pass(arguments: &[&str]) -> u64 {
    let output = live(&[arguments, &["--output", "json"]].concat()).output().unwrap();
    let report = report(&output);
    let failed = report["results"].as_array().unwrap().iter();
    let failed: Vec<&Value> = failed.filter(|case| case["failures"] != Value::Array(vec![])).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(output.status.code(), Some(0));
    report["probes"]["passed"].as_u64().unwrap()
}

/// Ids of all labs of this machine.
fn labs() -> Vec<String> {
    Journal::all().unwrap().0.into_iter().map(|journal| journal.id).collect()
}

#[test]
fn every_protocol_gets_with_real_packets_what_the_tables_say() {
    let Some(_isolated) = isolated() else { return };
    assert_eq!(assert_all_pass(&["tests/cases/protocols.yaml"]), 20);
}

#[test]
fn every_protocol_gets_with_real_packets_what_the_tables_say_on_taps() {
    let Some(_isolated) = isolated() else { return };
    assert_eq!(assert_all_pass(&["tests/cases/protocols.yaml", "--ports", "tap"]), 20);
}

#[test]
fn both_families_and_nodes_outside_get_through_two_workers_what_the_tables_say() {
    let Some(_isolated) = isolated() else { return };
    // The compiler and the simulation have all cases. These are those with a path of their own.
    let cases = "addresses of both families|the own node always gets in|other nodes are addresses";
    let files = ["tests/cases/ipv6.yaml", "tests/cases/nodes.yaml", "--workers", "2", "--filter", cases];
    assert!(assert_all_pass(&files) > 12);
}

#[test]
fn services_get_with_real_packets_what_the_tables_say_about_their_backends() {
    let Some(_isolated) = isolated() else { return };
    // The Service without backends has no flow to send.
    assert!(assert_all_pass(&["tests/cases/services.yaml"]) >= 6);
}

#[test]
fn an_address_that_no_host_can_have_is_not_sent() {
    let Some(_isolated) = isolated() else { return };
    let mut command =
        live(&["tests/cases/blocks.yaml", "--filter", "all addresses but one", "--output", "json"]);
    let report = report(&command.output().unwrap());
    assert_eq!(report["probes"], serde_json::json!({"passed": 2, "failed": 0, "not_sent": 2}));
}

/// Case with a closed database, an open web server, and expectations of the contrary.
const CONTRARY: &str = "
name: contrary
resources:
- {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {containers: [{name: c}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: c}]}}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop},
   spec: {podSelector: {matchLabels: {app: db}}}}
probes:
- {from: {pod: shop/web}, to: {pod: shop/db}, protocol: UDP, port: 53, expect: allow}
- {from: {pod: shop/db}, to: {pod: shop/web}, protocol: SCTP, port: 22, expect: deny}
- {from: {ip: 192.0.2.1}, to: {pod: shop/web}, protocol: ICMP, expect: deny}
- {from: {ip: 192.0.2.1}, to: {pod: shop/db}, protocol: ICMP, expect: deny}
";

fn contrary() -> std::path::PathBuf {
    let file = Path::new("/run").join("contrary.yaml");
    std::fs::write(&file, CONTRARY).unwrap();
    file
}

#[test]
fn what_is_seen_and_not_what_is_expected_decides_and_the_switchs_counters_are_told() {
    let Some(_isolated) = isolated() else { return };
    let file = contrary();
    let output = live(&[file.to_str().unwrap(), "--output", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert_eq!(report["probes"], serde_json::json!({"passed": 1, "failed": 3}));
    let failures = report["results"][0]["failures"].as_array().unwrap();
    let seen: Vec<(&str, &str)> = failures
        .iter()
        .map(|failed| (failed["got"].as_str().unwrap(), failed["seen"]["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [("deny", "timed-out"), ("allow", "allowed"), ("allow", "allowed")]);
    let counted = &failures[0]["seen"]["counted"];
    assert!(counted["dropped"]["policy-ingress"].as_u64() > Some(0), "{counted}");
    assert_eq!(counted["dropped"].as_object().unwrap().len(), 1, "{counted}");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let Some(_isolated) = isolated() else { return };
    let before = labs();
    let file = contrary();
    let mut command = live(&[file.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while labs().len() == before.len() {
        assert!(start.elapsed() < TIMEOUT, "no lab appears");
        sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert_eq!(labs(), before);
}

#[test]
fn kubernetes_own_cases_pass() {
    let Some(_isolated) = isolated() else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/k8s-e2e.json");
    if std::env::var_os("PALISADE_LIVE_E2E").is_none_or(|value| value != "1") || !file.exists() {
        eprintln!("skipped: PALISADE_LIVE_E2E=1 runs it, where ../shared/conformance/k8s-e2e.json is");
        return;
    }
    assert_eq!(assert_all_pass(&[file.to_str().unwrap()]), 506);
}
