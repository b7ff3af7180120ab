//! The destination of a translated packet.

use super::hairpin::turn_back;
use crate::dataplane::DropReason;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{Binding, ServiceFib, Source, Translation, TranslationKind};
use crate::net::address::Address;

/// Drops a packet that a Service does not serve. Its sender gets an answer.
#[cold]
pub(super) fn refuse(batch: &mut Batch, i: usize, reason: DropReason) {
    batch.drop(i, reason);
    batch.has_unserved = true;
}

/// Drops a packet to an address of Services inside the cluster that no port of a Service serves: it must not leave the node.
#[cold]
pub(super) fn refuse_other(batch: &mut Batch, i: usize, services: &ServiceFib) {
    if services.is_cluster_address(batch.packets[i].dst) {
        refuse(batch, i, DropReason::ServiceNoBackend);
    }
}

/// Makes the backend of a binding the destination of a packet.
#[inline]
pub(super) fn follow(batch: &mut Batch, i: usize, context: &Context<'_>, binding: &Binding, is_bound: bool) {
    let to = (binding.address, binding.port);
    set_destination(batch, i, context, to, is_bound, Source::Binding(binding.place()));
}

/// Makes a backend the destination of a packet to a virtual address.
#[inline]
pub(super) fn set_destination(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    (address, port): (Address, u16),
    is_bound: bool,
    source: Source,
) {
    let packet = &mut batch.packets[i];
    if address == packet.src {
        return turn_back(batch, i, context, port, is_bound);
    }
    let kind = TranslationKind::Forward;
    batch.translations[i] =
        Translation { source, ..Translation::new(kind, is_bound, (packet.dst, packet.dst_port)) };
    (packet.dst, packet.dst_port, packet.translated) = (address, port, true);
    batch.translated.push(i as u16);
}
