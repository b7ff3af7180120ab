//! Kinds of UDP, SCTP, ICMP echoes and errors, and of other protocols.

use super::*;

impl Kinds {
    pub(super) fn udp_and_sctp(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let lies = [
            ("zero", 0, MALFORMED),
            ("seven", 7, MALFORMED),
            ("more than there is", 900, MALFORMED),
            ("eight", 8, SPOILED),
        ];
        for (name, bytes, expected) in lies {
            let mut datagram = udp(src, dst, [self.port(), PORT], &self.mark());
            datagram[4..6].copy_from_slice(&u16::to_be_bytes(bytes));
            let frame = self.between((src, dst), UDP, &datagram);
            self.add(family, &format!("a UDP length of {name}"), vec![(frame, expected)]);
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
        for (name, datagram, expected) in [("a wrong", spoiled, SPOILED), ("no", unchecked, DENIED)] {
            let frame = self.between((src, dst), UDP, &datagram);
            self.add(family, &format!("UDP with {name} checksum"), vec![(frame, expected)]);
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

    pub(super) fn echoes(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let (request, reply) = if family == 0 { (8, 0) } else { (128, 129) };
        let protocol = [ICMP, ICMPV6][family];
        // Echo identifiers of other pods are easy to guess.
        for identifier in [0, 1, 0xffff] {
            let mut frames = vec![];
            for (kind, expected) in [(request, DENIED), (reply, INVALID_STATE)] {
                let [high, low] = u16::to_be_bytes(identifier);
                let message = icmp(src, dst, kind, 0, [high, low, 0, 1], &self.mark());
                frames.push((self.between((src, dst), protocol, &message), expected));
            }
            self.add(family, &format!("echo and reply with identifier {identifier}"), frames);
        }
        let message = icmp(src, dst, request, 7, [0, 9, 0, 1], &self.mark());
        let frame = self.between((src, dst), protocol, &message);
        self.add(family, "an echo with a code", vec![(frame, DENIED)]);
    }

    /// Adds ICMP errors to the target: about packets that it never sent, about packets of others to it, and
    /// without a quoted packet.
    pub(super) fn errors(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let others = self.topology.other.addresses[family];
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

    /// Adds protocols without ports, and those with headers of the other family.
    pub(super) fn protocols(&mut self, family: usize) {
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
            // Tunnels carry an inner packet that policy would allow.
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
}
