//! Metrics of ports.

use std::collections::BTreeMap;

use super::exposition::Kind::{Counter, Gauge, Info};
use super::exposition::{Column, Exposition, shown};
use crate::control::protocol::{PortInfo, PortState};
use crate::dataplane::{Backend, PortCounters, PortKind};

const PORT: &[Column<PortCounters>] = &[
    Column {
        kind: Counter,
        name: "palisade_port_received_packets",
        unit: "packets",
        help: "Packets that workers took from the port.",
        value: |port| port.received,
    },
    Column {
        kind: Counter,
        name: "palisade_port_received_bytes",
        unit: "bytes",
        help: "Bytes of the received packets, Ethernet header included.",
        value: |port| port.received_bytes,
    },
    Column {
        kind: Counter,
        name: "palisade_port_forwarded_packets",
        unit: "packets",
        help: "Received packets that went to other ports.",
        value: |port| port.forwarded,
    },
    Column {
        kind: Counter,
        name: "palisade_port_offloaded_packets",
        unit: "packets",
        help: "Of the forwarded packets, those that the kernel has forwarded, without a worker.",
        value: |port| port.offloaded,
    },
    Column {
        kind: Counter,
        name: "palisade_port_consumed_packets",
        unit: "packets",
        help: "Received packets for the switch itself.",
        value: |port| port.consumed,
    },
    Column {
        kind: Counter,
        name: "palisade_port_transmitted_packets",
        unit: "packets",
        help: "Packets sent out of the port.",
        value: |port| port.transmitted,
    },
    Column {
        kind: Counter,
        name: "palisade_port_transmitted_bytes",
        unit: "bytes",
        help: "Bytes of the transmitted packets.",
        value: |port| port.transmitted_bytes,
    },
];

/// Describes all ports, and the counters of the open ones.
///
/// The kernel tells no losses before it, and counts no flows by port.
pub(super) fn describe(
    out: &mut Exposition,
    ports: &[PortInfo],
    counters: &BTreeMap<String, PortCounters>,
    backend: Backend,
) {
    let mut info = out.family(Info, "palisade_port", "", "Interface, kind and pod of the port.");
    for port in ports {
        let pod = port.pod.as_ref().map(|pod| shown(&pod.to_string())).unwrap_or_default();
        let kind = match port.spec.kind {
            PortKind::Pod => "pod",
            PortKind::Host => "host",
            PortKind::Uplink => "uplink",
            PortKind::Tap => "tap",
        };
        let interface = shown(&port.spec.interface);
        info.sample(&[("port", &port.name), ("kind", kind), ("interface", &interface), ("pod", &pod)], 1);
    }
    let mut is_in = |state, name, help| {
        let mut family = out.family(Gauge, name, "", help);
        ports
            .iter()
            .for_each(|port| _ = family.sample(&[("port", &port.name)], (port.state == state).into()));
    };
    is_in(PortState::Up, "palisade_port_up", "Whether the port passes packets.");
    is_in(
        PortState::Unguarded,
        "palisade_port_unguarded",
        "Whether packets of the port's interface enter the node's own stack.",
    );
    out.columns(PORT, "port", counters);
    let mut dropped = out.family(
        Counter,
        "palisade_port_dropped_packets",
        "packets",
        "Received packets that were dropped, by reason.",
    );
    for (port, values) in counters {
        for (reason, packets) in &values.drops {
            dropped.sample(&[("port", port), ("reason", reason)], *packets);
        }
    }
    if backend != Backend::AfXdp {
        return;
    }
    let mut lost = out.family(
        Counter,
        "palisade_port_lost_packets",
        "packets",
        "Packets that the kernel lost before the switch received them, by place.",
    );
    for (port, values) in counters {
        for (place, packets) in &values.lost {
            lost.sample(&[("port", port), ("place", place)], *packets);
        }
    }
    let mut flows = out.family(
        Gauge,
        "palisade_port_flows",
        "flows",
        "Flows that count against the port. Assured ones are not evicted for others.",
    );
    for (port, values) in counters {
        flows
            .sample(&[("port", port), ("class", "assured")], values.flows_assured)
            .sample(&[("port", port), ("class", "unassured")], values.flows_unassured);
    }
}
