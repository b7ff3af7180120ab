//! The stage `lookup`: the key of each packet, and the start of its flow lookup. The stage `advance` takes
//! the results.

use super::batch::Batch;
use super::context::Context;
use super::parse::parse_quoted;
use super::translate::translate_quoted;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{Key, LookupBatch};
use crate::dataplane::fib::next_hop::Hop;
use crate::dataplane::packet::{Kind, Packet};

/// Starts the lookup of each packet's flow.
pub(in crate::dataplane) fn lookup(batch: &mut Batch, context: &Context<'_>, lookups: &mut LookupBatch) {
    lookups.clear();
    for i in 0..batch.len() {
        if batch.is_pending(i) {
            start_lookup(batch, i, context, lookups);
        }
    }
}

#[inline(always)]
fn start_lookup(batch: &mut Batch, i: usize, context: &Context<'_>, lookups: &mut LookupBatch) {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return start_lookup_of_icmp_error(batch, i, context, lookups);
    }
    // One branch for each family: half of an IPv4 key is zeros, and the compiler folds what is computed of
    // them.
    if packet.is_v4 {
        context.conntrack.start_lookup(lookups, i, Key::of_v4(packet));
    } else {
        context.conntrack.start_lookup(lookups, i, Key::of_v6(packet));
    }
}

/// Starts the lookup of the flow that an ICMP error reports about.
#[cold]
#[inline(never)]
fn start_lookup_of_icmp_error(batch: &mut Batch, i: usize, context: &Context<'_>, lookups: &mut LookupBatch) {
    match quoted_key(batch, i, context) {
        Some(keyed) => context.conntrack.start_lookup(lookups, i, keyed),
        None => batch.drop(i, DropReason::InvalidState),
    }
}

/// The key of the flow that an ICMP error reports about: that of the quoted packet.
fn quoted_key(batch: &Batch, i: usize, context: &Context<'_>) -> Option<(Key, bool)> {
    let packet = &batch.packets[i];
    let message = packet.transport(context.umem.data(&batch.frames[i]));
    let mut quoted = Packet::default();
    // The error goes to the source of the quoted packet, and comes from the port that the quoted packet went
    // to. So a pod that guesses the ports of other pods' flows cannot report errors about these.
    let is_quote = parse_quoted(&message[crate::net::icmp::HEADER_BYTES..], &mut quoted);
    translate_quoted(batch, i, &mut quoted);
    let fits = is_quote
        && quoted.src == packet.dst
        && matches!(context.snapshot.hop(quoted.dst), Some(Hop::Port(port, _)) if port == batch.in_ports[i]);
    fits.then(|| Key::of(&quoted))
}
