//! Services of the benchmarks, and the cost of a change among many.

use std::fs;
use std::net::SocketAddr;
use std::time::Instant;

use palisade::dataplane::{DesiredState, Settings, Simulation};
use palisade::net::flow::Protocol;
use palisade::tables::{ServicePort, ServicePortName, ServiceSet, ServiceTable, ServicesDiff};
use serde_json::json;

use crate::common::compiled_rules::{OPEN_PORTS, PODS};
use crate::common::frame::{address, virtual_address};
use crate::common::json_lines;
use crate::common::statistics::{median, rounded};

/// Services with ten backends each.
pub(crate) const SERVICES: u16 = 10_000;
const BACKENDS: u32 = 10;

fn name(number: u16, protocol: Protocol) -> ServicePortName {
    ServicePortName { namespace: "bench".to_owned(), name: format!("service{number}"), port: None, protocol }
}

/// Port of Service `number`. Those of the first numbers have a pod of the node as their backend, the others ten backends
/// elsewhere, numbered from `first` on.
fn port(number: u16, first: u32) -> ServicePort {
    let target = *OPEN_PORTS.start();
    let at = |address| SocketAddr::new(address, target);
    let elsewhere = |n: u32| {
        SocketAddr::from(((0x0b00_0000 + u32::from(number) * BACKENDS + first + n).to_be_bytes(), target))
    };
    ServicePort {
        cluster: [4, 6].map(|family| at(virtual_address(number, family))).to_vec(),
        internal_backends: if number < PODS {
            [4, 6].map(|family| at(address(number, family))).to_vec()
        } else {
            (0..BACKENDS).map(elsewhere).collect()
        },
        ..ServicePort::default()
    }
}

/// Makes the Services, and returns them with a port of the last one that has another backend.
pub(crate) fn table(count: u16, protocol: Protocol) -> (ServiceSet, ServicesDiff) {
    let ports = (0..count).map(|number| (name(number, protocol), port(number, 0))).collect();
    let table = ServiceTable { node_addresses: Vec::new(), ports };
    let last = count - 1;
    let diff =
        ServicesDiff { set: [(name(last, protocol), port(last, 1))].into(), ..ServicesDiff::default() };
    (ServiceSet::new(&table).expect("valid Services"), diff)
}

/// Measures the change of one endpoint, from the difference to the published snapshot, and the memory of all Services.
pub(crate) fn change(count: u16, rounds: usize) {
    let settings = Settings { frames_per_worker: 4096, ..Settings::default() };
    let mut simulation = Simulation::new(&settings).expect("memory for the switch");
    let before = resident_bytes();
    let (set, there) = table(count, Protocol::UDP);
    let last = count - 1;
    let back =
        ServicesDiff { set: [(name(last, Protocol::UDP), port(last, 0))].into(), ..ServicesDiff::default() };
    let mut set = set;
    let load = Instant::now();
    simulation.publish(DesiredState { services: Some(set.clone().into()), ..DesiredState::default() });
    simulation.step();
    let (load_ms, bytes) = (load.elapsed().as_secs_f64() * 1e3, resident_bytes().saturating_sub(before));
    let mut times: Vec<f64> = (0..rounds)
        .map(|round| {
            let start = Instant::now();
            set = set.changed(if round % 2 == 0 { &there } else { &back }).expect("a valid difference");
            simulation
                .publish(DesiredState { services: Some(set.clone().into()), ..DesiredState::default() });
            let taken = start.elapsed().as_secs_f64() * 1e3;
            simulation.step();
            taken
        })
        .collect();
    json_lines::print(&json!({
        "bench": "service-change",
        "services": count,
        "backends": u32::from(count) * BACKENDS,
        "load_ms": rounded(load_ms, 3),
        "change_ms": rounded(median(&mut times), 3),
        "resident_bytes": bytes,
    }));
}

/// Resident memory of this process (`VmRSS` of proc(5)).
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
