//! The stage `police`: packets beyond the bandwidth of a pod are dropped.

use super::batch::Batch;
use super::context::Context;
use crate::dataplane::DropReason;
use crate::dataplane::fib::port::PortView;

/// Drops packets beyond the rate of the pod that they come from, and of the pod that they go to. Packets that another stage
/// has dropped take no tokens.
#[inline(never)]
pub(super) fn police(batch: &mut Batch, context: &Context<'_>) {
    let snapshot = context.snapshot;
    for i in 0..batch.len() {
        if !batch.leaves(i) {
            continue;
        }
        let bytes = usize::from(batch.bytes[i]);
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
