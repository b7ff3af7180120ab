//! The stage `advance`: packets of known flows take the hop that the flow remembers; packets of new flows are routed, and left to
//! `classify`.
//!
//! Nearly every packet takes [`advance_fast`]. Packets of known flows that Services translate take
//! [`advance_translated`](Advance::advance_translated), all others of known flows [`advance_slow`](Advance::advance_slow).

use super::anti_spoof::check_packet_endpoints;
use super::batch::Batch;
use super::context::Context;
use super::flow::established::apply_to_flow;
use super::flow::revalidate::{Revalidation, revalidate};
use super::policy_batch::PolicyBatch;
use super::route::{forward_via, goes_back, route, route_back};
use super::translate::{
    FlowMatch, Translator, cache_hop, has_flow_from_other_port, match_known_flow, remember,
    replace_source_port, translate_plain, unmark,
};
use crate::dataplane::conntrack::{
    FlowWord, Hit, Key, LookupBatch, LookupVisitor, PacketFlow, QuotaClass, Side, Slot, WorkerState,
};
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::packet::Kind;
use crate::dataplane::service::TranslationKind;
use crate::dataplane::{DropReason, FlowEnd};
use crate::net::flow::Protocol;

/// Looks the flow of each packet up and finds its adjacency. Packets of known flows change the state of these; those of new flows go
/// to `policy_batch`.
pub(super) fn advance(
    batch: &mut Batch,
    context: &Context<'_>,
    lookups: &mut LookupBatch,
    policy_batch: &mut PolicyBatch,
    worker_state: &mut WorkerState,
    rate_limits: &mut RateLimits,
    translator: &mut Translator,
) {
    policy_batch.clear();
    let len = batch.len();
    let for_insert = !policy_batch.denial_heavy();
    let mut visitor = Advance { batch, context, policy_batch, worker_state, rate_limits, translator };
    context.conntrack.lookup_batch(lookups, len, for_insert, &mut visitor);
    if !visitor.translator.replies.is_empty() {
        visitor.advance_replies(lookups);
    }
}

/// Gives packets whose keys other flows have, also flows that this batch has opened, the keys of their own flows. Those of new
/// flows go to `policy_batch`.
#[cold]
#[inline(never)]
pub(super) fn advance_collided(
    batch: &mut Batch,
    context: &Context<'_>,
    lookups: &mut LookupBatch,
    policy_batch: &mut PolicyBatch,
    worker_state: &mut WorkerState,
    rate_limits: &mut RateLimits,
    translator: &mut Translator,
) {
    policy_batch.clear();
    let mut visitor = Advance { batch, context, policy_batch, worker_state, rate_limits, translator };
    visitor.advance_collided(lookups);
}

/// The stage as the receiver of the lookup's results.
struct Advance<'a> {
    batch: &'a mut Batch,
    context: &'a Context<'a>,
    policy_batch: &'a mut PolicyBatch,
    worker_state: &'a mut WorkerState,
    rate_limits: &'a mut RateLimits,
    translator: &'a mut Translator,
}

impl LookupVisitor for &mut Advance<'_> {
    #[inline(always)]
    fn is_pending(&self, i: usize) -> bool {
        self.batch.is_pending(i)
    }

    #[inline(always)]
    fn hit(&mut self, i: usize, hit: Hit<'_>) {
        if !advance_fast(self.batch, i, self.context, &hit) {
            self.advance_other(i, hit);
        }
    }

    #[inline(always)]
    fn miss(&mut self, i: usize, flow: &PacketFlow) {
        if self.batch.packets[i].translated {
            self.context.conntrack.prefetch_virtual_end(flow.candidate);
        } else if self.context.bindings.has_replaced_ports()
            && has_flow_from_other_port(self.batch, i, self.context, flow)
        {
            return self.translator.collided.push_back(i as u16);
        }
        self.route_new(i);
    }
}

/// Forwards a packet that does not change the state of its flow, by the hop that the flow remembers. Returns false for any other
/// packet, which takes the slow path.
#[inline(always)]
fn advance_fast(batch: &mut Batch, i: usize, context: &Context<'_>, hit: &Hit<'_>) -> bool {
    let (snapshot, packet, flow) = (context.snapshot, &batch.packets[i], hit.flow);
    let flow_word = hit.entry.flow_word(flow.from_low);
    let Some(adjacency) = flow_word.plain_hop().and_then(|hop| snapshot.adjacency(u32::from(hop))) else {
        return false;
    };
    let bytes = packet.ip_bytes();
    // A first fragment takes the slow path: the stage `fragments` records its verdict for the later ones.
    let is_fast =
        (packet.kind == Kind::Flow) & !packet.first_fragment & !packet.translated & adjacency.takes(packet)
            && snapshot.is_current(flow_word.policy_epoch(), batch.in_ports[i], adjacency.out)
            && (packet.protocol != Protocol::TCP
                || context.conntrack.pass_segment(hit.slot(), flow.from_low, packet));
    if is_fast {
        batch.adjacencies[i] = adjacency;
        hit.entry.count(flow.from_low, bytes, context.now_ms);
    }
    is_fast
}

/// Whether packet `i` is to get an address of the node and leaves by another port than an uplink.
fn is_stranded(batch: &Batch, i: usize) -> bool {
    batch.external_ports[i] != 0
        && batch.is_pending(i)
        && batch.packets[i].kind == Kind::Flow
        && matches!(batch.translations[i].kind, TranslationKind::Masquerade | TranslationKind::Forward)
        && !batch.adjacencies[i].is_uplink()
}

impl Advance<'_> {
    /// Forwards a packet of a known flow, or leaves it to [`Advance::advance_replies`].
    #[inline(never)]
    fn advance_other(&mut self, i: usize, hit: Hit<'_>) {
        let flow = hit.flow;
        let flow_word = hit.entry.flow_word(flow.from_low);
        let packet = &self.batch.packets[i];
        if flow_word.is_translated() && packet.kind == Kind::Flow {
            if !packet.translated {
                self.context.conntrack.prefetch_virtual_end(hit.slot());
                return self.translator.replies.push(i as u16);
            }
            if self.advance_translated(i, flow, hit.slot(), flow_word) {
                return;
            }
        }
        self.advance_slow(i, flow, hit.slot());
    }

    /// Forwards the replies of translated flows, whose virtual ends are in the cache by now.
    #[inline(never)]
    fn advance_replies(&mut self, lookups: &LookupBatch) {
        for n in 0..self.translator.replies.len() {
            let i = usize::from(self.translator.replies[n]);
            let flow = lookups.flow(i);
            // Another packet of the batch may have ended the flow.
            let Some(slot) = self.context.conntrack.slot_of(flow) else {
                self.route_new(i);
                continue;
            };
            let entry = self.context.conntrack.entry(slot);
            if !self.advance_translated(i, flow, slot, entry.flow_word(flow.from_low)) {
                self.advance_slow(i, flow, slot);
            }
        }
        self.translator.replies.clear();
    }

    fn advance_collided(&mut self, lookups: &mut LookupBatch) {
        for _ in 0..self.translator.collided.len() {
            // A packet may meet another flow again, and come to the end of the list.
            let Some(i) = self.translator.collided.pop_front().map(usize::from) else { break };
            if !replace_source_port(self.batch, i, self.context) {
                continue;
            }
            let key = Key::of(&self.batch.packets[i]);
            match self.context.conntrack.look_up_again(lookups, i, key) {
                Some(slot) => self.advance_slow(i, lookups.flow(i), slot),
                None => self.route_new(i),
            }
        }
    }

    /// Forwards a packet of a translated flow that does not change the state of the flow, by the hop that the flow remembers.
    /// Returns false for any other packet, which takes the slow path. The numbers of a segment that goes to another flow between
    /// the same ends are taken all the same, if they are in the windows.
    #[inline(always)]
    fn advance_translated(&mut self, i: usize, flow: &PacketFlow, slot: Slot, flow_word: FlowWord) -> bool {
        let (snapshot, packet) = (self.context.snapshot, &self.batch.packets[i]);
        let by_client = flow_word.side(flow.from_low) == Side::Initiator;
        let hop = flow_word.plain_hop_translated();
        let Some(adjacency) = hop.and_then(|hop| snapshot.adjacency(u32::from(hop))) else { return false };
        let bytes = packet.ip_bytes();
        let is_plain = !packet.first_fragment & adjacency.takes(packet)
            && snapshot.is_current(flow_word.policy_epoch(), self.batch.in_ports[i], adjacency.out)
            && (packet.protocol != Protocol::TCP
                || self.context.conntrack.pass_segment(slot, flow.from_low, packet))
            && translate_plain(self.batch, i, self.context, by_client, slot);
        if is_plain {
            self.batch.adjacencies[i] = adjacency;
            self.context.conntrack.entry(slot).count(flow.from_low, bytes, self.context.now_ms);
            if by_client {
                cache_hop(self.batch, i, self.context, flow, slot);
            }
        }
        is_plain
    }

    /// Forwards any packet of a known flow.
    #[inline(never)]
    fn advance_slow(&mut self, i: usize, flow: &PacketFlow, slot: Slot) {
        let snapshot = self.context.snapshot;
        let entry = self.context.conntrack.entry(slot);
        let flow_word = entry.flow_word(flow.from_low);
        match match_known_flow(self.batch, i, self.context, flow, (slot, flow_word)) {
            FlowMatch::Same => {}
            FlowMatch::Ended => {
                self.context.conntrack.remove(slot, Some(FlowEnd::Finished), self.worker_state);
                return self.route_new(i);
            }
            FlowMatch::Collides => return self.translator.collided.push_back(i as u16),
            FlowMatch::Dropped => return,
        }
        let packet = &self.batch.packets[i];
        // An error goes to the source of the packet that it quotes, and so takes another hop than that packet.
        let is_current = |adjacency: &Adjacency| {
            packet.kind == Kind::Flow
                && snapshot.is_current(flow_word.policy_epoch(), self.batch.in_ports[i], adjacency.out)
        };
        let hop = flow_word.hop().map(u32::from);
        let is_known = match hop.and_then(|hop| Some((hop, snapshot.adjacency(hop).filter(is_current)?))) {
            Some((number, adjacency)) => {
                forward_via(self.batch, i, self.context, self.rate_limits, number, adjacency);
                true
            }
            None => self.revalidate_if_stale(i, flow, slot, flow_word),
        };
        if is_known && is_stranded(self.batch, i) {
            // Its route does not lead outside any more.
            self.context.conntrack.remove(slot, Some(FlowEnd::Finished), self.worker_state);
            return self.batch.drop(i, DropReason::Masquerade);
        }
        if is_known && self.batch.is_pending(i) {
            // The packet may open the next connection on the same ports.
            let may_reopen = entry.state().class() == QuotaClass::Ended;
            apply_to_flow(self.batch, i, self.context, flow, slot, None);
            if self.batch.packets[i].translated
                && !self.batch.translations[i].is_bound
                && self.batch.is_pending(i)
            {
                let is_new = may_reopen && self.batch.packets[i].opens_connection();
                remember(self.batch, i, self.context, is_new);
                self.context.conntrack.take_forward_count(slot);
                cache_hop(self.batch, i, self.context, flow, slot);
            }
        }
    }

    /// Finds the adjacency of a packet, and revalidates its flow where the policy of one of its ends has changed since the flow was
    /// evaluated. Returns false where the flow is removed, and its packet opens another one.
    #[inline(never)]
    fn revalidate_if_stale(&mut self, i: usize, flow: &PacketFlow, slot: Slot, flow_word: FlowWord) -> bool {
        let (snapshot, epoch) = (self.context.snapshot, flow_word.policy_epoch());
        let is_error = self.batch.packets[i].kind == Kind::IcmpError;
        // A change of anything but rules numbers the hops again; another worker may be a generation ahead.
        let known =
            flow_word.hop().filter(|_| (snapshot.layout_generation..=snapshot.generation).contains(&epoch));
        let adjacency = if is_error {
            None
        } else {
            known.map(u32::from).and_then(|hop| Some((hop, snapshot.adjacency(hop)?)))
        };
        let number = match adjacency {
            Some((number, adjacency)) => {
                forward_via(self.batch, i, self.context, self.rate_limits, number, adjacency);
                Some(number)
            }
            None => self.route_known(i, slot, flow_word.side(flow.from_low)),
        };
        // A flow that a later generation has evaluated is not evaluated by an earlier one.
        if epoch > snapshot.generation || !self.batch.is_pending(i) {
            return true;
        }
        // The ends of the flow lie behind the port that the packet came from and the one that it leaves by.
        if epoch < snapshot.policy_epoch(self.batch.in_ports[i], self.batch.adjacencies[i].out) {
            match revalidate(self.batch, i, self.context, self.worker_state, (flow, slot), flow_word) {
                Revalidation::Current => {}
                Revalidation::Dropped => return true,
                Revalidation::Removed => {
                    self.reopen_removed(i, flow_word.side(flow.from_low));
                    return false;
                }
            }
        }
        let hop = if is_error { known } else { number.and_then(|number| u16::try_from(number).ok()) };
        let entry = self.context.conntrack.entry(slot);
        entry.mark_current(flow.from_low, flow_word, snapshot.generation, hop);
        true
    }

    /// Routes a packet of a known flow, or an error about one, which its receiver has sent. `sender`: the side of the packet,
    /// or of the one that the error is about.
    #[inline(always)]
    fn route_known(&mut self, i: usize, slot: Slot, sender: Side) -> Option<u32> {
        if !goes_back(self.batch, i, sender) {
            return route(self.batch, i, self.context, self.rate_limits);
        }
        let owner = self.context.conntrack.entry(slot).quota_owner().map(|owner| owner.port);
        route_back(self.batch, i, self.context, self.rate_limits, owner)
    }

    /// Adds a packet of a flow that is gone to the policy batch. It came from this side of the flow.
    #[cold]
    fn reopen_removed(&mut self, i: usize, sender: Side) {
        if sender == Side::Responder && self.batch.external_ports[i] != 0 {
            return self.batch.drop(i, DropReason::MasqueradeUnknown);
        }
        unmark(self.batch, i);
        // A reply to a flow that is gone does not come from its virtual address.
        if !self.batch.packets[i].translated {
            self.batch.translated.pop_if(|translated| usize::from(*translated) == i);
        }
        // The way of the flow's replies may be another one than that to their destination.
        if sender == Side::Responder {
            route(self.batch, i, self.context, self.rate_limits);
        }
        if self.batch.is_pending(i) {
            self.policy_batch.add(i, None);
        }
    }

    /// Routes a packet of a new flow, and adds it to the policy batch.
    #[inline(always)]
    fn route_new(&mut self, i: usize) {
        if self.batch.external_ports[i] != 0 {
            // The flow of a packet to an external port has ended in this batch.
            return self.batch.drop(i, DropReason::MasqueradeUnknown);
        }
        if let Some(reason) = check_packet_endpoints(&self.batch.packets[i]) {
            return self.batch.drop(i, reason);
        }
        let number = route(self.batch, i, self.context, self.rate_limits);
        if self.batch.is_pending(i) {
            self.policy_batch.add(i, number.and_then(|number| u16::try_from(number).ok()));
        }
    }
}
