//! Keys of the bindings of fragments, and their bindings.

use super::bind::bind;
use crate::dataplane::conntrack::Key;
use crate::dataplane::fragments::FragmentInfo;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BindingEnd, BindingKey, BindingKind};
use crate::net::address::Address;

/// Key of the datagram of a fragment between these addresses, as its sender sent it.
pub(super) fn fragment_key(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    kind: BindingKind,
    [src, dst]: [Address; 2],
) -> Option<BindingKey> {
    let info = FragmentInfo::of(context.umem.data(&batch.frames[i]), &batch.packets[i], batch.in_ports[i])?;
    let [.., word] = info.key.words();
    // Identification and protocol. An address belongs to one port.
    let key = Key::new(src, dst, word & 0xff_ffff_ffff);
    Some(BindingKey { kind, key, from_low: true, hash: context.conntrack.hash(&key) })
}

/// Binds the datagram of fragment `i` between these addresses to the end that takes the place of another one.
pub(super) fn bind_fragments(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    kind: BindingKind,
    ends: [Address; 2],
    to: BindingEnd,
) {
    if let Some(key) = fragment_key(batch, i, context, kind, ends) {
        context.bindings.note_fragments();
        bind(context, &key, to, batch.in_ports[i]);
    }
}
