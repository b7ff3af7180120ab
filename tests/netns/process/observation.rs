//! Drops, times and latency of a switch under traffic, as the commands show them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use palisade::control::DropQuery;
use palisade::dataplane::DropReason;
use palisade::net::flow::Protocol;
use palisade::tables::PodName;

use crate::support::closed::FirstPacket;
use crate::support::{INGRESS, PORT, Rig, assert_denied, assert_pings, eventually, isolated, only_from};

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
fn a_dropped_frame_is_shown_logged_and_followed_with_its_pods_and_the_policy_that_denied_it() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client", "stranger", "server"], 1, "[log]\ndenied_interval_s = 1\n");
    rig.apply(&only_from("server", "client"));
    let (stranger, server) = (rig.pod("stranger"), rig.pod("server"));
    assert!(rig.switch.client().drops(&DropQuery::default()).unwrap().drops.is_empty());
    for address in server.addresses() {
        assert_denied(&rig.switch, &stranger, address, INGRESS);
    }
    let denied = DropQuery { reason: Some(DropReason::PolicyIngress), ..DropQuery::default() };
    let client = rig.switch.client();
    eventually("drops of both families are recorded", || client.drops(&denied).unwrap().drops.len() >= 2);
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
    let after = DropQuery { after: report.last, ..denied.clone() };
    assert!(client.drops(&after).unwrap().drops.is_empty());
    // Samples of one reason do not fill the log of another.
    let mut follow = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["show", "drops", "--reason", "no-route", "--follow", "--output", "json"])
        .env("PALISADE_SOCKET", client.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    stranger.run(|| FirstPacket::send(Protocol::ICMP, [198, 51, 100, 9].into(), 0)).unwrap();
    let line = BufReader::new(follow.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let drop: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&drop["reason"], &drop["source_pod"]), (&"no-route".into(), &"default/stranger".into()));
    follow.kill().unwrap();
    follow.wait().unwrap();
    let elsewhere = DropQuery { reason: Some(DropReason::NoRoute), ..DropQuery::default() };
    eventually("the ping to nowhere is recorded", || !client.drops(&elsewhere).unwrap().drops.is_empty());
    let shown = palisade(&rig, &["show", "drops", "--pod", "default/stranger"]);
    for word in ["policy-ingress", "default/stranger (", "default/server (", "default/to-server", "no-route"]
    {
        assert!(shown.contains(word), "{word} is missing: {shown}");
    }
    let none = palisade(&rig, &["show", "drops", "--pod", "default/client"]);
    assert!(none.contains("No dropped frame"), "{none}");
    eventually("the log names the connection", || {
        let log = rig.switch.log().unwrap();
        log.lines().any(|line| line.contains("palisade::denied") && line.contains("default/stranger"))
    });
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
    let shown = palisade(&rig, &["show", "workers", "--seconds", "0"]);
    assert!(shown.contains("IDLE") && shown.contains("transmit"), "{shown}");
    let shown = palisade(&rig, &["show", "latency", "--seconds", "0"]);
    assert!(shown.contains(" us") && !shown.contains("No packet"), "{shown}");
}
