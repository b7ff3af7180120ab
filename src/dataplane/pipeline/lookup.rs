//! Flow lookup: the key of each packet.

use super::batch::Batch;
use super::context::Context;
use super::parse::parse_quoted;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::Key;
use crate::dataplane::fib::next_hop::Hop;
use crate::dataplane::packet::{Kind, Packet};
use crate::net::flow::Protocol;

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
    let fits = parse_quoted(&message[crate::net::icmp::HEADER_BYTES..], &mut quoted)
        && quoted.src == packet.dst
        && matches!(context.snapshot.hop(quoted.dst), Some(Hop::Port(port, _)) if port == batch.in_ports[i]);
    fits.then(|| Key::of(&quoted))
}
