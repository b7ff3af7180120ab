//! The packets of a case: which flows, in which order, and their bytes.

use std::net::IpAddr;

use palisade::net::checksum::{Sum, pseudo_header_of};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::net::mac::Mac;
use palisade::net::{ethernet, ipv4, ipv6, tcp, udp};

use super::rig::{EVERYONE, PODS, Tables};
use crate::common::Random;
use crate::common::rules::{Family, PODS_PER_NODE};

/// Ethernet address of the switch.
pub(crate) const GATEWAY: Mac = Mac([2, 0, 0, 0, 0, 1]);
const SEED: u64 = 0x9a11_5ade;

/// In which order flows are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Sequence,
    Random,
}

/// One case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) family: u8,
    pub(crate) rules: usize,
    pub(crate) flows: usize,
    pub(crate) order: Order,
    pub(crate) workers: usize,
}

impl Case {
    /// Bytes of every frame: as few as hold the headers, and at least what Ethernet asks for.
    pub(crate) fn frame_bytes(&self) -> usize {
        if matches!(self.name, "mixed" | "fragments") { 80 } else { 64 }
    }
}

/// A flow between two pods of the node.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    src: u16,
    dst: u16,
    src_port: u16,
    dst_port: u16,
    protocol: Protocol,
}

/// One frame to inject.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    flow: Flow,
    reply: bool,
    flags: u8,
    part: Option<Part>,
}

/// A fragment of a datagram of two.
#[derive(Clone, Copy)]
struct Part {
    identification: u32,
    is_first: bool,
}

/// Bytes of the first fragment behind its IP headers: a multiple of eight. The second has as many.
const PART_BYTES: usize = 16;

/// An endless sequence of packets.
pub(crate) struct Traffic {
    /// IP version of its packets.
    pub(crate) family: u8,
    /// Bytes of each frame.
    pub(crate) frame_bytes: usize,
    established: Vec<Flow>,
    denied: Vec<Flow>,
    /// Number of the next flow that nobody has opened.
    fresh: usize,
    kind: Kind,
    answers: bool,
    at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Established,
    NewFlow,
    Denied,
    Mixed,
    Fragments,
}

/// The address of a pod.
pub(crate) fn address(pod: u16, family: u8) -> IpAddr {
    assert!(u32::from(pod) < PODS_PER_NODE);
    if family == 4 {
        <u32 as Family>::from_top(<u32 as Family>::pod(pod.into())).ip()
    } else {
        <u128 as Family>::from_top(<u128 as Family>::pod(pod.into())).ip()
    }
}

/// The Ethernet address of a pod.
pub(crate) fn mac(pod: u16) -> Mac {
    Mac([2, 0, 0, 1, 0, pod as u8])
}

impl Flow {
    /// Flow number `i`: consecutive ones are of different pods, no two are the same.
    fn number(i: usize, dst_port: u16, protocol: Protocol) -> Flow {
        let pods = usize::from(PODS);
        let (src, rest) = (i % pods, i / pods);
        let (other, rest) = (1 + rest % (pods - 1), rest / (pods - 1));
        let src_port = u16::try_from(1024 + rest).expect("no more flows than port numbers");
        Flow { src: src as u16, dst: ((src + other) % pods) as u16, src_port, dst_port, protocol }
    }

    fn key(&self, family: u8) -> FlowKey {
        let (src, dst) = (address(self.src, family), address(self.dst, family));
        FlowKey { src, dst, protocol: self.protocol, src_port: self.src_port, dst_port: self.dst_port }
    }

    /// An allowed flow.
    fn allowed(i: usize, protocol: Protocol, random: &mut Random) -> Flow {
        let range = u64::from(EVERYONE.end() - EVERYONE.start());
        Flow::number(i, EVERYONE.start() + random.below(range) as u16, protocol)
    }

    /// A denied flow; every other one is denied by its destination, if the tables have such flows.
    fn denied(i: usize, family: u8, tables: &Tables, random: &mut Random) -> Flow {
        let mut found = None;
        for attempt in 0.. {
            let flow = Flow::number(i, random.below(u64::from(*EVERYONE.start())) as u16, Protocol::UDP);
            let judgement = tables.classifier.decide_flow(&flow.key(family));
            let by_source = judgement.egress.is_some_and(|decision| !decision.is_allow());
            if !judgement.is_allow() {
                found = Some(flow);
            }
            if found.is_some() && (i.is_multiple_of(2) || !by_source || attempt > 64) {
                break;
            }
        }
        found.expect("a denied port")
    }
}

impl Traffic {
    /// The packets of a case. The flows that it takes for known are those of [`Traffic::established`].
    pub(crate) fn new(case: &Case, tables: &Tables) -> Traffic {
        let kind = match case.name {
            "established" => Kind::Established,
            "new-flow" => Kind::NewFlow,
            "denied" => Kind::Denied,
            "fragments" => Kind::Fragments,
            _ => Kind::Mixed,
        };
        let mut random = Random(SEED ^ 1);
        let mut established = Traffic::established(case, tables).established;
        let mut denied =
            || (0..case.flows).map(|i| Flow::denied(i, case.family, tables, &mut random)).collect();
        let mut denied: Vec<Flow> = match kind {
            Kind::Denied | Kind::Mixed => denied(),
            Kind::Established | Kind::NewFlow | Kind::Fragments => Vec::new(),
        };
        if case.order == Order::Random {
            shuffle(&mut established);
            shuffle(&mut denied);
        }
        Traffic { established, denied, fresh: case.flows, kind, ..Traffic::none(case) }
    }

    /// The flows that are there before the measurement.
    pub(crate) fn established(case: &Case, tables: &Tables) -> Traffic {
        let mut random = Random(SEED);
        let protocol = |i: usize| match case.name {
            "mixed" if i % 2 == 1 => Protocol::TCP,
            _ => Protocol::UDP,
        };
        let established: Vec<Flow> =
            (0..case.flows).map(|i| Flow::allowed(i, protocol(i), &mut random)).collect();
        for flow in established.iter().take(1000) {
            assert!(
                tables.classifier.decide_flow(&flow.key(case.family)).is_allow(),
                "rule 0 lets everyone in"
            );
        }
        Traffic { established, ..Traffic::none(case) }
    }

    fn none(case: &Case) -> Traffic {
        Traffic {
            family: case.family,
            frame_bytes: case.frame_bytes(),
            established: Vec::new(),
            denied: Vec::new(),
            fresh: 0,
            kind: Kind::Established,
            answers: false,
            at: 0,
        }
    }

    /// The packets of the other direction.
    pub(crate) fn answering(self) -> Traffic {
        Traffic { answers: true, ..self }
    }

    /// Batches of one round: new flows take a place in the table each, so there are fewer of them.
    pub(crate) fn batches(&self) -> usize {
        if self.kind == Kind::NewFlow { 16 } else { 128 }
    }

    /// The packets that open the flows: all first ones, all second ones, all third ones. The worker takes the frames of one
    /// port after those of another, so that an answer must not be in the batch of its question.
    pub(crate) fn opening(&self) -> [Vec<Packet>; 3] {
        let step = |reply, flags| {
            let of = self.established.iter().filter(move |flow| flags == 0 || flow.protocol == Protocol::TCP);
            of.map(move |&flow| Packet { flow, reply, flags, part: None })
        };
        let udp = |reply| step(reply, 0).filter(|packet| packet.flow.protocol == Protocol::UDP);
        let (syn, syn_ack, ack) = (tcp::Flags::SYN, SYN_ACK, tcp::Flags::ACK);
        [
            udp(false).chain(step(false, syn)).collect(),
            udp(true).chain(step(true, syn_ack)).collect(),
            step(false, ack).collect(),
        ]
    }

    /// The next packet, and whether the switch is to forward it.
    pub(crate) fn next(&mut self) -> (Packet, bool) {
        let at = self.at;
        self.at += 1;
        let kind = match (self.kind, at % 16) {
            (Kind::Mixed, 0 | 8) => Kind::NewFlow,
            (Kind::Mixed, 4) => Kind::Denied,
            (Kind::Mixed, _) => Kind::Established,
            (kind, _) => kind,
        };
        match kind {
            Kind::NewFlow => {
                let flow = Flow::allowed(self.fresh, Protocol::UDP, &mut Random(SEED ^ at as u64));
                self.fresh += 1;
                (Packet { flow, reply: false, flags: 0, part: None }, true)
            }
            Kind::Denied => {
                let flow = self.denied[at % self.denied.len()];
                (Packet { flow, reply: false, flags: 0, part: None }, false)
            }
            Kind::Fragments => {
                let flow = self.established[at / 2 % self.established.len()];
                let part = Part { identification: (at / 2) as u32, is_first: at.is_multiple_of(2) };
                (Packet { flow, reply: false, flags: 0, part: Some(part) }, true)
            }
            Kind::Established | Kind::Mixed => {
                let flow = self.established[at % self.established.len()];
                let reply = self.answers || self.kind == Kind::Mixed && at / 16 % 2 == 1;
                (Packet { flow, reply, flags: tcp::Flags::ACK, part: None }, true)
            }
        }
    }
}

const SYN_ACK: u8 = tcp::Flags::SYN | tcp::Flags::ACK;

impl Packet {
    /// The pod that sends it.
    pub(crate) fn sender(&self) -> u16 {
        if self.reply { self.flow.dst } else { self.flow.src }
    }

    /// Writes the frame.
    pub(crate) fn write(&self, family: u8, frame: &mut [u8]) {
        let Flow { src, dst, src_port, dst_port, protocol } = self.flow;
        let (src, dst) = if self.reply { (dst, src) } else { (src, dst) };
        let (src_port, dst_port) = if self.reply { (dst_port, src_port) } else { (src_port, dst_port) };
        frame.fill(0);
        ethernet::set_addresses(frame, GATEWAY, mac(src));
        let payload = match (protocol, family) {
            (Protocol::TCP, _) => tcp::HEADER_BYTES,
            (_, 4) => frame.len() - ethernet::HEADER_BYTES - ipv4::HEADER_BYTES,
            _ => frame.len() - ethernet::HEADER_BYTES - ipv6::HEADER_BYTES,
        };
        let packet = &mut frame[ethernet::HEADER_BYTES..];
        let (ethertype, segment) = match (address(src, family), address(dst, family)) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ipv4::write(packet, src.to_bits(), dst.to_bits(), protocol, payload, 64);
                (ethernet::IPV4, ipv4::HEADER_BYTES)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ipv6::write(packet, src.to_bits(), dst.to_bits(), protocol, payload, 64);
                (ethernet::IPV6, ipv6::HEADER_BYTES)
            }
            _ => unreachable!("both pods are asked for the same family"),
        };
        let segment = &mut packet[segment..][..payload];
        segment[..2].copy_from_slice(&src_port.to_be_bytes());
        segment[2..4].copy_from_slice(&dst_port.to_be_bytes());
        if protocol == Protocol::TCP {
            // SYN has the sequence number 0, everything after it 1, in both directions.
            let syn = self.flags & tcp::Flags::SYN != 0;
            segment[7] = u8::from(!syn);
            segment[11] = u8::from(self.flags & tcp::Flags::ACK != 0);
            segment[12] = 5 << 4;
            segment[13] = self.flags;
            segment[14] = 0x20;
        } else {
            segment[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        }
        let (src, dst) = (address(src, family), address(dst, family));
        let checksum = pseudo_header_of(src, dst, protocol, payload).add_bytes(segment).finish();
        let field = if protocol == Protocol::TCP { tcp::CHECKSUM_OFFSET } else { udp::CHECKSUM_OFFSET };
        segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        if let Some(part) = self.part {
            part.write(family, &mut frame[ethernet::HEADER_BYTES..]);
        }
    }
}

impl Part {
    /// Makes a fragment of a whole packet.
    fn write(self, family: u8, packet: &mut [u8]) {
        let datagram = ((2 * PART_BYTES) as u16).to_be_bytes();
        if family == 4 {
            let udp = ipv4::HEADER_BYTES;
            packet[udp + 4..udp + 6].copy_from_slice(&datagram);
            packet[2..4].copy_from_slice(&((ipv4::HEADER_BYTES + PART_BYTES) as u16).to_be_bytes());
            packet[4..6].copy_from_slice(&(self.identification as u16).to_be_bytes());
            let place: u16 = if self.is_first { 1 << 13 } else { PART_BYTES as u16 / 8 };
            packet[6..8].copy_from_slice(&place.to_be_bytes());
            packet[10..12].fill(0);
            let checksum = Sum::default().add_bytes(&packet[..ipv4::HEADER_BYTES]).finish();
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            const FRAGMENT: u8 = 44;
            let header = ipv6::HEADER_BYTES;
            packet[header + 4..header + 6].copy_from_slice(&datagram);
            packet.copy_within(header..header + PART_BYTES, header + 8);
            packet[4..6].copy_from_slice(&((8 + PART_BYTES) as u16).to_be_bytes());
            let next = std::mem::replace(&mut packet[6], FRAGMENT);
            let place: u16 = if self.is_first { 1 } else { PART_BYTES as u16 };
            packet[header..header + 2].copy_from_slice(&[next, 0]);
            packet[header + 2..header + 4].copy_from_slice(&place.to_be_bytes());
            packet[header + 4..header + 8].copy_from_slice(&self.identification.to_be_bytes());
        }
    }
}

fn shuffle<T>(items: &mut [T]) {
    let mut random = Random(SEED ^ 2);
    for i in (1..items.len()).rev() {
        items.swap(i, random.below(i as u64 + 1) as usize);
    }
}
