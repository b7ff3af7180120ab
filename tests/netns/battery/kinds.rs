//! The kinds of hostile frames, and the fate of each.

#![allow(clippy::too_many_lines, clippy::type_complexity)] // Tables have as many rows and columns as there are kinds and fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::build::{
    ACK, FIN, ICMP, ICMPV6, IPV4, IPV6, PSH, RST, SCTP, SYN, Segment, TCP, UDP, V4, arp, checksum, ethernet,
    fragment_header, icmp, ipv6, octets, packet, sctp, udp,
};
use super::{CLOSED_PORT, MARK, POLICY};
use crate::support::PORT;

/// A station: its Ethernet address and its addresses, IPv4 first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Station {
    pub(crate) mac: [u8; 6],
    pub(crate) addresses: [IpAddr; 2],
}

/// The stations of a battery, as one hostile pod sees them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ground {
    /// The pod that sends.
    pub(crate) own: Station,
    /// Another pod, which has nothing to do with it.
    pub(crate) other: Station,
    /// The pod that is attacked.
    pub(crate) target: Station,
    /// The switch.
    pub(crate) gateway: Station,
    /// The node, with the Ethernet address of the host end of the sender's link.
    pub(crate) node: Station,
    /// Whether policy lets the sender open TCP connections to [`PORT`] of the target, which is all that it ever lets in.
    pub(crate) is_friend: bool,
}

/// A verdict of the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Dropped for this reason.
    Drop(&'static str),
    /// Policy forbids it, and where policy allows it, it is dropped for this reason.
    Denied(&'static str),
    /// The target hears it.
    Deliver,
    /// The switch takes it for itself.
    Consume,
    /// A fragment that waits for the first one of its datagram.
    Wait,
}

/// The fate of whatever is in order but for policy.
pub(crate) const DENIED: Fate = Fate::Drop(POLICY);
const SPOILED: Fate = Fate::Denied("bad-checksum");
const INVALID_STATE: Fate = Fate::Drop("invalid-state");
const MALFORMED: Fate = Fate::Drop("malformed");
const MULTICAST: Fate = Fate::Drop("multicast");
const NOT_FOR_US: Fate = Fate::Drop("not-for-us");
const NO_ROUTE: Fate = Fate::Drop("no-route");
const SPOOFED: Fate = Fate::Drop("spoofed");
const TRUNCATED: Fate = Fate::Drop("truncated");

/// A kind of frames.
pub(crate) struct Kind {
    pub(crate) name: String,
    /// Frames in the order in which they are sent, each with its fate.
    pub(crate) frames: Vec<(Vec<u8>, Fate)>,
}

/// All kinds from one pod, with numbers from this one on.
pub(crate) fn all(ground: &Ground, first: u16) -> Vec<Kind> {
    let mut kinds = Kinds { ground: *ground, all: vec![], next: first };
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

/// The connection that the friend has with the target: its ports, and the next byte of each side.
const CLIENT_PORT: u16 = 61_000;
const CLIENT_NEXT: u32 = 70_001;
const SERVER_NEXT: u32 = 90_001;

/// The frames that open the connection, as the friend sees it, each with whether the friend sends it.
pub(crate) fn handshake(ground: &Ground, family: usize) -> [(Vec<u8>, bool); 3] {
    let kinds = Kinds { ground: *ground, all: vec![], next: 0 };
    let (client, server) = kinds.ends(family);
    let segment = |flags, sequence, acknowledgement, to_server: bool| {
        let (src, dst) = if to_server { (client, server) } else { (server, client) };
        let ports = if to_server { [CLIENT_PORT, PORT] } else { [PORT, CLIENT_PORT] };
        let segment = Segment { ports, flags, sequence, acknowledgement };
        let mut frame = kinds.between((src, dst), TCP, &segment.bytes(src, dst, &[]));
        if !to_server {
            frame[6..12].copy_from_slice(&ground.target.mac);
        }
        (frame, to_server)
    };
    [
        segment(SYN, CLIENT_NEXT - 1, 0, true),
        segment(SYN | ACK, SERVER_NEXT - 1, CLIENT_NEXT, false),
        segment(ACK, CLIENT_NEXT, SERVER_NEXT, true),
    ]
}

/// Kinds about that connection, from the friend itself or from a stranger that knows all of its numbers.
pub(crate) fn about_a_connection(ground: &Ground, first: u16) -> Vec<Kind> {
    let mut kinds = Kinds { ground: *ground, all: vec![], next: first };
    for family in [0, 1] {
        if ground.is_friend {
            kinds.own_connection(family);
        } else {
            kinds.others_connection(family);
        }
    }
    kinds.all
}

/// A fragment: from which byte to which, whether more follow, and its fate.
type Part = ((usize, usize), bool, Fate);

struct Kinds {
    ground: Ground,
    all: Vec<Kind>,
    next: u16,
}

impl Kinds {
    fn add(&mut self, family: usize, name: &str, frames: Vec<(Vec<u8>, Fate)>) {
        let name = format!("IPv{}: {name}", [4, 6][family]);
        self.all.push(Kind { name, frames });
    }

    /// A number that no other frame has.
    fn number(&mut self) -> u16 {
        self.next += 1;
        self.next
    }

    /// A payload by which a frame is known wherever it comes.
    fn mark(&mut self) -> Vec<u8> {
        let number = self.number();
        [&MARK[..], &number.to_be_bytes()].concat()
    }

    /// A port that no other flow has.
    fn port(&mut self) -> u16 {
        20_000 + self.number()
    }

    /// Source and destination of an attack.
    fn ends(&self, family: usize) -> (IpAddr, IpAddr) {
        (self.ground.own.addresses[family], self.ground.target.addresses[family])
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

    /// A frame to the switch.
    fn frame(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        ethernet(self.ground.own.mac, self.ground.gateway.mac, ethertype, payload)
    }

    /// A frame to the switch with an IP packet.
    fn ip(&self, packet: &[u8]) -> Vec<u8> {
        self.frame(if packet[0] >> 4 == 4 { IPV4 } else { IPV6 }, packet)
    }

    /// A frame to the switch with a packet between these addresses.
    fn between(&self, (src, dst): (IpAddr, IpAddr), protocol: u8, payload: &[u8]) -> Vec<u8> {
        self.ip(&packet(src, dst, protocol, payload))
    }

    /// A frame with a datagram that nothing is wrong with.
    fn datagram(&mut self, (src, dst): (IpAddr, IpAddr)) -> Vec<u8> {
        let (port, mark) = (self.port(), self.mark());
        self.between((src, dst), UDP, &udp(src, dst, [port, PORT], &mark))
    }

    /// A frame with a segment that opens a connection to [`PORT`].
    fn opening(&mut self, (src, dst): (IpAddr, IpAddr)) -> Vec<u8> {
        let (port, mark) = (self.port(), self.mark());
        self.between((src, dst), TCP, &Segment::of([port, PORT], SYN).bytes(src, dst, &mark))
    }

    /// The fate of such a segment.
    fn opened(&self) -> Fate {
        if self.ground.is_friend { Fate::Deliver } else { DENIED }
    }

    /// Each set of control bits, outside any connection, with the client's port below, equal to, and above the server's, to an open
    /// port and a closed one. Every frame carries data.
    fn tcp_flags(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        for flags in 0..64 {
            let judged = if flags & SYN == 0 || flags & ACK != 0 { Some(INVALID_STATE) } else { None };
            let senseless = flags & SYN != 0 && flags & (FIN | RST) != 0;
            let mut frames = vec![];
            for (number, dst_port) in [PORT, CLOSED_PORT].into_iter().enumerate() {
                let low = 1024 + 2 * u16::from(flags) + number as u16;
                let mut relations = vec![low, 60_000 + 2 * u16::from(flags) + number as u16];
                // A connection from this port would be the next frame's.
                if judged.is_some() || senseless {
                    relations.push(dst_port);
                }
                for src_port in relations {
                    let mark = self.mark();
                    let segment = Segment::of([src_port, dst_port], flags).bytes(src, dst, &mark);
                    let policy = if dst_port == PORT { self.opened() } else { DENIED };
                    let fate = if senseless { MALFORMED } else { judged.unwrap_or(policy) };
                    frames.push((self.between((src, dst), TCP, &segment), fate));
                }
            }
            self.add(family, &format!("TCP with control bits {flags:06b} outside any connection"), frames);
        }
    }

    /// Segments of somebody else's connection whose numbers are all right, and ICMP errors about it.
    fn others_connection(&mut self, family: usize) {
        let (own, target) = self.ends(family);
        let friend = self.ground.other.addresses[family];
        let exact =
            |ports, flags| Segment { ports, flags, sequence: CLIENT_NEXT, acknowledgement: SERVER_NEXT };
        let reverse =
            |ports, flags| Segment { ports, flags, sequence: SERVER_NEXT, acknowledgement: CLIENT_NEXT };
        let (mut as_friend, mut as_target, mut as_itself) = (vec![], vec![], vec![]);
        for flags in 0..64 {
            let senseless = flags & SYN != 0 && flags & (FIN | RST) != 0;
            let or_malformed = |fate| if senseless { MALFORMED } else { fate };
            let segment = exact([CLIENT_PORT, PORT], flags).bytes(friend, target, &self.mark());
            as_friend.push((self.between((friend, target), TCP, &segment), or_malformed(SPOOFED)));
            let segment = reverse([PORT, CLIENT_PORT], flags).bytes(target, friend, &self.mark());
            as_target.push((self.between((target, friend), TCP, &segment), or_malformed(SPOOFED)));
            let opens = flags & SYN != 0 && flags & ACK == 0;
            let segment = exact([CLIENT_PORT, PORT], flags).bytes(own, target, &self.mark());
            let fate = or_malformed(if opens { DENIED } else { INVALID_STATE });
            as_itself.push((self.between((own, target), TCP, &segment), fate));
        }
        self.add(family, "exact segments of somebody else's connection, as the client", as_friend);
        self.add(family, "exact segments of somebody else's connection, as the server", as_target);
        self.add(family, "exact segments of somebody else's connection, from its own address", as_itself);
        let (client_says, server_says) = (exact([CLIENT_PORT, PORT], ACK), reverse([PORT, CLIENT_PORT], ACK));
        let protocol = [ICMP, ICMPV6][family];
        let types: &[(u8, u8)] = if family == 0 {
            &[(3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (11, 0), (12, 0), (4, 0), (5, 1)]
        } else {
            &[(1, 0), (1, 4), (2, 0), (3, 0), (4, 0)]
        };
        for &(kind, code) in types {
            let mut frames = vec![];
            for (to, from, segment) in [(target, friend, server_says), (friend, target, client_says)] {
                let quote = packet(to, from, TCP, &segment.bytes(to, from, &self.mark()));
                let message = icmp(own, to, kind, code, [0, 0, 5, 0], &quote);
                frames.push((self.between((own, to), protocol, &message), INVALID_STATE));
            }
            self.add(
                family,
                &format!("ICMP type {kind} code {code} about somebody else's connection"),
                frames,
            );
        }
    }

    /// Segments of its own connection, of which none that does not fit ends it.
    fn own_connection(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let far = 1 << 30;
        let rows: &[(&str, u8, u32, u32, Fate)] = &[
            ("an acknowledgement", ACK, 0, 0, Fate::Deliver),
            ("a reset far from the window", RST, far, 0, INVALID_STATE),
            ("a reset behind the window", RST, u32::MAX - far, 0, INVALID_STATE),
            ("a reset in the window that is not exact", RST, 100, 0, Fate::Deliver),
            ("another acknowledgement", ACK | PSH, 0, 0, Fate::Deliver),
        ];
        for &(name, flags, sequence, acknowledgement, fate) in rows {
            let sequence = CLIENT_NEXT.wrapping_add(sequence);
            let acknowledgement = SERVER_NEXT.wrapping_add(acknowledgement);
            let segment = Segment { ports: [CLIENT_PORT, PORT], flags, sequence, acknowledgement };
            let bytes = segment.bytes(src, dst, &self.mark());
            let frame = self.between((src, dst), TCP, &bytes);
            self.add(family, &format!("{name} on its own connection"), vec![(frame, fate)]);
        }
    }

    fn tcp_headers(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        for (name, words, fate) in [
            ("a TCP header of no words", 0, MALFORMED),
            ("a TCP header of four words", 4, MALFORMED),
            ("a TCP header longer than its segment", 15, TRUNCATED),
        ] {
            let mut segment = Segment::of([self.port(), PORT], SYN).bytes(src, dst, &self.mark());
            segment[12] = words << 4;
            segment[16..18].fill(0);
            let sum =
                [&octets(src)[..], &octets(dst), &[0, TCP], &(segment.len() as u16).to_be_bytes()].concat();
            let sum = checksum(&[sum, segment.clone()].concat());
            segment[16..18].copy_from_slice(&sum);
            let frame = self.between((src, dst), TCP, &segment);
            self.add(family, name, vec![(frame, fate)]);
        }
        let options: [(&str, &[u8]); 5] = [
            ("no end", &[3, 3, 14, 8]),
            ("a length of zero", &[2, 0, 2, 0]),
            ("a length beyond the header", &[5, 255, 0, 0]),
            ("a window scale of 255", &[3, 3, 255, 0]),
            ("fast open", &[34, 4, 1, 2]),
        ];
        for (name, options) in options {
            let segment = Segment::of([self.port(), PORT], SYN).with(src, dst, options, &self.mark());
            let frame = self.between((src, dst), TCP, &segment);
            self.add(family, &format!("a TCP option with {name}"), vec![(frame, self.opened())]);
        }
        for (name, ports) in [("from", [0, PORT]), ("to", [40_000, 0])] {
            let segment = Segment::of(ports, SYN).bytes(src, dst, &self.mark());
            let frame = self.between((src, dst), TCP, &segment);
            let fate = if ports[1] == PORT { self.opened() } else { DENIED };
            self.add(family, &format!("a SYN {name} port 0"), vec![(frame, fate)]);
        }
        let mut spoiled = Segment::of([self.port(), PORT], SYN).bytes(src, dst, &self.mark());
        spoiled[17] ^= 0x55;
        let frame = self.between((src, dst), TCP, &spoiled);
        // Policy drops the frame before its checksum is verified.
        let fate = if self.ground.is_friend { Fate::Drop("bad-checksum") } else { SPOILED };
        self.add(family, "a SYN with a wrong checksum", vec![(frame, fate)]);
    }

    fn udp_and_sctp(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let lies = [
            ("zero", 0, MALFORMED),
            ("seven", 7, MALFORMED),
            ("more than there is", 900, MALFORMED),
            ("eight", 8, SPOILED),
        ];
        for (name, bytes, fate) in lies {
            let mut datagram = udp(src, dst, [self.port(), PORT], &self.mark());
            datagram[4..6].copy_from_slice(&u16::to_be_bytes(bytes));
            let frame = self.between((src, dst), UDP, &datagram);
            self.add(family, &format!("a UDP length of {name}"), vec![(frame, fate)]);
        }
        for port in [0, 53, 67, 68, 123, 137, 546, 547, 1900, 4789, 5353, 6081] {
            let frames = [[port, port], [self.port(), port], [port, PORT]].map(|ports| {
                let datagram = udp(src, dst, ports, &self.mark());
                (self.between((src, dst), UDP, &datagram), DENIED)
            });
            self.add(family, &format!("UDP of port {port}"), frames.into());
        }
        let mut spoiled = udp(src, dst, [self.port(), PORT], &self.mark());
        spoiled[7] ^= 0x55;
        let mut unchecked = udp(src, dst, [self.port(), PORT], &self.mark());
        unchecked[6..8].fill(0);
        for (name, datagram, fate) in [("a wrong", spoiled, SPOILED), ("no", unchecked, DENIED)] {
            let frame = self.between((src, dst), UDP, &datagram);
            self.add(family, &format!("UDP with {name} checksum"), vec![(frame, fate)]);
        }
        for chunk in [0, 1, 2, 3, 6, 7, 9, 10, 11, 14, 255] {
            let frames = [0, 7].map(|tag| {
                let packet = sctp([self.port(), PORT], tag, chunk, &self.mark());
                (self.between((src, dst), SCTP, &packet), DENIED)
            });
            self.add(family, &format!("an SCTP chunk of type {chunk}"), frames.into());
        }
        let mut spoiled = sctp([self.port(), PORT], 0, 1, &self.mark());
        spoiled[8] ^= 0x55;
        let frame = self.between((src, dst), SCTP, &spoiled);
        self.add(family, "SCTP with a wrong checksum", vec![(frame, SPOILED)]);
    }

    fn echoes(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let (request, reply) = if family == 0 { (8, 0) } else { (128, 129) };
        let protocol = [ICMP, ICMPV6][family];
        // The numbers of others' echoes are easy to guess.
        for identifier in [0, 1, 0xffff] {
            let mut frames = vec![];
            for (kind, fate) in [(request, DENIED), (reply, INVALID_STATE)] {
                let [high, low] = u16::to_be_bytes(identifier);
                let message = icmp(src, dst, kind, 0, [high, low, 0, 1], &self.mark());
                frames.push((self.between((src, dst), protocol, &message), fate));
            }
            self.add(family, &format!("echo and reply with identifier {identifier}"), frames);
        }
        let message = icmp(src, dst, request, 7, [0, 9, 0, 1], &self.mark());
        let frame = self.between((src, dst), protocol, &message);
        self.add(family, "an echo with a code", vec![(frame, DENIED)]);
    }

    /// ICMP errors to the target: about what it never sent, about what others said to it, about nothing at all.
    fn errors(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let others = self.ground.other.addresses[family];
        let protocol = [ICMP, ICMPV6][family];
        let types: &[(u8, &[u8])] = if family == 0 {
            &[(3, &[0, 1, 3, 4, 13]), (11, &[0, 1]), (12, &[0])]
        } else {
            &[(1, &[0, 1, 4]), (2, &[0]), (3, &[0, 1]), (4, &[0, 1]), (100, &[0]), (127, &[0])]
        };
        for &(kind, codes) in types {
            let mut frames = vec![];
            for &code in codes {
                let quotes = [
                    packet(dst, src, UDP, &udp(dst, src, [PORT, 40_000], &self.mark())),
                    packet(
                        dst,
                        others,
                        TCP,
                        &Segment::of([PORT, 40_000], ACK).bytes(dst, others, &self.mark()),
                    ),
                    packet(src, dst, UDP, &udp(src, dst, [PORT, PORT], &self.mark())),
                    packet(dst, src, TCP, &[0; 4]),
                    vec![],
                    vec![0x45; 8],
                    vec![0x60; 48],
                ];
                for quote in quotes {
                    let message = icmp(src, dst, kind, code, [0, 0, 5, 0], &quote);
                    frames.push((self.between((src, dst), protocol, &message), INVALID_STATE));
                }
            }
            self.add(family, &format!("ICMP errors of type {kind} about nothing that was sent"), frames);
        }
    }

    /// Sources that are somebody else's, and destinations that nobody has.
    fn addresses(&mut self, family: usize) {
        let (own, target) = self.ends(family);
        let Ground { other, gateway, node, .. } = self.ground;
        let [other, gateway, node] = [other, gateway, node].map(|station| station.addresses[family]);
        let mut sources = vec![
            ("the target's", target, SPOOFED),
            ("another pod's", other, SPOOFED),
            ("the switch's", gateway, SPOOFED),
            ("the node's", node, SPOOFED),
        ];
        let list: &[(&str, &str, Fate)] = if family == 0 {
            &[
                ("unspecified", "0.0.0.0", SPOOFED),
                ("of network 0", "0.1.2.3", SPOOFED),
                ("loopback", "127.0.0.1", SPOOFED),
                ("all-ones", "255.255.255.255", SPOOFED),
                ("a group", "224.0.0.1", SPOOFED),
                ("link-local", "169.254.9.9", SPOOFED),
                ("class E", "240.0.0.1", SPOOFED),
                ("a pod's that is not there", "10.77.0.200", SPOOFED),
                ("a stranger's", "192.0.2.99", SPOOFED),
                ("a neighbour's in its prefix", "10.77.0.1", SPOOFED),
            ]
        } else {
            &[
                ("unspecified", "::", SPOOFED),
                ("loopback", "::1", SPOOFED),
                ("a group", "ff02::1", SPOOFED),
                ("link-local", "fe80::99", SPOOFED),
                ("IPv4-mapped", "::ffff:10.77.0.2", MALFORMED),
                ("IPv4-compatible", "::10.77.0.2", SPOOFED),
                ("6to4", "2002:a4d:2::1", SPOOFED),
                ("translated", "64:ff9b::a4d:2", SPOOFED),
                ("site-local", "fec0::1", SPOOFED),
                ("a pod's that is not there", "fd77::99", SPOOFED),
                ("a stranger's", "2001:db8::99", SPOOFED),
            ]
        };
        sources.extend(list.iter().map(|(name, address, fate)| (*name, address.parse().unwrap(), *fate)));
        for (name, src, fate) in sources {
            let frames = vec![
                (self.datagram((src, target)), fate),
                (self.opening((src, target)), fate),
                (self.datagram((src, node)), fate),
            ];
            self.add(family, &format!("a source address: {name}"), frames);
        }
        let destinations: &[(&str, &str, Fate)] = if family == 0 {
            &[
                ("unspecified", "0.0.0.0", MULTICAST),
                ("of network 0", "0.1.2.3", MULTICAST),
                ("loopback", "127.0.0.1", MULTICAST),
                ("all-ones", "255.255.255.255", MULTICAST),
                ("all of the pods' network", "10.77.255.255", NO_ROUTE),
                ("all systems", "224.0.0.1", MULTICAST),
                ("mDNS", "224.0.0.251", MULTICAST),
                ("SSDP", "239.255.255.250", MULTICAST),
                ("class E", "240.0.0.1", MULTICAST),
                ("link-local", "169.254.9.9", NO_ROUTE),
                ("a pod's that is not there", "10.77.0.200", NO_ROUTE),
                ("a stranger's", "192.0.2.99", NO_ROUTE),
            ]
        } else {
            &[
                ("unspecified", "::", MULTICAST),
                ("loopback", "::1", MULTICAST),
                ("all nodes", "ff02::1", MULTICAST),
                ("all nodes of the interface", "ff01::1", MULTICAST),
                ("a global group", "ff0e::1", MULTICAST),
                ("the target's solicited-node group", "ff02::1:ff00:2", MULTICAST),
                ("link-local", "fe80::99", NO_ROUTE),
                ("IPv4-mapped", "::ffff:10.77.0.2", MALFORMED),
                ("IPv4-compatible", "::10.77.0.2", NO_ROUTE),
                ("a pod's that is not there", "fd77::99", NO_ROUTE),
                ("a stranger's", "2001:db8::99", NO_ROUTE),
            ]
        };
        for (name, address, fate) in destinations {
            let frame = self.datagram((own, address.parse().unwrap()));
            self.add(family, &format!("a destination address: {name}"), vec![(frame, *fate)]);
        }
        let own_port = self.port();
        let mark = self.mark();
        let land = udp(own, own, [own_port, own_port], &mark);
        let frame = self.between((own, own), UDP, &land);
        self.add(family, "from an endpoint to itself", vec![(frame, SPOOFED)]);
        for (name, dst) in [("switch", gateway), ("node", node)] {
            let frames = vec![(self.datagram((own, dst)), NO_ROUTE), (self.opening((own, dst)), NO_ROUTE)];
            self.add(family, &format!("traffic for the {name}"), frames);
        }
    }

    /// Protocols without ports, and those whose headers only the other family has.
    fn protocols(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let protocols: &[(u8, &str)] = &[
            (2, "IGMP"),
            (3, "GGP"),
            (4, "an IPv4 packet"),
            (8, "EGP"),
            (33, "DCCP"),
            (41, "an IPv6 packet"),
            (46, "RSVP"),
            (47, "GRE"),
            (50, "ESP"),
            (88, "EIGRP"),
            (89, "OSPF"),
            (94, "IPIP"),
            (97, "EtherIP"),
            (98, "ENCAP"),
            (103, "PIM"),
            (108, "IPComp"),
            (112, "VRRP"),
            (115, "L2TP"),
            (136, "UDP-Lite"),
            (137, "MPLS"),
            (200, "nobody knows"),
            (253, "experiments"),
            (255, "reserved"),
        ];
        for &(protocol, name) in protocols {
            // Of tunnels, an inner packet that policy would let in.
            let inner = Segment::of([self.port(), PORT], SYN).bytes(dst, dst, &self.mark());
            let payload = match protocol {
                4 | 41 | 94 => packet(dst, dst, TCP, &inner),
                47 => {
                    [vec![0, 0, [8, 0x86][family], [0, 0xdd][family]], packet(dst, dst, TCP, &inner)].concat()
                }
                _ => [vec![0; 8], self.mark()].concat(),
            };
            let frame = self.between((src, dst), protocol, &payload);
            self.add(family, &format!("protocol {protocol}, {name}"), vec![(frame, DENIED)]);
        }
        let other_icmp = [ICMPV6, ICMP][family];
        let message = [vec![8, 0, 0, 0, 0, 0, 0, 0], self.mark()].concat();
        let frame = self.between((src, dst), other_icmp, &message);
        self.add(family, "ICMP of the other family", vec![(frame, [DENIED, INVALID_STATE][family])]);
    }

    /// A frame cut off at each byte of its headers.
    fn truncations(&mut self, family: usize) {
        let ends = self.ends(family);
        let whole = self.opening(ends);
        let header = 14 + [20, 40][family];
        let parts = [
            ("an Ethernet header alone", 14..15),
            ("an IP header cut short", 15..header),
            ("a packet cut short", header..header + 20),
        ];
        for (name, lengths) in parts {
            let frames = lengths.map(|length| (whole[..length].to_vec(), TRUNCATED)).collect();
            self.add(family, name, frames);
        }
        // The packet says that it is as short as the frame is.
        let (src, dst) = ends;
        let segment = Segment::of([self.port(), PORT], SYN).bytes(src, dst, &[]);
        let frames = (0..20).map(|length| (self.between(ends, TCP, &segment[..length]), TRUNCATED)).collect();
        self.add(family, "a TCP header cut short", frames);
        let datagram = udp(src, dst, [self.port(), PORT], &[]);
        let frames = (0..8).map(|length| (self.between(ends, UDP, &datagram[..length]), TRUNCATED)).collect();
        self.add(family, "a UDP header cut short", frames);
        let packet = sctp([self.port(), PORT], 0, 1, &[]);
        let frames = (0..12).map(|length| (self.between(ends, SCTP, &packet[..length]), TRUNCATED)).collect();
        self.add(family, "an SCTP header cut short", frames);
        let message = icmp(src, dst, [8, 128][family], 0, [0; 4], &[]);
        let protocol = [ICMP, ICMPV6][family];
        let frames =
            (0..8).map(|length| (self.between(ends, protocol, &message[..length]), TRUNCATED)).collect();
        self.add(family, "an ICMP header cut short", frames);
    }

    /// Ethernet addresses and tags around a packet that nothing is wrong with.
    fn links(&mut self, family: usize) {
        let ends = self.ends(family);
        let Ground { own, other, target, gateway, node, .. } = self.ground;
        let everyone = [0xff; 6];
        let group = if family == 0 { [1, 0, 0x5e, 0, 0, 1] } else { [0x33, 0x33, 0, 0, 0, 1] };
        for (name, mac, fate) in [
            ("the target's", target.mac, NOT_FOR_US),
            ("another pod's", other.mac, NOT_FOR_US),
            ("the node's", node.mac, NOT_FOR_US),
            ("its own", own.mac, NOT_FOR_US),
            ("none", [0; 6], NOT_FOR_US),
            ("everyone's", everyone, MULTICAST),
            ("a group's", group, MULTICAST),
            ("that of bridges", [1, 0x80, 0xc2, 0, 0, 0], MULTICAST),
        ] {
            let mut frames = vec![];
            for mut frame in [self.datagram(ends), self.opening(ends)] {
                frame[..6].copy_from_slice(&mac);
                frames.push((frame, fate));
            }
            self.add(family, &format!("to an Ethernet address: {name}"), frames);
        }
        for (name, mac) in [
            ("the target's", target.mac),
            ("the switch's", gateway.mac),
            ("none", [0; 6]),
            ("everyone's", everyone),
        ] {
            let mut frame = self.datagram(ends);
            frame[6..12].copy_from_slice(&mac);
            self.add(family, &format!("from an Ethernet address: {name}"), vec![(frame, DENIED)]);
        }
        let vlan = Fate::Drop("vlan");
        let unknown = Fate::Drop("unknown-ethertype");
        let tags: &[(&str, &[u8], Fate)] = &[
            ("802.1Q identifier 0", &[0x81, 0, 0, 0], DENIED),
            ("802.1Q identifier 0 with a priority", &[0x81, 0, 0xe0, 0], DENIED),
            ("802.1Q identifier 1", &[0x81, 0, 0, 1], vlan),
            ("802.1Q identifier 7", &[0x81, 0, 0, 7], vlan),
            ("802.1Q identifier 4095", &[0x81, 0, 0x0f, 0xff], vlan),
            ("802.1ad", &[0x88, 0xa8, 0, 7], unknown),
            ("802.1ad of before", &[0x91, 0, 0, 7], unknown),
            ("two 802.1Q tags", &[0x81, 0, 0, 0, 0x81, 0, 0, 0], unknown),
            ("an 802.1Q tag within 802.1ad", &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 1], unknown),
        ];
        for (name, tag, fate) in tags {
            let frame = self.datagram(ends);
            let frame = [&frame[..12], tag, &frame[12..]].concat();
            self.add(family, &format!("behind {name}"), vec![(frame, *fate)]);
        }
        let frame = self.datagram(ends);
        let frames = (0..4)
            .map(|bytes| ([&frame[..12], &[0x81, 0, 0, 0][..2], &frame[14..14 + bytes]].concat(), TRUNCATED));
        self.add(family, "an 802.1Q tag cut short", frames.take(4).collect());
        let mut frame = self.datagram(ends);
        frame[12..14].copy_from_slice(&[IPV6, IPV4][family].to_be_bytes());
        let fate = if family == 0 { TRUNCATED } else { MALFORMED };
        self.add(family, "under the ethertype of the other family", vec![(frame, fate)]);
        let mut frame = self.datagram(ends);
        frame.extend([0xee; 64]);
        self.add(family, "with bytes behind the packet", vec![(frame, DENIED)]);
        let (src, dst) = ends;
        let bytes = 1500 - [20, 40][family] - 8;
        let largest =
            udp(src, dst, [self.port(), PORT], &[self.mark(), vec![0; bytes - MARK.len() - 2]].concat());
        let frame = self.between(ends, UDP, &largest);
        self.add(family, "as large as the link carries", vec![(frame, DENIED)]);
        for (ttl, fate) in
            [(0, "ttl-exceeded"), (1, "ttl-exceeded"), (2, "policy-ingress"), (255, "policy-ingress")]
        {
            let payload = udp(src, dst, [self.port(), PORT], &self.mark());
            let packet = match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => V4 { ttl, ..V4::new(src, dst, UDP) }.bytes(&payload),
                (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6(src, dst, UDP, ttl, &payload),
                _ => unreachable!("one family"),
            };
            let frame = self.ip(&packet);
            self.add(family, &format!("with {ttl} hops left"), vec![(frame, Fate::Drop(fate))]);
        }
    }

    /// A fragment of a packet between the usual ends: bytes `from..to` of what is above IP.
    fn fragment(
        &self,
        family: usize,
        protocol: u8,
        whole: &[u8],
        (from, to): (usize, usize),
        more: bool,
        number: u16,
    ) -> Vec<u8> {
        if family == 0 {
            let (src, dst) = self.ends_v4();
            let fragment = (from / 8) as u16 | if more { 0x2000 } else { 0 };
            return self.ip(&V4 { fragment, identification: number, ..V4::new(src, dst, protocol) }
                .bytes(&whole[from..to]));
        }
        let (src, dst) = self.ends_v6();
        let header = fragment_header(protocol, from as u16, more, u32::from(number));
        self.ip(&ipv6(src, dst, 44, 64, &[&header, &whole[from..to]].concat()))
    }

    fn fragments(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let overlap = Fate::Drop("fragment-overlap");
        let tiny = Fate::Drop("fragment-tiny");
        // Of a datagram of 64 bytes.
        let datagrams: &[(&str, &[Part])] = &[
            ("in two fragments", &[((0, 32), true, DENIED), ((32, 64), false, DENIED)]),
            (
                "in eight fragments",
                &[
                    ((0, 8), true, DENIED),
                    ((8, 16), true, DENIED),
                    ((16, 24), true, DENIED),
                    ((24, 32), true, DENIED),
                    ((32, 40), true, DENIED),
                    ((40, 48), true, DENIED),
                    ((48, 56), true, DENIED),
                    ((56, 64), false, DENIED),
                ],
            ),
            ("of which only the first fragment comes", &[((0, 32), true, DENIED)]),
            ("of which only the last fragment comes", &[((32, 64), false, Fate::Wait)]),
            (
                "whose second fragment lies over the first",
                &[((0, 32), true, DENIED), ((24, 64), false, overlap)],
            ),
            (
                "whose second fragment lies in the first",
                &[((0, 32), true, DENIED), ((8, 16), true, overlap), ((32, 64), false, DENIED)],
            ),
            (
                "whose first fragment comes twice",
                &[
                    ((0, 32), true, DENIED),
                    ((0, 32), true, Fate::Denied("fragment-overlap")),
                    ((32, 64), false, DENIED),
                ],
            ),
            (
                "whose middle does not end at a multiple of eight",
                &[((0, 32), true, DENIED), ((32, 45), true, Fate::Drop("fragment"))],
            ),
        ];
        for (name, parts) in datagrams {
            let datagram =
                udp(src, dst, [self.port(), PORT], &[self.mark(), vec![0; 64 - 8 - MARK.len() - 2]].concat());
            let number = self.number();
            let frames = parts.iter().map(|(range, more, fate)| {
                (self.fragment(family, UDP, &datagram, *range, *more, number), *fate)
            });
            let frames = frames.collect();
            self.add(family, &format!("a datagram {name}"), frames);
        }
        let segments: &[(&str, &[Part])] = &[
            ("without the ports", &[((0, 0), true, tiny)]),
            ("with eight bytes of its header", &[((0, 8), true, tiny)]),
            ("with sixteen bytes of its header", &[((0, 16), true, tiny)]),
            ("whose control bits come later", &[((0, 8), true, tiny), ((8, 40), false, tiny)]),
        ];
        for (name, parts) in segments {
            let segment =
                Segment::of([self.port(), PORT], SYN).bytes(src, dst, &[self.mark(), vec![0; 10]].concat());
            let number = self.number();
            let frames = parts.iter().map(|(range, more, fate)| {
                (self.fragment(family, TCP, &segment, *range, *more, number), *fate)
            });
            let frames = frames.collect();
            self.add(family, &format!("a first fragment of TCP {name}"), frames);
        }
        let segment =
            Segment::of([self.port(), PORT], ACK | PSH).bytes(src, dst, &[self.mark(), vec![0; 34]].concat());
        let number = self.number();
        let frames = [((0, 32), true), ((32, 64), false)]
            .map(|(range, more)| (self.fragment(family, TCP, &segment, range, more, number), INVALID_STATE));
        self.add(family, "a segment outside any connection in two fragments", frames.into());
        let segment = Segment::of([self.port(), CLOSED_PORT], SYN).bytes(
            src,
            dst,
            &[self.mark(), vec![0; 34]].concat(),
        );
        let number = self.number();
        let frames = [((0, 32), true), ((32, 64), false)]
            .map(|(range, more)| (self.fragment(family, TCP, &segment, range, more, number), DENIED));
        self.add(family, "a SYN to a closed port in two fragments", frames.into());
    }

    /// Frames for the node's stack: a service there would answer, were they to get so far.
    fn traffic_for_the_node(&mut self, family: usize) {
        let own = self.ground.own.addresses[family];
        let node = self.ground.node;
        for (name, mac, fate) in [
            ("the node's Ethernet address", node.mac, NOT_FOR_US),
            ("everyone's Ethernet address", [0xff; 6], MULTICAST),
            ("the switch's Ethernet address", self.ground.gateway.mac, NO_ROUTE),
        ] {
            let ends = (own, node.addresses[family]);
            let mut frames = vec![];
            for mut frame in [self.datagram(ends), self.opening(ends)] {
                frame[..6].copy_from_slice(&mac);
                frames.push((frame, fate));
            }
            self.add(family, &format!("a service of the node by {name}"), frames);
        }
    }

    fn messages_of_icmp(&mut self) {
        let ends = self.ends(0);
        let types: &[(u8, &str, Fate)] = &[
            (1, "unassigned", DENIED),
            (4, "source quench", INVALID_STATE),
            (5, "redirect", INVALID_STATE),
            (6, "alternate address", DENIED),
            (9, "router advertisement", DENIED),
            (10, "router solicitation", DENIED),
            (13, "timestamp", DENIED),
            (14, "timestamp reply", INVALID_STATE),
            (15, "information", DENIED),
            (16, "information reply", INVALID_STATE),
            (17, "mask", DENIED),
            (18, "mask reply", INVALID_STATE),
            (30, "traceroute", DENIED),
            (40, "photuris", DENIED),
            (42, "extended echo", DENIED),
            (255, "reserved", DENIED),
        ];
        for &(kind, name, fate) in types {
            let frames = [0, 1].map(|code| {
                let message = icmp(ends.0, ends.1, kind, code, [0; 4], &self.mark());
                (self.between(ends, ICMP, &message), fate)
            });
            self.add(0, &format!("ICMP {name}, type {kind}"), frames.into());
        }
        // That of a router between the target and the world.
        let quote = packet(ends.1, ends.0, UDP, &udp(ends.1, ends.0, [PORT, 40_000], &self.mark()));
        let gateway = octets(self.ground.own.addresses[0]).try_into().unwrap();
        let message = icmp(ends.0, ends.1, 5, 1, gateway, &quote);
        let frame = self.between(ends, ICMP, &message);
        self.add(0, "a redirect to itself", vec![(frame, INVALID_STATE)]);
    }

    fn messages_of_icmpv6(&mut self) {
        let ends = self.ends(1);
        let types: &[(u8, &str, Fate)] = &[
            (0, "reserved", INVALID_STATE),
            (130, "listener query", Fate::Consume),
            (131, "listener report", Fate::Consume),
            (132, "listener done", Fate::Consume),
            (133, "router solicitation", Fate::Consume),
            (134, "router advertisement", Fate::Consume),
            (135, "neighbour solicitation", Fate::Consume),
            (136, "neighbour advertisement", Fate::Consume),
            (137, "redirect", Fate::Consume),
            (138, "router renumbering", DENIED),
            (139, "node information query", DENIED),
            (140, "node information response", INVALID_STATE),
            (143, "listener report, version 2", Fate::Consume),
            (144, "home agent discovery", DENIED),
            (148, "certification path", DENIED),
            (151, "multicast router advertisement", DENIED),
            (155, "RPL", DENIED),
            (160, "extended echo", DENIED),
            (200, "experiments", DENIED),
            (255, "reserved", DENIED),
        ];
        for &(kind, name, fate) in types {
            let frames = [0, 1].map(|code| {
                let message = icmp(ends.0, ends.1, kind, code, [0; 4], &self.mark());
                (self.between(ends, ICMPV6, &message), fate)
            });
            self.add(1, &format!("ICMPv6 {name}, type {kind}"), frames.into());
        }
    }

    fn headers_of_ipv4(&mut self) {
        let (src, dst) = self.ends_v4();
        let usual = V4::new(src, dst, UDP);
        let lies: Vec<(&str, V4, Fate)> = vec![
            (
                "a wrong header checksum",
                V4 { spoil_checksum: true, ..usual.clone() },
                Fate::Drop("bad-ip-checksum"),
            ),
            ("version 0", V4 { version_and_words: 0x05, ..usual.clone() }, MALFORMED),
            ("version 5", V4 { version_and_words: 0x55, ..usual.clone() }, MALFORMED),
            ("version 6", V4 { version_and_words: 0x65, ..usual.clone() }, MALFORMED),
            ("version 15", V4 { version_and_words: 0xf5, ..usual.clone() }, MALFORMED),
            ("a header of no words", V4 { version_and_words: 0x40, ..usual.clone() }, MALFORMED),
            ("a header of four words", V4 { version_and_words: 0x44, ..usual.clone() }, MALFORMED),
            ("a header longer than the packet", V4 { version_and_words: 0x4f, ..usual.clone() }, MALFORMED),
            ("a length of 0", V4 { total: Some(0), ..usual.clone() }, MALFORMED),
            ("a length of 19", V4 { total: Some(19), ..usual.clone() }, MALFORMED),
            ("a length of 20", V4 { total: Some(20), ..usual.clone() }, TRUNCATED),
            ("a length beyond the frame", V4 { total: Some(1400), ..usual.clone() }, TRUNCATED),
            ("a length of 65,535", V4 { total: Some(65_535), ..usual.clone() }, TRUNCATED),
            ("the reserved flag", V4 { fragment: 0x8000, ..usual.clone() }, DENIED),
            ("the flag that forbids fragments", V4 { fragment: 0x4000, ..usual.clone() }, DENIED),
        ];
        for (name, header, fate) in lies {
            let datagram = udp(src.into(), dst.into(), [self.port(), PORT], &self.mark());
            let frame = self.frame(IPV4, &header.bytes(&datagram));
            self.add(0, &format!("an IPv4 header with {name}"), vec![(frame, fate)]);
        }
    }

    fn options_of_ipv4(&mut self) {
        let (src, dst) = self.ends_v4();
        let own = octets(self.ground.own.addresses[0]);
        let way = |kind: u8| [vec![kind, 7, 4], own.clone(), vec![0]].concat();
        let option = Fate::Drop("ip-option");
        let routed = Fate::Drop("source-route");
        let options: Vec<(&str, Vec<u8>, Option<Fate>)> = vec![
            ("nothing", vec![1, 1, 1, 1], None),
            ("an end at once", vec![0, 0xff, 0xff, 0xff], None),
            ("a record of the route", way(7), Some(option)),
            ("a loose source route", way(131), Some(routed)),
            ("a strict source route", way(137), Some(routed)),
            (
                "a loose source route behind others",
                [vec![1, 1, 1], vec![131, 7, 4], own.clone(), vec![0, 0]].concat(),
                Some(routed),
            ),
            ("a timestamp", vec![68, 8, 5, 0, 0, 0, 0, 0], Some(option)),
            ("a router alert", vec![148, 4, 0, 0], None),
            ("security", vec![130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], None),
            ("a stream", vec![136, 4, 0, 1], None),
            ("an experiment", vec![30, 4, 0, 0], None),
            ("a length of zero", vec![7, 0, 0, 0], Some(MALFORMED)),
            ("a length of one", vec![7, 1, 0, 0], Some(MALFORMED)),
            ("a length beyond the header", vec![7, 40, 4, 0], Some(MALFORMED)),
            ("as much as there can be", [vec![7, 39, 4], vec![0; 37]].concat(), Some(option)),
        ];
        for (name, bytes, fate) in options {
            let (src_ip, dst_ip) = (src.into(), dst.into());
            let datagram = udp(src_ip, dst_ip, [self.port(), PORT], &self.mark());
            let segment = Segment::of([self.port(), PORT], SYN).bytes(src_ip, dst_ip, &self.mark());
            let frames = vec![
                (self.ip(&V4::new(src, dst, UDP).options(&bytes).bytes(&datagram)), fate.unwrap_or(DENIED)),
                (
                    self.ip(&V4::new(src, dst, TCP).options(&bytes).bytes(&segment)),
                    fate.unwrap_or(self.opened()),
                ),
            ];
            self.add(0, &format!("an IPv4 option: {name}"), frames);
        }
    }

    fn fragments_of_ipv4(&mut self) {
        let (src, dst) = self.ends_v4();
        let usual = V4::new(src, dst, UDP);
        let fragments = [
            ("beyond the largest datagram", 0x1fff, MALFORMED),
            ("beyond the largest datagram, with more to come", 0x3fff, MALFORMED),
        ];
        for (name, fragment, fate) in fragments {
            let number = self.number();
            let packet = V4 { fragment, identification: number, ..usual.clone() }.bytes(&[0; 64]);
            let frame = self.ip(&packet);
            self.add(0, &format!("a fragment {name}"), vec![(frame, fate)]);
        }
        let number = self.number();
        let packet =
            V4 { fragment: 0x0001, identification: number, ..V4::new(src, dst, TCP) }.bytes(&[0; 32]);
        let frame = self.ip(&packet);
        self.add(
            0,
            "a fragment of TCP that begins within its header",
            vec![(frame, Fate::Drop("fragment-tiny"))],
        );
        let IpAddr::V4(other) = self.ground.other.addresses[0] else { panic!("IPv4") };
        let packet = V4 { fragment: 0x0004, identification: 9, ..V4::new(other, dst, UDP) }.bytes(&[0; 32]);
        let frame = self.ip(&packet);
        self.add(0, "a fragment of somebody else's datagram", vec![(frame, SPOOFED)]);
    }

    fn headers_of_ipv6(&mut self) {
        let (src, dst) = self.ends_v6();
        for (name, at, bytes, fate) in [
            ("version 4", 0, vec![0x40], MALFORMED),
            ("version 0", 0, vec![0], MALFORMED),
            ("version 15", 0, vec![0xf0], MALFORMED),
            ("a traffic class and a flow label", 0, vec![0x6f, 0xff, 0xff, 0xff], DENIED),
            ("no payload", 4, vec![0, 0], TRUNCATED),
            ("a payload of seven bytes", 4, vec![0, 7], TRUNCATED),
            ("a payload beyond the frame", 4, vec![5, 0], TRUNCATED),
            ("a payload of 65,535 bytes", 4, vec![0xff, 0xff], TRUNCATED),
        ] {
            let datagram = udp(src.into(), dst.into(), [self.port(), PORT], &self.mark());
            let mut packet = ipv6(src, dst, UDP, 64, &datagram);
            packet[at..at + bytes.len()].copy_from_slice(&bytes);
            let frame = self.frame(IPV6, &packet);
            self.add(1, &format!("an IPv6 header with {name}"), vec![(frame, fate)]);
        }
    }

    fn extensions_of_ipv6(&mut self) {
        /// An extension header that names the next one, and whose own length is right.
        fn header(next: u8, rest: &[u8]) -> Vec<u8> {
            [&[next, ((rest.len() + 2) / 8 - 1) as u8][..], rest].concat()
        }
        let (src, dst) = self.ends_v6();
        let routed = Fate::Drop("source-route");
        let padding: &[u8] = &[1, 4, 0, 0, 0, 0];
        let routing =
            |next, kind, left| header(next, &[&[kind, left, 0, 0, 0, 0][..], &dst.octets()].concat());
        let mut long = [vec![1, 252], vec![0; 252]].concat();
        long.extend([1, 252]);
        long.extend([0; 252]);
        long.extend([0; 2]);
        // The first header, and what stands before the datagram.
        let chains: Vec<(&str, u8, Vec<u8>, Fate)> = vec![
            ("hop-by-hop options", 0, header(UDP, padding), DENIED),
            ("destination options", 60, header(UDP, padding), DENIED),
            ("a router alert", 0, header(UDP, &[5, 2, 0, 0, 1, 0]), DENIED),
            ("a jumbo payload", 0, header(UDP, &[0xc2, 4, 0, 1, 0, 0]), DENIED),
            ("an option that nobody knows", 60, header(UDP, &[0xfe, 4, 0, 0, 0, 0]), DENIED),
            ("an option with a length beyond its header", 60, header(UDP, &[1, 200, 0, 0, 0, 0]), DENIED),
            ("hop-by-hop options twice", 0, [header(0, padding), header(UDP, padding)].concat(), MALFORMED),
            (
                "hop-by-hop options behind others",
                60,
                [header(0, padding), header(UDP, padding)].concat(),
                MALFORMED,
            ),
            ("destination options twice", 60, [header(60, padding), header(UDP, padding)].concat(), DENIED),
            ("a routing header of type 0", 43, routing(UDP, 0, 1), routed),
            ("a routing header of type 0 with nothing left", 43, routing(UDP, 0, 0), routed),
            (
                "a routing header of type 0 behind options",
                60,
                [header(43, padding), routing(UDP, 0, 1)].concat(),
                routed,
            ),
            ("a routing header of type 1", 43, routing(UDP, 1, 1), DENIED),
            ("a routing header of type 2", 43, routing(UDP, 2, 1), DENIED),
            ("a routing header of type 3", 43, routing(UDP, 3, 1), DENIED),
            ("segment routing", 43, routing(UDP, 4, 1), DENIED),
            ("a routing header of type 253", 43, routing(UDP, 253, 1), DENIED),
            ("an authentication header", 51, [vec![UDP, 1, 0, 0], vec![0; 8]].concat(), DENIED),
            (
                "an authentication header in front of options",
                51,
                [vec![60, 1, 0, 0], vec![0; 8], header(UDP, padding)].concat(),
                DENIED,
            ),
            ("an encapsulated payload", 50, vec![0; 16], DENIED),
            ("no next header", 59, vec![], DENIED),
            ("a mobility header", 135, header(59, padding), DENIED),
            ("a host identity header", 139, header(59, padding), DENIED),
            ("a shim6 header", 140, header(59, padding), DENIED),
            (
                "eight headers",
                0,
                [header(60, padding), header(60, padding).repeat(6), header(UDP, padding)].concat(),
                DENIED,
            ),
            (
                "nine headers",
                0,
                [header(60, padding), header(60, padding).repeat(7), header(UDP, padding)].concat(),
                MALFORMED,
            ),
            ("a long header", 60, header(UDP, &long), DENIED),
            ("a header beyond the packet", 60, vec![UDP, 200, 1, 4, 0, 0, 0, 0], MALFORMED),
            ("a header that is its own next", 60, vec![60, 0, 1, 4, 0, 0, 0, 0], MALFORMED),
            ("an atomic fragment", 44, fragment_header(UDP, 0, false, 77), DENIED),
            (
                "two fragment headers",
                44,
                [fragment_header(44, 0, false, 78), fragment_header(UDP, 0, false, 79)].concat(),
                MALFORMED,
            ),
        ];
        for (name, first, before, fate) in chains {
            let datagram = udp(src.into(), dst.into(), [self.port(), PORT], &self.mark());
            // A last header that repeats itself: the packet ends within a datagram that is read as headers.
            let frame = self.ip(&ipv6(src, dst, first, 64, &[before, datagram].concat()));
            self.add(1, &format!("an IPv6 packet with {name}"), vec![(frame, fate)]);
        }
        let datagram = udp(src.into(), dst.into(), [self.port(), PORT], &self.mark());
        let whole = ipv6(src, dst, 0, 64, &[header(60, padding), header(UDP, padding), datagram].concat());
        let frames = (41..56).map(|bytes| {
            let mut packet = whole[..bytes].to_vec();
            packet[4..6].copy_from_slice(&(bytes as u16 - 40).to_be_bytes());
            (self.ip(&packet), MALFORMED)
        });
        let frames = frames.collect();
        self.add(1, "extension headers cut short", frames);
    }

    fn fragments_of_ipv6(&mut self) {
        let (src, dst) = self.ends_v6();
        let number = self.number();
        let header = fragment_header(UDP, 0xfff8, false, u32::from(number));
        let frame = self.ip(&ipv6(src, dst, 44, 64, &[header, vec![0; 64]].concat()));
        self.add(1, "a fragment beyond the largest datagram", vec![(frame, Fate::Drop("fragment"))]);
        // The whole chain of headers must lie in the first fragment (RFC 7112).
        let number = self.number();
        let header = fragment_header(60, 0, true, u32::from(number));
        let frame = self.ip(&ipv6(src, dst, 44, 64, &[header, vec![UDP, 1, 1, 4, 0, 0, 0, 0]].concat()));
        self.add(1, "a first fragment that ends within its headers", vec![(frame, MALFORMED)]);
        let IpAddr::V6(other) = self.ground.other.addresses[1] else { panic!("IPv6") };
        let header = fragment_header(UDP, 32, false, 9);
        let frame = self.ip(&ipv6(other, dst, 44, 64, &[header, vec![0; 32]].concat()));
        self.add(1, "a fragment of somebody else's datagram", vec![(frame, SPOOFED)]);
    }

    /// Frames that are neither IPv4 nor IPv6, from stations that would have a host or a bridge do something.
    fn ethertypes(&mut self) {
        let Ground { target, .. } = self.ground;
        for (ethertype, name) in [
            (0x0000, "none"),
            (0x0026, "a length (802.3)"),
            (0x0200, "PUP"),
            (0x0842, "wake on LAN"),
            (0x22f0, "AVTP"),
            (0x6558, "transparent Ethernet"),
            (0x8035, "RARP"),
            (0x809b, "AppleTalk"),
            (0x8137, "IPX"),
            (0x8808, "flow control"),
            (0x8809, "LACP"),
            (0x8847, "MPLS"),
            (0x8848, "MPLS multicast"),
            (0x8863, "PPPoE discovery"),
            (0x8864, "PPPoE"),
            (0x888e, "802.1X"),
            (0x88a4, "EtherCAT"),
            (0x88cc, "LLDP"),
            (0x88e5, "MACsec"),
            (0x88f7, "PTP"),
            (0x8906, "FCoE"),
            (0x9000, "loop"),
            (0xffff, "reserved"),
        ] {
            let mut frames = vec![];
            for mac in [self.ground.gateway.mac, target.mac, [0xff; 6], [1, 0x80, 0xc2, 0, 0, 0x0e]] {
                let payload = [self.mark(), vec![0; 32]].concat();
                let frame = ethernet(self.ground.own.mac, mac, ethertype, &payload);
                frames.push((frame, Fate::Drop("unknown-ethertype")));
            }
            self.add(0, &format!("ethertype {ethertype:#06x}, {name}"), frames);
        }
    }

    fn arp(&mut self) {
        let Ground { own, other, target, gateway, node, .. } = self.ground;
        let of = |station: Station| <[u8; 4]>::try_from(octets(station.addresses[0])).unwrap();
        let [own_address, other_address, target_address, gateway_address, node_address] =
            [own, other, target, gateway, node].map(of);
        let (request, reply) = (1u8, 2u8);
        let everyone = [0xff; 6];
        let consume = Fate::Consume;
        let rows: &[(&str, u8, [u8; 4], [u8; 4], [u8; 6], Fate)] = &[
            ("asks for the target", request, own_address, target_address, everyone, consume),
            ("asks for the node", request, own_address, node_address, everyone, consume),
            ("asks the target itself", request, own_address, target_address, target.mac, NOT_FOR_US),
            ("asks as the target", request, target_address, other_address, everyone, SPOOFED),
            ("asks as the switch", request, gateway_address, target_address, everyone, SPOOFED),
            ("asks as the node", request, node_address, target_address, everyone, SPOOFED),
            ("asks as another pod for itself", request, other_address, own_address, everyone, SPOOFED),
            ("announces the target", request, target_address, target_address, everyone, SPOOFED),
            ("announces the switch", reply, gateway_address, gateway_address, everyone, SPOOFED),
            ("announces itself", reply, own_address, own_address, everyone, consume),
            (
                "tells the target that it is the switch",
                reply,
                gateway_address,
                target_address,
                target.mac,
                NOT_FOR_US,
            ),
            (
                "tells the switch that it is the target",
                reply,
                target_address,
                gateway_address,
                gateway.mac,
                SPOOFED,
            ),
            (
                "tells the node that it is the target",
                reply,
                target_address,
                node_address,
                node.mac,
                NOT_FOR_US,
            ),
            ("probes for the target", request, [0; 4], target_address, everyone, consume),
            ("asks for a group", request, own_address, [224, 0, 0, 1], everyone, consume),
            ("asks for everyone", request, own_address, [255; 4], everyone, consume),
            ("asks as loopback", request, [127, 0, 0, 1], target_address, everyone, SPOOFED),
            ("asks inversely", 8, own_address, target_address, everyone, consume),
            ("has an operation of zero", 0, own_address, target_address, everyone, consume),
        ];
        for (name, operation, sender, looked_for, to, fate) in rows {
            let mut frame = arp(*operation, (own.mac, *sender), ([0; 6], *looked_for), *to);
            frame.extend(self.mark());
            self.add(0, &format!("ARP that {name}"), vec![(frame, *fate)]);
        }
        let whole = arp(request, (own.mac, own_address), ([0; 6], target_address), everyone);
        let frames = (14..whole.len()).map(|bytes| (whole[..bytes].to_vec(), consume)).collect();
        self.add(0, "ARP cut short", frames);
        let frames = [(14, 9), (16, 9), (18, 7), (19, 5)].map(|(at, value)| {
            let mut frame = whole.clone();
            frame[at] = value;
            (frame, consume)
        });
        self.add(0, "ARP of other hardware, protocols and lengths", frames.into());
    }

    fn neighbor_discovery(&mut self) {
        let Ground { own, other, target, gateway, .. } = self.ground;
        let of = |station: Station| match station.addresses[1] {
            IpAddr::V6(address) => address,
            IpAddr::V4(_) => panic!("IPv6"),
        };
        let [own_address, other_address, target_address, gateway_address] =
            [own, other, target, gateway].map(of);
        let all_nodes: Ipv6Addr = "ff02::1".parse().unwrap();
        let link_local: Ipv6Addr = "fe80::99".parse().unwrap();
        let none = Ipv6Addr::UNSPECIFIED;
        let group = [0x33, 0x33, 0, 0, 0, 1];
        let (solicitation, advertisement) = (135, 136);
        let rows: &[(&str, u8, Ipv6Addr, Ipv6Addr, Ipv6Addr, u8, Fate)] = &[
            (
                "a solicitation for the target",
                solicitation,
                own_address,
                all_nodes,
                target_address,
                255,
                Fate::Consume,
            ),
            (
                "a solicitation from a router's distance",
                solicitation,
                own_address,
                all_nodes,
                target_address,
                64,
                Fate::Consume,
            ),
            (
                "a solicitation as the target",
                solicitation,
                target_address,
                all_nodes,
                other_address,
                255,
                SPOOFED,
            ),
            (
                "a solicitation as the switch",
                solicitation,
                gateway_address,
                all_nodes,
                target_address,
                255,
                Fate::Consume,
            ),
            (
                "a search for duplicates of the target",
                solicitation,
                none,
                all_nodes,
                target_address,
                255,
                Fate::Consume,
            ),
            (
                "a solicitation for a group",
                solicitation,
                own_address,
                all_nodes,
                all_nodes,
                255,
                Fate::Consume,
            ),
            (
                "an advertisement of the target",
                advertisement,
                own_address,
                all_nodes,
                target_address,
                255,
                Fate::Consume,
            ),
            (
                "an advertisement of the switch",
                advertisement,
                link_local,
                all_nodes,
                gateway_address,
                255,
                Fate::Consume,
            ),
            (
                "an advertisement as the target",
                advertisement,
                target_address,
                all_nodes,
                target_address,
                255,
                SPOOFED,
            ),
            (
                "an advertisement to the target",
                advertisement,
                own_address,
                target_address,
                gateway_address,
                255,
                Fate::Consume,
            ),
            (
                "a solicitation to the target",
                solicitation,
                own_address,
                target_address,
                target_address,
                255,
                Fate::Consume,
            ),
        ];
        for (name, kind, src, dst, about, hops, fate) in rows {
            let payload = [&about.octets()[..], &[2, 1], &own.mac].concat();
            let message = icmp((*src).into(), (*dst).into(), *kind, 0, [0x20, 0, 0, 0], &payload);
            let packet = ipv6(*src, *dst, ICMPV6, *hops, &message);
            let to = if dst.is_multicast() { group } else { gateway.mac };
            let frame = ethernet(own.mac, to, IPV6, &packet);
            self.add(1, name, vec![(frame, *fate)]);
        }
        let prefix =
            [&[3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &own_address.octets()].concat();
        for (name, kind, src, fate) in [
            ("a router advertisement with a prefix", 134, link_local, Fate::Consume),
            ("a router advertisement as the switch", 134, gateway_address, Fate::Consume),
            ("a router advertisement as the target", 134, target_address, SPOOFED),
            ("a router solicitation", 133, link_local, Fate::Consume),
            ("a redirect as the switch", 137, gateway_address, Fate::Consume),
        ] {
            let payload = [&[0; 8][..], &prefix].concat();
            let message = icmp(src.into(), all_nodes.into(), kind, 0, [64, 0, 7, 8], &payload);
            let packet = ipv6(src, all_nodes, ICMPV6, 255, &message);
            let frame = ethernet(own.mac, group, IPV6, &packet);
            self.add(1, name, vec![(frame, fate)]);
        }
        // Behind hop-by-hop options, as listener reports are.
        let message = icmp(link_local.into(), all_nodes.into(), 143, 0, [0, 0, 0, 1], &[4, 0, 0, 0]);
        let options = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
        let packet = ipv6(link_local, all_nodes, 0, 1, &[&options[..], &message].concat());
        let frame = ethernet(own.mac, group, IPV6, &packet);
        self.add(1, "a listener report behind a router alert", vec![(frame, Fate::Consume)]);
    }
}
