//! Starts, ends and takeovers.

use std::fmt::Write;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palisade::lab::{Lab, LabSpec};
use palisade::net::flow::Protocol;

use super::rig::{allowed, closed, denied, only_passes, run, serve, start, start_with, up};
use crate::support::{PORT, Rig, TIMEOUT, eventually, isolated, only_from, pods_manifest};

/// Neighbour that no packet asks for.
const SOMEONE: &str = "192.0.2.7";

/// Switches that take over from a killed one. The tables of rules have two names in turn.
const TAKEOVERS: usize = 3;

/// Configuration of the ports and pods of a lab, and of a policy directory.
fn configuration(lab: &Lab) -> String {
    let mut text = format!("[policy]\ndirectory = \"{}/policies\"\n", lab.directory().display());
    for pod in lab.pods() {
        let plan = pod.plan();
        let _ = write!(
            text,
            "[[ports]]\nname = {0:?}\nkind = \"pod\"\npod = \"{1}\"\npod_addresses = {2:?}\n",
            plan.host_interface,
            plan.pod,
            plan.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        );
    }
    text
}

#[test]
fn a_killed_switch_leaves_policy_in_force_and_the_next_takes_over() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec::of(&["db", "client", "other"]).unwrap()).unwrap();
    let policies = lab.directory().join("policies");
    fs::create_dir_all(&policies).unwrap();
    fs::write(policies.join("pods.yaml"), pods_manifest(&lab)).unwrap();
    let udp = only_from("db", "client").replace("protocol: TCP", "protocol: UDP");
    fs::write(policies.join("db.yaml"), udp).unwrap();
    let config = configuration(&lab);
    let switch = start_with(&mut lab, &config, true);
    let rig = Rig { switch, lab };
    let servers = serve(&rig, &["db"]);
    let (client, db) = (rig.pod("client"), rig.pod("db"));
    let socket = client.run(|| UdpSocket::bind((client.v4(), 0))).unwrap().unwrap();
    socket.connect((db.v4(), PORT)).unwrap();
    // An answer that is late on a busy machine is no loss.
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Policy lets nobody reach this port.
    let (forbidden, other) = ((db.v4(), PORT + 1), rig.pod("other"));
    let sink = db.run(|| UdpSocket::bind(forbidden)).unwrap().unwrap();
    sink.set_nonblocking(true).unwrap();
    let flood = other.run(|| UdpSocket::bind((other.v4(), 0))).unwrap().unwrap();
    let interface = db.plan().host_interface.clone();
    let (stop, sent, lost) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let rig = thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) && start.elapsed() < TIMEOUT {
                let is_answered = socket.send(b"ping").is_ok() && socket.recv(&mut [0; 16]).is_ok();
                sent.fetch_add(1, Ordering::Relaxed);
                lost.fetch_add(u64::from(!is_answered), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) && start.elapsed() < TIMEOUT {
                flood.send_to(b"denied", forbidden).unwrap();
                thread::sleep(Duration::from_micros(50));
            }
        });
        eventually("datagrams pass", || sent.load(Ordering::Relaxed) > 100);
        let Rig { mut switch, mut lab } = rig;
        run(&format!("ip neigh add {SOMEONE} lladdr 02:00:00:00:00:01 dev {interface}"));
        for takeover in 1..=TAKEOVERS {
            switch.kill().unwrap();
            let before = sent.load(Ordering::Relaxed);
            switch = start_with(&mut lab, &config, takeover < TAKEOVERS);
            eventually("datagrams pass after it", || sent.load(Ordering::Relaxed) > before + 100);
        }
        stop.store(true, Ordering::Relaxed);
        let neighbors = run(&format!("ip neigh show dev {interface}"));
        assert!(neighbors.contains(SOMEONE), "the node knows of the pod's neighbours {neighbors:?} alone");
        Rig { switch, lab }
    });
    assert_eq!(lost.load(Ordering::Relaxed), 0, "of {sent:?}");
    let passed = || sink.recv(&mut [0; 16]).is_ok();
    assert!(!passed());
    denied(&rig, "other", "db");
    only_passes(&rig, "client", "db", Protocol::UDP);
    fs::remove_file(policies.join("db.yaml")).unwrap();
    eventually("datagrams pass without policy", || flood.send_to(b"allowed", forbidden).is_ok() && passed());
    drop(servers);

    // The last switch returns the interfaces when it stops.
    let Rig { switch, lab } = rig;
    assert!(run("ip route").contains(&db.v4().to_string()));
    assert!(switch.stop().unwrap().success());
    assert!(!run("nft list tables").contains("palisade"));
    assert!(!run("ip route").contains(&db.v4().to_string()));
    drop(lab);
}

#[test]
fn a_killed_switch_leaves_denied_pairs_apart_and_forgotten_pods_closed() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec::of(&["db", "client", "other"]).unwrap()).unwrap();
    let switch = start_with(&mut lab, "", true);
    switch.attach_all(&lab).unwrap();
    let rig = Rig { switch, lab };
    let servers = serve(&rig, &["db"]);
    rig.apply(&only_from("db", "client"));
    let Rig { switch, mut lab } = rig;
    switch.kill().unwrap();
    // The next switch has no ports: those of the process before are closed.
    let switch = start(&mut lab, "");
    let rig = Rig { switch, lab };
    closed(&rig, "client", "db");
    rig.switch.attach_all(&rig.lab).unwrap();
    rig.apply(&only_from("db", "other"));
    only_passes(&rig, "other", "db", Protocol::TCP);
    denied(&rig, "client", "db");
    rig.switch.apply(&pods_manifest(&rig.lab)).unwrap();
    allowed(&rig, "client", "db");
    drop(servers);
}

#[test]
fn tables_of_a_start_that_died_between_its_steps_go_with_the_next() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec::of(&["db", "client"]).unwrap()).unwrap();
    // Tables of one name have hooks, those of the other name not yet; or both have them.
    for hooked in [&["palisade-2"][..], &["palisade"], &["palisade", "palisade-2"]] {
        for name in ["palisade", "palisade-2"] {
            run(&format!("nft add table ip {name}"));
            run(&format!("nft add chain ip {name} left"));
        }
        for name in hooked {
            run(&format!(
                "nft add chain ip {name} forward {{ type filter hook forward priority 0; policy drop; }}"
            ));
        }
        let switch = start(&mut lab, "");
        switch.attach_all(&lab).unwrap();
        switch.apply(&pods_manifest(&lab)).unwrap();
        let rig = Rig { switch, lab };
        let servers = serve(&rig, &["db"]);
        allowed(&rig, "client", "db");
        let tables = run("nft list tables");
        assert_eq!(tables.lines().filter(|line| line.contains("palisade")).count(), 3, "{tables}");
        assert!(!run("nft list ruleset").contains("chain left"));
        drop(servers);
        assert!(rig.switch.stop().unwrap().success());
        lab = rig.lab;
        assert!(!run("nft list tables").contains("palisade"));
    }
}

#[test]
fn a_name_that_no_rule_can_have_is_reported_and_stops_no_other_change() {
    let Some(_isolated) = isolated() else { return };
    let rig = up(&["db", "client", "other", "renamed"], "");
    let _servers = serve(&rig, &["db"]);
    let name = rig.pod("renamed").plan().host_interface.clone();
    let problems = || rig.switch.client().status().unwrap().problems.join("; ");
    // The text that nft reads would end in the middle of the name.
    run(&format!("ip link set dev {name} name x\"}}y"));
    eventually("the port is down", || problems().contains("is down"));
    assert!(rig.switch.log().unwrap().contains("rename it"));
    // No rule closes it.
    assert!(run("ip link show dev x\"}y").contains("state DOWN"));
    rig.apply(&only_from("db", "client"));
    only_passes(&rig, "client", "db", Protocol::TCP);
    denied(&rig, "other", "db");
    run(&format!("ip link set dev x\"}}y name {name}"));
    eventually("the port is open again", || problems().is_empty());
    rig.switch.apply(&pods_manifest(&rig.lab)).unwrap();
    allowed(&rig, "renamed", "db");
}

#[test]
fn a_lab_that_is_removed_leaves_no_rule() {
    let Some(_isolated) = isolated() else { return };
    let program = env!("CARGO_BIN_EXE_palisade");
    run(&format!("{program} lab up --pods 2 --switch --backend nftables"));
    assert!(run("nft list tables").contains("palisade-ports"));
    run(&format!("{program} lab clean"));
    assert!(!run("nft list tables").contains("palisade"));
}

#[test]
fn a_start_that_cannot_work_says_why() {
    let Some(_isolated) = isolated() else { return };
    let directory = Path::new("/run");
    let refusal = |config: &str, path: Option<&str>| {
        let file = directory.join("palisade.toml");
        fs::write(&file, format!("{config}\n[control]\nsocket = \"{}/x.sock\"\n", directory.display()))
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(["run", "--backend", "nftables", "--config"]).arg(&file);
        path.iter().for_each(|path| _ = command.env("PATH", path));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refusal("", Some("/nonexistent"));
    assert!(
        text.contains("needs the program nft") && text.contains("install the package nftables"),
        "{text}"
    );
    let text = refusal("[policy]\ndenied = \"reject\"", None);
    assert!(text.contains("policy.denied"), "{text}");
    let text = refusal("[[ports]]\nname = \"lo\"\nkind = \"pod\"\nvlan = 7", None);
    assert!(text.contains("takes no tags off"), "{text}");
    assert!(!run("nft list tables").contains("palisade"));
}
