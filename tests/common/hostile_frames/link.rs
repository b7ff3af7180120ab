//! Kinds of the link layer: Ethernet addresses, tags, ethertypes, ARP and neighbour discovery.

use super::*;

impl Kinds {
    /// Adds Ethernet addresses and tags around a valid packet.
    pub(super) fn links(&mut self, family: usize) {
        let ends = self.ends(family);
        let Topology { own, other, target, gateway, node, .. } = self.topology;
        let everyone = [0xff; 6];
        let group = if family == 0 { [1, 0, 0x5e, 0, 0, 1] } else { [0x33, 0x33, 0, 0, 0, 1] };
        for (name, mac, expected) in [
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
                frames.push((frame, expected));
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
        let vlan = Expected::Drop("vlan");
        let unknown = Expected::Drop("unknown-ethertype");
        let tags: &[(&str, &[u8], Expected)] = &[
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
        for (name, tag, expected) in tags {
            let frame = self.datagram(ends);
            let frame = [&frame[..12], tag, &frame[12..]].concat();
            self.add(family, &format!("behind {name}"), vec![(frame, *expected)]);
        }
        let frame = self.datagram(ends);
        let frames = (0..4)
            .map(|bytes| ([&frame[..12], &[0x81, 0, 0, 0][..2], &frame[14..14 + bytes]].concat(), TRUNCATED));
        self.add(family, "an 802.1Q tag cut short", frames.take(4).collect());
        let mut frame = self.datagram(ends);
        frame[12..14].copy_from_slice(&[IPV6, IPV4][family].to_be_bytes());
        let expected = if family == 0 { TRUNCATED } else { MALFORMED };
        self.add(family, "under the ethertype of the other family", vec![(frame, expected)]);
        let mut frame = self.datagram(ends);
        frame.extend([0xee; 64]);
        self.add(family, "with bytes behind the packet", vec![(frame, DENIED)]);
        let (src, dst) = ends;
        let bytes = 1500 - [20, 40][family] - 8;
        let largest =
            udp(src, dst, [self.port(), PORT], &[self.mark(), vec![0; bytes - MARK.len() - 2]].concat());
        let frame = self.between(ends, UDP, &largest);
        self.add(family, "as large as the link carries", vec![(frame, DENIED)]);
        for (ttl, expected) in
            [(0, "ttl-exceeded"), (1, "ttl-exceeded"), (2, "policy-ingress"), (255, "policy-ingress")]
        {
            let payload = udp(src, dst, [self.port(), PORT], &self.mark());
            let packet = match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => V4 { ttl, ..V4::new(src, dst, UDP) }.bytes(&payload),
                (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6(src, dst, UDP, ttl, &payload),
                _ => unreachable!("one family"),
            };
            let frame = self.ip(&packet);
            self.add(family, &format!("with {ttl} hops left"), vec![(frame, Expected::Drop(expected))]);
        }
    }

    /// Adds frames that are neither IPv4 nor IPv6, and that a host or a bridge would act on.
    pub(super) fn ethertypes(&mut self) {
        let Topology { target, .. } = self.topology;
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
            for mac in [self.topology.gateway.mac, target.mac, [0xff; 6], [1, 0x80, 0xc2, 0, 0, 0x0e]] {
                let payload = [self.mark(), vec![0; 32]].concat();
                let frame = ethernet(self.topology.own.mac, mac, ethertype, &payload);
                frames.push((frame, Expected::Drop("unknown-ethertype")));
            }
            self.add(0, &format!("ethertype {ethertype:#06x}, {name}"), frames);
        }
    }

    pub(super) fn arp(&mut self) {
        let Topology { own, other, target, gateway, node, .. } = self.topology;
        let of = |station: Station| <[u8; 4]>::try_from(octets(station.addresses[0])).unwrap();
        let [own_address, other_address, target_address, gateway_address, node_address] =
            [own, other, target, gateway, node].map(of);
        let (request, reply) = (1u8, 2u8);
        let everyone = [0xff; 6];
        let consume = Expected::Consume;
        let rows: &[(&str, u8, [u8; 4], [u8; 4], [u8; 6], Expected)] = &[
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
        for (name, operation, sender, looked_for, to, expected) in rows {
            let mut frame = arp(*operation, (own.mac, *sender), ([0; 6], *looked_for), *to);
            frame.extend(self.mark());
            self.add(0, &format!("ARP that {name}"), vec![(frame, *expected)]);
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

    pub(super) fn neighbor_discovery(&mut self) {
        let Topology { own, other, target, gateway, .. } = self.topology;
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
        let rows: &[(&str, u8, Ipv6Addr, Ipv6Addr, Ipv6Addr, u8, Expected)] = &[
            (
                "a solicitation for the target",
                solicitation,
                own_address,
                all_nodes,
                target_address,
                255,
                Expected::Consume,
            ),
            (
                "a solicitation from a router's distance",
                solicitation,
                own_address,
                all_nodes,
                target_address,
                64,
                Expected::Consume,
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
                Expected::Consume,
            ),
            (
                "a search for duplicates of the target",
                solicitation,
                none,
                all_nodes,
                target_address,
                255,
                Expected::Consume,
            ),
            (
                "a solicitation for a group",
                solicitation,
                own_address,
                all_nodes,
                all_nodes,
                255,
                Expected::Consume,
            ),
            (
                "an advertisement of the target",
                advertisement,
                own_address,
                all_nodes,
                target_address,
                255,
                Expected::Consume,
            ),
            (
                "an advertisement of the switch",
                advertisement,
                link_local,
                all_nodes,
                gateway_address,
                255,
                Expected::Consume,
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
                Expected::Consume,
            ),
            (
                "a solicitation to the target",
                solicitation,
                own_address,
                target_address,
                target_address,
                255,
                Expected::Consume,
            ),
        ];
        for (name, kind, src, dst, about, hops, expected) in rows {
            let payload = [&about.octets()[..], &[2, 1], &own.mac].concat();
            let message = icmp((*src).into(), (*dst).into(), *kind, 0, [0x20, 0, 0, 0], &payload);
            let packet = ipv6(*src, *dst, ICMPV6, *hops, &message);
            let to = if dst.is_multicast() { group } else { gateway.mac };
            let frame = ethernet(own.mac, to, IPV6, &packet);
            self.add(1, name, vec![(frame, *expected)]);
        }
        let prefix =
            [&[3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &own_address.octets()].concat();
        for (name, kind, src, expected) in [
            ("a router advertisement with a prefix", 134, link_local, Expected::Consume),
            ("a router advertisement as the switch", 134, gateway_address, Expected::Consume),
            ("a router advertisement as the target", 134, target_address, SPOOFED),
            ("a router solicitation", 133, link_local, Expected::Consume),
            ("a redirect as the switch", 137, gateway_address, Expected::Consume),
        ] {
            let payload = [&[0; 8][..], &prefix].concat();
            let message = icmp(src.into(), all_nodes.into(), kind, 0, [64, 0, 7, 8], &payload);
            let packet = ipv6(src, all_nodes, ICMPV6, 255, &message);
            let frame = ethernet(own.mac, group, IPV6, &packet);
            self.add(1, name, vec![(frame, expected)]);
        }
        // The message follows hop-by-hop options, as listener reports do (RFC 3810 section 5).
        let message = icmp(link_local.into(), all_nodes.into(), 143, 0, [0, 0, 0, 1], &[4, 0, 0, 0]);
        let options = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
        let packet = ipv6(link_local, all_nodes, 0, 1, &[&options[..], &message].concat());
        let frame = ethernet(own.mac, group, IPV6, &packet);
        self.add(1, "a listener report behind a router alert", vec![(frame, Expected::Consume)]);
    }
}
