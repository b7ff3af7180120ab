//! Destinations of packets to virtual addresses.

use std::collections::VecDeque;

use super::bind::flow_of_binding;
use super::destination::{follow, refuse_other};
use super::hairpin::{turn_error_back, turn_reply_back};
use super::masquerade::receive_masqueraded;
use super::pick::{Preferred, is_outside, prefer_backend, take_backend};
use super::tuple::{End, replace_end};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{Entry, Key, Slot};
use crate::dataplane::fib::port::PortView;
use crate::dataplane::masquerade::ExternalEnd;
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::pipeline::parse::parse_quoted;
use crate::dataplane::service::{
    BindingEnd, BindingKey, BindingKind, BindingLookup, Owner, ServiceFib, SourceChoice, Translation,
    TranslationKind,
};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::address::Address;
use crate::net::flow::Protocol;
use crate::net::icmp;

/// Packets whose bindings are loaded together.
const LOADED_TOGETHER: usize = 64;

/// Places of the packets of a batch that are translated, and their lookups.
pub(crate) struct Translator {
    /// Packets that may be to a virtual address.
    candidates: Vec<u16>,
    /// Lookups of the bindings of these.
    lookups: Box<[BindingLookup; BATCH_FRAMES_MAX]>,
    /// Of those, packets that do not take a cached hop.
    others: Vec<u16>,
    /// Of these, packets that get the backend of a new flow.
    preferred: Vec<(u16, Preferred)>,
    /// Packets that have opened flows to Services, which are still to be bound.
    pub(in crate::dataplane::pipeline) opened: Vec<u16>,
    /// Replies of translated flows, whose bindings are being loaded.
    pub(in crate::dataplane::pipeline) replies: Vec<u16>,
    /// Packets from uplinks to external ports, with the hashes of these ends.
    pub(super) external: Vec<(u16, u64, ExternalEnd)>,
    /// Packets whose flows have another source port, because another flow has their key.
    pub(in crate::dataplane::pipeline) collided: VecDeque<u16>,
}

impl Translator {
    /// Starts to load the memory that the binding of a packet's new flow takes.
    #[inline]
    pub(super) fn prefetch_binding(&self, i: u16, context: &Context<'_>, is_v4: bool) {
        context.bindings.prefetch_free(self.lookups[usize::from(i)].hash, is_v4);
    }

    pub(crate) fn new() -> Translator {
        Translator {
            candidates: Vec::with_capacity(BATCH_FRAMES_MAX),
            lookups: Box::new([BindingLookup::default(); BATCH_FRAMES_MAX]),
            others: Vec::with_capacity(BATCH_FRAMES_MAX),
            preferred: Vec::with_capacity(BATCH_FRAMES_MAX),
            opened: Vec::with_capacity(BATCH_FRAMES_MAX),
            replies: Vec::with_capacity(BATCH_FRAMES_MAX),
            external: Vec::with_capacity(BATCH_FRAMES_MAX),
            collided: VecDeque::with_capacity(BATCH_FRAMES_MAX),
        }
    }
}

/// Translates the destinations of packets to virtual addresses.
#[inline]
pub(in crate::dataplane::pipeline) fn translate(
    batch: &mut Batch,
    context: &Context<'_>,
    translator: &mut Translator,
) {
    receive_masqueraded(batch, context, &mut translator.external);
    if context.bindings.awaits_services(context.now_ms) {
        translate_bound(batch, context);
    }
    if let Some(services) = context.snapshot.services() {
        translate_batch(batch, context, translator, services);
    }
}

/// Translates packets of connections that the process before has bound, until Services are loaded.
#[cold]
#[inline(never)]
fn translate_bound(batch: &mut Batch, context: &Context<'_>) {
    for i in 0..batch.len() {
        let packet = &batch.packets[i];
        let may_be_bound = batch.is_pending(i)
            && packet.kind == Kind::Flow
            && packet.protocol.has_ports()
            && packet.whole
            && !packet.opens_connection();
        if may_be_bound {
            let key = key_of(packet, context);
            match context.bindings.find(&key) {
                Some(binding)
                    if binding.to.address == packet.src
                        || flow_of_binding(context, packet, &binding).is_some() =>
                {
                    follow(batch, i, context, &binding, binding.idle_seconds(context.now_ms) == 0);
                }
                None if context.bindings.has_hairpins() => {
                    turn_reply_back(batch, i, context, &key);
                }
                _ => {}
            }
        }
    }
}

#[inline(never)]
fn translate_batch(
    batch: &mut Batch,
    context: &Context<'_>,
    translator: &mut Translator,
    services: &ServiceFib,
) {
    translator.candidates.clear();
    // The bindings of a few packets are loaded together, and are still in the first cache when they are read.
    for start in (0..batch.len()).step_by(LOADED_TOGETHER) {
        let first = translator.candidates.len();
        for i in start..batch.len().min(start + LOADED_TOGETHER) {
            let packet = &batch.packets[i];
            if batch.is_pending(i) && services.may_serve(packet.dst) {
                if packet.kind == Kind::Flow {
                    let key = key_of(packet, context);
                    context.bindings.prefetch(key.hash);
                    translator.lookups[i] = BindingLookup::from(&key);
                }
                translator.candidates.push(i as u16);
            }
        }
        for n in first..translator.candidates.len() {
            translate_candidate(batch, n, context, translator, services);
        }
    }
    for n in 0..translator.others.len() {
        let i = usize::from(translator.others[n]);
        if let Some(preferred) = translate_other(batch, i, context, services) {
            translator.preferred.push((i as u16, preferred));
        }
    }
    translator.others.clear();
    for (i, preferred) in &translator.preferred {
        take_backend(batch, usize::from(*i), context, services, preferred);
    }
    translator.preferred.clear();
}

/// Translates candidate `n` if it takes a cached hop or is an error, or leaves it to the next pass.
#[inline(always)]
fn translate_candidate(
    batch: &mut Batch,
    n: usize,
    context: &Context<'_>,
    translator: &mut Translator,
    services: &ServiceFib,
) {
    let i = usize::from(translator.candidates[n]);
    match batch.packets[i].kind {
        Kind::Flow => {
            let lookup = &translator.lookups[i];
            if !take_cached_hop(batch, i, context, services, lookup) {
                context.bindings.prefetch_tags(lookup.hash);
                translator.others.push(i as u16);
            }
        }
        Kind::IcmpError if is_served(batch, i, context, services) => {
            translate_error(batch, i, context, services);
        }
        // The stage `fragments` translates them, after the first ones of the batch.
        Kind::IcmpError | Kind::LaterFragment | Kind::Arp | Kind::LinkLocal => {}
    }
}

/// Whether a packet that passes the filter is to an address that Services have. A packet to the node is if its port is a
/// Service's.
fn is_served(batch: &Batch, i: usize, context: &Context<'_>, services: &ServiceFib) -> bool {
    let packet = &batch.packets[i];
    match services.owner(packet.dst) {
        None => false,
        Some(Owner::Cluster | Owner::External) => true,
        Some(Owner::Node) => {
            // A pod that reaches itself replies to the port of its own end.
            let may_be_own_reply = || {
                context.bindings.has_hairpins()
                    && context.snapshot.port(batch.in_ports[i]).is_some_and(PortView::is_pod)
            };
            packet.kind != Kind::Flow
                || services.has_node_port(packet.dst, packet.protocol, packet.dst_port)
                || may_be_own_reply()
        }
    }
}

/// Key of the binding of a packet to a virtual address.
#[inline(always)]
fn key_of(packet: &Packet, context: &Context<'_>) -> BindingKey {
    let (key, from_low) = if packet.is_v4 { Key::of_v4(packet) } else { Key::of_v6(packet) };
    BindingKey { kind: BindingKind::Forward, key, from_low, hash: context.conntrack.hash(&key) }
}

/// Whether a packet of a flow may follow a binding without another look at the Services.
#[inline(always)]
fn may_follow(packet: &Packet, services: &ServiceFib) -> bool {
    packet.protocol.has_ports()
        && (packet.whole || packet.first_fragment)
        && !packet.opens_connection()
        && !services.refuses(packet.dst)
}

/// Translates and routes a packet by the hop that is cached beside its binding, if the binding was checked in this second. A segment
/// of TCP also has to go on in the connection that is in the slot beside the hop. Returns false for any other packet, which takes
/// the other stages.
///
/// The hash stands for the addresses of an IPv6 key here. A packet whose key has the hash of another one follows a binding of its
/// own port, to a backend that policy allows this port.
#[inline(always)]
fn take_cached_hop(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    services: &ServiceFib,
    lookup: &BindingLookup,
) -> bool {
    let (snapshot, packet, port) = (context.snapshot, &mut batch.packets[i], batch.in_ports[i]);
    let Some(binding) = context.bindings.find_checked(lookup) else { return false };
    let Some((epoch, hop)) = context.bindings.cached_hop(binding.place()) else { return false };
    let Some(adjacency) = snapshot.adjacency(hop.into()) else { return false };
    let is_current = binding.is_checked(context.now_ms, services.revision, port)
        && packet.whole
        && !services.refuses(packet.dst)
        && adjacency.takes(packet)
        && snapshot.is_current(epoch, port, adjacency.out);
    if !is_current {
        return false;
    }
    let to = (binding.to.address, binding.to.port);
    let connection = match packet.protocol {
        Protocol::TCP => {
            match pass_segment_to(packet, context, context.bindings.cached_flow(binding.place()), to) {
                None => return false,
                connection => connection,
            }
        }
        _ => None,
    };
    if !replace_end(context.umem.data_mut(&mut batch.frames[i]), packet, End::Destination, to) {
        return false;
    }
    match connection {
        Some((entry, from_low)) => entry.count(from_low, packet.ip_bytes(), context.now_ms),
        None => context.bindings.count(binding.place(), packet.ip_bytes(), context.now_ms),
    }
    (packet.dst, packet.dst_port) = to;
    batch.adjacencies[i] = adjacency;
    batch.dispositions[i] = Disposition::Routed;
    true
}

/// Takes the numbers of a segment to a backend into the connection of its flow, if that is in this slot. Returns the entry, and
/// whether the client is the lower end. Returns `None`, and does nothing, if another flow is there, or if the segment may change
/// the state of the connection.
#[inline(never)]
fn pass_segment_to<'a>(
    packet: &Packet,
    context: &Context<'a>,
    flow: Option<u32>,
    to: (Address, u16),
) -> Option<(&'a Entry, bool)> {
    let slot = Slot::of_number(flow?);
    let entry = context.conntrack.entry_at(slot)?;
    let (key, from_low) = Key::of(&Packet { dst: to.0, dst_port: to.1, ..*packet });
    let is_known =
        entry.matches(&key, from_low) && entry.flow_word(from_low).plain_hop_translated().is_some();
    (is_known && context.conntrack.pass_segment(slot, from_low, packet)).then_some((entry, from_low))
}

/// Translates any other packet of a flow, by the binding of its flow. Returns the preferred backend of a packet without one.
#[inline]
fn translate_other(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    services: &ServiceFib,
) -> Option<Preferred> {
    let packet = &batch.packets[i];
    let key = key_of(packet, context);
    let bound = context.bindings.find_preferred(&key);
    let current = bound.filter(|binding| binding.is_of(services.revision, context.now_ms));
    if let Some(binding) = current.filter(|_| may_follow(packet, services)) {
        follow(batch, i, context, &binding, binding.idle_seconds(context.now_ms) == 0);
        return None;
    }
    let is_outside = is_outside(batch, i, context);
    let found = services.find(packet.dst, packet.protocol, packet.dst_port, is_outside);
    if found.is_none() && !is_served(batch, i, context, services) {
        return None;
    }
    // The transport checksum of a packet with a routing header covers another destination.
    if !packet.protocol.has_ports() || !(packet.whole || packet.first_fragment) {
        refuse_other(batch, i, services);
        return None;
    }
    let bound = bound.or_else(|| context.bindings.find_by_tag(&key));
    if found.is_some_and(|found| !found.admits(packet.src)) {
        // An open connection goes on when the sources change.
        let is_open = bound
            .is_some_and(|bound| keeps_backend(packet) && flow_of_binding(context, packet, &bound).is_some());
        if !is_open {
            batch.drop(i, DropReason::ServiceSource);
            return None;
        }
    }
    if let Some(binding) = bound {
        let to = binding.to;
        let is_current = binding.is_of(services.revision, context.now_ms) && !packet.opens_connection();
        // A connection stays with a backend that leaves. A new one, or a datagram, does not go there.
        let stays = is_current
            || found.is_some_and(|found| {
                keeps_backend(packet) && flow_of_binding(context, packet, &binding).is_some()
                    || found.entry.find(found.backends, packet.is_v4, to.address, to.port).is_some()
            });
        if stays {
            let is_checked = is_current && binding.idle_seconds(context.now_ms) == 0;
            follow(batch, i, context, &binding, is_checked);
            return None;
        }
        if let Some(flow) = flow_of_binding(context, packet, &binding) {
            context.conntrack.take_forward_count(flow);
            // The program would find the flow to the former backend by this packet.
            context.conntrack.end_offload(flow);
        }
        context.bindings.remove(&key);
    }
    prefer_backend(batch, i, context, services, &key, found)
}

/// Whether a packet belongs to a connection that outlives the backend's place in its lists.
fn keeps_backend(packet: &Packet) -> bool {
    packet.protocol != Protocol::UDP && !packet.opens_connection()
}

/// Translates an ICMP error about a reply, which the client has got from a virtual address.
#[cold]
#[inline(never)]
fn translate_error(batch: &mut Batch, i: usize, context: &Context<'_>, services: &ServiceFib) {
    let quoted = quoted_reply(batch, i, context);
    if let Some(quoted) = &quoted
        && context.bindings.has_hairpins()
        && turn_error_back(batch, i, context, quoted)
    {
        return;
    }
    let found = quoted.and_then(|quoted| Some((quoted, binding_of_reply(context, &quoted)?)));
    let Some((quoted, to)) = found else { return refuse_other(batch, i, services) };
    let client_port = if to.source == SourceChoice::OWN { 0 } else { quoted.dst_port };
    let packet = &mut batch.packets[i];
    let translation = Translation::new(TranslationKind::ErrorToBackend, true, (packet.dst, quoted.src_port));
    // The stage `lookup` takes the quoted ends from here: the backend, and the source port of the flow.
    (packet.dst, packet.dst_port, packet.translated) = (to.address, to.port, true);
    packet.src_port = to.source.port_of(quoted.dst_port);
    batch.translate(i, translation, client_port);
}

/// The packet from a virtual address that an ICMP error to this address quotes.
fn quoted_reply(batch: &Batch, i: usize, context: &Context<'_>) -> Option<Packet> {
    let packet = &batch.packets[i];
    let message = packet.transport(context.umem.data(&batch.frames[i]));
    let mut quoted = Packet::default();
    let is_about_reply = parse_quoted(message.get(icmp::HEADER_BYTES..)?, &mut quoted)
        && packet.whole
        && quoted.src == packet.dst
        && quoted.protocol.has_ports();
    is_about_reply.then_some(quoted)
}

/// The backend that has sent a reply.
fn binding_of_reply(context: &Context<'_>, reply: &Packet) -> Option<BindingEnd> {
    let (key, from_virtual) = Key::of(reply);
    let hash = context.conntrack.hash(&key);
    let key = BindingKey { kind: BindingKind::Forward, key, from_low: !from_virtual, hash };
    Some(context.bindings.find(&key)?.to)
}
