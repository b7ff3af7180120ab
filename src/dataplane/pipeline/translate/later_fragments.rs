//! Later fragments of a datagram, translated as its first one.

use super::bind::may_have_fragments;
use super::destination::refuse_other;
use super::fragment_key::{bind_fragments, fragment_key};
use super::hairpin::turn_later_fragment_back;
use super::masquerade::is_to_external_address;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BindingEnd, BindingKind, Translation, TranslationKind};
use crate::dataplane::{DropReason, PortKind};
use crate::net::address::{Address, is_v4};

/// Binds the later fragments of a datagram to the translation of packet `i`, its first fragment. One that is not translated ends
/// the binding of an earlier datagram with its identification.
#[cold]
pub(in crate::dataplane::pipeline) fn bind_later_fragments(batch: &Batch, i: usize, context: &Context<'_>) {
    let (packet, translation) = (&batch.packets[i], batch.translations[i]);
    if let Some(node) = returns_to_node(batch, i, context) {
        let ends = [packet.src, packet.dst];
        bind_fragments(batch, i, context, BindingKind::ReturnFragment, ends, BindingEnd::new(node, 0));
    }
    if !batch.translated.contains(&(i as u16)) {
        if context.bindings.has_fragments() {
            for kind in [BindingKind::Fragment, BindingKind::ReplyFragment] {
                if let Some(key) = fragment_key(batch, i, context, kind, [packet.src, packet.dst]) {
                    context.bindings.remove(&key);
                }
            }
        }
        return;
    }
    let external_port = batch.external_ports[i];
    let external = context.snapshot.masquerade().and_then(|view| view.address(packet.is_v4));
    let external =
        external.filter(|_| external_port != 0).map(|address| BindingEnd::new(address, external_port));
    let bind = |kind, ends, to| bind_fragments(batch, i, context, kind, ends, to);
    match translation.kind {
        TranslationKind::Forward => {
            let ends = [packet.src, translation.address];
            bind(BindingKind::Fragment, ends, BindingEnd::new(packet.dst, 0));
            external.into_iter().for_each(|external| bind(BindingKind::ReplyFragment, ends, external));
        }
        TranslationKind::Reply | TranslationKind::MasqueradeReply => {
            // As its sender sent it.
            let to = external.map_or(packet.dst, |external| external.address);
            let ends = [packet.src, to];
            if external.is_some() {
                bind(BindingKind::Fragment, ends, BindingEnd::new(packet.dst, external_port));
            }
            if translation.kind == TranslationKind::Reply {
                bind(BindingKind::ReplyFragment, ends, BindingEnd::new(translation.address, 0));
            }
        }
        TranslationKind::Masquerade => {
            let ends = [packet.src, packet.dst];
            external.into_iter().for_each(|external| bind(BindingKind::ReplyFragment, ends, external));
        }
        _ => {}
    }
}

/// Address of the node at the host port by which packet `i` leaves, if it goes back there: its destination is another one.
fn returns_to_node(batch: &Batch, i: usize, context: &Context<'_>) -> Option<Address> {
    let (packet, out) = (&batch.packets[i], batch.adjacencies[i].out);
    let host =
        context.snapshot.port(out).filter(|port| port.kind == PortKind::Host && !port.owns(packet.dst))?;
    host.addresses().iter().copied().find(|own| is_v4(*own) == packet.is_v4)
}

/// Number of the hop of later fragment `i`, if the first one of its datagram has gone back by the host port.
#[cold]
pub(in crate::dataplane::pipeline) fn return_hop(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
) -> Option<u32> {
    let ends = [batch.packets[i].src, batch.packets[i].dst];
    let node = bound(batch, i, context, BindingKind::ReturnFragment, ends)?;
    context.snapshot.hop_number(node.address)
}

/// Translates later fragment `i`, if the first one of its datagram was translated. Drops one to a virtual address inside the
/// cluster, and one from outside to the node, otherwise.
#[cold]
pub(in crate::dataplane::pipeline) fn translate_later_fragment(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
) {
    let packet = &batch.packets[i];
    let ends = [packet.src, packet.dst];
    let services = context.snapshot.services().filter(|services| services.may_serve(packet.dst));
    let is_to_external = is_to_external_address(batch, i, context);
    let first = |kind| bound(batch, i, context, kind, ends);
    let source = first(BindingKind::ReplyFragment);
    let destination = first(BindingKind::Fragment).filter(|_| services.is_some() || is_to_external);
    match (destination, source) {
        (Some(to), _) if to.address == packet.src => turn_later_fragment_back(batch, i, context),
        // A reply to a masqueraded flow, to a Service or not. Other ends have no port.
        (Some(to), source) if is_to_external && to.port != 0 => {
            let translation = match source {
                Some(source) => Translation::new(TranslationKind::Reply, true, (source.address, 0)),
                None => Translation::new(TranslationKind::MasqueradeReply, true, (packet.dst, 0)),
            };
            batch.external_ports[i] = to.port;
            batch.packets[i].dst = to.address;
            batch.translate(i, translation, 0);
        }
        (Some(to), source) => {
            batch.external_ports[i] = source.map_or(0, |source| source.port);
            batch.translate(i, Translation::new(TranslationKind::Forward, true, (packet.dst, 0)), 0);
            let packet = &mut batch.packets[i];
            (packet.dst, packet.translated) = (to.address, true);
        }
        (None, Some(source)) if source.port != 0 => {
            batch.external_ports[i] = source.port;
            batch.translate(i, Translation::new(TranslationKind::Masquerade, true, (packet.dst, 0)), 0);
        }
        (None, Some(source)) => {
            batch.translate(i, Translation::new(TranslationKind::Reply, true, (source.address, 0)), 0);
        }
        // Of those from the wire an uplink brings no other ones; by tunnels come those to the node itself.
        (None, None) if is_to_external && !batch.by_tunnel[i] && !batch.waited[i] => {
            batch.drop(i, DropReason::MasqueradeUnknown);
        }
        (None, None) => {
            if let Some(services) = services {
                refuse_other(batch, i, services);
            }
        }
    }
}

/// End that the first fragment of a datagram has got in the place of another one.
fn bound(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    kind: BindingKind,
    ends: [Address; 2],
) -> Option<BindingEnd> {
    if !context.bindings.has_fragments() {
        return None;
    }
    let binding = context.bindings.find(&fragment_key(batch, i, context, kind, ends)?)?;
    may_have_fragments(binding.idle_seconds(context.now_ms)).then_some(binding.to)
}
