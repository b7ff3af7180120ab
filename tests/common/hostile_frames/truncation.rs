//! Kinds of truncated frames.

use super::*;

impl Kinds {
    /// Adds frames truncated at each byte of their headers.
    pub(super) fn truncations(&mut self, family: usize) {
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
        // The length field matches the truncated frame.
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
}
