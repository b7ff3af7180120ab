//! Kinds with addresses of others or of nobody, and for services of the node.

use super::*;

impl Kinds {
    /// Adds spoofed sources, and destinations that no station has.
    pub(super) fn addresses(&mut self, family: usize) {
        let (own, target) = self.ends(family);
        let Topology { other, gateway, node, .. } = self.topology;
        let [other, gateway, node] = [other, gateway, node].map(|station| station.addresses[family]);
        let mut sources = vec![
            ("the target's", target, SPOOFED),
            ("another pod's", other, SPOOFED),
            ("the switch's", gateway, SPOOFED),
            ("the node's", node, SPOOFED),
        ];
        let list: &[(&str, &str, Expected)] = if family == 0 {
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
        sources.extend(
            list.iter().map(|(name, address, expected)| (*name, address.parse().unwrap(), *expected)),
        );
        for (name, src, expected) in sources {
            let frames = vec![
                (self.datagram((src, target)), expected),
                (self.opening((src, target)), expected),
                (self.datagram((src, node)), expected),
            ];
            self.add(family, &format!("a source address: {name}"), frames);
        }
        let destinations: &[(&str, &str, Expected)] = if family == 0 {
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
        for (name, address, expected) in destinations {
            let frame = self.datagram((own, address.parse().unwrap()));
            self.add(family, &format!("a destination address: {name}"), vec![(frame, *expected)]);
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

    /// Adds frames for services of the node, which would reply to a leaked frame.
    pub(super) fn traffic_for_the_node(&mut self, family: usize) {
        let own = self.topology.own.addresses[family];
        let node = self.topology.node;
        for (name, mac, expected) in [
            ("the node's Ethernet address", node.mac, NOT_FOR_US),
            ("everyone's Ethernet address", [0xff; 6], MULTICAST),
            ("the switch's Ethernet address", self.topology.gateway.mac, NO_ROUTE),
        ] {
            let ends = (own, node.addresses[family]);
            let mut frames = vec![];
            for mut frame in [self.datagram(ends), self.opening(ends)] {
                frame[..6].copy_from_slice(&mac);
                frames.push((frame, expected));
            }
            self.add(family, &format!("a service of the node by {name}"), frames);
        }
    }
}
