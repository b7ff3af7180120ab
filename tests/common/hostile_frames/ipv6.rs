//! Kinds of IPv6 headers and extension headers.

use super::*;

impl Kinds {
    pub(super) fn headers_of_ipv6(&mut self) {
        let (src, dst) = self.ends_v6();
        for (name, at, bytes, expected) in [
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
            self.add(1, &format!("an IPv6 header with {name}"), vec![(frame, expected)]);
        }
    }

    pub(super) fn extensions_of_ipv6(&mut self) {
        /// Builds an extension header with the next header's number and a correct length.
        fn header(next: u8, rest: &[u8]) -> Vec<u8> {
            [&[next, ((rest.len() + 2) / 8 - 1) as u8][..], rest].concat()
        }
        let (src, dst) = self.ends_v6();
        let routed = Expected::Drop("source-route");
        let padding: &[u8] = &[1, 4, 0, 0, 0, 0];
        let routing =
            |next, kind, left| header(next, &[&[kind, left, 0, 0, 0, 0][..], &dst.octets()].concat());
        let mut long = [vec![1, 252], vec![0; 252]].concat();
        long.extend([1, 252]);
        long.extend([0; 252]);
        long.extend([0; 2]);
        // First header, and the bytes before the datagram.
        let chains: Vec<(&str, u8, Vec<u8>, Expected)> = vec![
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
        for (name, first, before, expected) in chains {
            let datagram = udp(src.into(), dst.into(), [self.port(), PORT], &self.mark());
            // The last header repeats itself, so that the datagram is read as headers.
            let frame = self.ip(&ipv6(src, dst, first, 64, &[before, datagram].concat()));
            self.add(1, &format!("an IPv6 packet with {name}"), vec![(frame, expected)]);
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
}
