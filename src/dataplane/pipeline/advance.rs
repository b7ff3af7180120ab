//! The stages `track` and `follow`: each packet's flow is looked up, and the packets of known flows go on.
//!
//! Nearly every packet takes [`advance_fast`]. What it does not take, [`advance_slow`] does.

use super::anti_spoof::check_packet_endpoints;
use super::batch::{Batch, FlowStatus};
use super::classify::{revalidate, update_state};
use super::context::Context;
use super::lookup::needs_both_ends;
use super::route::{forward_via, route};
use crate::dataplane::conntrack::{Candidate, Entry, FlowWord, HalfId, Slot};
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::packet::Kind;

/// Finds each packet's flow and its way. Packets of known flows go on; those of new ones are judged by the next stage.
///
/// Packets whose flow is not where its hash says come last, in passes of their own, so that none waits alone for memory. All
/// packets of a flow are among them, or none.
pub(in crate::dataplane) fn advance(batch: &mut Batch, context: &mut Context<'_>) {
    context.policy_batch.clear();
    let last = if batch.miss_heavy { 0 } else { batch.len() };
    for i in 0..last {
        if batch.is_pending(i) {
            let track = &batch.tracks[i];
            let entry = context.conntrack.entry(track.slot);
            if !entry.matches(&track.key, track.from_low) {
                batch.misses.push(i as u16);
            } else if !advance_fast(batch, i, context, entry) {
                advance_slow(batch, i, context);
            }
        }
    }
    let misses = if batch.misses.is_empty() { 0 } else { advance_misses(batch, context) };
    batch.miss_heavy = 2 * misses > batch.len();
}

/// Finds the flows of packets by tags. How many are not where their hashes say.
#[inline(never)]
fn advance_misses(batch: &mut Batch, context: &mut Context<'_>) -> usize {
    let mut misses = batch.misses.len();
    if !batch.miss_heavy {
        context.conntrack.load_tags(batch.hashes_of(&batch.misses));
    }
    batch.lines.clear();
    batch.candidates.clear();
    batch.second_bucket.clear();
    let enters = !context.policy_batch.denial_heavy();
    for n in 0..batch.misses.len() {
        let i = usize::from(batch.misses[n]);
        let candidate = context.conntrack.candidate(batch.tracks[i].hash, enters);
        note_candidate(batch, i, context, candidate);
    }
    if !batch.second_bucket.is_empty() {
        context.conntrack.load_second_bucket_tags(batch.hashes_of(&batch.second_bucket));
        for n in 0..batch.second_bucket.len() {
            let i = usize::from(batch.second_bucket[n]);
            let candidate = context.conntrack.candidate_in_second_bucket(batch.tracks[i].hash);
            note_candidate(batch, i, context, candidate);
        }
    }
    context.conntrack.load_halves(batch.lines.as_slice());
    for n in 0..batch.candidates.len() {
        let i = usize::from(batch.candidates[n]);
        let track = &mut batch.tracks[i];
        match context.conntrack.find(&track.key, track.from_low, track.slot) {
            Some(slot) => {
                track.slot = slot;
                misses -= usize::from(slot == context.conntrack.primary_slot(track.hash));
                if !advance_fast(batch, i, context, context.conntrack.entry(slot)) {
                    advance_slow(batch, i, context);
                }
            }
            None => route_new(batch, i, context, Slot::NONE),
        }
    }
    misses
}

/// Does what can be done for a packet by what tags say of its flow.
#[inline(always)]
fn note_candidate(batch: &mut Batch, i: usize, context: &mut Context<'_>, candidate: Candidate) {
    match candidate {
        Candidate::Absent(place) => route_new(batch, i, context, place),
        Candidate::SecondBucket => batch.second_bucket.push(i as u16),
        Candidate::Slot(slot) => {
            let track = &mut batch.tracks[i];
            track.slot = slot;
            batch.lines.add(HalfId::new(slot, track.from_low), needs_both_ends(batch.packets[i].protocol));
            batch.candidates.push(i as u16);
        }
    }
}

/// Takes what nearly every packet of a known flow is: one that does not change it, and whose way the flow remembers.
#[inline(always)]
fn advance_fast(batch: &mut Batch, i: usize, context: &Context<'_>, entry: &Entry) -> bool {
    let (snapshot, packet, track) = (context.snapshot, &batch.packets[i], &batch.tracks[i]);
    let flow_word = entry.flow_word(track.from_low);
    let Some(adjacency) = flow_word.plain_hop().and_then(|hop| snapshot.adjacency(u32::from(hop))) else {
        return false;
    };
    let bytes = packet.ip_bytes();
    // Of a fragmented datagram the others will want to know what became of the first.
    let is_plain = (packet.kind == Kind::Flow) & !packet.first_fragment & adjacency.takes(packet)
        && snapshot.is_current(flow_word.policy_epoch(), batch.in_ports[i], adjacency.out);
    if is_plain {
        batch.adjacencies[i] = adjacency;
        entry.count(track.from_low, bytes, context.now_ms);
    }
    is_plain
}

/// Any packet of a known flow.
#[inline(never)]
fn advance_slow(batch: &mut Batch, i: usize, context: &mut Context<'_>) {
    let (snapshot, packet, track) = (context.snapshot, &batch.packets[i], &mut batch.tracks[i]);
    (track.status, track.hop) = (FlowStatus::Known, None);
    let entry = context.conntrack.entry(track.slot);
    let flow_word = entry.flow_word(track.from_low);
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
        None => revalidate_if_stale(batch, i, context, entry, flow_word),
    }
    if batch.is_pending(i) && batch.tracks[i].status == FlowStatus::Known {
        update_state(batch, i, context, entry);
    }
}

/// Lets a packet's flow be judged again if what decides on it has changed, and finds its way.
#[inline(never)]
fn revalidate_if_stale(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    entry: &Entry,
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
        revalidate(batch, i, context, flow_word);
    }
    if batch.is_pending(i) && batch.tracks[i].status == FlowStatus::Known {
        let hop = if is_error { known } else { number.and_then(|number| u16::try_from(number).ok()) };
        entry.mark_current(batch.tracks[i].from_low, flow_word, snapshot.generation, hop);
    }
}

/// A packet of a new flow, which would take this place, waits for the next stage.
#[inline(always)]
fn route_new(batch: &mut Batch, i: usize, context: &mut Context<'_>, place: Slot) {
    batch.tracks[i].status = FlowStatus::New;
    // Now that there is much to do before the next one's: many prefetches at once would be dropped.
    context.conntrack.prefetch_insert_slot(place);
    if let Some(reason) = check_packet_endpoints(&batch.packets[i]) {
        return batch.drop(i, reason);
    }
    let number = route(batch, i, context);
    if batch.is_pending(i) {
        batch.tracks[i].hop = number.and_then(|number| u16::try_from(number).ok());
        context.policy_batch.add(i);
    }
}
