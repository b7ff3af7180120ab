//! The stage that decides on fragments: see [`crate::dataplane::fragments`].

use super::batch::{Batch, Disposition};
use super::context::Context;
use super::flow::init::flow_of;
use super::route::{route, route_by};
use super::translate::{bind_later_fragments, return_hop, translate_later_fragment};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{FlowWord, LookupBatch, Side};
use crate::dataplane::fragments::{Environment, FirstVerdict, FragmentInfo, Fragments, LaterVerdict};
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::packet::Kind;
use crate::net::flow::Protocol;

/// Records the verdicts on first fragments, and decides on later ones.
#[cold]
pub(super) fn classify_fragments(
    batch: &mut Batch,
    context: &Context<'_>,
    lookups: &LookupBatch,
    fragments: &mut Fragments,
    rate_limits: &mut RateLimits,
) {
    for i in 0..batch.len() {
        match batch.dispositions[i] {
            Disposition::Held if batch.packets[i].kind == Kind::LaterFragment => {
                classify_later(batch, i, context, fragments, rate_limits);
            }
            Disposition::Pending if batch.packets[i].first_fragment => {
                record_first(batch, i, context, lookups, fragments);
                if batch.is_pending(i) {
                    bind_later_fragments(batch, i, context);
                }
            }
            Disposition::Dropped(reason)
                if batch.packets[i].first_fragment && !batch.answers[i] && binds_later_fragments(reason) =>
            {
                record_first(batch, i, context, lookups, fragments);
            }
            _ => {}
        }
    }
}

/// Whether later fragments share the fate of a first fragment that was dropped for this reason: its headers
/// are valid, and it came from its source address.
fn binds_later_fragments(reason: DropReason) -> bool {
    use DropReason as R;
    !matches!(
        reason,
        R::Truncated
            | R::Oversized
            | R::Malformed
            | R::BadIpChecksum
            | R::SourceRoute
            | R::IpOption
            | R::UnknownEthertype
            | R::NotForUs
            | R::Vlan
            | R::Spoofed
            | R::Multicast
            | R::FragmentTimeout
            | R::FragmentStoreFull
    )
}

fn record_first(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    lookups: &LookupBatch,
    fragments: &mut Fragments,
) {
    let (packet, port) = (&batch.packets[i], batch.in_ports[i]);
    let Some(info) = FragmentInfo::of(context.umem.data(&batch.frames[i]), packet, port) else {
        return drop_pending(batch, i, DropReason::Fragment);
    };
    let hash = context.conntrack.hash(&info.key);
    let first = if let Disposition::Dropped(reason) = batch.dispositions[i] {
        FirstVerdict::Denied(reason)
    } else {
        let flow = lookups.flow(i);
        // Policy has evaluated a packet without a flow as one of the initiator.
        let slot = context.conntrack.slot_of(flow);
        let flow_word = slot.map(|slot| context.conntrack.entry(slot).flow_word(flow.from_low));
        let by_initiator = flow_word.is_none_or(|word| word.side(flow.from_low) == Side::Initiator);
        let by_node_socket = flow_word.map_or_else(
            || context.snapshot.port(port).is_some_and(|port| port.is_by_node_socket(packet)),
            FlowWord::is_by_node_socket,
        );
        let flow = flow_of(&flow.key, flow.from_low == by_initiator, by_node_socket);
        FirstVerdict::Allowed(context.snapshot.generation, flow)
    };
    let environment = environment(context);
    if let Some(reason) = fragments.record_first(&info, hash, port, first, &environment) {
        drop_pending(batch, i, reason);
    }
}

/// Drops a packet; one that is dropped already keeps its reason.
fn drop_pending(batch: &mut Batch, i: usize, reason: DropReason) {
    if batch.is_pending(i) {
        batch.drop(i, reason);
    }
}

fn classify_later(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    fragments: &mut Fragments,
    rate_limits: &mut RateLimits,
) {
    translate_later_fragment(batch, i, context);
    if batch.dispositions[i] != Disposition::Held {
        return;
    }
    let (packet, port) = (&batch.packets[i], batch.in_ports[i]);
    let Some(info) = FragmentInfo::of(context.umem.data(&batch.frames[i]), packet, port) else {
        return batch.drop(i, DropReason::Fragment);
    };
    // Such a fragment replaces the control bits, whatever the first one has there: "IF FO=1 and PROTOCOL=TCP
    // then DROP PACKET" (RFC 1858 section 3.2.2; RFC 3128).
    if info.protocol == Protocol::TCP && info.first_unit == 1 {
        return batch.drop(i, DropReason::FragmentTiny);
    }
    // A fragment without a route need not wait.
    batch.dispositions[i] = Disposition::Pending;
    match return_hop(batch, i, context) {
        Some(number) => route_by(batch, i, context, rate_limits, Some(number)),
        None => drop(route(batch, i, context, rate_limits)),
    }
    if !batch.is_pending(i) {
        return;
    }
    let hash = context.conntrack.hash(&info.key);
    let environment = environment(context);
    let later = fragments.classify_later(&info, hash, port, batch.waited[i], &environment);
    batch.dispositions[i] = match later {
        LaterVerdict::Pass => Disposition::Pending,
        LaterVerdict::Hold => Disposition::Held,
        LaterVerdict::Drop(reason) => Disposition::Dropped(reason),
    };
}

fn environment<'a>(context: &Context<'a>) -> Environment<'a> {
    Environment {
        shared: context.first_fragments,
        snapshot: context.snapshot,
        worker: context.worker,
        now_ms: context.now_ms,
    }
}
