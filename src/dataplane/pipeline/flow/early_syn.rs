//! SYNs that arrive before the end of the connection that has their ports.
//!
//! A veth with several queues sends the packets of a socket by the queue of that socket's hash or processor. So the reset that
//! ends a connection and the SYN of the next one on the same ports, which are of two sockets, may lie in the queues of two
//! workers. A SYN that passed first would meet the open connection at its receiver, and its sender would try again a second
//! later. It waits until the flow has ended and the worker with the reset has sent that, for [`EARLY_SYN_TIMEOUT_MS`] at most; then
//! it passes as of a host that has forgotten the connection (RFC 5961 section 4).

use crate::dataplane::PortKind;
use crate::dataplane::conntrack::{Conntrack, FlowState, PacketFlow, QuotaClass, Side, Slot, WorkerState};
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::waiting::Waiter;
use crate::limits::EARLY_SYN_TIMEOUT_MS;
use crate::net::tcp::Flags;

/// Holds packet `i` if it is a SYN from a pod and the connection in `slot` is open, or was reset. Returns whether it is held.
#[inline(always)]
pub(super) fn hold_early_syn(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
) -> bool {
    batch.packets[i].opens_connection() && hold(batch, i, context, flow, slot)
}

#[cold]
#[inline(never)]
fn hold(batch: &mut Batch, i: usize, context: &Context<'_>, flow: &PacketFlow, slot: Slot) -> bool {
    let (packet, port) = (&batch.packets[i], batch.in_ports[i]);
    let is_of_pod = context.snapshot.port(port).is_some_and(|port| port.kind == PortKind::Pod);
    if batch.waited[i] || !is_of_pod || !packet.tcp_flags().has(Flags::SYN) {
        return false;
    }
    let entry = context.conntrack.entry(slot);
    let connection = entry.load_tcp();
    let by_initiator = entry.flow_word(flow.from_low).side(flow.from_low) == Side::Initiator;
    let is_repeated = by_initiator && connection.sides[0].end == packet.sequence.wrapping_add(1);
    let is_early = match connection.state {
        FlowState::SynReceived => !is_repeated,
        FlowState::Established | FlowState::FinWait | FlowState::LastAck | FlowState::Reset => true,
        _ => false,
    };
    let until_ms = context.now_ms.wrapping_add(EARLY_SYN_TIMEOUT_MS);
    let is_held = is_early && batch.early_syns.reserve(port, &flow.key, flow.hash, until_ms);
    if is_held {
        batch.dispositions[i] = Disposition::Held;
    }
    is_held
}

/// Whether a SYN waits no longer: the flow has ended, and the worker that has ended it has sent the packet that did; or its time
/// is over.
pub(crate) fn is_over(waiter: &mut Waiter, conntrack: &Conntrack, by: &WorkerState, now_ms: u32) -> bool {
    if waiter.is_past(now_ms) {
        return true;
    }
    let is_ended = |slot| conntrack.entry(slot).state().class() == QuotaClass::Ended;
    if waiter.epoch.is_none() && conntrack.look_up(&waiter.key, waiter.hash).is_none_or(is_ended) {
        waiter.epoch = Some(conntrack.epoch_after_batches());
    }
    waiter.epoch.is_some_and(|epoch| conntrack.has_begun(epoch, by))
}
