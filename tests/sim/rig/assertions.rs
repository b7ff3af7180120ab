//! Packets between the pods, and assertions on the ports, drops, flows and decisions that they lead to.

use std::collections::BTreeMap;

use palisade::dataplane::{DropReason, FlowInfo};
use palisade::ids::PortId;
use palisade::net::flow::Protocol;
use palisade::tables::{RuleOrigin, Verdict};

use crate::frames::{Spec, Transport};
use crate::rig::model::{ACK, SYN};
use crate::rig::rule_lists::{PodRules, Rule};
use crate::rig::{Rig, forwarded, pod_address};

pub(crate) const A: PortId = PortId(0);
pub(crate) const B: PortId = PortId(1);
pub(crate) const C: PortId = PortId(2);
pub(crate) const CLIENT: u16 = 40_000;
pub(crate) const SERVER: u16 = 80;

/// Rules of a pod that may open no connection, and that everyone may reach.
pub(crate) fn mute() -> PodRules {
    PodRules { egress: Some(Vec::new()), ingress: None }
}

/// Rules of a pod that everyone may reach on this port only.
pub(crate) fn serves(protocol: Protocol, port: u16) -> PodRules {
    PodRules { ingress: Some(vec![Rule::port(protocol, port)]), egress: None }
}

pub(crate) fn tcp(flags: u8, client_to_server: bool) -> Spec {
    let (sequence, acknowledgement) = match (flags, client_to_server) {
        (SYN, _) => (100, 0),
        (_, true) => (101, 501),
        (flags, false) if flags & SYN != 0 => (500, 101),
        (_, false) => (501, 101),
    };
    let ports = if client_to_server { [CLIENT, SERVER] } else { [SERVER, CLIENT] };
    let (src, dst) = if client_to_server { (0, 1) } else { (1, 0) };
    let transport = Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 };
    Spec { payload: Vec::new(), ..Spec::new(pod_address(src)[0], pod_address(dst)[0], transport) }
}

pub(crate) fn udp(from: usize, to: usize, ports: [u16; 2]) -> Spec {
    udp_of(0, from, to, ports)
}

/// Datagram as of [`udp`], over IPv4 (0) or IPv6 (1).
pub(crate) fn udp_of(family: usize, from: usize, to: usize, ports: [u16; 2]) -> Spec {
    Spec::new(pod_address(from)[family], pod_address(to)[family], Transport::Udp { ports })
}

/// Opens a TCP connection from `a` to `b`.
pub(crate) fn connect(rig: &mut Rig) {
    passes(rig, A, B, &tcp(SYN, true));
    passes(rig, B, A, &tcp(SYN | ACK, false));
    passes(rig, A, B, &tcp(ACK, true));
}

#[track_caller]
pub(crate) fn passes(rig: &mut Rig, from: PortId, to: PortId, spec: &Spec) {
    let before = rig.counters(from);
    let frames = rig.send(from, spec);
    assert_eq!(frames, [(to, forwarded(to, spec))], "drops: {:?}", rig.drops_since(from, &before));
    assert_eq!(rig.drops_since(from, &before), BTreeMap::new());
}

#[track_caller]
pub(crate) fn is_dropped(rig: &mut Rig, from: PortId, spec: &Spec, reason: DropReason) {
    let before = rig.counters(from);
    assert_eq!(rig.send(from, spec), []);
    assert_eq!(rig.drops_since(from, &before), BTreeMap::from([(reason.name().to_owned(), 1)]));
}

pub(crate) fn flows(rig: &Rig) -> Vec<FlowInfo> {
    let mut flows = rig.sim.flows(100);
    flows.sort_by_key(|flow| flow.key);
    flows
}

pub(crate) fn decisions(rig: &Rig, verdict: Verdict) -> BTreeMap<RuleOrigin, u64> {
    let counts = rig.sim.counters().decisions.into_iter();
    counts.filter(|count| count.verdict == verdict).map(|count| (count.origin, count.packets)).collect()
}
