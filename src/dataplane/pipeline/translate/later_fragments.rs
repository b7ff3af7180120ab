//! Later fragments of a datagram, translated as its first one.

use super::bind::may_have_fragments;
use super::destination::refuse_other;
use super::fragment_key::{bind_fragments, fragment_key};
use super::hairpin::turn_later_fragment_back;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BindingKind, Translation, TranslationKind};
use crate::net::address::Address;

/// Binds the later fragments of a datagram to the translation of packet `i`, its first fragment. One that is not translated ends
/// the binding of an earlier datagram with its identification.
#[cold]
pub(in crate::dataplane::pipeline) fn bind_later_fragments(batch: &Batch, i: usize, context: &Context<'_>) {
    let (packet, translation) = (&batch.packets[i], batch.translations[i]);
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
    let (kind, ends, to) = match translation.kind {
        TranslationKind::Forward => (BindingKind::Fragment, [packet.src, translation.address], packet.dst),
        TranslationKind::Reply => (BindingKind::ReplyFragment, [packet.src, packet.dst], translation.address),
        _ => return,
    };
    bind_fragments(batch, i, context, kind, ends, to);
}

/// Translates later fragment `i`, if the first one of its datagram was translated. Drops one to a virtual address inside the
/// cluster otherwise.
#[cold]
pub(in crate::dataplane::pipeline) fn translate_later_fragment(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
) {
    let packet = &batch.packets[i];
    let ends = [packet.src, packet.dst];
    let services = context.snapshot.services().filter(|services| services.may_serve(packet.dst));
    if services.is_some()
        && let Some(backend) = bound(batch, i, context, BindingKind::Fragment, ends)
    {
        if backend == packet.src {
            return turn_later_fragment_back(batch, i, context);
        }
        let kind = TranslationKind::Forward;
        batch.translate(i, Translation::new(kind, true, (packet.dst, 0)), 0);
        let packet = &mut batch.packets[i];
        (packet.dst, packet.translated) = (backend, true);
    } else if let Some(address) = bound(batch, i, context, BindingKind::ReplyFragment, ends) {
        let kind = TranslationKind::Reply;
        batch.translate(i, Translation::new(kind, true, (address, 0)), 0);
    } else if let Some(services) = services {
        refuse_other(batch, i, services);
    }
}

/// Address that the first fragment of a datagram has got in the place of another one.
fn bound(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    kind: BindingKind,
    ends: [Address; 2],
) -> Option<Address> {
    if !context.bindings.has_fragments() {
        return None;
    }
    let binding = context.bindings.find(&fragment_key(batch, i, context, kind, ends)?)?;
    may_have_fragments(binding.idle_seconds(context.now_ms)).then_some(binding.to.address)
}
