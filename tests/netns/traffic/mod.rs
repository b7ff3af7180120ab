//! Tests of traffic between pods through one switch, `palisade run` as a child process: forwarding, policy,
//! and drops.

mod bandwidth;
mod churn;
mod connection_flood;
mod forwarding;
mod fragments;
mod jumbo;
mod kernel_drops;
mod many_pods;
mod offload;
mod other_ports;
mod path_mtu;
mod ping;
mod policy;
mod reject;
mod service_offload;
mod services;
mod tap;
mod tcp_resets;

use palisade::lab::{LabSpec, PodPorts};

use crate::support::Rig;

/// Starts a lab and a switch whose pods have ports of this kind, with an MTU that makes TCP send segments.
fn rig_of(ports: PodPorts, pods: &[&str], workers: u16, config: &str) -> Rig {
    Rig::of(&LabSpec { workers, ports, mtu: 1500, ..LabSpec::of(pods).unwrap() }, config)
}
