//! The stages `track` and `follow`: each packet's flow is looked up, and the packets of known flows go on.
//!
//! Nearly every packet takes [`advance_fast`]. What it does not take, [`advance_slow`] does.

use super::anti_spoof::check_packet_endpoints;
use super::batch::{Batch, FlowStatus, Track};
use super::classify::{revalidate, update_state};
use super::context::Context;
use super::route::{forward_via, route};
use crate::dataplane::conntrack::{Entry, FlowWord, LookupBatch, LookupVisitor, PacketFlow, Slot};
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::packet::Kind;

/// Looks each packet's flow up and routes the packet. Packets of known flows advance these; those of new flows go to the next stage.
pub(in crate::dataplane) fn advance(batch: &mut Batch, lookups: &mut LookupBatch, context: &mut Context<'_>) {
    context.policy_batch.clear();
    let (conntrack, len) = (context.conntrack, batch.len());
    let for_insert = !context.policy_batch.denial_heavy();
    conntrack.lookup_batch(lookups, len, for_insert, Advance { batch, context });
}

/// The stage as the receiver of the lookup's results.
struct Advance<'a, 'c> {
    batch: &'a mut Batch,
    context: &'a mut Context<'c>,
}

impl LookupVisitor for Advance<'_, '_> {
    #[inline(always)]
    fn is_pending(&self, i: usize) -> bool {
        self.batch.is_pending(i)
    }

    #[inline(always)]
    fn hit(&mut self, i: usize, flow: &PacketFlow, slot: Slot, entry: &Entry) {
        if !advance_fast(self.batch, i, self.context, flow, entry) {
            advance_slow(self.batch, i, self.context, flow, slot);
        }
    }

    #[inline(always)]
    fn miss(&mut self, i: usize, _: &PacketFlow) {
        route_new(self.batch, i, self.context);
    }
}

/// Takes what nearly every packet of a known flow is: one that does not change it, and whose way the flow remembers.
#[inline(always)]
fn advance_fast(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    entry: &Entry,
) -> bool {
    let (snapshot, packet) = (context.snapshot, &batch.packets[i]);
    let flow_word = entry.flow_word(flow.from_low);
    let Some(adjacency) = flow_word.plain_hop().and_then(|hop| snapshot.adjacency(u32::from(hop))) else {
        return false;
    };
    let bytes = packet.ip_bytes();
    // Of a fragmented datagram the others will want to know what became of the first.
    let is_plain = (packet.kind == Kind::Flow) & !packet.first_fragment & adjacency.takes(packet)
        && snapshot.is_current(flow_word.policy_epoch(), batch.in_ports[i], adjacency.out);
    if is_plain {
        batch.adjacencies[i] = adjacency;
        entry.count(flow.from_low, bytes, context.now_ms);
    }
    is_plain
}

/// Any packet of a known flow.
#[inline(never)]
fn advance_slow(batch: &mut Batch, i: usize, context: &mut Context<'_>, flow: &PacketFlow, slot: Slot) {
    let (snapshot, packet) = (context.snapshot, &batch.packets[i]);
    batch.tracks[i] = Track { status: FlowStatus::Known(slot), hop: None };
    let entry = context.conntrack.entry(slot);
    let flow_word = entry.flow_word(flow.from_low);
    // An error goes where its flow's packets come from, and so another way than the packet that it quotes.
    let is_current = |adjacency: &Adjacency| {
        packet.kind == Kind::Flow
            && snapshot.is_current(flow_word.policy_epoch(), batch.in_ports[i], adjacency.out)
    };
    match flow_word
        .hop()
        .map(u32::from)
        .and_then(|hop| Some((hop, snapshot.adjacency(hop).filter(is_current)?)))
    {
        Some((number, adjacency)) => forward_via(batch, i, context, number, adjacency),
        None => revalidate_if_stale(batch, i, context, flow, slot, flow_word),
    }
    if batch.is_pending(i) && batch.tracks[i].status != FlowStatus::New {
        update_state(batch, i, context, flow, slot);
    }
}

/// Lets a packet's flow be judged again if what decides on it has changed, and finds its way.
#[inline(never)]
fn revalidate_if_stale(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
    flow_word: FlowWord,
) {
    let (snapshot, judged) = (context.snapshot, flow_word.policy_epoch());
    let is_error = batch.packets[i].kind == Kind::IcmpError;
    // Hops are numbered anew when anything but rules changes; another worker may be a generation ahead.
    let known =
        flow_word.hop().filter(|_| (snapshot.layout_generation..=snapshot.generation).contains(&judged));
    let adjacency = if is_error {
        None
    } else {
        known.map(u32::from).and_then(|hop| Some((hop, snapshot.adjacency(hop)?)))
    };
    let number = match adjacency {
        Some((number, adjacency)) => {
            forward_via(batch, i, context, number, adjacency);
            Some(number)
        }
        None => route(batch, i, context),
    };
    // What a later generation has judged is not judged by the earlier one again.
    if judged > snapshot.generation || !batch.is_pending(i) {
        return;
    }
    // The flow's ends lie behind the ports that the packet came from and goes to.
    if judged < snapshot.policy_epoch(batch.in_ports[i], batch.adjacencies[i].out) {
        revalidate(batch, i, context, flow, slot, flow_word);
    }
    if batch.is_pending(i) && batch.tracks[i].status != FlowStatus::New {
        let hop = if is_error { known } else { number.and_then(|number| u16::try_from(number).ok()) };
        context.conntrack.entry(slot).mark_current(flow.from_low, flow_word, snapshot.generation, hop);
    }
}

/// Routes a packet of a new flow, which the next stage evaluates.
#[inline(always)]
fn route_new(batch: &mut Batch, i: usize, context: &mut Context<'_>) {
    batch.tracks[i].status = FlowStatus::New;
    if let Some(reason) = check_packet_endpoints(&batch.packets[i]) {
        return batch.drop(i, reason);
    }
    let number = route(batch, i, context);
    if batch.is_pending(i) {
        batch.tracks[i].hop = number.and_then(|number| u16::try_from(number).ok());
        context.policy_batch.add(i);
    }
}
