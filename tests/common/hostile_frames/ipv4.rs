//! Kinds of IPv4 headers and options.

use super::*;

impl Kinds {
    pub(super) fn headers_of_ipv4(&mut self) {
        let (src, dst) = self.ends_v4();
        let usual = V4::new(src, dst, UDP);
        let lies: Vec<(&str, V4, Expected)> = vec![
            (
                "a wrong header checksum",
                V4 { spoil_checksum: true, ..usual.clone() },
                Expected::Drop("bad-ip-checksum"),
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
        for (name, header, expected) in lies {
            let datagram = udp(src.into(), dst.into(), [self.port(), PORT], &self.mark());
            let frame = self.frame(IPV4, &header.bytes(&datagram));
            self.add(0, &format!("an IPv4 header with {name}"), vec![(frame, expected)]);
        }
    }

    pub(super) fn options_of_ipv4(&mut self) {
        let (src, dst) = self.ends_v4();
        let own = octets(self.topology.own.addresses[0]);
        let way = |kind: u8| [vec![kind, 7, 4], own.clone(), vec![0]].concat();
        let option = Expected::Drop("ip-option");
        let routed = Expected::Drop("source-route");
        let options: Vec<(&str, Vec<u8>, Option<Expected>)> = vec![
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
        for (name, bytes, expected) in options {
            let (src_ip, dst_ip) = (src.into(), dst.into());
            let datagram = udp(src_ip, dst_ip, [self.port(), PORT], &self.mark());
            let segment = Segment::of([self.port(), PORT], SYN).bytes(src_ip, dst_ip, &self.mark());
            let frames = vec![
                (
                    self.ip(&V4::new(src, dst, UDP).options(&bytes).bytes(&datagram)),
                    expected.unwrap_or(DENIED),
                ),
                (
                    self.ip(&V4::new(src, dst, TCP).options(&bytes).bytes(&segment)),
                    expected.unwrap_or(self.opened()),
                ),
            ];
            self.add(0, &format!("an IPv4 option: {name}"), frames);
        }
    }
}
