//! Cases of the packet path and their traffic: the sequence of packets that a case injects.

use palisade::limits::BATCH_FRAMES_MAX;
use palisade::net::flow::Protocol;
use palisade::net::tcp;

use super::compiled_rules::{CompiledRules, OPEN_PORTS, PODS};
use super::frame::{Flow, Fragment, Packet};
use super::random::{Random, SEED};

const SYN_ACK: u8 = tcp::Flags::SYN | tcp::Flags::ACK;

/// Order in which packets visit the flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Sequence,
    Random,
}

/// One case of the packet path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    /// Kind of traffic: `established`, `reply`, `exchange`, `new-flow`, `full-table`, `denied`, `mixed` or `fragments`.
    /// `tcp-` before the first three: TCP connections; `service-` before it: flows to virtual addresses.
    pub(crate) name: &'static str,
    /// IP version.
    pub(crate) family: u8,
    pub(crate) rules: usize,
    /// Flows that are established before the measurement.
    pub(crate) flows: usize,
    pub(crate) order: Order,
    pub(crate) workers: usize,
}

impl Case {
    /// Whether the initiators send to Services.
    pub(crate) fn by_service(&self) -> bool {
        self.name.starts_with("service-")
    }

    /// Protocol of its flows, of half of them in a mix.
    pub(crate) fn protocol(&self) -> Protocol {
        if self.name.contains("tcp-") { Protocol::TCP } else { Protocol::UDP }
    }

    /// Whether new flows find a table with a slot for each of its flows, all of which nobody has answered.
    pub(crate) fn fills_table(&self) -> bool {
        self.name == "full-table"
    }

    /// Bytes of every frame: the headers, and at least the minimum of Ethernet.
    pub(crate) fn frame_bytes(&self) -> usize {
        let is_larger = matches!(self.name, "mixed" | "fragments")
            || self.family == 6 && self.protocol() == Protocol::TCP;
        if is_larger { 80 } else { 64 }
    }
}

/// Endless sequence of packets.
pub(crate) struct Traffic {
    /// IP version of its packets.
    pub(crate) family: u8,
    /// Bytes of each frame.
    pub(crate) frame_bytes: usize,
    established: Vec<Flow>,
    denied: Vec<Flow>,
    /// Number of the next new flow.
    next_new: usize,
    kind: Kind,
    reversed: bool,
    by_service: bool,
    at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Established,
    NewFlow,
    Denied,
    /// A batch of data of the initiators, then one of the responders' acknowledgements of it.
    Exchange,
    Mixed,
    Fragments,
}

impl Traffic {
    /// Makes the packets of a case. Its established flows are those of [`Traffic::established`].
    pub(crate) fn new(case: &Case, tables: &CompiledRules) -> Traffic {
        let kind = match case.name.trim_start_matches("service-").trim_start_matches("tcp-") {
            "established" | "reply" => Kind::Established,
            "exchange" => Kind::Exchange,
            "new-flow" | "full-table" => Kind::NewFlow,
            "denied" => Kind::Denied,
            "fragments" => Kind::Fragments,
            _ => Kind::Mixed,
        };
        let mut random = Random(SEED ^ 1);
        let mut established = Traffic::established(case, tables).established;
        let mut denied =
            || (0..case.flows).map(|i| denied_flow(i, case.family, tables, &mut random)).collect();
        let mut denied: Vec<Flow> = match kind {
            Kind::Denied | Kind::Mixed => denied(),
            Kind::Established | Kind::Exchange | Kind::NewFlow | Kind::Fragments => Vec::new(),
        };
        if case.order == Order::Random {
            shuffle(&mut established);
            shuffle(&mut denied);
        }
        let reversed = case.name.ends_with("reply");
        Traffic { established, denied, next_new: case.flows, kind, reversed, ..Traffic::none(case) }
    }

    /// Makes the flows that are established before the measurement.
    pub(crate) fn established(case: &Case, tables: &CompiledRules) -> Traffic {
        let mut random = Random(SEED);
        let protocol = |i: usize| match case.name {
            "mixed" if i % 2 == 1 => Protocol::TCP,
            _ => case.protocol(),
        };
        let flows = if case.fills_table() { 0 } else { case.flows };
        let established: Vec<Flow> = (0..flows)
            .map(|i| of_service(case.by_service(), allowed_flow(i, protocol(i), &mut random)))
            .collect();
        for flow in established.iter().take(1000) {
            assert!(
                tables.classifier.decide_flow(&flow.key(case.family)).is_allow(),
                "rule 0 allows all peers"
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
            next_new: 0,
            kind: Kind::Established,
            reversed: false,
            by_service: case.by_service(),
            at: 0,
        }
    }

    /// Turns the packets into those of the reply direction.
    pub(crate) fn reversed(self) -> Traffic {
        Traffic { reversed: true, ..self }
    }

    /// Batches of one round. New flows take a slot of the flow table each, so their rounds are shorter.
    pub(crate) fn batches(&self) -> usize {
        if self.kind == Kind::NewFlow { 16 } else { 128 }
    }

    /// Packets that establish the flows: all first packets, all second ones, all third ones. A worker
    /// receives port by port, so a reply must not stand in the batch of the packet that it answers.
    pub(crate) fn handshake(&self) -> [Vec<Packet>; 3] {
        let by_service = self.by_service;
        let step = |reply, flags| {
            let of = self.established.iter().filter(move |flow| flags == 0 || flow.protocol == Protocol::TCP);
            of.map(move |&flow| Packet { flow, reply, flags, segments: None, fragment: None, by_service })
        };
        let udp = |reply| step(reply, 0).filter(|packet| packet.flow.protocol == Protocol::UDP);
        let (syn, syn_ack, ack) = (tcp::Flags::SYN, SYN_ACK, tcp::Flags::ACK);
        [
            udp(false).chain(step(false, syn)).collect(),
            udp(true).chain(step(true, syn_ack)).collect(),
            step(false, ack).collect(),
        ]
    }

    /// Returns the next packet, and whether the switch must forward it.
    pub(crate) fn next(&mut self) -> (Packet, bool) {
        let (at, by_service) = (self.at, self.by_service);
        self.at += 1;
        let kind = match (self.kind, at % 16) {
            (Kind::Mixed, 0 | 8) => Kind::NewFlow,
            (Kind::Mixed, 4) => Kind::Denied,
            (Kind::Mixed, _) => Kind::Established,
            (kind, _) => kind,
        };
        match kind {
            Kind::NewFlow => {
                let flow = allowed_flow(self.next_new, Protocol::UDP, &mut Random(SEED ^ at as u64));
                let flow = of_service(by_service, flow);
                self.next_new += 1;
                (Packet { flow, reply: false, flags: 0, segments: None, fragment: None, by_service }, true)
            }
            Kind::Denied => {
                let flow = self.denied[at % self.denied.len()];
                (Packet { flow, reply: false, flags: 0, segments: None, fragment: None, by_service }, false)
            }
            Kind::Fragments => {
                let flow = self.established[at / 2 % self.established.len()];
                let fragment = Fragment { identification: (at / 2) as u32, is_first: at.is_multiple_of(2) };
                let fragment = Some(fragment);
                (Packet { flow, reply: false, flags: 0, segments: None, fragment, by_service }, true)
            }
            Kind::Established | Kind::Mixed => {
                let flow = self.established[at % self.established.len()];
                let reply = self.reversed || self.kind == Kind::Mixed && at / 16 % 2 == 1;
                let flags = tcp::Flags::ACK;
                (Packet { flow, reply, flags, segments: None, fragment: None, by_service }, true)
            }
            Kind::Exchange => {
                let (turn, flows) = (at / BATCH_FRAMES_MAX, self.established.len());
                let (number, reply) = (turn / 2 * BATCH_FRAMES_MAX + at % BATCH_FRAMES_MAX, turn % 2 == 1);
                let segments = Some((number / flows) as u32 + u32::from(reply));
                let flow = self.established[number % flows];
                let flags = tcp::Flags::ACK;
                (Packet { flow, reply, flags, segments, fragment: None, by_service }, true)
            }
        }
    }
}

/// Makes flow number `i`. Consecutive flows have different pods, and no two flows are the same.
fn numbered_flow(i: usize, dst_port: u16, protocol: Protocol) -> Flow {
    let pods = usize::from(PODS);
    let (src, rest) = (i % pods, i / pods);
    let (other, rest) = (1 + rest % (pods - 1), rest / (pods - 1));
    let src_port = u16::try_from(1024 + rest).expect("no more flows than port numbers");
    Flow { src: src as u16, dst: ((src + other) % pods) as u16, src_port, dst_port, protocol }
}

/// Makes an allowed flow.
fn allowed_flow(i: usize, protocol: Protocol, random: &mut Random) -> Flow {
    let range = u64::from(OPEN_PORTS.end() - OPEN_PORTS.start());
    numbered_flow(i, OPEN_PORTS.start() + random.below(range) as u16, protocol)
}

/// A flow with the port that Services have, if it goes to one.
fn of_service(by_service: bool, flow: Flow) -> Flow {
    if by_service { Flow { dst_port: *OPEN_PORTS.start(), ..flow } } else { flow }
}

/// Makes a denied flow. The destination denies every other one, if the tables have such flows.
fn denied_flow(i: usize, family: u8, tables: &CompiledRules, random: &mut Random) -> Flow {
    let mut found = None;
    for attempt in 0.. {
        let flow = numbered_flow(i, random.below(u64::from(*OPEN_PORTS.start())) as u16, Protocol::UDP);
        let decisions = tables.classifier.decide_flow(&flow.key(family));
        let by_source = decisions.egress.is_some_and(|decision| !decision.is_allow());
        if !decisions.is_allow() {
            found = Some(flow);
        }
        if found.is_some() && (i.is_multiple_of(2) || !by_source || attempt > 64) {
            break;
        }
    }
    found.expect("a denied port")
}

fn shuffle<T>(items: &mut [T]) {
    let mut random = Random(SEED ^ 2);
    for i in (1..items.len()).rev() {
        items.swap(i, random.below(i as u64 + 1) as usize);
    }
}
