//! Bindings of flows that policy has admitted.

use super::bind::{bind, forward_key, revision};
use super::forward::{LOADED_TOGETHER, Translator};
use super::pick::{affinity_key, is_outside};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{PacketFlow, Slot};
use crate::dataplane::packet::Kind;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{Choice, PortEntry, Source, TranslationKind};

/// Binds the flows that packets of the batch have opened, and counts them.
///
/// A locked instruction waits for all loads and stores before it. So the memory of several flows is loaded first, and their
/// counters come last.
#[inline(never)]
pub(in crate::dataplane::pipeline) fn remember_opened(
    batch: &mut Batch,
    context: &Context<'_>,
    translator: &mut Translator,
) {
    for start in (0..translator.opened.len()).step_by(LOADED_TOGETHER) {
        let end = translator.opened.len().min(start + LOADED_TOGETHER);
        let opened = &translator.opened[start..end];
        let mut choices = [None; LOADED_TOGETHER];
        for (i, choice) in opened.iter().zip(&mut choices) {
            let packet = &batch.packets[usize::from(*i)];
            translator.prefetch_binding(*i, context, packet.is_v4);
            *choice = choice_of(batch, usize::from(*i), context);
            if let Some((entry, choice)) = choice {
                entry.prefetch_counters(choice.backends, packet.is_v4, choice.index.into());
            }
        }
        for (i, choice) in opened.iter().zip(&mut choices) {
            if !bind_opened(batch, usize::from(*i), context, *choice) {
                *choice = None;
            }
        }
        for (i, choice) in opened.iter().zip(&choices) {
            if let Some((entry, choice)) = choice {
                let is_v4 = batch.packets[usize::from(*i)].is_v4;
                entry.count_opened(choice.backends, is_v4, choice.index.into());
            }
        }
    }
    translator.opened.clear();
}

/// Binds the flow of packet `i`, which has an entry in conntrack, to its backend again, and counts it if the packet has opened it
/// anew.
#[inline(never)]
pub(in crate::dataplane::pipeline) fn remember(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    is_new: bool,
) {
    if is_new {
        let choice = choice_of(batch, i, context);
        if bind_opened(batch, i, context, choice)
            && let Some((entry, choice)) = choice
        {
            entry.count_opened(choice.backends, batch.packets[i].is_v4, choice.index.into());
        }
        return;
    }
    let is_confirmed = match batch.translations[i].source {
        Source::Binding(place) => context.bindings.confirm(place, context.now_ms, revision(context)),
        Source::Choice(_) | Source::Other => false,
    };
    if !is_confirmed && is_of_client(batch, i) {
        bind_flow(batch, i, context);
    }
}

/// Whether packet `i` is one of a client to a virtual address.
fn is_of_client(batch: &Batch, i: usize) -> bool {
    let packet = &batch.packets[i];
    packet.translated && batch.translations[i].kind == TranslationKind::Forward && packet.kind == Kind::Flow
}

/// Port of a Service and backend that the client of packet `i` has got.
#[inline]
fn choice_of<'a>(batch: &Batch, i: usize, context: &Context<'a>) -> Option<(&'a PortEntry, Choice)> {
    let services = context.snapshot.services()?;
    let (packet, translation) = (&batch.packets[i], &batch.translations[i]);
    if let Source::Choice(choice) = translation.source {
        return Some((services.entry(choice.place), choice));
    }
    let (address, port) = (translation.address, translation.port);
    let found = services.find(address, packet.protocol, port, is_outside(batch, i, context))?;
    let pick = found.entry.find(found.backends, packet.is_v4, packet.dst, packet.dst_port)?;
    Some((found.entry, Choice { place: found.place, backends: found.backends, index: pick.index as u16 }))
}

/// Binds the flow that packet `i` has opened, and its client to the backend where the Service has affinity. A packet that policy
/// denies leaves no binding. Drops the packet, and returns false, if there is no room for the binding.
fn bind_opened(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    choice: Option<(&PortEntry, Choice)>,
) -> bool {
    if !is_of_client(batch, i) {
        return false;
    }
    // Without a binding a change of the backends would move the flow.
    if !bind_flow(batch, i, context) {
        batch.drop(i, DropReason::TableFull);
        return false;
    }
    if choice.is_some_and(|(entry, _)| entry.affinity_seconds.is_some()) {
        let (packet, translation) = (&batch.packets[i], &batch.translations[i]);
        let key = affinity_key(context, packet, translation.address, translation.port);
        bind(context, &key, (packet.dst, packet.dst_port), batch.in_ports[i]);
    }
    true
}

/// Binds the flow of a client's packet to its backend. Returns false if there is no room for the binding.
fn bind_flow(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    let (packet, translation) = (&batch.packets[i], &batch.translations[i]);
    let key = forward_key(context, packet, (translation.address, translation.port));
    bind(context, &key, (packet.dst, packet.dst_port), batch.in_ports[i])
}

/// Caches the hop of a client's packet beside its binding, if no packet changes the flow in `slot` any more.
#[inline]
pub(in crate::dataplane::pipeline) fn cache_hop(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
) {
    let Source::Binding(place) = batch.translations[i].source else { return };
    let flow_word = context.conntrack.entry(slot).flow_word(flow.from_low);
    if let Some(hop) = flow_word.plain_hop_translated() {
        context.conntrack.note_binding(slot, place.slot);
        context.bindings.cache_hop(place, (flow_word.policy_epoch(), hop), slot);
    }
}
