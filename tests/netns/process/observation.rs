//! Drops, times and latency of a switch under traffic, as the commands show them.

use std::process::Command;
use std::time::Duration;

use palisade::control::DropFilter;
use palisade::dataplane::DropReason;
use palisade::limits::DROPS_KEPT_MAX;
use palisade::tables::PodName;

use crate::support::{PATIENCE, PORT, Rig, assert_cut_off, assert_pings, eventually, isolated, only_from};

/// Output of a command of `palisade` for the switch.
pub(super) fn palisade(rig: &Rig, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(arguments)
        .env("PALISADE_SOCKET", rig.switch.client().socket())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_dropped_frame_is_shown_with_its_pods_and_the_policy_that_denied_it() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "stranger", "server"], 1);
    rig.apply(&only_from("server", "client"));
    let (stranger, server) = (rig.pod("stranger"), rig.pod("server"));
    assert!(rig.switch.client().drops(&DropFilter::default()).unwrap().drops.is_empty());
    for address in server.addresses() {
        assert_cut_off(&stranger, address);
    }
    let denied = DropFilter { reason: Some(DropReason::PolicyIngress), ..DropFilter::default() };
    let client = rig.switch.client();
    eventually("drops of both families are recorded", || client.drops(&denied).unwrap().drops.len() >= 4);
    let report = client.drops(&denied).unwrap();
    assert_eq!(report.lost, 0);
    for drop in &report.drops {
        let flow = drop.flow.unwrap();
        assert!(
            stranger.addresses().contains(&flow.src) && server.addresses().contains(&flow.dst),
            "{drop:?}"
        );
        assert_eq!((flow.protocol.to_string().as_str(), flow.dst_port), ("TCP", PORT));
        assert_eq!(drop.source_pod, Some(PodName::new("default", "stranger")));
        assert_eq!(drop.destination_pod, Some(PodName::new("default", "server")));
        assert_eq!(drop.port, stranger.plan().host_interface);
        assert!(drop.frame.ends_with("TCP SYN"), "{drop:?}");
        assert!(drop.decided_by.as_ref().unwrap().to_string().contains("default/to-server"), "{drop:?}");
    }
    // A report continues behind the last one.
    let after = DropFilter { after: report.last, ..denied.clone() };
    assert!(client.drops(&after).unwrap().drops.is_empty());
    // Samples of one reason do not fill the log of another.
    let pinged = stranger.output(Command::new("ping").args(["-c", "1", "-W", "1", "198.51.100.9"])).unwrap();
    assert!(!pinged.status.success());
    let elsewhere = DropFilter { reason: Some(DropReason::NoRoute), ..DropFilter::default() };
    eventually("the ping to nowhere is recorded", || !client.drops(&elsewhere).unwrap().drops.is_empty());
    let shown = palisade(&rig, &["show", "drops", "--pod", "default/stranger"]);
    for word in ["policy-ingress", "default/stranger (", "default/server (", "default/to-server", "no-route"]
    {
        assert!(shown.contains(word), "{word} is missing: {shown}");
    }
    let none = palisade(&rig, &["show", "drops", "--pod", "default/client"]);
    assert!(none.contains("No dropped frame"), "{none}");
}

#[test]
fn followed_drops_appear_while_they_happen() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "server"], 1);
    let mut follow = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["show", "drops", "--follow", "--output", "json"])
        .env("PALISADE_SOCKET", rig.switch.client().socket())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follow.stdout.take().unwrap()));
    let client = rig.pod("client");
    let ping = || client.output(Command::new("ping").args(["-c", "1", "-W", "1", "198.51.100.9"])).unwrap();
    ping();
    let line = lines.next().unwrap().unwrap();
    let drop: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&drop["reason"], &drop["source_pod"]), (&"no-route".into(), &"default/client".into()));
    follow.kill().unwrap();
    follow.wait().unwrap();
}

#[test]
fn times_of_workers_describe_the_traffic_of_the_period() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "server"], 1);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    assert_pings(&client, server.addresses()[0]);
    let before = rig.switch.client().worker_times().unwrap().remove(0);
    let address = server.addresses()[0].to_string();
    let pings =
        client.output(Command::new("ping").args(["-q", "-c", "200", "-i", "0.002", &address])).unwrap();
    assert!(pings.status.success());
    let times = rig.switch.client().worker_times().unwrap().remove(0).since(&before);
    assert!((400..500).contains(&times.received), "{times:?}");
    // A frame of a pod's kernel may come while the counters are read.
    let latencies: u64 = times.latency.iter().map(|(_, count)| count).sum();
    assert!(latencies.abs_diff(times.received) < 4, "{times:?}");
    assert!(times.busy_ns > 0 && times.busy_ns < times.clock_ns, "{times:?}");
    assert!(times.stage_frames > 0 && times.stage_frames < times.received / 8, "one batch in 64: {times:?}");
    assert!(times.stages.iter().all(|stage| stage.ns > 0), "{times:?}");
    assert!(times.waited_ns.is_some() && times.turns > times.batches && times.sleeps > 0, "{times:?}");
    std::thread::sleep(Duration::from_millis(300));
    let shown = palisade(&rig, &["show", "workers", "--seconds", "0"]);
    assert!(shown.contains("IDLE") && shown.contains("transmit"), "{shown}");
    let shown = palisade(&rig, &["show", "latency", "--seconds", "0"]);
    assert!(shown.contains(" us") && !shown.contains("No packet"), "{shown}");
}

/// Frames of a flood that policy denies.
const FLOOD: u64 = 50_000;

/// Resident memory of a process, bytes.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}

#[test]
fn a_denied_flood_leaves_log_memory_and_the_traffic_of_others_bounded() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client", "stranger", "server"], 1, "[log]\ndenied_interval_s = 1\n");
    rig.apply(&only_from("server", "client"));
    let [client, stranger, server] = ["client", "stranger", "server"].map(|name| rig.pod(name));
    let address = server.addresses()[0];
    // The first packets make the Ethernet addresses known.
    assert_pings(&server, client.addresses()[0]);
    assert_cut_off(&stranger, address);
    let before = resident_bytes(rig.switch.pid());
    let flood = stranger.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    // The flood ends when the switch has dropped enough of it, however fast this machine is.
    let dropped = || rig.drops().get("policy-ingress").copied().unwrap_or(0);
    let start = std::time::Instant::now();
    let pings = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while dropped() < FLOOD || start.elapsed() < Duration::from_secs(3) {
                assert!(start.elapsed() < PATIENCE, "{} frames of a flood were dropped", dropped());
                (1000..5000).for_each(|port| _ = flood.send_to(b"flood", (address, port)));
            }
        });
        let to = client.addresses()[0].to_string();
        let ping = ["-q", "-c", "30", "-i", "0.1", "-W", "10", &to];
        let pings = server.output(Command::new("ping").args(ping)).unwrap();
        flood.join().unwrap();
        String::from_utf8(pings.stdout).unwrap()
    });
    let seconds = start.elapsed().as_secs() as usize;
    assert!(pings.contains(" 0% packet loss"), "{pings}");
    let grown = resident_bytes(rig.switch.pid()).saturating_sub(before);
    assert!(grown < 32 << 20, "the switch has grown by {grown} bytes");
    let kept = rig.switch.client().drops(&DropFilter::default()).unwrap().drops.len();
    assert!(kept <= DROPS_KEPT_MAX * DropReason::ALL.len(), "{kept}");
    let log = std::fs::read_to_string(rig.lab.directory().join("switch.log")).unwrap();
    let lines = log.lines().filter(|line| line.contains("palisade::denied")).count();
    // A report a second, of ten lines and one for the others, and those before and after the flood.
    assert!((2..=11 * (seconds + 10)).contains(&lines), "{lines} lines in {seconds} s");
    assert!(log.contains("default/stranger") && log.contains("denied others"), "{log}");
}
