//! Runs of `palisade demo`.

use std::process::Command;

use serde_json::Value;

use crate::support::isolated;

fn play(workers: &str, ports: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["demo", "--output", "json", "--workers", workers, "--ports", ports])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let problems = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}\n{problems}", output.status);
    serde_json::from_str(&text).unwrap()
}

fn assert_as_expected(report: &Value, workers: usize) {
    assert_eq!(report["mismatches"], 0, "{report:#}");
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    for step in steps {
        assert_eq!(step["expected"], step["seen"], "{step:#}");
    }
    assert_ne!(steps[0]["seen"], steps[1]["seen"], "the policy changes something");
    assert_eq!(steps[0]["seen"], steps[2]["seen"], "without the policy everything is as before");
    let frames = report["frames_by_worker"].as_object().unwrap();
    assert_eq!(frames.len(), workers, "{report:#}");
    assert!(frames.values().all(|frames| frames.as_u64() > Some(0)), "{report:#}");
}

#[test]
fn the_demo_sees_what_it_expects_with_one_worker_on_taps() {
    let Some(_isolated) = isolated() else { return };
    assert_as_expected(&play("1", "tap"), 1);
}

#[test]
fn the_demo_sees_what_it_expects_with_two_workers_and_both_work() {
    let Some(_isolated) = isolated() else { return };
    assert_as_expected(&play("2", "veth"), 2);
}
