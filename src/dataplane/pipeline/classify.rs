//! The stage `classify`: policy of both ends for new flows, and their insertion into conntrack.
//!
//! The policy batch evaluates all packets of the batch step by step, so that no lookup waits alone for memory.

use super::batch::Batch;
use super::context::Context;
use super::flow::admit::{InitialState, admit, new_flow};
use super::flow::established::apply_to_flow;
use super::policy_batch::{NewPacket, PolicyBatch};
use super::route::{goes_back, route_back};
use super::translate::{
    FlowMatch, Translator, choose_external_port, match_known_flow, remember_opened, unmark,
};
use crate::dataplane::conntrack::{InsertOutcome, LookupBatch, PacketFlow, Slot, WorkerState};
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::{DropReason, PortKind};

/// Evaluates the packets of the policy batch, and inserts the flows that they open.
pub(super) fn classify(
    batch: &mut Batch,
    context: &Context<'_>,
    lookups: &LookupBatch,
    policy_batch: &mut PolicyBatch,
    worker_state: &mut WorkerState,
    rate_limits: &mut RateLimits,
    translator: &mut Translator,
) {
    policy_batch.evaluate(batch, lookups, context.snapshot);
    let rules = context.snapshot.rules().map(|rules| &**rules);
    let (mut evaluated, inserted) = (0, worker_state.inserted);
    for n in 0..policy_batch.len() {
        let packet = policy_batch.packet(n);
        let flow = lookups.flow(packet.index);
        let existing = inserted_earlier(context, policy_batch, flow).or_else(|| {
            evaluated += 1;
            let denial = || policy_batch.denial(n, rules, context.counted_by);
            let state = admit(batch, packet.index, context, denial)?;
            insert_flow(batch, context, policy_batch, worker_state, translator, (flow, packet, state))
        });
        if let Some(slot) = existing {
            let flow_word = context.conntrack.entry(slot).flow_word(flow.from_low);
            match match_known_flow(batch, packet.index, context, flow, (slot, flow_word)) {
                FlowMatch::Same => {
                    if goes_back(batch, packet.index, flow_word.side(flow.from_low)) {
                        route_back_by_host(batch, packet.index, context, rate_limits, slot);
                    }
                    if batch.is_pending(packet.index) {
                        apply_to_flow(batch, packet.index, context, flow, slot, packet.hop);
                    }
                }
                FlowMatch::Ended => batch.drop(packet.index, DropReason::ServiceCollision),
                FlowMatch::Collides => translator.collided.push_back(packet.index as u16),
                FlowMatch::Dropped => {}
            }
        }
    }
    if !translator.opened.is_empty() {
        remember_opened(batch, context, translator);
    }
    policy_batch.set_denial_heavy(2 * (worker_state.inserted - inserted) < evaluated);
}

/// Routes packet `i` to the initiator of a flow, which an earlier packet of the batch has opened, by the host port if that one
/// came by it.
fn route_back_by_host(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
    slot: Slot,
) {
    let owner = context.conntrack.entry(slot).quota_owner().map(|owner| owner.port);
    let port = owner.and_then(|owner| context.snapshot.port(owner));
    if port.is_some_and(|port| port.kind == PortKind::Host) {
        route_back(batch, i, context, rate_limits, owner);
    }
}

/// The slot of a packet's flow, if an earlier packet of the batch has opened it.
#[inline]
fn inserted_earlier(context: &Context<'_>, policy_batch: &PolicyBatch, flow: &PacketFlow) -> Option<Slot> {
    let may_be = policy_batch.may_have_inserted(flow.hash);
    if may_be { context.conntrack.look_up(&flow.key, flow.hash) } else { None }
}

/// Inserts the flow that an admitted packet opens. Returns the slot of the flow where another worker has inserted it meanwhile.
fn insert_flow(
    batch: &mut Batch,
    context: &Context<'_>,
    policy_batch: &mut PolicyBatch,
    worker_state: &mut WorkerState,
    translator: &mut Translator,
    (flow, packet, state): (&PacketFlow, NewPacket, InitialState),
) -> Option<Slot> {
    let NewPacket { index: i, hop, init } = packet;
    let choice = match choose_external_port(batch, i, context, flow.hash) {
        Ok(choice) => choice,
        Err(reason) => {
            batch.drop(i, reason);
            return None;
        }
    };
    let Some(new) = new_flow(context, flow, init, hop, batch.virtual_end(i), state) else {
        batch.drop(i, DropReason::NoRoute);
        return None;
    };
    match context.conntrack.insert(&flow.key, flow.hash, &new, context.now_ms, worker_state) {
        InsertOutcome::Inserted(slot) => {
            if let (Some(choice), Some(ports)) = (choice, context.external_ports)
                && !ports.insert(choice, slot, context.conntrack)
            {
                context.conntrack.remove(slot, None, worker_state);
                batch.drop(i, DropReason::Masquerade);
                return None;
            }
            policy_batch.note_inserted(flow.hash);
            let bytes = batch.packets[i].ip_bytes();
            context.conntrack.entry(slot).count(flow.from_low, bytes, context.now_ms);
            if batch.packets[i].translated {
                translator.opened.push(i as u16);
            }
            None
        }
        InsertOutcome::Exists(slot) => {
            unmark(batch, i);
            Some(slot)
        }
        InsertOutcome::Full => {
            batch.drop(i, DropReason::TableFull);
            None
        }
    }
}
