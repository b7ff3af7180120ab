//! TCP bulk between two pods: this switch beside the kernel's bridge, the same pods, in one run. Needs root and iperf3.
//!
//! Prints one JSON object per measurement, then one for each MTU with the ratio of the medians. The systems take turns, because
//! these machines are noisy. `--mtu 1500,9000` says which MTUs the pods have, `--rounds` and `--seconds` how often and
//! how long; `--smoke` takes one short turn of each.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use palisade::lab::{Lab, LabSpec, Pod, Switch, SwitchSpec, manifests, require_root};
use serde_json::{Value, json};

/// Pods, and what connects them.
const SYSTEMS: [&str; 2] = ["bridge", "palisade"];

fn main() {
    if let Err(error) = require_root() {
        eprintln!("bulk: {error}");
        return;
    }
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let number = |name, default| option(name).map_or(default, |text| text.parse().expect("a number"));
    let (rounds, seconds) = if smoke { (1, 1) } else { (number("--rounds", 5), number("--seconds", 5)) };
    let mtus = option("--mtu").unwrap_or_else(|| "1500".to_owned());
    let mtus: Vec<u32> = mtus.split(',').map(|mtu| mtu.parse().expect("MTUs are numbers")).collect();
    let mut gbps = vec![[Vec::new(), Vec::new()]; mtus.len()];
    for round in 0..rounds {
        for (mtu, gbps) in mtus.iter().zip(&mut gbps) {
            for (system, results) in SYSTEMS.into_iter().zip(gbps) {
                let (rate, retransmits) = measure(system, *mtu, seconds);
                let line = json!({"bench": "bulk", "system": system, "scenario": scenario(*mtu), "mtu": mtu,
                    "gbps": rate, "retransmits": retransmits, "seconds": seconds, "run": round});
                println!("{line}");
                results.push(rate);
            }
        }
    }
    for (mtu, gbps) in mtus.iter().zip(gbps) {
        let [bridge, palisade] = gbps.map(median);
        println!(
            "{}",
            json!({"bench": "bulk", "scenario": scenario(*mtu), "mtu": mtu, "median_bridge_gbps": bridge,
            "median_palisade_gbps": palisade, "ratio": palisade / bridge})
        );
    }
}

fn scenario(mtu: u32) -> String {
    format!("tcp-mtu{mtu}")
}

/// The word behind an option.
fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

/// Gigabits a second, and segments sent again.
fn measure(system: &str, mtu: u32, seconds: u32) -> (f64, u64) {
    let spec = LabSpec { mtu, ..LabSpec::of(&["client", "server"]).expect("a plan for two pods") };
    let mut lab = Lab::up(&spec).expect("a lab");
    let pods = ["client", "server"].map(|name| lab.pod(name).expect("a pod of the lab"));
    if system == "bridge" {
        let _bridge = lab.bridge().expect("a bridge");
        iperf(&pods, seconds)
    } else {
        let switch =
            Switch::start(&mut lab, &SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"))).expect("the switch");
        switch.attach_all(&lab).expect("attached pods");
        switch.apply(&manifests(&lab, |_| [].into())).expect("tables");
        iperf(&pods, seconds)
    }
}

fn iperf([client, server]: &[Pod; 2], seconds: u32) -> (f64, u64) {
    let mut listen = Command::new("iperf3");
    listen.args(["--server", "--one-off"]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = server.spawn(&mut listen).expect("iperf3: `apt install iperf3`");
    sleep(Duration::from_millis(500));
    let mut send = Command::new("iperf3");
    send.args(["--json", "--time", &seconds.to_string(), "--client", &server.v4().to_string()]);
    let output = client.output(&mut send).expect("iperf3");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON of iperf3");
    let received = &report["end"]["sum_received"]["bits_per_second"];
    let retransmits = report["end"]["sum_sent"]["retransmits"].as_u64().expect("retransmits");
    (received.as_f64().expect("a rate") / 1e9, retransmits)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
