//! Kinds of ICMP and `ICMPv6` messages.

use super::*;

impl Kinds {
    pub(super) fn messages_of_icmp(&mut self) {
        let ends = self.ends(0);
        let types: &[(u8, &str, Expected)] = &[
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
        for &(kind, name, expected) in types {
            let frames = [0, 1].map(|code| {
                let message = icmp(ends.0, ends.1, kind, code, [0; 4], &self.mark());
                (self.between(ends, ICMP, &message), expected)
            });
            self.add(0, &format!("ICMP {name}, type {kind}"), frames.into());
        }
        // A router between the target and the outside would send these.
        let quote = packet(ends.1, ends.0, UDP, &udp(ends.1, ends.0, [PORT, 40_000], &self.mark()));
        let gateway = octets(self.topology.own.addresses[0]).try_into().unwrap();
        let message = icmp(ends.0, ends.1, 5, 1, gateway, &quote);
        let frame = self.between(ends, ICMP, &message);
        self.add(0, "a redirect to itself", vec![(frame, INVALID_STATE)]);
    }

    pub(super) fn messages_of_icmpv6(&mut self) {
        let ends = self.ends(1);
        let types: &[(u8, &str, Expected)] = &[
            (0, "reserved", INVALID_STATE),
            (130, "listener query", Expected::Consume),
            (131, "listener report", Expected::Consume),
            (132, "listener done", Expected::Consume),
            (133, "router solicitation", Expected::Consume),
            (134, "router advertisement", Expected::Consume),
            (135, "neighbour solicitation", Expected::Consume),
            (136, "neighbour advertisement", Expected::Consume),
            (137, "redirect", Expected::Consume),
            (138, "router renumbering", DENIED),
            (139, "node information query", DENIED),
            (140, "node information response", INVALID_STATE),
            (143, "listener report, version 2", Expected::Consume),
            (144, "home agent discovery", DENIED),
            (148, "certification path", DENIED),
            (151, "multicast router advertisement", DENIED),
            (155, "RPL", DENIED),
            (160, "extended echo", DENIED),
            (200, "experiments", DENIED),
            (255, "reserved", DENIED),
        ];
        for &(kind, name, expected) in types {
            let frames = [0, 1].map(|code| {
                let message = icmp(ends.0, ends.1, kind, code, [0; 4], &self.mark());
                (self.between(ends, ICMPV6, &message), expected)
            });
            self.add(1, &format!("ICMPv6 {name}, type {kind}"), frames.into());
        }
    }
}
