//! TCP bulk transfer between two pods, directly and by a Service, and with a host outside: one connection of `iperf3`, with all offloads, and without pinning.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use palisade::lab::Pod;
use serde_json::{Value, json};

use crate::common::json_lines;
use crate::common::policy::OPEN_PORTS;
use crate::error::BenchError;
use crate::outside;
use crate::process::run;
use crate::scenario::{Measures, Trial};

/// Longest wait for the server to listen.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds that `iperf3` omits at the beginning, because of slow start.
const WARM_UP_S: &str = "1";

/// Least throughput of a working MTU. With less only small segments pass.
const GBPS_MIN: f64 = 0.01;

/// Measures to the server's own address.
pub(super) fn measure(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    measure_to(trial, "server", &[], |server, _| Ok(server.v4()))
}

/// Measures to a virtual address of the server.
pub(super) fn measure_by_service(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    measure_to(trial, "server", &[], |server, port| trial.running.serve(trial.rig, server, port))
}

/// Measures to a host behind the uplink.
pub(super) fn measure_to_outside(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    measure_to(trial, "outsider", &[], |_, _| Ok(outside::HOST))
}

/// Measures from a host behind the uplink, on a connection that the pod opens.
pub(super) fn measure_from_outside(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    measure_to(trial, "outsider", &["--reverse"], |_, _| Ok(outside::HOST))
}

fn measure_to(
    trial: &Trial<'_>,
    server: &str,
    options: &[&str],
    address_of: impl Fn(&Pod, u16) -> Result<Ipv4Addr, BenchError>,
) -> Result<Measures, BenchError> {
    let (client, server) = (trial.rig.pod("client")?, trial.rig.pod(server)?);
    // A port that the probes do not use.
    let port = OPEN_PORTS.start() + 1;
    let to = address_of(&server, port)?;
    let port = port.to_string();
    let mut listen = Command::new("iperf3");
    listen.args(["--server", "--one-off", "--port", &port]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = server
        .spawn(&mut listen)
        .map_err(|error| BenchError::Other(format!("{error}: is iperf3 installed?")))?;
    wait_until_listening(&server, &port)?;
    let seconds = trial.seconds.to_string();
    let mut send = Command::new("iperf3");
    send.args(["--json", "--time", &seconds, "--omit", WARM_UP_S, "--port", &port, "--client"]);
    send.arg(to.to_string()).args(options);
    let (text, cost) = trial.measure_cpu(|| client.run(|| run(&mut send, ""))?)?;
    let report: Value = serde_json::from_str(&text).map_err(std::io::Error::from)?;
    let end = &report["end"];
    let received = end["sum_received"]["bits_per_second"].as_f64();
    let received = received.ok_or_else(|| BenchError::Other("iperf3 reports no rate".to_owned()))?;
    let gbps = received / 1e9;
    if gbps < GBPS_MIN {
        let mtu = trial.mtu;
        return Err(BenchError::Other(format!("next to nothing arrives with MTU {mtu}: {gbps:.4} Gbit/s")));
    }
    let mut measures = cost.fields();
    let fields = json!({
        "gbps": gbps,
        "retransmits": end["sum_sent"]["retransmits"],
        "bytes": end["sum_received"]["bytes"],
    });
    measures.extend(json_lines::fields(fields));
    Ok(measures)
}

/// Waits for a listening socket in the pod: state `0A` in `/proc/net/tcp` (proc(5)).
fn wait_until_listening(server: &Pod, port: &str) -> Result<(), BenchError> {
    let suffix = format!(":{:04X}", port.parse::<u16>().unwrap_or(0));
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        let files = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
        let sockets = server.run(|| files.map(|file| std::fs::read_to_string(file).unwrap_or_default()))?;
        let listens = |line: &str| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words.get(1).is_some_and(|local| local.ends_with(&suffix)) && words.get(3) == Some(&"0A")
        };
        if sockets.iter().any(|text| text.lines().any(listens)) {
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    Err(BenchError::Other("iperf3 does not listen".to_owned()))
}
