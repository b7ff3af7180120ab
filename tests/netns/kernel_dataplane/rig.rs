//! Labs whose pods the kernel connects.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use palisade::dataplane::Backend;
use palisade::lab::traffic::{Outcome, Probe, Server, Services};
use palisade::lab::{Lab, LabSpec, Switch, SwitchSpec};
use palisade::net::flow::Protocol;

use crate::support::{PATIENCE, PORT, Rig, pods_manifest};

/// Time without a reply that counts as silence. A slow machine only makes it count earlier.
pub(super) const DENIED: Duration = Duration::from_millis(300);

/// Starts a lab, and a switch with every pod attached and in the tables.
pub(super) fn up(pods: &[&str], config: &str) -> Rig {
    let mut lab = Lab::up(&LabSpec::of(pods).unwrap()).unwrap();
    let switch = start(&mut lab, config);
    switch.attach_all(&lab).unwrap();
    switch.apply(&pods_manifest(&lab)).unwrap();
    Rig { switch, lab }
}

/// Starts a switch that returns the interfaces of its ports when it stops.
pub(super) fn start(lab: &mut Lab, config: &str) -> Switch {
    start_with(lab, config, false)
}

/// Starts a switch whose ports `stay_closed` when it stops, or not.
pub(super) fn start_with(lab: &mut Lab, config: &str, stay_closed: bool) -> Switch {
    let spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    let config = config.to_owned();
    Switch::start(lab, &SwitchSpec { backend: Backend::Nftables, stay_closed, config, ..spec }).unwrap()
}

/// Starts servers of TCP and UDP in pods.
pub(super) fn serve(rig: &Rig, pods: &[&str]) -> Vec<Server> {
    let start = |pod: &&str| Server::start(&rig.pod(pod), &[PORT], Services::Both).unwrap();
    pods.iter().map(start).collect()
}

/// Sends probes from one pod to another by both protocols and both families, and names those that are answered.
fn answered(rig: &Rig, from: &str, to: &str, patience: Duration) -> Vec<String> {
    let (source, destination) = (rig.pod(from), rig.pod(to));
    let addresses: [IpAddr; 2] = [destination.v4().into(), destination.v6().into()];
    let probes = [Protocol::TCP, Protocol::UDP].map(|protocol| addresses.map(|to| (protocol, to)));
    let sent = probes.into_iter().flatten().filter(|&(protocol, to)| {
        let outcome = Probe { protocol, to, port: PORT }.run(&source, patience).unwrap();
        assert!(matches!(outcome, Outcome::Allowed | Outcome::TimedOut), "{from} to {to}: {outcome}");
        outcome == Outcome::Allowed
    });
    sent.map(|(protocol, to)| format!("{protocol} {}", if to.is_ipv4() { 4 } else { 6 })).collect()
}

/// Names the probes that are answered within a short time.
pub(super) fn passing(rig: &Rig, from: &str, to: &str) -> Vec<String> {
    answered(rig, from, to, DENIED)
}

pub(super) fn allowed(rig: &Rig, from: &str, to: &str) {
    assert_eq!(answered(rig, from, to, PATIENCE), ["TCP 4", "TCP 6", "UDP 4", "UDP 6"], "{from} to {to}");
}

pub(super) fn denied(rig: &Rig, from: &str, to: &str) {
    assert_eq!(passing(rig, from, to), [""; 0], "{from} to {to}");
}

/// Runs a program of the node, which must succeed. Returns its output.
pub(super) fn run(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
