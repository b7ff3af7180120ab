//! The stage `police`: drops packets beyond the bandwidth of a pod.

use super::batch::Batch;
use super::context::Context;
use crate::dataplane::DropReason;
use crate::dataplane::fib::port::PortView;
use crate::xdp::Umem;

/// Drops packets beyond the rate of the pod that they come from, and of the pod that they go to. Packets that a stage
/// before has dropped take no tokens.
#[inline(never)]
pub(super) fn police(batch: &mut Batch, context: &Context<'_>) {
    let snapshot = context.snapshot;
    for i in 0..batch.len() {
        if !batch.leaves(i) {
            continue;
        }
        let bytes = wire_bytes(batch, i, context.umem);
        let from = snapshot.port(batch.in_ports[i]).and_then(PortView::egress_policer);
        if from.is_some_and(|policer| !policer.admits(context.now_ns, bytes)) {
            batch.drop(i, DropReason::BandwidthEgress);
            continue;
        }
        let to = snapshot.port(batch.adjacencies[i].out).and_then(PortView::ingress_policer);
        if to.is_some_and(|policer| !policer.admits(context.now_ns, bytes)) {
            batch.drop(i, DropReason::BandwidthIngress);
        }
    }
}

/// Bytes of the frames that a packet stands for: each of its segments has headers of its own.
#[inline]
fn wire_bytes(batch: &Batch, i: usize, umem: &Umem) -> usize {
    let bytes = usize::from(batch.bytes[i]);
    umem.virtio_header(&batch.frames[i]).map_or(bytes, |header| {
        let further = header.segments(usize::from(batch.packets[i].end)) - 1;
        bytes + further * usize::from(header.hdr_len)
    })
}
