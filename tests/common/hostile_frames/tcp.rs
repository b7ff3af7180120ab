//! Kinds of TCP segments: control bits, headers, segments of own and other connections.

use super::*;

impl Kinds {
    /// Adds each set of control bits outside any connection, with the client's port below, equal to and above
    /// the server's, to an open port and a closed one. Every frame carries data.
    pub(super) fn tcp_flags(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        for flags in 0..64 {
            let evaluated = if flags & SYN == 0 || flags & ACK != 0 { Some(INVALID_STATE) } else { None };
            let senseless = flags & SYN != 0 && flags & (FIN | RST) != 0;
            let mut frames = vec![];
            for (number, dst_port) in [PORT, CLOSED_PORT].into_iter().enumerate() {
                let low = 1024 + 2 * u16::from(flags) + number as u16;
                let mut relations = vec![low, 60_000 + 2 * u16::from(flags) + number as u16];
                // A connection from this port would belong to the next frame.
                if evaluated.is_some() || senseless {
                    relations.push(dst_port);
                }
                for src_port in relations {
                    let mark = self.mark();
                    let segment = Segment::of([src_port, dst_port], flags).bytes(src, dst, &mark);
                    let policy = if dst_port == PORT { self.opened() } else { DENIED };
                    let expected = if senseless { MALFORMED } else { evaluated.unwrap_or(policy) };
                    frames.push((self.between((src, dst), TCP, &segment), expected));
                }
            }
            self.add(family, &format!("TCP with control bits {flags:06b} outside any connection"), frames);
        }
    }

    /// Adds segments of another pod's connection with correct numbers, and ICMP errors about it.
    pub(super) fn others_connection(&mut self, family: usize) {
        let (own, target) = self.ends(family);
        let friend = self.topology.other.addresses[family];
        let exact =
            |ports, flags| Segment { ports, flags, sequence: CLIENT_NEXT, acknowledgement: SERVER_NEXT };
        let reverse =
            |ports, flags| Segment { ports, flags, sequence: SERVER_NEXT, acknowledgement: CLIENT_NEXT };
        let (mut as_friend, mut as_target, mut as_itself) = (vec![], vec![], vec![]);
        for flags in 0..64 {
            let senseless = flags & SYN != 0 && flags & (FIN | RST) != 0;
            let or_malformed = |expected| if senseless { MALFORMED } else { expected };
            let segment = exact([CLIENT_PORT, PORT], flags).bytes(friend, target, &self.mark());
            as_friend.push((self.between((friend, target), TCP, &segment), or_malformed(SPOOFED)));
            let segment = reverse([PORT, CLIENT_PORT], flags).bytes(target, friend, &self.mark());
            as_target.push((self.between((target, friend), TCP, &segment), or_malformed(SPOOFED)));
            let opens = flags & SYN != 0 && flags & ACK == 0;
            let segment = exact([CLIENT_PORT, PORT], flags).bytes(own, target, &self.mark());
            let expected = or_malformed(if opens { DENIED } else { INVALID_STATE });
            as_itself.push((self.between((own, target), TCP, &segment), expected));
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

    /// Adds segments of its own connection. None outside its window ends it.
    pub(super) fn own_connection(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        let far = 1 << 30;
        let rows: &[(&str, u8, u32, u32, Expected)] = &[
            ("an acknowledgement", ACK, 0, 0, Expected::Deliver),
            ("a reset far from the window", RST, far, 0, INVALID_STATE),
            ("a reset behind the window", RST, u32::MAX - far, 0, INVALID_STATE),
            ("a reset in the window that is not exact", RST, 100, 0, Expected::Deliver),
            ("another acknowledgement", ACK | PSH, 0, 0, Expected::Deliver),
        ];
        for &(name, flags, sequence, acknowledgement, expected) in rows {
            let sequence = CLIENT_NEXT.wrapping_add(sequence);
            let acknowledgement = SERVER_NEXT.wrapping_add(acknowledgement);
            let segment = Segment { ports: [CLIENT_PORT, PORT], flags, sequence, acknowledgement };
            let bytes = segment.bytes(src, dst, &self.mark());
            let frame = self.between((src, dst), TCP, &bytes);
            self.add(family, &format!("{name} on its own connection"), vec![(frame, expected)]);
        }
    }

    pub(super) fn tcp_headers(&mut self, family: usize) {
        let (src, dst) = self.ends(family);
        for (name, words, expected) in [
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
            self.add(family, name, vec![(frame, expected)]);
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
            let expected = if ports[1] == PORT { self.opened() } else { DENIED };
            self.add(family, &format!("a SYN {name} port 0"), vec![(frame, expected)]);
        }
        let mut spoiled = Segment::of([self.port(), PORT], SYN).bytes(src, dst, &self.mark());
        spoiled[17] ^= 0x55;
        let frame = self.between((src, dst), TCP, &spoiled);
        // Policy drops the frame before the checksum is verified.
        let expected = if self.topology.is_friend { Expected::Drop("bad-checksum") } else { SPOILED };
        self.add(family, "a SYN with a wrong checksum", vec![(frame, expected)]);
    }
}
