//! Kinds of fragments.

use super::*;

impl Kinds {
    /// Builds a fragment of a packet between the usual ends: bytes `from..to` above IP.
    pub(super) fn fragment(
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

    pub(super) fn fragments(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let overlap = Expected::Drop("fragment-overlap");
        let tiny = Expected::Drop("fragment-tiny");
        // The datagram has 64 bytes.
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
            ("of which only the last fragment comes", &[((32, 64), false, Expected::Wait)]),
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
                    ((0, 32), true, Expected::Denied("fragment-overlap")),
                    ((32, 64), false, DENIED),
                ],
            ),
            (
                "whose middle does not end at a multiple of eight",
                &[((0, 32), true, DENIED), ((32, 45), true, Expected::Drop("fragment"))],
            ),
        ];
        for (name, parts) in datagrams {
            let datagram =
                udp(src, dst, [self.port(), PORT], &[self.mark(), vec![0; 64 - 8 - MARK.len() - 2]].concat());
            let number = self.number();
            let frames = parts.iter().map(|(range, more, expected)| {
                (self.fragment(family, UDP, &datagram, *range, *more, number), *expected)
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
            let frames = parts.iter().map(|(range, more, expected)| {
                (self.fragment(family, TCP, &segment, *range, *more, number), *expected)
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

    pub(super) fn fragments_of_ipv4(&mut self) {
        let (src, dst) = self.ends_v4();
        let usual = V4::new(src, dst, UDP);
        let fragments = [
            ("beyond the largest datagram", 0x1fff, MALFORMED),
            ("beyond the largest datagram, with more to come", 0x3fff, MALFORMED),
        ];
        for (name, fragment, expected) in fragments {
            let number = self.number();
            let packet = V4 { fragment, identification: number, ..usual.clone() }.bytes(&[0; 64]);
            let frame = self.ip(&packet);
            self.add(0, &format!("a fragment {name}"), vec![(frame, expected)]);
        }
        let number = self.number();
        let packet =
            V4 { fragment: 0x0001, identification: number, ..V4::new(src, dst, TCP) }.bytes(&[0; 32]);
        let frame = self.ip(&packet);
        self.add(
            0,
            "a fragment of TCP that begins within its header",
            vec![(frame, Expected::Drop("fragment-tiny"))],
        );
        let IpAddr::V4(other) = self.topology.other.addresses[0] else { panic!("IPv4") };
        let packet = V4 { fragment: 0x0004, identification: 9, ..V4::new(other, dst, UDP) }.bytes(&[0; 32]);
        let frame = self.ip(&packet);
        self.add(0, "a fragment of somebody else's datagram", vec![(frame, SPOOFED)]);
    }

    pub(super) fn fragments_of_ipv6(&mut self) {
        let (src, dst) = self.ends_v6();
        let number = self.number();
        let header = fragment_header(UDP, 0xfff8, false, u32::from(number));
        let frame = self.ip(&ipv6(src, dst, 44, 64, &[header, vec![0; 64]].concat()));
        self.add(1, "a fragment beyond the largest datagram", vec![(frame, Expected::Drop("fragment"))]);
        // The whole chain of headers must lie in the first fragment (RFC 7112).
        let number = self.number();
        let header = fragment_header(60, 0, true, u32::from(number));
        let frame = self.ip(&ipv6(src, dst, 44, 64, &[header, vec![UDP, 1, 1, 4, 0, 0, 0, 0]].concat()));
        self.add(1, "a first fragment that ends within its headers", vec![(frame, MALFORMED)]);
        let IpAddr::V6(other) = self.topology.other.addresses[1] else { panic!("IPv6") };
        let header = fragment_header(UDP, 32, false, 9);
        let frame = self.ip(&ipv6(other, dst, 44, 64, &[header, vec![0; 32]].concat()));
        self.add(1, "a fragment of somebody else's datagram", vec![(frame, SPOOFED)]);
    }
}
