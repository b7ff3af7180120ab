//! Labs whose pods the kernel connects.

use std::net::IpAddr;
use std::process::Command;

use palisade::dataplane::Backend;
use palisade::lab::traffic::{Outcome, Probe, Server, Services};
use palisade::lab::{Lab, LabSpec, Pod, Switch, SwitchSpec};
use palisade::net::flow::Protocol;

use crate::support::closed::FirstPacket;
use crate::support::packet_log::{Packet, PacketLog};
use crate::support::{INGRESS, PORT, Rig, TIMEOUT, assert_protocol_denied, pods_manifest};

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

/// Addresses of a pod: IPv4, IPv6.
fn addresses(pod: &Pod) -> [IpAddr; 2] {
    [pod.v4().into(), pod.v6().into()]
}

pub(super) fn allowed(rig: &Rig, from: &str, to: &str) {
    passes(rig, from, to, &[Protocol::TCP, Protocol::UDP]);
}

/// Asserts that these protocols are answered in both families.
pub(super) fn passes(rig: &Rig, from: &str, to: &str, protocols: &[Protocol]) {
    for &protocol in protocols {
        for to in addresses(&rig.pod(to)) {
            let outcome = Probe { protocol, to, port: PORT }.run(&rig.pod(from), TIMEOUT).unwrap();
            assert_eq!(outcome, Outcome::Allowed, "{protocol} from {from} to {to}");
        }
    }
}

/// Asserts that the rules of ingress pass one protocol in both families, and drop the other one.
pub(super) fn only_passes(rig: &Rig, from: &str, to: &str, protocol: Protocol) {
    passes(rig, from, to, &[protocol]);
    let other = if protocol == Protocol::TCP { Protocol::UDP } else { Protocol::TCP };
    dropped(rig, (from, to), &[other], INGRESS);
}

/// Asserts that the rules of ingress drop both protocols in both families.
pub(super) fn denied(rig: &Rig, from: &str, to: &str) {
    dropped(rig, (from, to), &[Protocol::TCP, Protocol::UDP], INGRESS);
}

/// Asserts that first packets of these protocols are dropped for this reason, which the counters of the sender's port
/// tell.
pub(super) fn dropped(rig: &Rig, (from, to): (&str, &str), protocols: &[Protocol], reason: &str) {
    let source = rig.pod(from);
    for &protocol in protocols {
        for to in addresses(&rig.pod(to)) {
            assert_protocol_denied(&rig.switch, &source, (protocol, to, PORT), reason);
        }
    }
}

/// Asserts that the kernel drops first packets of both protocols on a port that the switch does not have.
pub(super) fn closed(rig: &Rig, from: &str, to: &str) {
    let (source, to) = (rig.pod(from), addresses(&rig.pod(to)));
    let probes: Vec<_> =
        [Protocol::TCP, Protocol::UDP].into_iter().flat_map(|protocol| to.map(|to| (protocol, to))).collect();
    let packet =
        |&(protocol, to)| Packet { from: source.plan().host_interface.clone(), protocol, to, port: PORT };
    let packets: Vec<Packet> = probes.iter().map(packet).collect();
    let log = PacketLog::of(&packets, &|command: &mut Command| command.output().unwrap());
    let send = |&(protocol, to)| source.run(|| FirstPacket::send(protocol, to, PORT)).unwrap();
    let sent: Vec<FirstPacket> = probes.iter().map(send).collect();
    log.assert_dropped();
    sent.iter().for_each(FirstPacket::assert_unanswered);
}

/// Runs a program of the node, which must succeed. Returns its output.
pub(super) fn run(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
