//! The stages `track` and `follow`: each packet's flow is looked up, and the packets of known flows go on.
//!
//! Nearly every packet takes [`advance_fast`]. What it does not take, [`advance_slow`] does.

use super::batch::{Batch, FlowStatus};
use super::classify::{reopen_flow, revalidate};
use super::route::{forward_via, route};
use super::{Context, check_packet_endpoints};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::tcp::{Outcome, Segment};
use crate::dataplane::conntrack::{Candidate, Entry, FlowWord, HalfId, Key, Side, Slot};
use crate::dataplane::fib::snapshot::{Adjacency, Hop};
use crate::dataplane::packet::checksum::{self, Checksum};
use crate::dataplane::packet::{self, Kind, Packet};
use crate::net::flow::Protocol;
use crate::net::tcp::{self, Flags};

/// Starts to look flows up: the entries that their hashes name are on the way to the cache, or where these help nobody, the
/// tags.
pub(in crate::dataplane) fn lookup(batch: &mut Batch, context: &Context<'_>) {
    batch.misses.clear();
    for i in 0..batch.len() {
        if batch.is_pending(i) {
            key_packet(batch, i, context);
        }
    }
}

#[inline(always)]
fn key_packet(batch: &mut Batch, i: usize, context: &Context<'_>) {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return key_icmp_error(batch, i, context);
    }
    // Each family has its own way to the end: half of a key of IPv4 is zeros, and nothing is to be computed of them.
    if packet.is_v4 {
        let keyed = Key::of_v4(packet);
        set_key(batch, i, context, keyed);
    } else {
        let keyed = Key::of_v6(packet);
        set_key(batch, i, context, keyed);
    }
}

/// Tracks an ICMP error by the flow that it reports about.
#[cold]
#[inline(never)]
fn key_icmp_error(batch: &mut Batch, i: usize, context: &Context<'_>) {
    match quoted_key(batch, i, context) {
        Some(keyed) => set_key(batch, i, context, keyed),
        None => batch.drop(i, DropReason::InvalidState),
    }
}

#[inline(always)]
fn set_key(batch: &mut Batch, i: usize, context: &Context<'_>, (key, from_low): (Key, bool)) {
    let hash = context.conntrack.hash(&key);
    let track = &mut batch.tracks[i];
    (track.key, track.hash, track.from_low) = (key, hash, from_low);
    if batch.miss_heavy {
        context.conntrack.prefetch_tags(hash);
        batch.misses.push(i as u16);
    } else {
        track.slot = context.conntrack.primary_slot(hash);
        let both = needs_both_ends(batch.packets[i].protocol);
        context.conntrack.entry(track.slot).prefetch(from_low, both);
    }
}

/// Whether a packet of this protocol needs to know of the other end of its flow: its windows, or the state that its line has.
#[inline]
pub(in crate::dataplane) fn needs_both_ends(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::SCTP)
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
            if !entry.is(&track.key, track.from_low) {
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
    context.conntrack.load_lines(batch.lines.as_slice());
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
        && snapshot.is_current(flow_word.judged(), batch.in_ports[i], adjacency.out);
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
        packet.kind == Kind::Flow && snapshot.is_current(flow_word.judged(), batch.in_ports[i], adjacency.out)
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
    let (snapshot, judged) = (context.snapshot, flow_word.judged());
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
        entry.confirm(batch.tracks[i].from_low, flow_word, snapshot.generation, hop);
    }
}

/// A packet of a new flow, which would take this place, waits for the next stage.
#[inline(always)]
fn route_new(batch: &mut Batch, i: usize, context: &mut Context<'_>, place: Slot) {
    batch.tracks[i].status = FlowStatus::New;
    // Now that there is much to do before the next one's: many prefetches at once would be dropped.
    context.conntrack.prefetch_place(place);
    if let Some(reason) = check_packet_endpoints(&batch.packets[i]) {
        return batch.drop(i, reason);
    }
    let number = route(batch, i, context);
    if batch.is_pending(i) {
        batch.tracks[i].hop = number.and_then(|number| u16::try_from(number).ok());
        context.policy_batch.add(i);
    }
}

/// Lets a packet of a known flow move the flow's state.
#[inline(always)]
pub(in crate::dataplane) fn update_state(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    entry: &Entry,
) {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return; // It passes, and its flow is none the livelier for it.
    }
    let from_low = batch.tracks[i].from_low;
    let flow_word = entry.flow_word(from_low);
    let checksum = || checksum::verify(context.umem, &batch.frames[i], packet);
    // A packet that cannot be verified, a fragment, changes the state of no connection; its receiver takes it or does not. Of UDP,
    // which is sent in fragments, the first answer makes the flow live a little longer.
    let (outcome, verified) = if packet.protocol == Protocol::TCP {
        let before = entry.load_tcp();
        let mut flow = before;
        let segment = segment(packet, context.umem.data(&batch.frames[i]));
        let outcome = flow.follow(&segment, flow_word.side(from_low));
        let decides =
            (flow.state != before.state) | segment.flags.has_any(Flags::SYN | Flags::RST | Flags::FIN);
        let verified = if decides && outcome == Outcome::Pass { checksum() } else { Checksum::Right };
        if outcome == Outcome::Pass && verified == Checksum::Right && entry.store_tcp(&before, &flow) {
            context.conntrack.note_state(batch.tracks[i].slot, before.state, flow.state);
        }
        (outcome, verified)
    } else {
        let state = if packet.protocol == Protocol::SCTP { entry.state() } else { flow_word.state() };
        let (outcome, next) = state.after(packet, flow_word.side(from_low) == Side::Initiator);
        let verified = if next == state { Checksum::Right } else { checksum() };
        let is_enough = verified == Checksum::Right
            || (verified == Checksum::Unknown && packet.protocol != Protocol::SCTP);
        if next != state && is_enough {
            entry.set_state(state, next);
            context.conntrack.note_state(batch.tracks[i].slot, state, next);
        }
        (outcome, verified)
    };
    match outcome {
        Outcome::Pass if verified == Checksum::Wrong => return batch.drop(i, DropReason::BadChecksum),
        Outcome::Pass => {}
        Outcome::Reopen => return reopen_flow(batch, i, context),
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
