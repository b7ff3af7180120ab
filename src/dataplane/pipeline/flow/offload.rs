//! Offload of flows: the kernel forwards the packets of established flows between offloaded ports, two pods' or a pod's and an
//! uplink, from the packet on that shows them to be established.
//!
//! TCP is offloaded with the SYN-ACK, before that leaves: a connection whose third segment did it would have data overtake
//! that segment. UDP is offloaded by direction, and as a whole once both directions were seen; a flow to a Service only then, when
//! its bindings are not evicted before it.

use crate::dataplane::PortKind;
use crate::dataplane::conntrack::{Entry, FlowState, FrontEnd, Key, Side, Slot};
use crate::dataplane::fib::next_hop::{Egress, Hop};
use crate::dataplane::offload::{Gateway, Offload, OffloadedFlow, OffloadedFront};
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::pipeline::translate::forward_key;
use crate::dataplane::service::BindingEnd;
use crate::ids::{Generation, PortId};
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::xdp::offload::layout::UNCHANGED;

/// Offloads the flows of the packets that leave, and takes those back that are established no longer.
pub(in crate::dataplane::pipeline) fn offload(batch: &Batch, context: &Context<'_>) {
    let Some(offload) = context.offload else { return };
    for i in 0..batch.len() {
        let Disposition::Forward(out) = batch.dispositions[i] else { continue };
        let (from, packet) = (batch.in_ports[i], &batch.packets[i]);
        let is_plain = (packet.kind == Kind::Flow) & !packet.first_fragment;
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
    let evaluation = || {
        let epochs = offloaded_epochs(entry, packet.protocol, by_responder)?;
        let is_translated = entry.flow_word(true).is_translated();
        let front = if is_translated { Some(front_of(context, slot, packet, from_low, from)?) } else { None };
        (entry.key() == Some(key)).then_some((epochs, front))
    };
    let Some(evaluated) = evaluation() else { return end(slot, context, offload) };
    if offload.is_suspended() || !set_stations([from, out], context, offload) {
        return;
    }
    let (epochs, front) = evaluated;
    if epochs.into_iter().flatten().any(|epoch| epoch > context.snapshot.generation) {
        // The next hop and the front end of this snapshot may be former ones.
        return;
    }
    let is_compared = front.is_none_or(|front| front.epoch.is_some());
    if !is_compared && !offload.is_recorded(slot.number()) {
        return;
    }
    let is_tcp = packet.protocol == Protocol::TCP;
    let connection = entry.load_tcp();
    let is_new = !offload.is_recorded(slot.number());
    if is_tcp && is_new && !connection.have_both_sent() {
        return;
    }
    let numbers = connection.numbers();
    let numbers = [true, false].map(|is_low| numbers[entry.sender(is_low) as usize]);
    let numbers = if is_tcp { numbers } else { Default::default() };
    let flow = OffloadedFlow { epochs, front, numbers, ..flow_of(packet, from_low, ports) };
    let Some(gateway) = gateway_of(&flow, context, offload) else {
        // A packet from outside may have come by any uplink: the way of the flow's own packets decides.
        if !is_uplink(context, from) {
            end(slot, context, offload);
        }
        return;
    };
    let flow = OffloadedFlow { gateway, ..flow };
    if offload.is_changed(slot.number(), &flow) {
        return end(slot, context, offload);
    }
    let still = || evaluation().is_some_and(|(_, now)| now == front);
    if offload.record(slot.number(), &flow, still) && is_tcp {
        if is_new {
            // Another worker may have changed numbers before it could see the record.
            context.conntrack.note_numbers(slot, &connection, &entry.load_tcp());
        }
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
    if words[0].is_by_node_socket() {
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
        FlowState::UdpOneWay if !words[0].is_translated() => {
            let by_initiator = [true, false].map(|is_low| entry.sender(is_low) == Side::Initiator);
            Some([0, 1].map(|end| epochs[end].filter(|_| by_initiator[end])))
        }
        _ => None,
    }
}

/// The front end of the translated flow in a slot. `None` for one that stays with the workers: with another source port, to a
/// Service and masqueraded, to a backend that its client has left for another one, or to no Service that is there.
fn front_of(
    context: &Context<'_>,
    slot: Slot,
    packet: &Packet,
    from_low: bool,
    from: PortId,
) -> Option<OffloadedFront> {
    let entry = context.conntrack.entry(slot);
    let by_client = entry.sender(from_low) == Side::Initiator;
    let FrontEnd { address, port, client_port: 0, external_port } = context.conntrack.virtual_end(slot)
    else {
        return None;
    };
    if external_port != 0 {
        let responder = if by_client { (packet.dst, packet.dst_port) } else { (packet.src, packet.src_port) };
        let own = context.snapshot.masquerade()?.address(packet.is_v4)?;
        return ((address, port) == responder).then_some(OffloadedFront {
            client: usize::from(by_client == from_low),
            address: own,
            port: external_port,
            service: UNCHANGED,
            epoch: Some(context.snapshot.generation),
        });
    }
    let services = context.snapshot.services()?;
    // A packet that comes by an uplink is from outside, or from a backend elsewhere.
    let is_outside = by_client && is_uplink(context, from);
    services.find(address, packet.protocol, port, is_outside)?;
    // A client's packet is compared with the Services, or its binding was since their last change.
    let is_compared = by_client || {
        let client = Packet { src: packet.dst, ..*packet };
        let key = forward_key(context, &client, packet.dst_port, (address, port));
        match context.bindings.find(&key) {
            Some(bound) if bound.to != BindingEnd::new(packet.src, packet.src_port) => return None,
            bound => bound.is_some_and(|bound| bound.is_of(services.revision, context.now_ms)),
        }
    };
    Some(OffloadedFront {
        client: usize::from(by_client != from_low),
        address,
        port,
        service: services.page_of(address, packet.protocol, port),
        epoch: is_compared.then_some(context.snapshot.generation),
    })
}

fn is_uplink(context: &Context<'_>, port: PortId) -> bool {
    context.snapshot.port(port).is_some_and(|view| view.kind == PortKind::Uplink)
}

/// Next hop of the packets of a flow that leave by an uplink. `None` for a flow that stays with the workers: between two uplinks,
/// by a tunnel, and one that comes by another port than its answers leave by.
fn gateway_of(flow: &OffloadedFlow, context: &Context<'_>, offload: &Offload) -> Option<Gateway> {
    let remote = match flow.ports.map(|port| is_uplink(context, port)) {
        [false, false] => return Some(Gateway::None),
        [true, true] => return None,
        [first, _] => usize::from(!first),
    };
    let number = context.snapshot.hop_number(flow.addresses[remote])?;
    let (hop, adjacency) = context.snapshot.hop_and_adjacency(number);
    match hop {
        Hop::Port(out, next) if out == flow.ports[remote] && adjacency.egress == Egress::Uplink => {
            next.map_or(Some(Gateway::None), |gateway| offload.gateway(gateway))
        }
        _ => None,
    }
}

/// Gives the program the Ethernet addresses behind pods' ports, and the MTUs. Returns false where one is not known, or is not the
/// one that the pod sends from.
fn set_stations(ports: [PortId; 2], context: &Context<'_>, offload: &Offload) -> bool {
    ports.into_iter().all(|port| {
        let Some(view) = context.snapshot.port(port) else { return false };
        match view.kind {
            PortKind::Pod => {}
            PortKind::Uplink => {
                offload.set_station(port, Mac::default(), view.mtu);
                return true;
            }
            PortKind::Host | PortKind::Tap => return false,
        }
        let learned = context.neighbors.port_mac(port);
        let Some(mac) = learned.filter(|mac| view.mac.is_none_or(|given| given == *mac)) else {
            return false;
        };
        offload.set_station(port, mac, view.mtu);
        true
    })
}

fn flow_of(packet: &Packet, from_low: bool, ports: [PortId; 2]) -> OffloadedFlow {
    let mut addresses = [packet.src, packet.dst];
    let mut transport_ports = [packet.src_port, packet.dst_port];
    if !from_low {
        addresses.reverse();
        transport_ports.reverse();
    }
    let protocol = packet.protocol;
    OffloadedFlow {
        addresses,
        transport_ports,
        protocol,
        ports,
        epochs: [None; 2],
        front: None,
        gateway: Gateway::None,
        numbers: Default::default(),
    }
}
