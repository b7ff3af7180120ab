//! Where packets go: the hop of a destination, what is needed to leave by it, and what is said where that cannot be.

use super::Context;
use super::batch::{Batch, Verdict};
use super::gateway::{self, Problem};
use crate::dataplane::fib::snapshot::{Exit, Hop};
use crate::dataplane::packet::{self, Address, Kind, Packet};
use crate::dataplane::{DropReason, PortKind};
use crate::net::mac::Mac;

/// Finds the way by the destination; the number of the hop, if there is one.
#[inline(always)]
pub(in crate::dataplane) fn route_one(batch: &mut Batch, i: usize, context: &mut Context<'_>) -> Option<u32> {
    let packet = &batch.packets[i];
    let number = context.view.hop_number(packet.dst);
    match number.and_then(|number| context.view.exit(number)) {
        Some(exit) if exit.takes(packet) && !stays_on_link(packet) => batch.exits[i] = exit,
        _ => route_other(batch, i, context, number),
    }
    number
}

/// What is link-local at either end stays on its link, whatever the routes say (RFC 4291 section 2.5.6).
#[inline(always)]
fn stays_on_link(packet: &Packet) -> bool {
    !packet.is_v4 && !leaves_its_link(packet.src, packet.dst)
}

/// Whether routes are for what goes between these addresses.
#[inline(always)]
pub(in crate::dataplane) fn leaves_its_link(src: Address, dst: Address) -> bool {
    !packet::is_link_local(src) && !packet::is_link_local(dst)
}

/// [`route_one`] of a packet that is not simply passed on.
#[inline(never)]
fn route_other(batch: &mut Batch, i: usize, context: &mut Context<'_>, number: Option<u32>) {
    let stays = stays_on_link(&batch.packets[i]);
    match number.map(|number| (number, context.view.hop_and_exit(number))) {
        None | Some((_, (Hop::Nowhere, _))) => batch.drop(i, DropReason::NoRoute),
        Some((_, (Hop::Port(..), _))) if stays => batch.drop(i, DropReason::NoRoute),
        Some((_, (Hop::Gateway, _))) => {
            let frame = context.umem.data_mut(&mut batch.frames[i]);
            let is_answer = gateway::echo(frame, &batch.packets[i]);
            batch.answers[i] = is_answer;
            batch.verdicts[i] =
                if is_answer { Verdict::Consumed } else { Verdict::Dropped(DropReason::NoRoute) };
        }
        Some((_, (Hop::Port(..), exit))) if exit.mtu == 0 => batch.drop(i, DropReason::PortDown),
        Some((number, (Hop::Port(..), exit))) => leave_by(batch, i, context, number, exit),
    }
}

fn came_by_uplink(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    context.view.port(batch.in_ports[i]).is_some_and(|port| port.kind == PortKind::Uplink)
}

/// Notes the way of a packet, if it can go it.
#[inline(always)]
pub(in crate::dataplane) fn leave_by(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    number: u32,
    exit: Exit,
) {
    // The switch is no router for others: what an uplink brings is for this node.
    if exit.is_uplink && came_by_uplink(batch, i, context) {
        return batch.drop(i, DropReason::NoRoute);
    }
    let mac = if exit.mac == 0 { learned(batch, i, context, number, exit) } else { exit.mac };
    let packet = &batch.packets[i];
    if (packet.ttl <= 1) | (packet.ip_bytes() > usize::from(exit.mtu)) {
        refuse(batch, i, context, exit);
    } else if mac == 0 {
        resolve(batch, i, context, number);
    }
    batch.exits[i] = Exit { mac, ..exit };
}

/// The Ethernet address that a packet is to leave to where no pod's is given; zero where it is not known.
#[inline(never)]
fn learned(batch: &mut Batch, i: usize, context: &Context<'_>, number: u32, exit: Exit) -> u64 {
    if !exit.is_uplink {
        return context.neighbors.bits(exit.out);
    }
    let neighbor = context.view.neighbor(number, batch.packets[i].dst);
    neighbor.and_then(|(out, address)| context.neighbors.on_link(out, address)).map_or(0, Mac::to_bits)
}

/// Tells the sender of a packet that cannot go its way why.
#[cold]
fn refuse(batch: &mut Batch, i: usize, context: &mut Context<'_>, exit: Exit) {
    let (problem, reason) = if batch.packets[i].ttl <= 1 {
        (Problem::TimeExceeded, DropReason::TtlExceeded)
    } else {
        (Problem::TooBig(exit.mtu), DropReason::TooBig)
    };
    report(batch, i, context, problem);
    batch.drop(i, reason);
}

/// Asks for the Ethernet address that a packet is to leave to.
#[cold]
fn resolve(batch: &mut Batch, i: usize, context: &mut Context<'_>, number: u32) {
    let Some((out, neighbor)) = context.view.neighbor(number, batch.packets[i].dst) else {
        return batch.drop(i, DropReason::NoRoute);
    };
    if context.view.hop_and_exit(number).1.is_uplink {
        context.speech.ask_on_link(out, neighbor, context.now_ms);
    } else {
        context.speech.ask(out, neighbor, context.now_ms);
    }
    batch.drop(i, DropReason::Unresolved);
}

fn report(batch: &mut Batch, i: usize, context: &mut Context<'_>, problem: Problem) {
    let packet = &batch.packets[i];
    // Nothing is said about errors, and that costs nobody's budget.
    if packet.kind == Kind::Flow && context.speech.may_report(batch.in_ports[i], context.now_ms) {
        batch.answers[i] =
            gateway::problem(context.umem, &mut batch.frames[i], packet, context.view, problem);
    }
}
