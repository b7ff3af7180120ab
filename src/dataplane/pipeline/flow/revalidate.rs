//! Revalidation of flows that an earlier generation has evaluated.

use super::init::flow_of;
use crate::dataplane::conntrack::{FlowWord, PacketFlow, Side, Slot, WorkerState, event};
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::{DropReason, FlowEnd, FlowEventKind, PortKind};

/// Result of the evaluation of a known flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataplane::pipeline) enum Revalidation {
    /// The flow stays.
    Current,
    /// An end of the flow has changed hands. The flow is removed, and its packet opens another one.
    Removed,
    /// The packet is dropped.
    Dropped,
}

/// Evaluates the flow in `slot` in its original direction, as `flow_word`, read for packet `i`, tells it.
#[inline(never)]
pub(in crate::dataplane::pipeline) fn revalidate(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    worker_state: &mut WorkerState,
    (packet_flow, slot): (&PacketFlow, Slot),
    flow_word: FlowWord,
) -> Revalidation {
    let PacketFlow { key, from_low, .. } = packet_flow;
    let opened_by_low = (flow_word.side(*from_low) == Side::Initiator) == *from_low;
    let flow = flow_of(key, opened_by_low, flow_word.is_by_node_socket());
    let snapshot = context.snapshot;
    let epoch = flow_word.policy_epoch();
    let [low_was_pod, high_was_pod] = flow_word.pods();
    let ends = [(key.low(), low_was_pod), (key.high(), high_was_pod)];
    if ends.into_iter().any(|(end, was_pod)| !snapshot.is_same_endpoint(end, was_pod, epoch)) {
        if snapshot.awaits_endpoints(ends, epoch, context.now_ms) {
            batch.drop(i, DropReason::UnknownPod);
            return Revalidation::Dropped;
        }
        // The address belongs to another endpoint, which inherits no flow.
        context.conntrack.remove(slot, Some(FlowEnd::PodGone), worker_state);
        return Revalidation::Removed;
    }
    // A flow that stays allowed has been counted when it was inserted.
    let origin = snapshot.port_of_address(flow.src);
    let evaluate = |counted_by| match (origin, snapshot.port_of_address(flow.dst)) {
        (Some((_, from)), Some((_, to))) => snapshot.evaluate(&flow, from, to, counted_by),
        _ => Some(DropReason::NoRoute),
    };
    if let Some(reason) = evaluate(None).and_then(|_| evaluate(context.counted_by)) {
        // While no tables are loaded no packet passes, and no flow has been decided on.
        if snapshot.rules().is_some() || reason != DropReason::UnknownPod {
            context.conntrack.remove(slot, Some(FlowEnd::Policy), worker_state);
        }
        batch.drop(i, reason);
        if opened_by_low != *from_low {
            batch.denied_replies.push(i as u16);
        }
        return Revalidation::Dropped;
    }
    // A source that is no pod's may have come by the host port, though another one leads to it.
    let by_host = || {
        let owner = context.conntrack.entry(slot).quota_owner();
        owner.and_then(|owner| snapshot.port(owner.port)).is_some_and(|port| port.kind == PortKind::Host)
    };
    if let Some((port, _)) = origin.filter(|(_, port)| port.is_pod() || !by_host()) {
        context.conntrack.set_owner_port(slot, port);
    }
    if let Some(events) = context.events {
        // Each end is revalidated by a packet of its own. The first of both is told.
        let entry = context.conntrack.entry(slot);
        if entry.policy_epoch_is_before(snapshot.generation) {
            events.add(event(FlowEventKind::Revalidated, key, entry));
        }
    }
    Revalidation::Current
}
