//! The destination of a translated packet.

use super::hairpin::turn_back;
use crate::dataplane::DropReason;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{
    Binding, BindingEnd, ServiceFib, Source, SourceChoice, Translation, TranslationKind,
};

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
    set_destination(batch, i, context, &binding.to, is_bound, Source::Binding(binding.place()));
}

/// Makes a backend the destination of a packet to a virtual address, from the source port that goes with it.
#[inline]
pub(super) fn set_destination(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    to: &BindingEnd,
    is_bound: bool,
    source: Source,
) {
    let packet = &mut batch.packets[i];
    if to.address == packet.src {
        return turn_back(batch, i, context, to.port, is_bound);
    }
    let kind = TranslationKind::Forward;
    let translation =
        Translation { source, ..Translation::new(kind, is_bound, (packet.dst, packet.dst_port)) };
    (packet.dst, packet.dst_port, packet.translated) = (to.address, to.port, true);
    let mut client_port = 0;
    if to.source != SourceChoice::OWN {
        client_port = packet.src_port;
        packet.src_port = to.source.port_of(client_port);
    }
    batch.translate(i, translation, client_port);
}
