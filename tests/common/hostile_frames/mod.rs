//! Kinds of hostile frames with the verdict on each frame.

#![allow(clippy::too_many_lines, clippy::type_complexity)] // The tables have one row for each kind and one column for each field.

mod addresses;
mod build;
mod fragments;
mod icmp;
mod ipv4;
mod ipv6;
mod link;
mod tcp;
mod transport;
mod truncation;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use self::build::{
    ACK, FIN, ICMP, ICMPV6, IPV4, IPV6, PSH, RST, SCTP, SYN, Segment, TCP, UDP, V4, arp, checksum, ethernet,
    fragment_header, icmp, ipv6, octets, packet, sctp, udp,
};

/// Start of a payload. A number follows that no other frame has.
pub(crate) const MARK: [u8; 8] = *b"hostile!";
/// Port that policy opens to the friend.
pub(crate) const PORT: u16 = 6379;
/// Port that policy opens to nobody.
const CLOSED_PORT: u16 = 22;
/// Drop reason of the target's policy.
pub(crate) const POLICY: &str = "policy-ingress";

/// Station: Ethernet address and IP addresses, IPv4 first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Station {
    pub(crate) mac: [u8; 6],
    pub(crate) addresses: [IpAddr; 2],
}

/// Stations as one hostile pod sees them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Topology {
    /// Sending pod.
    pub(crate) own: Station,
    /// Pod that takes no part.
    pub(crate) other: Station,
    /// Target of the attack.
    pub(crate) target: Station,
    /// Gateway address of the switch.
    pub(crate) gateway: Station,
    /// Node, with the Ethernet address of the host end of the sender's link.
    pub(crate) node: Station,
    /// Tells whether policy allows the sender TCP connections to [`PORT`] of the target, the only ones that
    /// it ever allows.
    pub(crate) is_friend: bool,
}

/// Verdict of the switch on a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Dropped for this reason.
    Drop(&'static str),
    /// Denied by policy. Without the policy dropped for this reason.
    Denied(&'static str),
    /// Delivered to the target.
    Deliver,
    /// Consumed by the switch.
    Consume,
    /// Fragment that waits for the first one of its datagram.
    Wait,
}

/// Verdict on a valid frame that policy denies.
pub(crate) const DENIED: Expected = Expected::Drop(POLICY);
const SPOILED: Expected = Expected::Denied("bad-checksum");
const INVALID_STATE: Expected = Expected::Drop("invalid-state");
const MALFORMED: Expected = Expected::Drop("malformed");
const MULTICAST: Expected = Expected::Drop("multicast");
const NOT_FOR_US: Expected = Expected::Drop("not-for-us");
const NO_ROUTE: Expected = Expected::Drop("no-route");
const SPOOFED: Expected = Expected::Drop("spoofed");
const TRUNCATED: Expected = Expected::Drop("truncated");

/// Kind of frames.
pub(crate) struct Kind {
    pub(crate) name: String,
    /// Frames in the order of sending, each with its verdict.
    pub(crate) frames: Vec<(Vec<u8>, Expected)>,
}

impl Expected {
    /// Counter of the verdict, as [`Kind::verdicts`] names it.
    fn counter(self) -> &'static str {
        match self {
            Expected::Drop(reason) => reason,
            Expected::Denied(_) => POLICY,
            Expected::Deliver => "delivered",
            Expected::Consume => "consumed",
            Expected::Wait => "waiting",
        }
    }

    /// Verdict without a policy on a frame that policy decides on.
    fn without_policy(self) -> Option<Expected> {
        match self {
            Expected::Denied(reason) => Some(Expected::Drop(reason)),
            Expected::Deliver => Some(self),
            _ => (self == DENIED).then_some(Expected::Deliver),
        }
    }
}

impl Kind {
    /// Number of frames by verdict: drop reasons, `delivered`, `consumed` and `waiting`.
    pub(crate) fn verdicts(&self) -> BTreeMap<String, u64> {
        let mut verdicts = BTreeMap::new();
        for (_, expected) in &self.frames {
            *verdicts.entry(expected.counter().to_owned()).or_default() += 1;
        }
        verdicts
    }

    /// The same frames with their verdicts without a policy; `None` if one of them has none that policy decides on.
    pub(crate) fn without_policy(&self) -> Option<Kind> {
        let frames =
            self.frames.iter().map(|(frame, expected)| Some((frame.clone(), expected.without_policy()?)));
        Some(Kind { name: self.name.clone(), frames: frames.collect::<Option<_>>()? })
    }

    /// The same frames, each denied.
    pub(crate) fn denied(&self) -> Kind {
        let frames = self.frames.iter().map(|(frame, _)| (frame.clone(), DENIED)).collect();
        Kind { name: self.name.clone(), frames }
    }

    /// Numbers of the frames that are delivered; a later fragment has none.
    pub(crate) fn delivered(&self) -> impl Iterator<Item = Option<u16>> {
        self.frames
            .iter()
            .filter(|(_, expected)| *expected == Expected::Deliver)
            .map(|(frame, _)| number(frame))
    }
}

/// Number behind the mark of a frame.
pub(crate) fn number(frame: &[u8]) -> Option<u16> {
    let at = frame.windows(MARK.len()).position(|bytes| bytes == MARK)? + MARK.len();
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Builds all kinds of one pod, with frame numbers from `first` on.
pub(crate) fn all(topology: &Topology, first: u16) -> Vec<Kind> {
    let mut kinds = Kinds { topology: *topology, all: vec![], next: first };
    for family in [0, 1] {
        kinds.tcp_flags(family);
        kinds.tcp_headers(family);
        kinds.udp_and_sctp(family);
        kinds.echoes(family);
        kinds.errors(family);
        kinds.addresses(family);
        kinds.protocols(family);
        kinds.truncations(family);
        kinds.links(family);
        kinds.fragments(family);
        kinds.traffic_for_the_node(family);
    }
    kinds.messages_of_icmp();
    kinds.messages_of_icmpv6();
    kinds.headers_of_ipv4();
    kinds.options_of_ipv4();
    kinds.fragments_of_ipv4();
    kinds.headers_of_ipv6();
    kinds.extensions_of_ipv6();
    kinds.fragments_of_ipv6();
    kinds.ethertypes();
    kinds.arp();
    kinds.neighbor_discovery();
    kinds.all
}

/// Connection of the friend with the target: ports, and the next sequence number of each side.
const CLIENT_PORT: u16 = 61_000;
const CLIENT_NEXT: u32 = 70_001;
const SERVER_NEXT: u32 = 90_001;

/// Frames of the handshake; each with `true` if the friend sends it.
pub(crate) fn handshake(topology: &Topology, family: usize) -> [(Vec<u8>, bool); 3] {
    let kinds = Kinds { topology: *topology, all: vec![], next: 0 };
    let (client, server) = kinds.ends(family);
    let segment = |flags, sequence, acknowledgement, to_server: bool| {
        let (src, dst) = if to_server { (client, server) } else { (server, client) };
        let ports = if to_server { [CLIENT_PORT, PORT] } else { [PORT, CLIENT_PORT] };
        let segment = Segment { ports, flags, sequence, acknowledgement };
        let mut frame = kinds.between((src, dst), TCP, &segment.bytes(src, dst, &[]));
        if !to_server {
            frame[6..12].copy_from_slice(&topology.target.mac);
        }
        (frame, to_server)
    };
    [
        segment(SYN, CLIENT_NEXT - 1, 0, true),
        segment(SYN | ACK, SERVER_NEXT - 1, CLIENT_NEXT, false),
        segment(ACK, CLIENT_NEXT, SERVER_NEXT, true),
    ]
}

/// Builds kinds on that connection, from the friend itself or from a stranger that knows all of its numbers.
pub(crate) fn about_a_connection(topology: &Topology, first: u16) -> Vec<Kind> {
    let mut kinds = Kinds { topology: *topology, all: vec![], next: first };
    for family in [0, 1] {
        if topology.is_friend {
            kinds.own_connection(family);
        } else {
            kinds.others_connection(family);
        }
    }
    kinds.all
}

/// Fragment: first byte, last byte, More Fragments, verdict.
type Part = ((usize, usize), bool, Expected);

struct Kinds {
    topology: Topology,
    all: Vec<Kind>,
    next: u16,
}

impl Kinds {
    fn add(&mut self, family: usize, name: &str, frames: Vec<(Vec<u8>, Expected)>) {
        let name = format!("IPv{}: {name}", [4, 6][family]);
        self.all.push(Kind { name, frames });
    }

    /// Takes a number that no other frame has.
    fn number(&mut self) -> u16 {
        self.next += 1;
        self.next
    }

    /// Builds a payload that identifies the frame everywhere.
    fn mark(&mut self) -> Vec<u8> {
        let number = self.number();
        [&MARK[..], &number.to_be_bytes()].concat()
    }

    /// Takes a port that no other flow has.
    fn port(&mut self) -> u16 {
        20_000 + self.number()
    }

    /// Source and destination of an attack.
    fn ends(&self, family: usize) -> (IpAddr, IpAddr) {
        (self.topology.own.addresses[family], self.topology.target.addresses[family])
    }

    fn ends_v4(&self) -> (Ipv4Addr, Ipv4Addr) {
        match self.ends(0) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (src, dst),
            _ => panic!("the first addresses are IPv4"),
        }
    }

    fn ends_v6(&self) -> (Ipv6Addr, Ipv6Addr) {
        match self.ends(1) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => (src, dst),
            _ => panic!("the second addresses are IPv6"),
        }
    }

    /// Builds a frame to the switch.
    fn frame(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        ethernet(self.topology.own.mac, self.topology.gateway.mac, ethertype, payload)
    }

    /// Builds a frame to the switch with an IP packet.
    fn ip(&self, packet: &[u8]) -> Vec<u8> {
        self.frame(if packet[0] >> 4 == 4 { IPV4 } else { IPV6 }, packet)
    }

    /// Builds a frame to the switch with a packet between these addresses.
    fn between(&self, (src, dst): (IpAddr, IpAddr), protocol: u8, payload: &[u8]) -> Vec<u8> {
        self.ip(&packet(src, dst, protocol, payload))
    }

    /// Builds a frame with a valid datagram.
    fn datagram(&mut self, (src, dst): (IpAddr, IpAddr)) -> Vec<u8> {
        let (port, mark) = (self.port(), self.mark());
        self.between((src, dst), UDP, &udp(src, dst, [port, PORT], &mark))
    }

    /// Builds a frame with a segment that opens a connection to [`PORT`].
    fn opening(&mut self, (src, dst): (IpAddr, IpAddr)) -> Vec<u8> {
        let (port, mark) = (self.port(), self.mark());
        self.between((src, dst), TCP, &Segment::of([port, PORT], SYN).bytes(src, dst, &mark))
    }

    /// Verdict on such a segment.
    fn opened(&self) -> Expected {
        if self.topology.is_friend { Expected::Deliver } else { DENIED }
    }
}
