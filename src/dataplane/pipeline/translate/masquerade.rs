//! Masquerading of what pods send outside: the external end of a new flow, and the pod of a packet to one.

use crate::dataplane::conntrack::FrontEnd;
use crate::dataplane::masquerade::{Choice, EXTERNAL_IDENTIFIERS, ExternalEnd, MasqueradeView};
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::pipeline::parse::parse_quoted;
use crate::dataplane::service::{Translation, TranslationKind};
use crate::dataplane::{DropReason, PortKind};
use crate::net::address::Address;
use crate::net::flow::Protocol;
use crate::net::icmp;

/// Gives packets from uplinks to external ports their pods as destinations. A packet to a port that no flow with its source
/// has is dropped. `found` holds such packets, with the hashes of their ends.
#[inline]
pub(super) fn receive_masqueraded(
    batch: &mut Batch,
    context: &Context<'_>,
    found: &mut Vec<(u16, u64, ExternalEnd)>,
) {
    if let Some(masquerade) = context.snapshot.masquerade() {
        receive_batch(batch, context, masquerade, found);
    }
}

#[inline(never)]
fn receive_batch(
    batch: &mut Batch,
    context: &Context<'_>,
    masquerade: &MasqueradeView,
    found: &mut Vec<(u16, u64, ExternalEnd)>,
) {
    let Some(ports) = context.external_ports else { return };
    found.clear();
    let mut start = 0;
    while start < batch.len() {
        let run = batch.run_of_port(start);
        start = run.end;
        if !is_uplink(batch, run.start, context) {
            continue;
        }
        for i in run {
            let packet = &batch.packets[i];
            let is_to_node = batch.is_pending(i) && masquerade.address(packet.is_v4) == Some(packet.dst);
            let end = if is_to_node { external_end(batch, i, context, masquerade) } else { None };
            if let Some(end) = end {
                let hash = end.hash(context.conntrack);
                ports.prefetch(hash);
                found.push((i as u16, hash, end));
            }
        }
    }
    for (i, hash, end) in found {
        let i = usize::from(*i);
        match ports.find(context.conntrack, end, *hash) {
            Some((_, pod)) => deliver(batch, i, end, pod),
            None if has_node_port(context, batch.packets[i].dst, end) => {}
            None => batch.drop(i, DropReason::MasqueradeUnknown),
        }
    }
}

/// Whether packet `i` has come by an uplink to the address that masqueraded flows have.
pub(super) fn is_to_external_address(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    let packet = &batch.packets[i];
    context.snapshot.masquerade().is_some_and(|view| view.address(packet.is_v4) == Some(packet.dst))
        && is_uplink(batch, i, context)
}

fn is_uplink(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    context.snapshot.port(batch.in_ports[i]).is_some_and(|port| port.kind == PortKind::Uplink)
}

/// Whether a Service has the port of an external end at this address of the node.
fn has_node_port(context: &Context<'_>, address: Address, end: &ExternalEnd) -> bool {
    context
        .snapshot
        .services()
        .is_some_and(|services| services.has_node_port(address, end.protocol, end.port))
}

/// Makes the own end of a flow the destination of packet `i`, which came to the flow's external end.
fn deliver(batch: &mut Batch, i: usize, end: &ExternalEnd, (pod, port): (Address, u16)) {
    let packet = &mut batch.packets[i];
    let translation = Translation::new(TranslationKind::MasqueradeReply, true, (packet.dst, end.port));
    // The stage `lookup` takes the ends of a quoted packet from here.
    (packet.dst, packet.dst_port) = (pod, port);
    if !end.protocol.has_ports() {
        packet.src_port = port;
    } else if packet.kind == Kind::IcmpError {
        packet.src_port = end.remote_port;
    }
    batch.external_ports[i] = end.port;
    batch.translate(i, translation, 0);
}

/// External end to which packet `i`, to the node's address, may belong: of the packet, or of the one that it quotes.
fn external_end(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    masquerade: &MasqueradeView,
) -> Option<ExternalEnd> {
    let packet = &batch.packets[i];
    match packet.kind {
        Kind::Flow => end_of(packet.protocol, packet.src, (packet.src_port, packet.dst_port), masquerade)
            .filter(|_| packet.protocol.has_ports() || is_reply(packet)),
        Kind::IcmpError => {
            let message = packet.transport(context.umem.data(&batch.frames[i]));
            let mut quoted = Packet::default();
            let is_quote = parse_quoted(message.get(icmp::HEADER_BYTES..)?, &mut quoted)
                && packet.whole
                && quoted.src == packet.dst;
            let ports = (quoted.dst_port, quoted.src_port);
            is_quote.then(|| end_of(quoted.protocol, quoted.dst, ports, masquerade)).flatten()
        }
        Kind::LaterFragment | Kind::Arp | Kind::LinkLocal => None,
    }
}

/// External end of a flow to this remote end, if the port is one of those of its protocol.
fn end_of(
    protocol: Protocol,
    remote: Address,
    (remote_port, port): (u16, u16),
    masquerade: &MasqueradeView,
) -> Option<ExternalEnd> {
    let (range, remote_port) = match protocol {
        Protocol::ICMP | Protocol::ICMPV6 => (&EXTERNAL_IDENTIFIERS, 0),
        protocol if protocol.has_ports() => (masquerade.ports(), remote_port),
        _ => return None,
    };
    range.contains(&port).then_some(ExternalEnd { protocol, port, remote, remote_port })
}

fn is_reply(packet: &Packet) -> bool {
    icmp::query(packet.protocol, packet.flags).is_some_and(|query| query.is_reply)
}

/// Whether packet `i`, which has been routed and is of no flow, leaves with an address of the node.
pub(in crate::dataplane::pipeline) fn leaves_masqueraded(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
) -> bool {
    let packet = &batch.packets[i];
    let (true, Some(_), Some(masquerade), Some(port)) = (
        batch.adjacencies[i].is_uplink(),
        context.external_ports,
        context.snapshot.masquerade(),
        context.snapshot.port(batch.in_ports[i]),
    ) else {
        return false;
    };
    masquerade.covers(port.kind, packet.translated, packet.src, packet.dst)
}

/// Chooses the external port of the new flow of packet `i`, and gives it to the packet. `Ok(None)` for a flow that keeps its
/// source. A flow from an uplink to an uplink does not: its backend was on this node, or clients have had the node's address.
pub(in crate::dataplane::pipeline) fn choose_external_port(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow_hash: u64,
) -> Result<Option<Choice>, DropReason> {
    if !leaves_masqueraded(batch, i, context) {
        let is_transit = batch.adjacencies[i].is_uplink() && is_uplink(batch, i, context);
        return if is_transit { Err(DropReason::NoRoute) } else { Ok(None) };
    }
    let (Some(masquerade), Some(ports)) = (context.snapshot.masquerade(), context.external_ports) else {
        return Ok(None);
    };
    let packet = &batch.packets[i];
    // Backends of Services get the node's address whoever they are.
    if masquerade.waits() && !is_uplink(batch, i, context) {
        return Err(DropReason::Masquerade);
    }
    let end = match packet.protocol {
        protocol if protocol.has_ports() => {
            ExternalEnd { protocol, port: 0, remote: packet.dst, remote_port: packet.dst_port }
        }
        protocol if icmp::query(protocol, packet.flags).is_some() => {
            ExternalEnd { protocol, port: 0, remote: packet.dst, remote_port: 0 }
        }
        _ => return Err(DropReason::Masquerade),
    };
    let range = if end.protocol.has_ports() { masquerade.ports() } else { &EXTERNAL_IDENTIFIERS };
    let worker = (context.worker, context.workers);
    let owner = batch.in_ports[i];
    let choice = ports.choose(context.conntrack, &end, range, owner, worker, flow_hash);
    let choice = choice.ok_or(DropReason::Masquerade)?;
    mark(batch, i, choice.port);
    Ok(Some(choice))
}

/// Gives packet `i` of the initiator of a masqueraded flow the external port of the flow.
#[inline]
pub(super) fn mark(batch: &mut Batch, i: usize, external_port: u16) {
    let packet = &batch.packets[i];
    let is_listed = packet.translated || batch.external_ports[i] != 0;
    batch.external_ports[i] = external_port;
    if !is_listed {
        let end = (packet.dst, packet.dst_port);
        batch.translate(i, Translation::new(TranslationKind::Masquerade, true, end), 0);
    }
}

/// Takes the external port of a flow that has ended, or that another worker has opened, from packet `i` again.
pub(in crate::dataplane::pipeline) fn unmark(batch: &mut Batch, i: usize) {
    if std::mem::take(&mut batch.external_ports[i]) != 0 && !batch.packets[i].translated {
        batch.translated.retain(|translated| usize::from(*translated) != i);
    }
}

/// Whether the flow with this front end is masqueraded, and its initiator sends to the responder's own address: from its own
/// port to `packet`'s destination.
#[inline]
pub(super) fn is_masqueraded_only(front_end: &FrontEnd, packet: &Packet) -> bool {
    front_end.external_port != 0
        && front_end.client_port == 0
        && (front_end.address, front_end.port) == (packet.dst, packet.dst_port)
}
