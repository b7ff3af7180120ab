//! Offload of flows: the kernel forwards the packets of established flows between offloaded ports from the packet on that
//! shows them to be established.
//!
//! TCP is offloaded with the SYN-ACK, before that leaves: a connection whose third segment did it would have data overtake
//! that segment. UDP is offloaded by direction, and as a whole once both directions were seen.

use crate::dataplane::PortKind;
use crate::dataplane::conntrack::{Entry, FlowState, Key, Side, Slot};
use crate::dataplane::offload::{Offload, OffloadedFlow};
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::ids::{Generation, PortId};
use crate::net::flow::Protocol;

/// Offloads the flows of the packets that leave, and takes those back that are established no longer.
pub(in crate::dataplane::pipeline) fn offload(batch: &Batch, context: &Context<'_>) {
    let Some(offload) = context.offload else { return };
    for i in 0..batch.len() {
        let Disposition::Forward(out) = batch.dispositions[i] else { continue };
        let (from, packet) = (batch.in_ports[i], &batch.packets[i]);
        let is_plain = (packet.kind == Kind::Flow) & !packet.first_fragment & !packet.translated;
        let is_carried = matches!(packet.protocol, Protocol::TCP | Protocol::UDP);
        if is_plain && is_carried && from != out && offload.serves(from) && offload.serves(out) {
            offload_flow_of(packet, [from, out], context, offload);
        }
    }
}

fn offload_flow_of(packet: &Packet, [from, out]: [PortId; 2], context: &Context<'_>, offload: &Offload) {
    let (key, from_low) = Key::of(packet);
    let Some(slot) = context.conntrack.look_up(&key, context.conntrack.hash(&key)) else { return };
    let entry = context.conntrack.entry(slot);
    let ports = if from_low { [from, out] } else { [out, from] };
    let by_responder = entry.sender(from_low) == Side::Responder;
    let epochs =
        || offloaded_epochs(entry, packet.protocol, by_responder).filter(|_| entry.key() == Some(key));
    let Some(evaluated) = epochs() else { return end(slot, context, offload) };
    if offload.is_suspended() || !set_stations([from, out], context, offload) {
        return;
    }
    let flow = flow_of(packet, from_low, ports, evaluated);
    let is_recorded = offload.record(slot.number(), &flow, || epochs().is_some());
    if is_recorded && packet.protocol == Protocol::TCP {
        entry.forget_windows();
    }
}

#[inline]
fn end(slot: Slot, context: &Context<'_>, offload: &Offload) {
    if offload.is_recorded(slot.number()) {
        context.conntrack.end_offload(slot);
    }
}

/// By direction from the lower and the higher end, the generation that has evaluated it, if the kernel may forward packets of the
/// direction. `None` for a flow that stays with the workers.
fn offloaded_epochs(
    entry: &Entry,
    protocol: Protocol,
    by_responder: bool,
) -> Option<[Option<Generation>; 2]> {
    let words = [true, false].map(|is_low| entry.flow_word(is_low));
    if words[0].is_translated() || words[0].is_by_node_socket() {
        return None;
    }
    let epochs = words.map(|word| Some(word.policy_epoch()));
    if protocol == Protocol::TCP {
        let is_open = match entry.state() {
            FlowState::Established => true,
            FlowState::SynReceived => by_responder,
            _ => false,
        };
        return is_open.then_some(epochs);
    }
    match words[0].state() {
        FlowState::UdpTwoWay => Some(epochs),
        FlowState::UdpOneWay => {
            let by_initiator = [true, false].map(|is_low| entry.sender(is_low) == Side::Initiator);
            Some([0, 1].map(|end| epochs[end].filter(|_| by_initiator[end])))
        }
        _ => None,
    }
}

/// Gives the program the Ethernet addresses behind both ports. Returns false where one is not known, or is not the one that the
/// pod sends from.
fn set_stations(ports: [PortId; 2], context: &Context<'_>, offload: &Offload) -> bool {
    ports.into_iter().all(|port| {
        let Some(view) = context.snapshot.port(port).filter(|view| view.kind == PortKind::Pod) else {
            return false;
        };
        let learned = context.neighbors.port_mac(port);
        let Some(mac) = learned.filter(|mac| view.mac.is_none_or(|given| given == *mac)) else {
            return false;
        };
        offload.set_station(port, mac, view.mtu);
        true
    })
}

fn flow_of(
    packet: &Packet,
    from_low: bool,
    ports: [PortId; 2],
    epochs: [Option<Generation>; 2],
) -> OffloadedFlow {
    let mut addresses = [packet.src, packet.dst];
    let mut transport_ports = [packet.src_port, packet.dst_port];
    if !from_low {
        addresses.reverse();
        transport_ports.reverse();
    }
    OffloadedFlow { addresses, transport_ports, protocol: packet.protocol, ports, epochs }
}
