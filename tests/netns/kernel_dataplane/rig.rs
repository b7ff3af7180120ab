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
pub(super) const DENIED: Duration = Duration::from_millis(400);

/// Starts a lab, and a switch with every pod attached and in the tables.
pub(super) fn up(pods: &[&str], config: &str) -> Rig {
    let mut lab = Lab::up(&LabSpec::of(pods).unwrap()).unwrap();
    let switch = start(&mut lab, config);
    switch.attach_all(&lab).unwrap();
    switch.apply(&pods_manifest(&lab)).unwrap();
    Rig { switch, lab }
}

/// Starts a switch without ports.
pub(super) fn start(lab: &mut Lab, config: &str) -> Switch {
    let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    (spec.backend, spec.stay_closed) = (Backend::Nftables, true);
    spec.config.push_str(config);
    Switch::start(lab, &spec).unwrap()
}

/// Starts servers of TCP and UDP in pods.
pub(super) fn serve(rig: &Rig, pods: &[&str]) -> Vec<Server> {
    let start = |pod: &&str| Server::start(&rig.pod(pod), &[PORT], Services::Both).unwrap();
    pods.iter().map(start).collect()
}

/// Sends probes from one pod to another by both protocols and both families. Returns those with another outcome.
pub(super) fn wrong(rig: &Rig, from: &str, to: &str, is_allowed: bool) -> Vec<String> {
    let (source, destination) = (rig.pod(from), rig.pod(to));
    let addresses: [IpAddr; 2] = [destination.v4().into(), destination.v6().into()];
    let probes = addresses.iter().flat_map(|to| [(to, Protocol::TCP), (to, Protocol::UDP)]);
    let (patience, expected) =
        if is_allowed { (PATIENCE, Outcome::Allowed) } else { (DENIED, Outcome::TimedOut) };
    probes
        .filter_map(|(&to, protocol)| {
            let outcome = Probe { protocol, to, port: PORT }.run(&source, patience).unwrap();
            (outcome != expected).then(|| format!("{from} to {to} by {protocol}: {outcome:?}"))
        })
        .collect()
}

pub(super) fn assert_allowed(rig: &Rig, from: &str, to: &str) {
    assert_eq!(wrong(rig, from, to, true), [""; 0]);
}

pub(super) fn assert_denied(rig: &Rig, from: &str, to: &str) {
    assert_eq!(wrong(rig, from, to, false), [""; 0]);
}

/// Runs a program of the node, which must succeed. Returns its output.
pub(super) fn run(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
