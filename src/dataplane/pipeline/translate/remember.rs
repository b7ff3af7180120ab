//! Bindings of flows that policy has admitted.

use super::bind::{bind, forward_key};
use super::pick::{affinity_key, is_outside};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::PacketFlow;
use crate::dataplane::packet::Kind;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BindingKey, TranslationKind};

/// Binds the flow of packet `i`, which has an entry in conntrack, to its backend. `is_new`: the packet has opened it. A packet
/// that policy denies leaves no binding. Drops the packet if there is no room for the bindings.
#[inline(never)]
pub(in crate::dataplane::pipeline) fn remember(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    is_new: bool,
) {
    let (packet, translation) = (&batch.packets[i], batch.translations[i]);
    let is_forward = translation.kind == TranslationKind::Forward && packet.kind == Kind::Flow;
    if !packet.translated || !is_forward {
        return;
    }
    let owner = batch.in_ports[i];
    let backend = (packet.dst, packet.dst_port);
    let virtual_end = (translation.address, translation.port);
    let reverse = BindingKey::reverse(&flow.key, flow.from_low, flow.hash);
    let has_reverse = bind(context, &reverse, virtual_end, owner);
    let forward = forward_key(context, packet, virtual_end);
    let has_forward = bind(context, &forward, backend, owner);
    // Without the first one no reply would reach the client, without the second one a change would move the flow.
    if !has_reverse || is_new && !has_forward {
        return batch.drop(i, DropReason::TableFull);
    }
    let found = context.snapshot.services().filter(|_| is_new).and_then(|services| {
        let is_outside = is_outside(batch, i, context);
        services.find(virtual_end.0, packet.protocol, virtual_end.1, is_outside)
    });
    let Some(found) = found else { return };
    if found.entry.affinity_seconds.is_some() {
        let key = affinity_key(context, packet, virtual_end.0, virtual_end.1);
        bind(context, &key, backend, owner);
    }
    if let Some(pick) = found.entry.find(found.backends, packet.is_v4, backend.0, backend.1) {
        found.entry.count_opened(found.backends, packet.is_v4, pick.index);
    }
}
