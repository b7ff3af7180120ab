//! Trial of a connection: the stages take its first packet, with an empty flow table and no other packet before it.
//!
//! Nothing of the running switch changes: flows, bindings, external ports, Ethernet addresses and counters are the trial's own.

use std::io;
use std::net::{IpAddr, SocketAddr};

use etherparse::{Ethernet2Header, PacketBuilder, PacketBuilderStep, VlanId};

use crate::dataplane::conntrack::{Conntrack, Key, LookupBatch, QuotaClass, WorkerState};
use crate::dataplane::fib::port::PortView;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::fragments::{FirstFragmentTable, Fragments};
use crate::dataplane::masquerade::ExternalPorts;
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::neighbor::table::Neighbors;
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline;
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::pipeline::policy_batch::PolicyBatch;
use crate::dataplane::pipeline::stage_state::StageState;
use crate::dataplane::pipeline::translate::Translator;
use crate::dataplane::service::{BindingEnd, BindingKey, BindingKind, Bindings};
use crate::dataplane::stats::WorkerStats;
use crate::dataplane::waiting::Waiting;
use crate::dataplane::{DropReason, Mac, PortKind};
use crate::ids::{PortId, WorkerId};
use crate::limits::PORTS_MAX;
use crate::net::address::{Address, is_v4, pack};
use crate::net::flow::{FlowKey, Protocol};
use crate::net::sctp;
use crate::xdp::{Frame, Umem};

/// Flows of the trial's table.
const FLOWS: usize = 8;
/// Frames of the packet and of answers to it.
const FRAMES: usize = 16;
/// Time between two packets, longer than any limit of a rate looks back.
const INTERVAL_MS: u32 = 10_000;
/// Ethernet address of a sender that is not known. It is administered locally.
const SENDER: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);

/// Connection to try.
pub(super) struct Connection<'a> {
    /// Its key.
    pub(super) key: &'a FlowKey,
    /// Backend that it gets if it is to a Service with this one. `None`: the one that its hash prefers.
    pub(super) backend: Option<SocketAddr>,
    /// Flow table of the switch, whose hash chooses backends.
    pub(super) flows: &'a Conntrack,
    /// Whether a socket of the node sends.
    pub(super) by_node_socket: bool,
}

/// Fate of the first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Reason of its drop.
    pub(super) dropped: Option<DropReason>,
    /// Its destination behind the translation of a Service.
    pub(super) to: (Address, u16),
    /// Whether it leaves with an address of the node.
    pub(super) is_masqueraded: bool,
}

/// Parts of a worker that takes one packet at a time, without ports.
pub(in crate::dataplane) struct Trial {
    neighbors: Neighbors,
    /// Whether a neighbour on an uplink is among them.
    knows_uplink_neighbors: bool,
    stats: WorkerStats,
    first_fragments: FirstFragmentTable,
    umem: Umem,
    free: Vec<Frame>,
    batch: Batch,
    translator: Translator,
    lookups: LookupBatch,
    policy_batch: PolicyBatch,
    rate_limits: RateLimits,
    fragments: Fragments,
    transmit_credit: Box<[u32]>,
    /// Clock, milliseconds: each packet has a time of its own.
    now_ms: u32,
}

impl Trial {
    pub(in crate::dataplane) fn new() -> Trial {
        let (umem, free) = Umem::in_memory(FRAMES);
        Trial {
            neighbors: Neighbors::new(),
            knows_uplink_neighbors: false,
            stats: WorkerStats::new(),
            first_fragments: FirstFragmentTable::new(1),
            umem,
            free,
            batch: Batch::new(Waiting::new(0)),
            translator: Translator::new(),
            lookups: LookupBatch::new(),
            policy_batch: PolicyBatch::new(),
            rate_limits: RateLimits::new(),
            fragments: Fragments::new(FRAMES),
            transmit_credit: vec![FRAMES as u32; PORTS_MAX].into(),
            now_ms: 0,
        }
    }

    /// Takes the first packet of a connection, which comes by a port, through the stages. All neighbours are known.
    pub(super) fn first_packet(
        &mut self,
        snapshot: &Snapshot,
        connection: &Connection<'_>,
        from: (PortId, &PortView),
    ) -> io::Result<Outcome> {
        for (port, view) in snapshot.ports() {
            self.neighbors.learn(port, view.mac.unwrap_or(SENDER).to_bits());
            if view.kind == PortKind::Uplink && self.knows_uplink_neighbors {
                self.neighbors.forget_uplink(port);
            }
        }
        self.knows_uplink_neighbors = false;
        // A stage that misses a neighbour on an uplink names it.
        loop {
            let outcome = self.attempt(snapshot, connection, from)?;
            let missed = self.rate_limits.solicitations.pop();
            let missed = missed.filter(|_| outcome.dropped == Some(DropReason::Unresolved));
            let is_new = missed.is_some_and(|missed| {
                self.neighbors.set_uplink_mac(missed.port, missed.address, Some(SENDER))
            });
            if !is_new {
                return Ok(outcome);
            }
            self.knows_uplink_neighbors = true;
        }
    }

    fn attempt(
        &mut self,
        snapshot: &Snapshot,
        connection: &Connection<'_>,
        (from, view): (PortId, &PortView),
    ) -> io::Result<Outcome> {
        self.now_ms = self.now_ms.wrapping_add(INTERVAL_MS);
        let (conntrack, bindings) = (connection.flows.small_copy(FLOWS)?, Bindings::new(FLOWS, false)?);
        let external_ports = snapshot.masquerade().map(|_| ExternalPorts::new(FLOWS, false)).transpose()?;
        let context = Context {
            worker: 0,
            workers: 1,
            counted_by: None,
            now_ms: self.now_ms,
            now_ns: u64::from(self.now_ms) * 1_000_000,
            umem: &self.umem,
            snapshot,
            conntrack: &conntrack,
            bindings: &bindings,
            external_ports: external_ports.as_ref(),
            offload: None,
            neighbors: &self.neighbors,
            stats: &self.stats,
            events: None,
            first_fragments: &self.first_fragments,
        };
        let mut sender = view.mac.unwrap_or(SENDER);
        if connection.by_node_socket {
            // The mark of the node's sockets is the I/G bit.
            sender.0[0] |= 1;
        }
        let mut frame = self.free.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        let written = self.umem.write(&mut frame, &frame_of(connection.key, view, sender));
        self.batch.frames.push(frame);
        self.batch.note_received(0, from);
        // Another node's packet has come by the tunnel that leads to it.
        self.batch.by_tunnel[0] = snapshot.is_behind_tunnel(pack(connection.key.src));
        if let Some(backend) = connection.backend {
            bind(&context, connection.key, from, backend);
        }
        let mut worker_state = WorkerState::new(WorkerId(0), 1);
        conntrack.start_batch(&mut worker_state);
        let state = StageState {
            translator: &mut self.translator,
            lookups: &mut self.lookups,
            policy_batch: &mut self.policy_batch,
            worker_state: &mut worker_state,
            rate_limits: &mut self.rate_limits,
            fragments: &mut self.fragments,
            transmit_credit: &mut self.transmit_credit,
            free: &mut self.free,
        };
        let (mut to, mut is_masqueraded) = ((pack(connection.key.dst), connection.key.dst_port), false);
        pipeline::run(&mut self.batch, &context, state, |stage, batch| {
            // A dropped packet gets its own destination back, for the answer to its sender.
            let packet = &batch.packets[0];
            if stage == "classify" && packet.translated {
                to = (packet.dst, packet.dst_port);
            }
            if stage == "classify" {
                is_masqueraded = batch.external_ports[0] != 0;
            }
        });
        let dropped = match self.batch.dispositions[0] {
            Disposition::Dropped(reason) => Some(reason),
            _ => None,
        };
        while let Some(frame) = self.batch.frames.pop() {
            self.umem.release(frame, &mut self.free);
        }
        self.transmit_credit.fill(FRAMES as u32);
        written.map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Outcome { dropped, to, is_masqueraded })
    }
}

/// Binds the connection to a backend.
fn bind(context: &Context<'_>, key: &FlowKey, owner: PortId, to: SocketAddr) {
    let FlowKey { src, dst, protocol, src_port, dst_port } = *key;
    let (src, dst) = (pack(src), pack(dst));
    let packet = Packet { src, dst, protocol, src_port, dst_port, is_v4: is_v4(src), ..Packet::default() };
    let (key, from_low) = Key::of(&packet);
    let key = BindingKey { kind: BindingKind::Forward, key, from_low, hash: context.conntrack.hash(&key) };
    let to = BindingEnd::new(pack(to.ip()), to.port());
    context.bindings.bind(&key, to, owner, context.now_ms, 0, |_| QuotaClass::Ended);
}

/// The frame of a connection's first packet, from a station behind a port to the switch.
fn frame_of(key: &FlowKey, view: &PortView, sender: Mac) -> Vec<u8> {
    const HOPS: u8 = 64;
    let mut frame = Vec::new();
    let link = PacketBuilder::ethernet2(sender.0, view.own_mac.0);
    let tag = VlanId::try_new(view.vlan).ok().filter(|_| view.vlan != 0);
    let ip = |link: PacketBuilderStep<Ethernet2Header>| {
        let link = match tag {
            Some(tag) => Ok(link.single_vlan(tag)),
            None => Err(link),
        };
        match (link, key.src, key.dst) {
            (Ok(link), IpAddr::V4(src), IpAddr::V4(dst)) => link.ipv4(src.octets(), dst.octets(), HOPS),
            (Err(link), IpAddr::V4(src), IpAddr::V4(dst)) => link.ipv4(src.octets(), dst.octets(), HOPS),
            (Ok(link), src, dst) => link.ipv6(v6(src), v6(dst), HOPS),
            (Err(link), src, dst) => link.ipv6(v6(src), v6(dst), HOPS),
        }
    };
    let ip = ip(link);
    let ports = [key.src_port, key.dst_port];
    // Writing to memory cannot fail, and no payload is too long.
    let _ = match key.protocol {
        Protocol::TCP => ip.tcp(ports[0], ports[1], 1, u16::MAX).syn().write(&mut frame, &[]),
        Protocol::UDP => ip.udp(ports[0], ports[1]).write(&mut frame, &[0; 8]),
        Protocol::ICMP => ip.icmpv4_echo_request(ports[1], 1).write(&mut frame, &[0; 8]),
        Protocol::ICMPV6 => ip.icmpv6_echo_request(ports[1], 1).write(&mut frame, &[0; 8]),
        Protocol::SCTP => ip.write(&mut frame, Protocol::SCTP.0.into(), &sctp_init(ports)),
        other => ip.write(&mut frame, other.0.into(), &[0; 8]),
    };
    frame
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// An INIT (RFC 9260 section 3.3.2).
fn sctp_init([src, dst]: [u16; 2]) -> Vec<u8> {
    const CHUNK_BYTES: u8 = 20;
    let mut packet = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, CHUNK_BYTES, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    let checksum = sctp::checksum([&packet[..]]);
    packet[sctp::CHECKSUM_OFFSET..sctp::CHECKSUM_OFFSET + 4].copy_from_slice(&checksum);
    packet
}
