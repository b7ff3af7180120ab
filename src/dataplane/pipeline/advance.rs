//! The stages `track` and `follow`: each packet's flow is looked up, and the packets of known flows go on.
//!
//! Nearly every packet takes [`advance_plain`]. What it does not take, [`advance_known`] does.

use super::batch::{Batch, Fate, Track};
use super::classify::{reopen, revalidate};
use super::route::{leave_by, route_one};
use super::{Context, is_no_flow};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{
    Entry, FlowWord, Key, LookupBatch, LookupVisitor, Outcome, PacketFlow, Segment, Side, Slot,
};
use crate::dataplane::fib::snapshot::{Adjacency, Hop};
use crate::dataplane::packet::checksum::{self, Checksum};
use crate::dataplane::packet::{self, Kind, Packet};
use crate::net::flow::Protocol;
use crate::net::tcp::{self, Flags};

/// Starts the lookup of each packet's flow.
pub(in crate::dataplane) fn track(batch: &mut Batch, lookups: &mut LookupBatch, context: &Context<'_>) {
    lookups.clear();
    for i in 0..batch.len() {
        if batch.is_pending(i) {
            start_lookup(batch, i, lookups, context);
        }
    }
}

#[inline(always)]
fn start_lookup(batch: &mut Batch, i: usize, lookups: &mut LookupBatch, context: &Context<'_>) {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return start_lookup_of_quoted(batch, i, lookups, context);
    }
    // One branch for each family: half of an IPv4 key is zeros, and the compiler folds what is computed of them.
    if packet.is_v4 {
        context.conntrack.start_lookup(lookups, i, Key::of_v4(packet));
    } else {
        context.conntrack.start_lookup(lookups, i, Key::of_v6(packet));
    }
}

/// Starts the lookup of the flow that an ICMP error reports about.
#[cold]
#[inline(never)]
fn start_lookup_of_quoted(batch: &mut Batch, i: usize, lookups: &mut LookupBatch, context: &Context<'_>) {
    match quoted_key(batch, i, context) {
        Some(keyed) => context.conntrack.start_lookup(lookups, i, keyed),
        None => batch.drop(i, DropReason::InvalidState),
    }
}

/// The key of the flow that an ICMP error reports about, as of the packet that it quotes.
fn quoted_key(batch: &Batch, i: usize, context: &Context<'_>) -> Option<(Key, bool)> {
    let packet = &batch.packets[i];
    let message = packet.transport(context.umem.data(&batch.frames[i]));
    let mut quoted = Packet::default();
    // The error goes to who sent the packet that it quotes, and comes from where that packet went: a pod that guesses
    // the ports of other pods' flows reports nothing about them.
    let fits = packet::parse_quoted(&message[crate::net::icmp::HEADER_BYTES..], &mut quoted)
        && quoted.src == packet.dst
        && matches!(context.snapshot.hop(quoted.dst), Some(Hop::Port(port, _)) if port == batch.in_ports[i]);
    fits.then(|| Key::of(&quoted))
}

/// Looks each packet's flow up and routes the packet. Packets of known flows advance these; those of new flows go to the next stage.
pub(in crate::dataplane) fn route_and_advance(
    batch: &mut Batch,
    lookups: &mut LookupBatch,
    context: &mut Context<'_>,
) {
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
        if !advance_plain(self.batch, i, self.context, flow, entry) {
            advance_known(self.batch, i, self.context, flow, slot);
        }
    }

    #[inline(always)]
    fn miss(&mut self, i: usize, _: &PacketFlow) {
        route_new(self.batch, i, self.context);
    }
}

/// Takes what nearly every packet of a known flow is: one that does not change it, and whose way the flow remembers.
#[inline(always)]
fn advance_plain(
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
fn advance_known(batch: &mut Batch, i: usize, context: &mut Context<'_>, flow: &PacketFlow, slot: Slot) {
    let (snapshot, packet) = (context.snapshot, &batch.packets[i]);
    batch.tracks[i] = Track { fate: Fate::Known(slot), hop: None };
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
        Some((number, adjacency)) => leave_by(batch, i, context, number, adjacency),
        None => revalidate_if_stale(batch, i, context, flow, slot, flow_word),
    }
    if batch.is_pending(i) && batch.tracks[i].fate != Fate::New {
        follow(batch, i, context, flow, slot);
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
            leave_by(batch, i, context, number, adjacency);
            Some(number)
        }
        None => route_one(batch, i, context),
    };
    // What a later generation has judged is not judged by the earlier one again.
    if judged > snapshot.generation || !batch.is_pending(i) {
        return;
    }
    // The flow's ends lie behind the ports that the packet came from and goes to.
    if judged < snapshot.judged_since(batch.in_ports[i], batch.adjacencies[i].out) {
        revalidate(batch, i, context, flow, slot, flow_word);
    }
    if batch.is_pending(i) && batch.tracks[i].fate != Fate::New {
        let hop = if is_error { known } else { number.and_then(|number| u16::try_from(number).ok()) };
        context.conntrack.entry(slot).mark_current(flow.from_low, flow_word, snapshot.generation, hop);
    }
}

/// Routes a packet of a new flow, which the next stage evaluates.
#[inline(always)]
fn route_new(batch: &mut Batch, i: usize, context: &mut Context<'_>) {
    batch.tracks[i].fate = Fate::New;
    if let Some(reason) = is_no_flow(&batch.packets[i]) {
        return batch.drop(i, reason);
    }
    let number = route_one(batch, i, context);
    if batch.is_pending(i) {
        batch.tracks[i].hop = number.and_then(|number| u16::try_from(number).ok());
        context.policy_batch.add(i);
    }
}

/// Lets a packet of a known flow move the flow's state.
#[inline(always)]
pub(in crate::dataplane) fn follow(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
) {
    let (packet, entry) = (&batch.packets[i], context.conntrack.entry(slot));
    if packet.kind == Kind::IcmpError {
        return; // It passes, and its flow is none the livelier for it.
    }
    let from_low = flow.from_low;
    let flow_word = entry.flow_word(from_low);
    let checksum = || checksum::verify(context.umem, &batch.frames[i], packet);
    // A packet that cannot be verified, a fragment, changes the state of no connection; its receiver takes it or does not. Of UDP,
    // which is sent in fragments, the first answer makes the flow live a little longer.
    let (outcome, verified) = if packet.protocol == Protocol::TCP {
        let before = entry.load_tcp();
        let mut after = before;
        let segment = segment(packet, context.umem.data(&batch.frames[i]));
        let outcome = after.advance(&segment, flow_word.side(from_low));
        let decides =
            (after.state != before.state) | segment.flags.has_any(Flags::SYN | Flags::RST | Flags::FIN);
        let verified = if decides && outcome == Outcome::Pass { checksum() } else { Checksum::Right };
        if outcome == Outcome::Pass && verified == Checksum::Right && entry.store_tcp(&before, &after) {
            context.conntrack.on_state_change(slot, before.state, after.state);
        }
        (outcome, verified)
    } else {
        let state = if packet.protocol == Protocol::SCTP { entry.state() } else { flow_word.state() };
        let (outcome, next) = state.advance(packet, flow_word.side(from_low) == Side::Initiator);
        let verified = if next == state { Checksum::Right } else { checksum() };
        let is_enough = verified == Checksum::Right
            || (verified == Checksum::Unknown && packet.protocol != Protocol::SCTP);
        if next != state && is_enough {
            entry.set_state(state, next);
            context.conntrack.on_state_change(slot, state, next);
        }
        (outcome, verified)
    };
    match outcome {
        Outcome::Pass if verified == Checksum::Wrong => return batch.drop(i, DropReason::BadChecksum),
        Outcome::Pass => {}
        Outcome::Reopen => return reopen(batch, i, context, flow, slot),
        Outcome::Invalid => return batch.drop(i, DropReason::InvalidState),
    }
    entry.count(from_low, packet.ip_bytes(), context.now_ms);
}

pub(in crate::dataplane) fn segment(packet: &Packet, frame: &[u8]) -> Segment {
    let flags = packet.tcp_flags();
    let scale = if flags.has(Flags::SYN) {
        let header = packet.transport(frame);
        let header_bytes = tcp::Tcp::new(header).map_or(0, tcp::Tcp::header_bytes);
        header.get(tcp::HEADER_BYTES..header_bytes).and_then(tcp::window_scale)
    } else {
        None
    };
    Segment {
        flags,
        sequence: packet.sequence,
        acknowledgement: packet.acknowledgement,
        window: packet.window,
        payload_bytes: packet.tcp_payload_bytes(frame),
        scale,
    }
}
