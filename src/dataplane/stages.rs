//! The packet path: one function that reads as the table of stages, and the stages, each a pass over the batch.
//!
//! ```text
//! receive -> parse -> guard -> serve -> track -> follow -> classify -> fragments -> rewrite -> count -> transmit
//! ```
//!
//! `receive` and `transmit` are the worker's: they know rings. Here nothing allocates, locks, logs, reads a clock or calls the
//! kernel, and every frame leaves with one verdict.
//!
//! `follow` finds the way of every packet before `classify` judges those of new flows: because the ingress table belongs to
//! the pod that the packet is routed to, and because a packet that leads nowhere must not take a place in conntrack.
//!
//! Each stage is written for the packet that nearly all are; what is anything else goes through a function out of line.

use std::ops::Range;

use super::answer::{self, Problem};
use super::batch::{Batch, Fate, Verdict};
use super::classify::{Inquiry, classify_and_admit, judge_again, reopen};
use super::conntrack::tcp::{Outcome, Segment};
use super::conntrack::{Conntrack, Entry, Facts, Key, LineId, Side, Tracker};
use super::fragments::{self, Board, Fragments};
use super::neighbors::Neighbors;
use super::packet::{self, Address, Kind, Packet};
use super::rewrite::rewrite;
use super::stats::WorkerStats;
use super::view::{Exit, Hop, PortView, View};
use super::{DropReason, PortKind};
use crate::ids::PortId;
use crate::limits::{ANSWERS_PER_SECOND_MAX, PORTS_MAX};
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::net::tcp::{self, Flags};
use crate::xdp::{Frame, Umem};

/// What the stages work with, besides the batch.
pub(crate) struct Context<'a> {
    /// This worker's number.
    pub worker: usize,
    /// Milliseconds since the start of the switch: the one clock reading of the batch.
    pub now_ms: u32,
    /// Memory of the frames.
    pub umem: &'a Umem,
    /// The generation that this batch is judged by.
    pub view: &'a View,
    /// The flows.
    pub conntrack: &'a Conntrack,
    /// This worker's part in conntrack.
    pub tracker: &'a mut Tracker,
    /// Ethernet addresses behind the ports.
    pub neighbors: &'a Neighbors,
    /// This worker's counters.
    pub stats: &'a WorkerStats,
    /// What this worker wants to ask and may still answer.
    pub speech: &'a mut Speech,
    /// What this worker knows of fragmented datagrams.
    pub fragments: &'a mut Fragments,
    /// What workers tell each other of them.
    pub firsts: &'a Board,
    /// What is asked about new flows.
    pub inquiry: &'a mut Inquiry,
    /// Frames of UMEM that each port's transmit ring still takes.
    pub room: &'a mut [u32],
    /// Frames that nobody has, for packets that a tag makes longer than theirs.
    pub free: &'a mut Vec<Frame>,
}

/// Questions to ask and answers that may be given: bounded, whatever is received.
pub(crate) struct Speech {
    /// Address to ask for, by port; at most one a port and batch.
    pub questions: Vec<(PortId, Address)>,
    /// When a question was last asked, by port.
    asked_ms: Box<[Option<u32>]>,
    /// Neighbours on uplinks that were asked for last, by a hash of the address.
    asked_on_links: Box<[Option<Asked>]>,
    /// Errors that may still be sent in this second.
    errors_left: u32,
    second: u32,
}

/// A neighbour on an uplink, and when it was asked for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    who: (PortId, Address),
    at_ms: u32,
}

/// Time between two questions for what is behind a port.
const ASK_INTERVAL_MS: u32 = 100;
/// Neighbours on uplinks of which a worker knows when it asked.
const ON_LINKS_REMEMBERED: usize = 64;

impl Speech {
    pub(crate) fn new() -> Speech {
        Speech {
            questions: Vec::with_capacity(PORTS_MAX),
            asked_ms: vec![None; PORTS_MAX].into(),
            asked_on_links: vec![None; ON_LINKS_REMEMBERED].into(),
            errors_left: 0,
            second: u32::MAX,
        }
    }

    /// Notes that the Ethernet address of `address` behind `port` is wanted.
    pub(crate) fn ask(&mut self, port: PortId, address: Address, now_ms: u32) {
        let asked = &mut self.asked_ms[port.index()];
        let waits = asked.is_some_and(|asked| now_ms.wrapping_sub(asked) < ASK_INTERVAL_MS);
        if !waits && self.questions.len() < self.questions.capacity() {
            *asked = Some(now_ms);
            self.questions.push((port, address));
        }
    }

    /// Notes that the Ethernet address of a neighbour on an uplink is wanted. Many may be wanted at once: each has its
    /// own pause, but for those that share a place.
    pub(crate) fn ask_on_link(&mut self, port: PortId, address: Address, now_ms: u32) {
        let mixed = (address as u64 ^ (address >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let asked = &mut self.asked_on_links[mixed as usize % ON_LINKS_REMEMBERED];
        let who = (port, address);
        let waits =
            asked.is_some_and(|asked| asked.who == who && now_ms.wrapping_sub(asked.at_ms) < ASK_INTERVAL_MS);
        if !waits && self.questions.len() < self.questions.capacity() {
            *asked = Some(Asked { who, at_ms: now_ms });
            self.questions.push(who);
        }
    }

    /// Whether one more error may be sent (RFC 1812 section 4.3.2.8).
    fn may_report(&mut self, now_ms: u32) -> bool {
        if self.second != now_ms / 1000 {
            self.second = now_ms / 1000;
            self.errors_left = ANSWERS_PER_SECOND_MAX;
        }
        let may = self.errors_left > 0;
        self.errors_left -= u32::from(may);
        may
    }
}

/// Takes a batch through all stages, and says `done` of each. Afterwards no verdict is pending.
#[inline]
pub(crate) fn run(batch: &mut Batch, context: &mut Context<'_>, mut done: impl FnMut(&'static str)) {
    parse(batch, context);
    done("parse");
    guard(batch, context);
    done("guard");
    if batch.has_others {
        serve(batch, context);
    }
    done("serve");
    track(batch, context);
    done("track");
    route_and_follow(batch, context);
    done("follow");
    if !context.inquiry.is_empty() {
        classify_and_admit(batch, context);
    }
    done("classify");
    if batch.has_fragments {
        fragments::follow_first(batch, context);
    }
    done("fragments");
    rewrite_all(batch, context);
    done("rewrite");
    count(batch, context);
    done("count");
}

/// Starts to load a frame that comes a few places later.
#[inline]
fn prefetch_frame(batch: &Batch, i: usize, context: &Context<'_>) {
    const AHEAD: usize = 2;
    if let Some(next) = batch.frames.get(i + AHEAD) {
        context.umem.prefetch(next);
    }
}

/// Headers to keys.
fn parse(batch: &mut Batch, context: &Context<'_>) {
    (batch.has_fragments, batch.has_others) = (false, false);
    for i in 0..batch.len() {
        prefetch_frame(batch, i, context);
        let frame = &batch.frames[i];
        if !packet::parse_plain(context.umem.data(frame), frame.len(), &mut batch.packets[i]) {
            parse_any(batch, i, context);
        }
    }
}

#[inline(never)]
fn parse_any(batch: &mut Batch, i: usize, context: &Context<'_>) {
    let frame = &batch.frames[i];
    let failure = packet::parse(context.umem.data(frame), frame.len(), &mut batch.packets[i]);
    let failure = if frame.is_oversized() { Some(DropReason::Oversized) } else { failure };
    if let Some(reason) = failure {
        batch.drop(i, reason);
    }
    batch.has_fragments |= !batch.packets[i].whole;
    batch.has_others |= batch.packets[i].kind != Kind::Flow;
}

/// The frame must be for the switch, in the port's VLAN, and from who is behind the port.
fn guard(batch: &mut Batch, context: &Context<'_>) {
    let mut start = 0;
    while start < batch.len() {
        let run = batch.run_of_port(start);
        start = run.end;
        guard_run(batch, run, context);
    }
}

/// [`guard`] of frames that came by one port.
fn guard_run(batch: &mut Batch, run: Range<usize>, context: &Context<'_>) {
    let port_id = batch.in_ports[run.start];
    let port = context.view.port(port_id);
    let mut behind = context.neighbors.bits(port_id);
    for i in run {
        if !batch.is_pending(i) {
            continue;
        }
        let packet = &batch.packets[i];
        let Some(port) = port else {
            // The port was opened a moment ago, and no generation says who is behind it.
            batch.drop(i, DropReason::Spoofed);
            continue;
        };
        if !is_in_order(packet, port)
            && let Some(reason) = guard_packet(packet, port_id, port, context.view)
        {
            batch.drop(i, reason);
            continue;
        }
        if packet.src_bits != behind {
            behind = context.neighbors.learn(port_id, packet.src_bits);
        }
    }
}

/// Whether a packet is in order beyond doubt, as nearly all are: from a pod by its first address, to the switch. What else
/// no flow may be ([`is_no_flow`]) is asked when it is to be opened.
#[inline]
fn is_in_order(packet: &Packet, port: &PortView) -> bool {
    (packet.dst_bits == port.own_mac.to_bits())
        & (packet.kind == Kind::Flow)
        & (packet.vlan == port.vlan)
        & (packet.src == port.pod_address(packet.is_v4))
}

/// Why no flow begins with this packet, whoever it is from.
fn is_no_flow(packet: &Packet) -> Option<DropReason> {
    // A packet from an endpoint to itself has no direction (the "land" attack, CVE-1999-0016).
    if packet.src == packet.dst && packet.src_port == packet.dst_port {
        return Some(DropReason::Spoofed);
    }
    packet::is_group(packet.dst).then_some(DropReason::Multicast)
}

#[inline(never)]
fn guard_packet(packet: &Packet, port_id: PortId, port: &PortView, view: &View) -> Option<DropReason> {
    if packet.vlan != port.vlan {
        return Some(DropReason::Vlan);
    }
    let is_to_us = packet.dst_bits == port.own_mac.to_bits();
    if !is_to_us && !packet.dst_mac().is_group() {
        return Some(DropReason::NotForUs);
    }
    match packet.kind {
        // Their own stages look at who speaks.
        Kind::Arp | Kind::LinkLocal => return None,
        Kind::Flow | Kind::IcmpError | Kind::LaterFragment => {}
    }
    let is_from_here = if port.is_pod() {
        port.owns(packet.src)
    } else {
        // Others route behind these ports: any source but those that are elsewhere for sure.
        !packet::is_group(packet.src) && !view.is_elsewhere(packet.src, port_id)
    };
    let is_from_link = || packet::is_link_local(packet.src) && packet::is_link_local(packet.dst);
    if !is_from_here && !is_from_link() {
        return Some(DropReason::Spoofed);
    }
    is_no_flow(packet).or((!is_to_us).then_some(DropReason::Multicast))
}

/// ARP and neighbour discovery are answered, or heard and done with.
fn serve(batch: &mut Batch, context: &Context<'_>) {
    for i in 0..batch.len() {
        if !batch.is_pending(i) {
            continue;
        }
        let packet = &batch.packets[i];
        let Some(port) = context.view.port(batch.in_ports[i]) else { continue };
        let answer = match packet.kind {
            // The kernel speaks for the NIC, and hears these itself.
            Kind::Arp | Kind::LinkLocal if port.kind == PortKind::Uplink => Some(false),
            Kind::Arp => answer::arp(context.umem.data_mut(&mut batch.frames[i]), packet, port, context.view),
            Kind::LinkLocal => {
                answer::link_local(context.umem, &mut batch.frames[i], packet, port, context.view)
            }
            Kind::LaterFragment => {
                batch.verdicts[i] = Verdict::Held;
                continue;
            }
            Kind::Flow | Kind::IcmpError => continue,
        };
        match answer {
            Some(is_answer) => {
                batch.verdicts[i] = Verdict::Consumed;
                batch.answers[i] = is_answer;
            }
            None => batch.drop(i, DropReason::Spoofed),
        }
    }
}

/// Starts to look flows up: the entries that their hashes name are on the way to the cache, or where these help nobody, the
/// tags.
fn track(batch: &mut Batch, context: &Context<'_>) {
    batch.strays.clear();
    for i in 0..batch.len() {
        if batch.is_pending(i) {
            key(batch, i, context);
        }
    }
}

#[inline(always)]
fn key(batch: &mut Batch, i: usize, context: &Context<'_>) {
    let packet = &batch.packets[i];
    let keyed = match packet.kind {
        Kind::IcmpError => quoted_key(batch, i, context),
        _ => Some(Key::of(packet)),
    };
    let Some((key, from_low)) = keyed else { return batch.drop(i, DropReason::InvalidState) };
    let hash = context.conntrack.hash(&key);
    if batch.strays_prevail {
        context.conntrack.prefetch_tags(hash);
        batch.strays.push(i as u16);
    } else {
        context.conntrack.prefetch_home(hash, from_low, needs_both_ends(packet));
    }
    let track = &mut batch.tracks[i];
    (track.key, track.hash, track.from_low) = (key, hash, from_low);
}

/// Whether a packet needs to know of the other end of its flow: its address, or its windows.
#[inline]
fn needs_both_ends(packet: &Packet) -> bool {
    !packet.is_v4 | matches!(packet.protocol, Protocol::TCP | Protocol::SCTP)
}

/// The key of the flow that an ICMP error reports about, as of the packet that it quotes.
#[cold]
fn quoted_key(batch: &Batch, i: usize, context: &Context<'_>) -> Option<(Key, bool)> {
    let packet = &batch.packets[i];
    let message = packet.transport(context.umem.data(&batch.frames[i]));
    let mut quoted = Packet::default();
    // The error goes to who sent the packet that it quotes, and comes from where that packet went: a pod that guesses
    // the ports of other pods' flows reports nothing about them.
    let fits = packet::parse_quoted(&message[crate::net::icmp::HEADER_BYTES..], &mut quoted)
        && quoted.src == packet.dst
        && matches!(context.view.hop(quoted.dst), Some(Hop::Port(port, _)) if port == batch.in_ports[i]);
    fits.then(|| Key::of(&quoted))
}

/// Finds each packet's flow and its way. Packets of known flows go on; those of new ones are judged by the next stage.
///
/// Packets whose flow is not where its hash says come last, in passes of their own, so that none waits alone for memory. All
/// packets of a flow are among them, or none.
fn route_and_follow(batch: &mut Batch, context: &mut Context<'_>) {
    context.inquiry.clear();
    let last = if batch.strays_prevail { 0 } else { batch.len() };
    for i in 0..last {
        if batch.is_pending(i) {
            let track = &mut batch.tracks[i];
            match context.conntrack.at_home(&track.key, track.from_low, track.hash) {
                Some(slot) => {
                    track.slot = slot;
                    if !follow_plain(batch, i, context) {
                        follow_known(batch, i, context);
                    }
                }
                None => batch.strays.push(i as u16),
            }
        }
    }
    let strays = if batch.strays.is_empty() { 0 } else { follow_strays(batch, context) };
    batch.strays_prevail = 2 * strays > batch.len();
}

/// Finds the flows of packets by tags. How many are not where their hashes say.
#[inline(never)]
fn follow_strays(batch: &mut Batch, context: &mut Context<'_>) -> usize {
    let strays = batch.strays.iter().map(|i| usize::from(*i));
    context.conntrack.load_tags(strays.clone().map(|i| batch.tracks[i].hash));
    batch.lines.clear();
    for i in strays {
        let track = &mut batch.tracks[i];
        (track.candidate, track.slot) = context.conntrack.candidate(track.hash);
        if track.candidate.is_some() {
            let line = LineId::new(track.candidate, track.from_low);
            batch.lines.add(line, needs_both_ends(&batch.packets[i]));
        }
    }
    context.conntrack.load_lines(batch.lines.as_slice());
    let mut strays = batch.strays.len();
    for n in 0..batch.strays.len() {
        let i = usize::from(batch.strays[n]);
        let track = &mut batch.tracks[i];
        match context.conntrack.find(&track.key, track.from_low, track.hash, track.candidate) {
            Some(slot) => {
                track.slot = slot;
                strays -= usize::from(slot == context.conntrack.home(track.hash));
                if !follow_plain(batch, i, context) {
                    follow_known(batch, i, context);
                }
            }
            None => route_new(batch, i, context),
        }
    }
    strays
}

/// Takes what nearly every packet of a known flow is: one that does not change it, and whose way the flow remembers.
#[inline(always)]
fn follow_plain(batch: &mut Batch, i: usize, context: &Context<'_>) -> bool {
    let (view, packet, track) = (context.view, &batch.packets[i], &batch.tracks[i]);
    let entry = context.conntrack.entry(track.slot);
    let Some(exit) = entry.facts(track.from_low).plain_hop(view.generation).and_then(|hop| view.exit(hop))
    else {
        return false;
    };
    let bytes = packet.ip_bytes();
    // Of a fragmented datagram the others will want to know what became of the first.
    let is_plain = (packet.kind == Kind::Flow)
        & !packet.first_fragment
        & (packet.ttl > 1)
        & (bytes <= usize::from(exit.mtu))
        & (exit.mac != 0);
    if is_plain {
        batch.exits[i] = exit;
        entry.count(track.from_low, bytes, context.now_ms);
    }
    is_plain
}

/// Any packet of a known flow.
#[inline(never)]
fn follow_known(batch: &mut Batch, i: usize, context: &mut Context<'_>) {
    let (view, packet, track) = (context.view, &batch.packets[i], &mut batch.tracks[i]);
    (track.fate, track.hop) = (Fate::Known, None);
    let entry = context.conntrack.entry(track.slot);
    let facts = entry.facts(track.from_low);
    // An error goes where its flow's packets come from, and so another way than the packet that it quotes.
    let is_confirmed = (facts.judged() == view.generation) & (packet.kind == Kind::Flow);
    match facts.hop().and_then(|hop| Some((u32::from(hop), view.exit(hop)?))) {
        Some((number, exit)) if is_confirmed => leave_by(batch, i, context, number, exit),
        _ => catch_up(batch, i, context, entry, facts),
    }
    if batch.is_pending(i) && batch.tracks[i].fate == Fate::Known {
        follow(batch, i, context, entry);
    }
}

/// Lets a packet's flow be judged again if what decides on it has changed, and finds its way.
#[inline(never)]
fn catch_up(batch: &mut Batch, i: usize, context: &mut Context<'_>, entry: &Entry, facts: Facts) {
    let (view, judged) = (context.view, facts.judged());
    let is_error = batch.packets[i].kind == Kind::IcmpError;
    // Hops are numbered anew when anything but rules changes; another worker may be a generation ahead.
    let known = facts.hop().filter(|_| (view.laid_out..=view.generation).contains(&judged));
    let exit = if is_error { None } else { known.and_then(|hop| Some((u32::from(hop), view.exit(hop)?))) };
    let number = match exit {
        Some((number, exit)) => {
            leave_by(batch, i, context, number, exit);
            Some(number)
        }
        None => route_one(batch, i, context),
    };
    // What a later generation has judged is not judged by the earlier one again.
    if judged > view.generation || !batch.is_pending(i) {
        return;
    }
    // The flow's ends lie behind the ports that the packet came from and goes to.
    if judged < view.judged_since(batch.in_ports[i], batch.exits[i].out) {
        judge_again(batch, i, context, facts);
    }
    if batch.is_pending(i) && batch.tracks[i].fate == Fate::Known {
        let hop = if is_error { known } else { number.and_then(|number| u16::try_from(number).ok()) };
        entry.confirm(batch.tracks[i].from_low, facts, view.generation, hop);
    }
}

/// A packet of a new flow waits for the next stage.
fn route_new(batch: &mut Batch, i: usize, context: &mut Context<'_>) {
    batch.tracks[i].fate = Fate::New;
    // Here, and not where its slot was found, because there is much to do between one and the next: many prefetches at once
    // would be dropped.
    context.conntrack.prefetch_place(batch.tracks[i].slot);
    if let Some(reason) = is_no_flow(&batch.packets[i]) {
        return batch.drop(i, reason);
    }
    let number = route_one(batch, i, context);
    if batch.is_pending(i) {
        batch.tracks[i].hop = number.and_then(|number| u16::try_from(number).ok());
        context.inquiry.add(i);
    }
}

/// Finds the way by the destination; the number of the hop, if there is one.
pub(super) fn route_one(batch: &mut Batch, i: usize, context: &mut Context<'_>) -> Option<u32> {
    let packet = &batch.packets[i];
    // What is link-local at either end stays on its link, whatever the routes say (RFC 4291 section 2.5.6).
    let stays = !packet.is_v4 && (packet::is_link_local(packet.src) || packet::is_link_local(packet.dst));
    let number = context.view.hop_number(packet.dst);
    match number.map(|number| (number, context.view.hop_and_exit(number))) {
        None | Some((_, (Hop::Nowhere, _))) => batch.drop(i, DropReason::NoRoute),
        Some((_, (Hop::Port(..), _))) if stays => batch.drop(i, DropReason::NoRoute),
        Some((_, (Hop::Gateway, _))) => {
            let frame = context.umem.data_mut(&mut batch.frames[i]);
            let is_answer = answer::echo(frame, &batch.packets[i]);
            batch.answers[i] = is_answer;
            batch.verdicts[i] =
                if is_answer { Verdict::Consumed } else { Verdict::Dropped(DropReason::NoRoute) };
        }
        Some((_, (Hop::Port(..), exit))) if exit.mtu == 0 => batch.drop(i, DropReason::PortDown),
        Some((number, (Hop::Port(..), exit))) => leave_by(batch, i, context, number, exit),
    }
    number
}

fn came_by_uplink(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    context.view.port(batch.in_ports[i]).is_some_and(|port| port.kind == PortKind::Uplink)
}

/// Notes the way of a packet, if it can go it.
#[inline(always)]
fn leave_by(batch: &mut Batch, i: usize, context: &mut Context<'_>, number: u32, exit: Exit) {
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
    if context.speech.may_report(context.now_ms) {
        let packet = &batch.packets[i];
        batch.answers[i] = answer::problem(context.umem, &mut batch.frames[i], packet, context.view, problem);
    }
}

/// Lets a packet of a known flow move the flow's state.
#[inline(always)]
pub(super) fn follow(batch: &mut Batch, i: usize, context: &mut Context<'_>, entry: &Entry) {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return; // It passes, and its flow is none the livelier for it.
    }
    let from_low = batch.tracks[i].from_low;
    let facts = entry.facts(from_low);
    let outcome = if packet.protocol == Protocol::TCP {
        let before = entry.load_tcp();
        let mut flow = before;
        let frame = context.umem.data(&batch.frames[i]);
        let outcome = flow.follow(&segment(packet, frame), facts.side(from_low));
        if outcome == Outcome::Pass {
            entry.store_tcp(&before, &flow);
        }
        outcome
    } else {
        let state = if packet.protocol == Protocol::SCTP { entry.state() } else { facts.state() };
        let (outcome, next) = state.after(packet, facts.side(from_low) == Side::Initiator);
        if next != state {
            entry.set_state(state, next);
        }
        outcome
    };
    match outcome {
        Outcome::Pass => {}
        Outcome::Reopen => return reopen(batch, i, context),
        Outcome::Invalid => return batch.drop(i, DropReason::InvalidState),
    }
    entry.count(from_low, packet.ip_bytes(), context.now_ms);
}

pub(super) fn segment(packet: &Packet, frame: &[u8]) -> Segment {
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

/// Ethernet addresses, tag, TTL, checksum.
fn rewrite_all(batch: &mut Batch, context: &mut Context<'_>) {
    let src = context.view.mac.to_bits();
    for i in 0..batch.len() {
        if !batch.is_pending(i) {
            continue;
        }
        prefetch_frame(batch, i, context);
        let exit = batch.exits[i];
        let out = exit.out;
        let room = &mut context.room[out.index()];
        if *room < batch.frames[i].frames() as u32 {
            batch.drop(i, DropReason::TxFull);
            continue;
        }
        let src = if exit.is_uplink {
            context.view.port(out).map_or(src, |port| port.own_mac.to_bits())
        } else {
            src
        };
        let fits = rewrite(context.umem, &mut batch.frames[i], &batch.packets[i], exit, src, context.free);
        // A tag may have taken one more.
        batch.verdicts[i] = match room.checked_sub(batch.frames[i].frames() as u32) {
            Some(left) if fits => {
                *room = left;
                Verdict::Forward(out)
            }
            _ => Verdict::Dropped(DropReason::TxFull),
        };
    }
}

/// One verdict a frame, counted once, at the port that it came from. Frames of one port come one after another.
fn count(batch: &Batch, context: &Context<'_>) {
    context.stats.batches.add(1);
    let mut start = 0;
    while start < batch.len() {
        let run = batch.run_of_port(start);
        start = run.end;
        count_run(batch, run, context);
    }
}

fn count_run(batch: &Batch, run: Range<usize>, context: &Context<'_>) {
    let port = context.stats.port(batch.in_ports[run.start]);
    let (mut received, mut bytes, mut forwarded) = (0, 0, 0);
    for (verdict, frame_bytes) in batch.verdicts[run.clone()].iter().zip(&batch.bytes[run]) {
        match *verdict {
            Verdict::Forward(_) => forwarded += 1,
            Verdict::Consumed => port.consumed.add(1),
            Verdict::Dropped(reason) => port.drop(reason),
            Verdict::Held => continue, // It is counted when it has a verdict.
            Verdict::Pending => unreachable!("rewrite leaves no verdict pending"),
        }
        received += 1;
        bytes += u64::from(*frame_bytes);
    }
    context.stats.received.add(received);
    port.received.add(received);
    port.received_bytes.add(bytes);
    port.forwarded.add(forwarded);
}
