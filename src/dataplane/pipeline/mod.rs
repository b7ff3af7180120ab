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

pub(super) mod advance;
pub(super) mod batch;
pub(super) mod classify;
pub(super) mod gateway;
pub(super) mod rewrite;
pub(super) mod route;

use std::ops::Range;

use super::conntrack::{Conntrack, LookupBatch, WorkerState};
use super::fib::snapshot::{PortView, Snapshot};
use super::fragments::{self, FirstFragmentTable, Fragments};
use super::neighbor::solicit::RateLimits;
use super::neighbor::table::Neighbors;
use super::packet::{self, Kind, Packet};
use super::pipeline::advance::{route_and_advance, track};
use super::pipeline::batch::{Batch, Verdict};
use super::pipeline::classify::{PolicyBatch, classify_and_admit};
use super::pipeline::rewrite::{rewrite, rewrite_plain};
use super::worker::stats::WorkerStats;
use super::{DropReason, PortKind};
use crate::ids::PortId;
use crate::net::address::{self, Address};
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
    pub snapshot: &'a Snapshot,
    /// The flows.
    pub conntrack: &'a Conntrack,
    /// This worker's part in conntrack.
    pub worker_state: &'a mut WorkerState,
    /// Ethernet addresses behind the ports.
    pub neighbors: &'a Neighbors,
    /// This worker's counters.
    pub stats: &'a WorkerStats,
    /// What this worker wants to ask and may still answer.
    pub rate_limits: &'a mut RateLimits,
    /// What this worker knows of fragmented datagrams.
    pub fragments: &'a mut Fragments,
    /// What workers tell each other of them.
    pub first_fragments: &'a FirstFragmentTable,
    /// What is asked about new flows.
    pub policy_batch: &'a mut PolicyBatch,
    /// Frames of UMEM that each port's transmit ring still takes.
    pub room: &'a mut [u32],
    /// Frames that nobody has, for packets that a tag makes longer than theirs.
    pub free: &'a mut Vec<Frame>,
}

/// Takes a batch through all stages, and says `done` of each. Afterwards no verdict is pending.
#[inline]
pub(crate) fn run(
    batch: &mut Batch,
    lookups: &mut LookupBatch,
    context: &mut Context<'_>,
    mut done: impl FnMut(&'static str),
) {
    parse(batch, context);
    done("parse");
    guard(batch, context);
    done("guard");
    if batch.has_others {
        serve(batch, context);
    }
    done("serve");
    track(batch, lookups, context);
    done("track");
    route_and_advance(batch, lookups, context);
    done("follow");
    if !context.policy_batch.is_empty() {
        classify_and_admit(batch, lookups, context);
    }
    done("classify");
    if batch.has_fragments {
        fragments::classify_fragments(batch, lookups, context);
    }
    done("fragments");
    rewrite_all(batch, context);
    done("rewrite");
    count(batch, context);
    done("count");
}

/// Starts to load a frame that comes a few places after the one with this number.
#[inline(always)]
fn prefetch_frame(frames: &[Frame], i: usize, umem: &Umem) {
    const AHEAD: usize = 2;
    if let Some(next) = frames.get(i + AHEAD) {
        umem.prefetch(next);
    }
}

/// Headers to keys.
fn parse(batch: &mut Batch, context: &Context<'_>) {
    let umem = context.umem;
    let Batch { frames, packets, verdicts, has_fragments, has_others, .. } = batch;
    (*has_fragments, *has_others) = (false, false);
    for (i, ((frame, packet), verdict)) in
        frames.iter().zip(packets.iter_mut()).zip(verdicts.iter_mut()).enumerate()
    {
        prefetch_frame(frames, i, umem);
        if !packet::parse_plain(umem.data(frame), frame.len(), packet) {
            if let Some(reason) = parse_any(umem, frame, packet) {
                *verdict = Verdict::Dropped(reason);
            }
            *has_fragments |= !packet.whole;
            *has_others |= packet.kind != Kind::Flow;
        }
    }
}

#[inline(never)]
fn parse_any(umem: &Umem, frame: &Frame, packet: &mut Packet) -> Option<DropReason> {
    let failure = packet::parse(umem.data(frame), frame.len(), packet);
    if frame.is_oversized() { Some(DropReason::Oversized) } else { failure }
}

/// The frame must be for the switch, in the port's VLAN, and from who is behind the port.
fn guard(batch: &mut Batch, context: &Context<'_>) {
    let mut start = 0;
    while start < batch.len() {
        let run = batch.run_of_port(start);
        start = run.end;
        anti_spoof_run(batch, run, context);
    }
}

/// [`guard`] of frames that came by one port.
fn anti_spoof_run(batch: &mut Batch, run: Range<usize>, context: &Context<'_>) {
    let port_id = batch.in_ports[run.start];
    let port = context.snapshot.port(port_id);
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
            && let Some(reason) = anti_spoof_packet(packet, port_id, port, context.snapshot)
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
pub(super) fn is_no_flow(packet: &Packet) -> Option<DropReason> {
    why_no_flow((packet.src, packet.src_port), (packet.dst, packet.dst_port))
}

/// Why no flow is between these endpoints.
pub(super) fn why_no_flow(from: (Address, u16), to: (Address, u16)) -> Option<DropReason> {
    // A packet from an endpoint to itself has no direction (the "land" attack, CVE-1999-0016).
    if from == to {
        return Some(DropReason::Spoofed);
    }
    address::is_group(to.0).then_some(DropReason::Multicast)
}

#[inline(never)]
fn anti_spoof_packet(
    packet: &Packet,
    port_id: PortId,
    port: &PortView,
    snapshot: &Snapshot,
) -> Option<DropReason> {
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
    let is_from_here = snapshot.may_send(port, port_id, packet.src);
    let is_from_link = || address::is_link_local(packet.src) && address::is_link_local(packet.dst);
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
        let Some(port) = context.snapshot.port(batch.in_ports[i]) else { continue };
        let answer = match packet.kind {
            // The kernel speaks for the NIC, and hears these itself.
            Kind::Arp | Kind::LinkLocal if port.kind == PortKind::Uplink => Some(false),
            Kind::Arp => {
                gateway::arp(context.umem.data_mut(&mut batch.frames[i]), packet, port, context.snapshot)
            }
            Kind::LinkLocal => {
                gateway::link_local(context.umem, &mut batch.frames[i], packet, port, context.snapshot)
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

/// Ethernet addresses, tag, TTL, checksum.
fn rewrite_all(batch: &mut Batch, context: &mut Context<'_>) {
    let src = context.snapshot.mac.to_bits();
    for i in 0..batch.len() {
        if !batch.is_pending(i) {
            continue;
        }
        prefetch_frame(&batch.frames, i, context.umem);
        let adjacency = &batch.adjacencies[i];
        let room = &mut context.room[adjacency.out.index()];
        let fits =
            *room > 0 && rewrite_plain(context.umem, &mut batch.frames[i], &batch.packets[i], adjacency, src);
        if fits {
            *room -= 1;
            batch.verdicts[i] = Verdict::Forward(adjacency.out);
        } else {
            rewrite_any(batch, i, context, src);
        }
    }
}

#[inline(never)]
fn rewrite_any(batch: &mut Batch, i: usize, context: &mut Context<'_>, src: u64) {
    let adjacency = batch.adjacencies[i];
    let out = adjacency.out;
    let room = &mut context.room[out.index()];
    if *room < batch.frames[i].frames() as u32 {
        return batch.drop(i, DropReason::TxFull);
    }
    let src = if adjacency.is_uplink {
        context.snapshot.port(out).map_or(src, |port| port.own_mac.to_bits())
    } else {
        src
    };
    let fits = rewrite(context.umem, &mut batch.frames[i], &batch.packets[i], adjacency, src, context.free);
    // A tag may have taken one more.
    batch.verdicts[i] = match room.checked_sub(batch.frames[i].frames() as u32) {
        Some(left) if fits => {
            *room = left;
            Verdict::Forward(out)
        }
        _ => Verdict::Dropped(DropReason::TxFull),
    };
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
