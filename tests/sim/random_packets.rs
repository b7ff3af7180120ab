//! Random packets, policies, pods and waits: the switch compared with the reference model after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use palisade::dataplane::ConntrackSettings;
use palisade::ids::{AttachmentId, PortId};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::tables::Verdict;
use proptest::prelude::*;

use crate::frames::{Spec, Transport};
use crate::rig::model::{ACK, Expected, FIN, Model, RST, SYN};
use crate::rig::rule_lists::{PodRules, Rule, Rules};
use crate::rig::{self, HOST, PODS, Rig, Setting, UPLINK};

/// Source or destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Pod(usize),
    Node,
    /// Address behind the node.
    Container,
    Outside(usize),
    Gateway,
    Group,
    LinkLocal,
}

/// Header above IP. Sequence numbers of TCP follow from the flow.
#[derive(Debug, Clone, Copy)]
enum Carried {
    /// Sequence number this far beyond the next one.
    Tcp {
        ports: [u16; 2],
        flags: u8,
        beyond: u32,
    },
    Udp {
        ports: [u16; 2],
    },
    Sctp {
        ports: [u16; 2],
        chunk: u8,
    },
    Echo {
        request: bool,
        identifier: u16,
    },
    /// Other message of ICMP: its type over IPv4 and over IPv6.
    Icmp {
        kinds: [u8; 2],
        identifier: u16,
    },
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Draft {
    from: End,
    to: End,
    v6: bool,
    carried: Carried,
    ttl: u8,
    payload_bytes: usize,
    /// Port of arrival, if not the source's own.
    wrong_port: Option<u16>,
    /// Corrupts the Ethernet header.
    mishap: u8,
    /// Corrupts the transport checksum.
    broken: bool,
    /// Sends an ICMP error that quotes the packet back to its sender.
    is_quoted: bool,
    /// Takes the flow with this number, if there are any, and this side as the sender.
    flow: Option<(prop::sample::Index, usize)>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Packets of one batch of one worker on one port: those of the list with the first one's port.
    Packets {
        worker: usize,
        drafts: Vec<Draft>,
    },
    Rules {
        pod: usize,
        rules: Option<PodRules>,
    },
    Load {
        loaded: bool,
        fail_open: bool,
    },
    /// Attaches or detaches the pod.
    Attach {
        pod: usize,
        attached: bool,
    },
    Wait {
        seconds: u64,
    },
}

fn address(end: End, v6: bool) -> IpAddr {
    let pair = match end {
        End::Pod(pod) => rig::pod_address(pod),
        End::Node => rig::node_address(),
        End::Container => [rig::ip("172.17.0.2"), rig::ip("fd17::2")],
        End::Outside(number) => rig::outside_address(number),
        End::Gateway => rig::gateway_address(),
        End::Group => [rig::ip("224.0.0.251"), rig::ip("ff02::fb")],
        End::LinkLocal => [rig::ip("127.0.0.1"), rig::ip("fe80::77")],
    };
    pair[usize::from(v6)]
}

/// Port of an address.
fn port_of(address: IpAddr) -> PortId {
    let is_behind_node = [End::Node, End::Container]
        .iter()
        .any(|end| [false, true].into_iter().any(|v6| self::address(*end, v6) == address));
    match (0..PODS).find(|pod| rig::pod_address(*pod).contains(&address)) {
        Some(pod) => PortId(pod as u16),
        None if is_behind_node => HOST,
        None => UPLINK,
    }
}

/// Header of a packet of a flow, if the flow's protocol has one like this.
fn carried_by(key: &FlowKey, query: Option<u8>, like: Carried) -> Carried {
    let ports = [key.src_port, key.dst_port];
    match (key.protocol, like) {
        (Protocol::TCP, Carried::Tcp { flags, beyond, .. }) => Carried::Tcp { ports, flags, beyond },
        (Protocol::TCP, _) => Carried::Tcp { ports, flags: ACK, beyond: 0 },
        (Protocol::UDP, _) => Carried::Udp { ports },
        (Protocol::SCTP, Carried::Sctp { chunk, .. }) => Carried::Sctp { ports, chunk },
        (Protocol::SCTP, _) => Carried::Sctp { ports, chunk: 0 },
        (Protocol::ICMP | Protocol::ICMPV6, _) => {
            let (identifier, request) = (key.src_port, matches!(like, Carried::Echo { request: true, .. }));
            match query {
                None | Some(8 | 128) => Carried::Echo { request, identifier },
                Some(kind) => Carried::Icmp { kinds: [kind + u8::from(!request); 2], identifier },
            }
        }
        _ => Carried::Other,
    }
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        16 => (0..PODS).prop_map(End::Pod),
        3 => Just(End::Node),
        1 => Just(End::Container),
        4 => (1..3usize).prop_map(End::Outside),
        1 => Just(End::Gateway),
        1 => prop_oneof![Just(End::Group), Just(End::LinkLocal)],
    ]
}

fn carried() -> impl Strategy<Value = Carried> {
    let port = || prop::sample::select(vec![80, 443, 1000]);
    let ports = || [port(), port()];
    let flags = prop::sample::select(vec![SYN, SYN, SYN | ACK, ACK, ACK, ACK | FIN, RST | ACK]);
    // Resets within the window, but not exact.
    let beyond = prop_oneof![2 => Just(0), 1 => Just(7)];
    // Timestamp, address mask and node information queries with their replies, and types without replies.
    let kinds = prop::sample::select(vec![[13, 139], [14, 140], [17, 139], [18, 140], [9, 200], [40, 144]]);
    prop_oneof![
        6 => (ports(), flags, beyond).prop_map(|(ports, flags, beyond)| Carried::Tcp { ports, flags, beyond }),
        3 => ports().prop_map(|ports| Carried::Udp { ports }),
        2 => (ports(), prop::sample::select(vec![0, 1, 1, 2, 6, 11, 14]))
            .prop_map(|(ports, chunk)| Carried::Sctp { ports, chunk }),
        2 => (any::<bool>(), 0..2u16).prop_map(|(request, identifier)| Carried::Echo { request, identifier }),
        1 => (kinds, 0..2u16).prop_map(|(kinds, identifier)| Carried::Icmp { kinds, identifier }),
        1 => Just(Carried::Other),
    ]
}

fn draft() -> impl Strategy<Value = Draft> {
    let ttl = prop_oneof![9 => Just(64), 1 => 0..3u8];
    let payload_bytes = prop_oneof![9 => 0..40usize, 1 => 500..1600usize];
    let wrong_port = prop::option::weighted(0.04, 0..rig::PORTS as u16);
    let mishap = prop_oneof![20 => Just(0), 1 => 1..4u8];
    let mishap = (mishap, prop::bool::weighted(0.06));
    let packet = (end(), end(), any::<bool>(), carried());
    let flow = prop::option::weighted(0.6, (any::<prop::sample::Index>(), 0..2usize));
    (packet, ttl, payload_bytes, wrong_port, mishap, prop::bool::weighted(0.1), flow).prop_map(
        |((from, to, v6, carried), ttl, payload_bytes, wrong_port, (mishap, broken), is_quoted, flow)| {
            Draft { from, to, v6, carried, ttl, payload_bytes, wrong_port, mishap, broken, is_quoted, flow }
        },
    )
}

fn rules() -> impl Strategy<Value = Rules> {
    let address = (end(), any::<bool>()).prop_map(|(end, v6)| address(end, v6));
    let protocol = prop::sample::select(vec![Protocol::TCP, Protocol::UDP, Protocol::SCTP]);
    let port = || prop::sample::select(vec![80, 443, 1000]);
    let ports = (protocol, port(), port())
        .prop_map(|(protocol, a, b): (Protocol, u16, u16)| (protocol, a.min(b), a.max(b)));
    let verdict = prop_oneof![3 => Just(Verdict::Allow), 1 => Just(Verdict::Deny)];
    let rule = (prop::option::of(prop::collection::vec(address, 0..4)), prop::option::of(ports), verdict)
        .prop_map(|(peers, ports, verdict)| Rule { peers, ports, verdict });
    prop::option::weighted(0.5, prop::collection::vec(rule, 0..4))
}

fn pod_rules() -> impl Strategy<Value = Option<PodRules>> {
    let rules = (rules(), rules()).prop_map(|(ingress, egress)| PodRules { ingress, egress });
    prop::option::weighted(0.9, rules)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..2usize, prop::collection::vec(draft(), 1..5))
            .prop_map(|(worker, drafts)| Step::Packets { worker, drafts }),
        2 => (0..PODS, pod_rules()).prop_map(|(pod, rules)| Step::Rules { pod, rules }),
        1 => (prop::bool::weighted(0.9), prop::bool::weighted(0.3))
            .prop_map(|(loaded, fail_open)| Step::Load { loaded, fail_open }),
        1 => (0..PODS, prop::bool::weighted(0.8)).prop_map(|(pod, attached)| Step::Attach { pod, attached }),
        1 => prop::sample::select(vec![2, 9, 29, 31, 61, 119, 121, 301, 601, 7500])
            .prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// Switch and reference model side by side.
struct Pair {
    rig: Rig,
    model: Model,
    attached: u32,
}

impl Pair {
    fn new(workers: usize, queues: [usize; PODS], tcp_pickup: bool) -> Pair {
        let setting = Setting::open();
        let conntrack = ConntrackSettings { flows_max: 1024, tcp_pickup, ..ConntrackSettings::default() };
        Pair {
            rig: Rig::with_queues(&rig::settings(workers, conntrack), &setting, queues),
            model: Model::new(setting, tcp_pickup),
            attached: PODS as u32,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Packets { worker, drafts } => self.packets(worker % self.rig.workers, drafts),
            Step::Rules { pod, rules } => {
                let mut setting = self.model.setting.clone();
                setting.rules[*pod].clone_from(rules);
                self.publish(setting);
            }
            Step::Load { loaded, fail_open } => {
                let setting =
                    Setting { loaded: *loaded, fail_open: *fail_open, ..self.model.setting.clone() };
                self.publish(setting);
            }
            Step::Attach { pod, attached } => {
                let mut setting = self.model.setting.clone();
                self.attached += 1;
                setting.attachments[*pod] = attached.then_some(AttachmentId(self.attached));
                self.publish(setting);
            }
            Step::Wait { seconds } => {
                self.rig.wait(Duration::from_secs(*seconds));
                self.model.wait(seconds * 1000);
            }
        }
        self.compare();
    }

    fn publish(&mut self, setting: Setting) {
        self.rig.publish(&setting);
        self.model.publish(setting);
    }

    fn packets(&mut self, worker: usize, drafts: &[Draft]) {
        let mut port = None;
        let mut batches = vec![Vec::new()];
        let mut expected: BTreeMap<PortId, Vec<Vec<u8>>> = BTreeMap::new();
        for draft in drafts {
            let (from, spec, quoted) = self.packet(draft);
            if *port.get_or_insert(from) != from {
                continue;
            }
            let frames = batches.last_mut().unwrap();
            frames.push(spec.bytes());
            // Packets behind a SYN overtake it while it waits for the end of an open connection.
            if matches!(spec.transport, Transport::Tcp { flags, .. } if flags & SYN != 0) {
                batches.push(Vec::new());
            }
            match self.model.receive(from, &spec, quoted.as_ref()) {
                Expected::Forward(out, frame) => expected.entry(out).or_default().push(frame),
                Expected::Consumed(Some(answer)) | Expected::Drop(_, Some(answer)) => {
                    expected.entry(from).or_default().push(answer);
                }
                Expected::Consumed(None) | Expected::Drop(_, None) => {}
            }
        }
        let mut seen: BTreeMap<PortId, Vec<Vec<u8>>> = BTreeMap::new();
        let is_right = drafts.iter().all(|draft| !draft.broken);
        let before = self.rig.sim.now;
        batches.retain(|frames| !frames.is_empty());
        let sent = batches.iter().flat_map(|frames| self.rig.send_on(worker, port.unwrap(), frames));
        for (out, frame) in sent.collect::<Vec<_>>() {
            assert!(!is_right || crate::frames::check(&frame).is_ok(), "{}", crate::frames::describe(&frame));
            seen.entry(out).or_default().push(frame);
        }
        self.model.pass(self.rig.sim.now.abs_diff(before).as_millis() as u64);
        assert_eq!(seen, expected);
    }

    /// Packet of a draft: port, packet, and quoted packet.
    fn packet(&self, draft: &Draft) -> (PortId, Spec, Option<Spec>) {
        let mut spec = self.spec(draft);
        let (mut port, mut quoted) = (port_of(spec.src), None);
        if draft.is_quoted {
            port = port_of(spec.dst);
            let mut payload = spec.ip();
            payload.truncate(68);
            let kind = if spec.src.is_ipv4() { 3 } else { 1 };
            let message = Transport::Icmp { kind, code: 4, rest: [0; 4] };
            let error = Spec { ttl: draft.ttl, payload, ..Spec::new(spec.dst, spec.src, message) };
            quoted = Some(std::mem::replace(&mut spec, error));
        } else {
            // The gateway's reply copies the request's payload; its checksum error differs from the model's.
            spec.broken = draft.broken && !rig::gateway_address().contains(&spec.dst);
        }
        let port = draft.wrong_port.map_or(port, PortId);
        let mut spec = rig::addressed(port, &spec);
        match draft.mishap {
            1 => spec.dst_mac = [2, 9, 9, 9, 9, 9],
            2 => spec.dst_mac = [0xff; 6],
            3 => spec.vlan = if spec.vlan.is_some() { None } else { Some(9) },
            _ => {}
        }
        (port, spec, quoted)
    }

    fn spec(&self, draft: &Draft) -> Spec {
        let flows = &self.model.flows;
        let known = draft.flow.filter(|_| !flows.is_empty());
        let known = known.map(|(number, side)| {
            let flow = &flows[number.index(flows.len())];
            (if side == 0 { flow.key } else { flow.key.reversed() }, flow.query)
        });
        let (src, dst, carried) = match known {
            Some((key, query)) => (key.src, key.dst, carried_by(&key, query, draft.carried)),
            None => (address(draft.from, draft.v6), address(draft.to, draft.v6), draft.carried),
        };
        let mut spec = Spec::new(src, dst, self.transport(carried, src, dst));
        spec.ttl = draft.ttl;
        let is_syn = matches!(carried, Carried::Tcp { flags, .. } if flags & SYN != 0);
        // An ICMP error quotes at least eight bytes behind the IP header (RFC 792).
        let payload_bytes = if draft.is_quoted { draft.payload_bytes.max(8) } else { draft.payload_bytes };
        let payload_bytes = match spec.transport {
            _ if is_syn => 0,
            // Timestamp messages carry three timestamps, which etherparse requires.
            Transport::Icmp { kind: 13 | 14, .. } => 12,
            _ => payload_bytes,
        };
        spec.payload = vec![0x77; payload_bytes];
        spec
    }

    fn transport(&self, carried: Carried, src: IpAddr, dst: IpAddr) -> Transport {
        match carried {
            Carried::Tcp { ports, flags, beyond } => {
                let [src_port, dst_port] = ports;
                let key = FlowKey { src, dst, protocol: Protocol::TCP, src_port, dst_port };
                let known = self.model.flows.iter().find_map(|flow| {
                    let side = [flow.key, flow.key.reversed()].into_iter().position(|known| known == key)?;
                    Some((flow.state, [flow.end[side], flow.end[1 - side]].map(|end| end.max(1001))))
                });
                let (state, [sequence, acknowledgement]) = known.unwrap_or(("none", [1001; 2]));
                // A segment before any window was offered need not lie in one.
                let flags = if state == "reset" { flags & !RST } else { flags };
                let beyond = if flags & RST != 0 { beyond } else { 0 };
                let sequence = if flags & SYN != 0 { 1000 } else { sequence + beyond };
                Transport::Tcp { ports, flags, sequence, acknowledgement, window: u16::MAX }
            }
            Carried::Udp { ports } => Transport::Udp { ports },
            Carried::Sctp { ports, chunk } => Transport::Sctp { ports, chunk },
            Carried::Echo { request, identifier } => Transport::Echo { request, identifier },
            Carried::Icmp { kinds, identifier } => {
                let [high, low] = identifier.to_be_bytes();
                Transport::Icmp { kind: kinds[usize::from(src.is_ipv6())], code: 0, rest: [high, low, 0, 1] }
            }
            Carried::Other => Transport::Other(47),
        }
    }

    fn compare(&mut self) {
        let counters = self.rig.sim.counters();
        for (port, expected) in &self.model.counts {
            let seen = &counters.ports[port];
            assert_eq!(
                (seen.received, seen.forwarded, seen.consumed, &seen.drops),
                (expected.received, expected.forwarded, expected.consumed, &expected.drops),
                "port {port}"
            );
        }
        let decisions: BTreeMap<_, _> = counters
            .decisions
            .into_iter()
            .map(|count| ((count.origin, count.verdict), count.packets))
            .collect();
        assert_eq!(decisions, self.model.decisions);
        let mut seen: Vec<_> = self
            .rig
            .sim
            .flows(usize::MAX)
            .into_iter()
            .map(|flow| {
                let counts = [[flow.packets, flow.reply_packets], [flow.bytes, flow.reply_bytes]];
                ((flow.key, flow.state.into_owned()), counts)
            })
            .collect();
        let there: BTreeSet<FlowKey> = seen.iter().map(|((key, _), _)| *key).collect();
        self.model.sweep(|key| there.contains(key));
        let flows = self.model.flows.iter();
        let mut expected: Vec<_> =
            flows.map(|flow| ((flow.key, flow.state.to_owned()), [flow.packets, flow.bytes])).collect();
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected);
        assert_eq!(self.rig.sim.flows_len(), self.model.flows.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4000, ..crate::random::cases(12) })]

    #[test]
    fn the_switch_does_what_the_model_says(
        workers in 1..4usize,
        queues in prop::array::uniform3(1..4usize),
        tcp_pickup in any::<bool>(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut pair = Pair::new(workers, queues, tcp_pickup);
        for step in &steps {
            pair.step(step);
        }
    }
}
