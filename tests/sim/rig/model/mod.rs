//! Reference model of the packet path, written without regard to speed. It knows packets as the generator
//! describes them, flows as a list, and policy as lists of rules. It shares no code with the packet path.

mod flow;
mod packet;

use std::collections::BTreeMap;
use std::net::IpAddr;

use palisade::ids::{AttachmentId, PortId};
use palisade::net::flow::FlowKey;
use palisade::tables::{Direction, RuleOrigin, Verdict};

pub(crate) use self::flow::{ACK, FIN, Flow, RST, SYN};
use self::flow::{Outcome, timeout_ms};
pub(crate) use self::packet::protocol_and_ports;
use self::packet::{answered, has_wrong_checksum, is_decisive, is_link_local, is_no_host, query, report};
use crate::frames::{Spec, Transport};
use crate::rig::{self, HOST, PODS, Setting, UPLINK};

/// Verdict on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Transmitted on a port as this frame.
    Forward(PortId, Vec<u8>),
    /// Consumed by the switch, which may reply.
    Consumed(Option<Vec<u8>>),
    /// Dropped, perhaps with an ICMP error to the sender.
    Drop(&'static str, Option<Vec<u8>>),
}

/// Port counters: received, forwarded, consumed, dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) received: u64,
    pub(crate) forwarded: u64,
    pub(crate) consumed: u64,
    pub(crate) drops: BTreeMap<String, u64>,
}

pub(crate) struct Model {
    pub(crate) setting: Setting,
    /// Picks up connections in midstream (`tcp_pickup`).
    tcp_pickup: bool,
    pub(crate) generation: u32,
    pub(crate) now_ms: u64,
    pub(crate) flows: Vec<Flow>,
    pub(crate) counts: BTreeMap<PortId, Counts>,
    pub(crate) decisions: BTreeMap<(RuleOrigin, Verdict), u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Gateway,
    Nowhere,
    Port(PortId),
}

impl Model {
    pub(crate) fn new(setting: Setting, tcp_pickup: bool) -> Model {
        Model {
            setting,
            tcp_pickup,
            generation: 0,
            now_ms: 0,
            flows: Vec::new(),
            counts: BTreeMap::new(),
            decisions: BTreeMap::new(),
        }
    }

    /// Publishes a snapshot.
    pub(crate) fn publish(&mut self, setting: Setting) {
        self.setting = setting;
        self.generation += 1;
    }

    /// Advances the clock.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// Advances the clock and sweeps all flows.
    pub(crate) fn wait(&mut self, ms: u64) {
        self.pass(ms);
        self.sweep(|_| false);
    }

    /// Forgets the flows that are over, but for those that are still there: a switch sweeps its table little by little.
    pub(crate) fn sweep(&mut self, is_there: impl Fn(&FlowKey) -> bool) {
        let now_ms = self.now_ms;
        let attachments = self.setting.attachments;
        let generation = self.generation;
        self.flows.retain(|flow| {
            let is_over = flow.generation < generation
                && flow.attachments.iter().any(|id| id.0 != 0 && !attachments.contains(&Some(*id)));
            now_ms - flow.seen_ms <= timeout_ms(flow.state) && !is_over || is_there(&flow.key)
        });
    }

    /// Processes a packet that arrives on a port; `quoted` is the packet that an ICMP error quotes.
    pub(crate) fn receive(&mut self, port: PortId, spec: &Spec, quoted: Option<&Spec>) -> Expected {
        let expected = self.decide(port, spec, quoted);
        let counts = self.counts.entry(port).or_default();
        counts.received += 1;
        match &expected {
            Expected::Forward(..) => counts.forwarded += 1,
            Expected::Consumed(_) => counts.consumed += 1,
            Expected::Drop(reason, _) => *counts.drops.entry((*reason).to_owned()).or_default() += 1,
        }
        expected
    }

    fn decide(&mut self, port: PortId, spec: &Spec, quoted: Option<&Spec>) -> Expected {
        if let Some(reason) = self.anti_spoof(port, spec) {
            return Expected::Drop(reason, None);
        }
        let about = quoted.unwrap_or(spec);
        if let Some(quoted) = quoted {
            // An ICMP error goes to the sender of the quoted packet, and comes from its destination.
            let comes_right = quoted.src == spec.dst && self.route(quoted.dst) == Route::Port(port);
            // ICMP messages other than queries belong to no flow.
            let may_be_known = !matches!(quoted.transport, Transport::Icmp { .. }) || query(quoted).is_some();
            if !comes_right || !may_be_known {
                return Expected::Drop("invalid-state", None);
            }
        }
        let found = self.find(about);
        // A flow that the node's kernel has forwarded is answered by the host port.
        let back =
            found.is_some_and(|(flow, side)| self.flows[flow].by_host && (side == 1) != quoted.is_some());
        let mut out = match self.route(spec.dst) {
            Route::Gateway => return Model::echo(port, spec),
            Route::Port(_) if is_link_local(spec.src) || is_link_local(spec.dst) => {
                return Expected::Drop("no-route", None);
            }
            Route::Nowhere => return Expected::Drop("no-route", None),
            // The switch routes no packet between addresses outside its pods.
            Route::Port(UPLINK) if port == UPLINK && !back => return Expected::Drop("no-route", None),
            Route::Port(_) if back => HOST,
            Route::Port(out) => out,
        };
        let mtu = if out.index() == PODS - 1 { rig::SMALL_MTU } else { rig::MTU };
        let ip_bytes = spec.ip().len();
        if spec.ttl <= 1 {
            return Expected::Drop("ttl-exceeded", quoted.is_none().then(|| report(port, spec, None)));
        }
        if ip_bytes > usize::from(mtu) {
            return Expected::Drop("too-big", quoted.is_none().then(|| report(port, spec, Some(mtu))));
        }
        let reason = match found {
            Some((flow, side)) => self.advance(flow, side, port, &mut out, spec, quoted.is_some()),
            None if quoted.is_some() => Some("invalid-state"),
            None => self.open(port, out, spec, None),
        };
        match reason {
            Some(reason) => Expected::Drop(reason, None),
            None => Expected::Forward(out, rig::forwarded(out, spec)),
        }
    }

    fn anti_spoof(&self, port: PortId, spec: &Spec) -> Option<&'static str> {
        let tag = (port == UPLINK).then_some(rig::UPLINK_VLAN);
        if spec.vlan != tag {
            return Some("vlan");
        }
        let is_group = spec.dst_mac[0] & 1 != 0;
        if spec.dst_mac != rig::switch_mac(port) && !is_group {
            return Some("not-for-us");
        }
        let spoofed = if port.index() < PODS {
            let attached = self.setting.attachments[port.index()].is_some();
            !attached || !rig::pod_address(port.index()).contains(&spec.src)
        } else {
            is_no_host(spec.src)
                || rig::gateway_address().contains(&spec.src)
                || rig::is_among_pods(spec.src)
                || (port != HOST && rig::node_address().contains(&spec.src))
        };
        let on_link = is_link_local(spec.src) && is_link_local(spec.dst);
        let (_, ports) = protocol_and_ports(spec);
        let to_itself = spec.src == spec.dst && ports[0] == ports[1];
        if (spoofed && !on_link) || to_itself {
            return Some("spoofed");
        }
        (is_no_host(spec.dst) || is_group).then_some("multicast")
    }

    fn route(&self, address: IpAddr) -> Route {
        if rig::gateway_address().contains(&address) {
            return Route::Gateway;
        }
        if let Some(pod) = self.pod_at(address) {
            return Route::Port(PortId(pod as u16));
        }
        if rig::node_address().contains(&address) {
            return Route::Port(HOST);
        }
        if rig::is_among_pods(address) {
            return Route::Nowhere;
        }
        Route::Port(UPLINK)
    }

    /// Attached pod with an address.
    fn pod_at(&self, address: IpAddr) -> Option<usize> {
        (0..PODS)
            .find(|pod| self.setting.attachments[*pod].is_some() && rig::pod_address(*pod).contains(&address))
    }

    fn attachment(&self, address: IpAddr) -> AttachmentId {
        self.pod_at(address).and_then(|pod| self.setting.attachments[pod]).unwrap_or(AttachmentId::NONE)
    }

    fn echo(port: PortId, spec: &Spec) -> Expected {
        let Transport::Echo { request: true, identifier } = spec.transport else {
            return Expected::Drop("no-route", None);
        };
        let transport = Transport::Echo { request: false, identifier };
        let answer = Spec { src: spec.dst, dst: spec.src, ttl: 64, transport, ..spec.clone() };
        Expected::Consumed(Some(answered(port, answer)))
    }

    /// Flow of a packet, and the side that sent it.
    fn find(&self, spec: &Spec) -> Option<(usize, usize)> {
        let (protocol, [src_port, dst_port]) = protocol_and_ports(spec);
        let key = FlowKey { src: spec.src, dst: spec.dst, protocol, src_port, dst_port };
        let query = query(spec);
        self.flows.iter().enumerate().find_map(|(number, flow)| {
            if flow.query != query.map(|(request, _)| request) {
                return None;
            }
            let is_original = flow.key == key && query.is_none_or(|(_, is_reply)| !is_reply);
            let is_reply = flow.key == key.reversed() && query.is_none_or(|(_, is_reply)| is_reply);
            let side = is_original.then_some(0).or(is_reply.then_some(1))?;
            Some((number, side))
        })
    }

    /// Processes a packet of a known flow; returns the drop reason.
    fn advance(
        &mut self,
        number: usize,
        side: usize,
        port: PortId,
        out: &mut PortId,
        spec: &Spec,
        is_error: bool,
    ) -> Option<&'static str> {
        let key = self.flows[number].key;
        if self.flows[number].generation != self.generation {
            let ends = [self.attachment(key.src), self.attachment(key.dst)];
            if self.flows[number].attachments != ends {
                self.flows.remove(number);
                if is_error {
                    return Some("invalid-state");
                }
                match self.route(spec.dst) {
                    Route::Port(UPLINK) if port == UPLINK => return Some("no-route"),
                    Route::Port(own) => *out = own,
                    Route::Gateway | Route::Nowhere => return Some("no-route"),
                }
                return self.open(port, *out, spec, None);
            }
            let (Route::Port(from), Route::Port(to)) = (self.route(key.src), self.route(key.dst)) else {
                unreachable!("no flow is with the gateway");
            };
            let counted = self.decisions.clone();
            if let Some(reason) = self.decide_flow(&key, from, to) {
                // Without tables every packet is dropped and no decision is counted.
                if self.setting.loaded || reason != "unknown-pod" {
                    self.flows.remove(number);
                }
                return Some(reason);
            }
            // A decision that stays "allow" is not counted again.
            self.decisions = counted;
            self.flows[number].generation = self.generation;
        }
        if is_error {
            return None;
        }
        let now_ms = self.now_ms;
        let flow = &mut self.flows[number];
        let mut moved = flow.clone();
        match moved.step(side, spec) {
            Outcome::Pass if has_wrong_checksum(spec) && (flow.state != moved.state || is_decisive(spec)) => {
                Some("bad-checksum")
            }
            Outcome::Pass => {
                *flow = moved;
                flow.count(side, spec, now_ms);
                None
            }
            Outcome::Invalid => Some("invalid-state"),
            Outcome::Reopen => self.open(port, *out, spec, Some(number)),
        }
    }

    /// Processes the first packet of a flow, or of the next one between the same ports; returns the drop
    /// reason.
    fn open(
        &mut self,
        port: PortId,
        out: PortId,
        spec: &Spec,
        reopened: Option<usize>,
    ) -> Option<&'static str> {
        let (protocol, ports) = protocol_and_ports(spec);
        let mut state = "other-one-way";
        let (mut finished, mut end) = ([false; 2], [0; 2]);
        let mut is_tracked = true;
        match spec.transport {
            Transport::Tcp { flags, sequence, acknowledgement, .. } => {
                if flags & (SYN | ACK) == SYN {
                    (state, end) = ("syn-sent", [sequence + 1, 0]);
                } else if self.tcp_pickup && flags & (SYN | RST | ACK) == ACK {
                    state = "unacknowledged";
                    finished[0] = flags & FIN != 0;
                    end = [sequence + spec.payload.len() as u32 + u32::from(flags & FIN), acknowledgement];
                } else {
                    return Some("invalid-state");
                }
            }
            Transport::Udp { .. } => state = "udp-one-way",
            Transport::Sctp { .. } => state = "sctp-setup",
            Transport::Echo { .. } | Transport::Icmp { .. } => match query(spec) {
                Some((_, true)) => return Some("invalid-state"),
                Some(_) => state = "echo",
                None => is_tracked = false,
            },
            Transport::Other(_) => {}
        }
        let key = FlowKey { src: spec.src, dst: spec.dst, protocol, src_port: ports[0], dst_port: ports[1] };
        if let Some(reason) = self.decide_flow(&key, port, out) {
            return Some(reason);
        }
        if !is_tracked {
            return None;
        }
        if has_wrong_checksum(spec) {
            return Some("bad-checksum");
        }
        let mut flow = Flow {
            key,
            query: query(spec).map(|(request, _)| request),
            attachments: [self.attachment(key.src), self.attachment(key.dst)],
            generation: self.generation,
            by_host: port == HOST,
            state,
            finished,
            end,
            seen_ms: 0,
            packets: [0; 2],
            bytes: [0; 2],
        };
        flow.count(0, spec, self.now_ms);
        match reopened {
            Some(number) => self.flows[number] = flow,
            None => self.flows.push(flow),
        }
        None
    }

    /// Drop reason of policy for a flow between two ports.
    fn decide_flow(&mut self, key: &FlowKey, from: PortId, to: PortId) -> Option<&'static str> {
        let (source, target) = (from.index() < PODS, to.index() < PODS);
        if source && from == to {
            return None; // Policy does not apply between a pod and itself.
        }
        if source && let Some(reason) = self.evaluate(from, Direction::Egress, Some(key.dst), key) {
            return Some(reason);
        }
        let is_own_node = from == HOST && rig::node_address().contains(&key.src);
        let peer = (!is_own_node).then_some(key.src);
        if target { self.evaluate(to, Direction::Ingress, peer, key) } else { None }
    }

    /// Drop reason of the rules of the pod behind a port. Without a peer, the flow is from the pod's own
    /// node.
    fn evaluate(
        &mut self,
        port: PortId,
        direction: Direction,
        peer: Option<IpAddr>,
        key: &FlowKey,
    ) -> Option<&'static str> {
        let pod = port.index();
        let known = self.setting.rules[pod].as_ref().filter(|_| self.setting.loaded);
        let Some(rules) = known else {
            return (!self.setting.fail_open).then_some("unknown-pod");
        };
        let peer = peer?;
        let (verdict, origin) =
            rules.decide(&rig::pod_name(pod), direction, peer, key.protocol, key.dst_port);
        *self.decisions.entry((origin, verdict)).or_default() += 1;
        let reason = match direction {
            Direction::Ingress => "policy-ingress",
            Direction::Egress => "policy-egress",
        };
        (verdict == Verdict::Deny).then_some(reason)
    }
}
