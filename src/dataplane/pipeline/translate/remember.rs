//! Bindings of flows that policy has admitted.

use super::bind::{bind, forward_key, revision};
use super::forward::Translator;
use super::pick::{affinity_key, is_outside};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{PacketFlow, Slot};
use crate::dataplane::packet::Kind;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BindingEnd, Choice, Source, SourceChoice, TranslationKind};

/// Bindings whose memory is loaded ahead.
const AHEAD: usize = 4;

/// Binds the flows that packets of the batch have opened.
#[inline(never)]
pub(in crate::dataplane::pipeline) fn remember_opened(
    batch: &mut Batch,
    context: &Context<'_>,
    translator: &mut Translator,
) {
    for n in 0..translator.opened.len() {
        if let Some(next) = translator.opened.get(n + AHEAD) {
            let is_v4 = batch.packets[usize::from(*next)].is_v4;
            translator.prefetch_binding(*next, context, is_v4);
        }
        remember(batch, usize::from(translator.opened[n]), context, true);
    }
    translator.opened.clear();
}

/// Binds the flow of packet `i`, which has an entry in conntrack, to its backend. `is_new`: the packet has opened it. A packet
/// that policy denies leaves no binding. Drops the packet if there is no room for the binding.
#[inline(never)]
pub(in crate::dataplane::pipeline) fn remember(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    is_new: bool,
) {
    let (packet, translation) = (&batch.packets[i], batch.translations[i]);
    let is_forward = translation.kind == TranslationKind::Forward && packet.kind == Kind::Flow;
    if !packet.translated || !is_forward {
        return;
    }
    if let Source::Binding(place) = translation.source
        && !is_new
        && context.bindings.confirm(place, context.now_ms, revision(context))
    {
        return;
    }
    let owner = batch.in_ports[i];
    let backend = BindingEnd::new(packet.dst, packet.dst_port);
    let virtual_end = (translation.address, translation.port);
    let client_port = batch.client_port(i);
    let source = SourceChoice::of(client_port, packet.src_port).unwrap_or_default();
    let forward = forward_key(context, packet, client_port, virtual_end);
    // Without a binding a change of the backends would move the flow.
    if !bind(context, &forward, BindingEnd { source, ..backend }, owner) && is_new {
        return batch.drop(i, DropReason::TableFull);
    }
    let Some(services) = context.snapshot.services().filter(|_| is_new) else { return };
    let choose = || {
        let is_outside = is_outside(batch, i, context);
        let found = services.find(virtual_end.0, packet.protocol, virtual_end.1, is_outside)?;
        let pick = found.entry.find(found.backends, packet.is_v4, backend.address, backend.port)?;
        Some(Choice { place: found.place, backends: found.backends, index: pick.index as u16 })
    };
    let choice = if let Source::Choice(choice) = translation.source { Some(choice) } else { choose() };
    let Some(choice) = choice else { return };
    let entry = services.entry(choice.place);
    if entry.affinity_seconds.is_some() {
        let key = affinity_key(context, packet, virtual_end.0, virtual_end.1);
        bind(context, &key, backend, owner);
    }
    if context.counted_by.is_some() {
        entry.count_opened(choice.backends, packet.is_v4, choice.index.into());
    }
}

/// Caches the hop of a client's packet beside its binding, if most packets do not change the state of the flow in `slot` any more.
#[inline]
pub(in crate::dataplane::pipeline) fn cache_hop(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
) {
    let Source::Binding(place) = batch.translations[i].source else { return };
    if batch.client_ports[i] != 0 || batch.external_ports[i] != 0 {
        // A packet that takes a cached hop is written at one end alone.
        return;
    }
    let flow_word = context.conntrack.entry(slot).flow_word(flow.from_low);
    if let Some(hop) = flow_word.plain_hop_translated() {
        if flow_word.needs_no_entry() {
            context.conntrack.note_binding(slot, place.slot);
        }
        context.bindings.cache_hop(place, (flow_word.policy_epoch(), hop), slot.number());
    }
}
