//! The naive model of a flow.

use super::*;

/// One side of a TCP connection. Numbers count from the side's first one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ModelSide {
    pub(super) has_sent: bool,
    /// The number behind the last byte that it sent, and a number that it was known to be allowed to send: [`Flow::limit`] is
    /// the last one.
    pub(super) sent: i64,
    pub(super) allowed: i64,
    /// Largest window that it offered.
    pub(super) window: i64,
    pub(super) scale: u32,
    pub(super) finished: bool,
    /// The number of the other side that it expects next, if known.
    pub(super) expects: Option<i64>,
}

/// A segment, with numbers of the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) flags: u8,
    pub(super) sequence: i64,
    pub(super) acknowledgement: i64,
    pub(super) window: u16,
    pub(super) bytes: i64,
    pub(super) scale: Option<u8>,
}

impl Sent {
    pub(super) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Whether it changes no state of an established connection.
    pub(super) fn is_data(&self) -> bool {
        self.has(ACK) && self.flags & (SYN | FIN | RST) == 0
    }

    pub(super) fn end(&self) -> i64 {
        self.sequence + self.bytes + i64::from(self.has(SYN)) + i64::from(self.has(FIN))
    }

    /// The segment on the wire, given the first numbers of its sender and of its receiver.
    pub(super) fn segment(&self, first: [u32; 2]) -> Segment {
        Segment {
            flags: Flags(self.flags),
            sequence: first[0].wrapping_add(self.sequence as u32),
            acknowledgement: first[1].wrapping_add(self.acknowledgement as u32),
            window: self.window,
            payload_bytes: self.bytes as u32,
            scale: self.scale,
        }
    }
}

/// A flow. Pairs are for initiator and responder, except where a field names the ends.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) opened_by_low: bool,
    pub(super) port: u16,
    pub(super) state: &'static str,
    /// First number of each side.
    pub(super) first: [u32; 2],
    pub(super) sides: [ModelSide; 2],
    pub(super) last_seen_ms: u64,
    pub(super) packets: [u64; 2],
    pub(super) bytes: [u64; 2],
    /// The generation that evaluated packets of the lower and of the higher end, and their noted hop.
    pub(super) policy_epoch: [u32; 2],
    pub(super) hops: [Option<u16>; 2],
}

/// Verdict of the model on a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Pass,
    Invalid,
    Reopen,
}

impl Flow {
    pub(super) fn tcp(&mut self, sent: &Sent, side: usize) -> Expected {
        let other = 1 - side;
        if sent.has(RST) {
            return self.reset(sent, side);
        }
        let acknowledges_syn = (self.sides[0].sent..=self.sides[0].allowed).contains(&sent.acknowledgement);
        if sent.has(SYN) {
            let answers = sent.has(ACK);
            match (self.state, side) {
                ("time-wait" | "reset" | "unacknowledged", _) if !answers => return Expected::Reopen,
                ("time-wait" | "reset", _) => return Expected::Invalid,
                ("syn-sent", 1) if answers && !acknowledges_syn => return Expected::Invalid,
                ("syn-sent", 0) if !answers => self.hear(sent, 0),
                ("syn-sent", 1) => self.answer(sent),
                ("syn-received", 1) if answers && sent.acknowledgement == self.sides[0].sent => {
                    self.answer(sent);
                }
                ("syn-received", 0) if answers && sent.acknowledgement == self.sides[1].sent => {
                    self.advance(sent, 0);
                    self.state = "established";
                }
                (_, 0) if answers => return Expected::Invalid,
                (_, 1) if !answers => return Expected::Invalid,
                _ => {}
            }
            return Expected::Pass;
        }
        if self.state == "syn-sent" {
            if side == 1 && sent.has(ACK) {
                self.sides[1].expects = Some(sent.acknowledgement);
            }
            return if side == 0 { Expected::Invalid } else { Expected::Pass };
        }
        if self.state == "reset" || !self.fits(sent, side) {
            return Expected::Pass;
        }
        self.advance(sent, side);
        let fin = sent.has(FIN);
        let others_fin = self.sides[other].finished;
        self.state = match self.state {
            "unacknowledged" if side == 0 => "unacknowledged",
            "unacknowledged" | "fin-wait" if fin && others_fin => "last-ack",
            "unacknowledged" if fin || others_fin => "fin-wait",
            "unacknowledged" => "established",
            "syn-received" | "established" if fin => "fin-wait",
            "syn-received" if side == 0 && sent.has(ACK) => "established",
            "last-ack" if !fin && sent.acknowledgement == self.sides[other].sent => "time-wait",
            state => state,
        };
        Expected::Pass
    }

    pub(super) fn reset(&mut self, sent: &Sent, side: usize) -> Expected {
        let [ours, peer] = [self.sides[side], self.sides[1 - side]];
        let is_unanswered = self.state == "syn-sent" || self.state == "reset" && !ours.has_sent;
        let is_exact = if is_unanswered && side == 1 {
            let refuses = (self.sides[0].sent..=self.sides[0].allowed).contains(&sent.acknowledgement);
            if !sent.has(ACK) || !refuses {
                return Expected::Invalid;
            }
            true
        } else {
            peer.expects == Some(sent.sequence) || (ours.has_sent && ours.sent == sent.sequence)
        };
        let limit = self.limit(side);
        let start = if ours.has_sent { ours.sent } else { limit };
        if is_exact {
            self.state = "reset";
            Expected::Pass
        } else if (start - peer.window..=limit).contains(&sent.sequence) {
            Expected::Pass
        } else {
            Expected::Invalid
        }
    }

    pub(super) fn hear(&mut self, sent: &Sent, side: usize) {
        let expects = if sent.has(ACK) { Some(sent.acknowledgement) } else { self.sides[side].expects };
        self.sides[side] = ModelSide {
            has_sent: true,
            sent: sent.sequence + 1,
            allowed: sent.end(),
            window: i64::from(sent.window).max(1),
            scale: u32::from(sent.scale.unwrap_or(0)),
            finished: false,
            expects,
        };
        self.sides[1 - side].expects = Some(sent.sequence + 1);
    }

    pub(super) fn answer(&mut self, sent: &Sent) {
        self.hear(sent, 1);
        self.sides[1].allowed += self.sides[0].window;
        if sent.has(ACK) {
            self.sides[0].sent = sent.acknowledgement;
            self.sides[0].allowed = sent.acknowledgement;
        }
        self.sides[0].allowed += self.sides[1].window;
        if sent.scale.is_none() {
            self.sides[0].scale = 0;
        }
        self.state = "syn-received";
    }

    /// The last number that a side may send.
    fn limit(&self, side: usize) -> i64 {
        let [ours, peer] = [self.sides[side], self.sides[1 - side]];
        let by_peer = peer.expects.filter(|_| peer.has_sent).map(|expects| expects + peer.window);
        let known = ours.has_sent.then_some(ours.allowed);
        by_peer.max(known).unwrap_or(ours.allowed)
    }

    pub(super) fn fits(&self, sent: &Sent, side: usize) -> bool {
        let limit = self.limit(side);
        let [ours, peer] = [self.sides[side], self.sides[1 - side]];
        if !peer.has_sent {
            return true;
        }
        if !ours.has_sent {
            // The first segment of the responder of a picked-up connection.
            let window = (i64::from(sent.window) << ours.scale).max(66_000);
            return sent.has(ACK)
                && (peer.sent - window..=peer.sent).contains(&sent.acknowledgement)
                && sent.sequence <= limit + 1
                && sent.end() >= limit - peer.window - 66_000;
        }
        let least = peer.sent - ours.window.max(66_000);
        let acknowledged = ours.expects.map_or(least, |at| at.min(least))..=peer.sent;
        sent.sequence <= limit + 1
            && sent.end() >= ours.sent - peer.window.max(1)
            && (!sent.has(ACK)
                || ours.expects == Some(sent.acknowledgement)
                || acknowledged.contains(&sent.acknowledgement))
    }

    pub(super) fn advance(&mut self, sent: &Sent, side: usize) {
        let mut ours = ModelSide { allowed: self.limit(side), ..self.sides[side] };
        let scale = if sent.has(SYN) { 0 } else { ours.scale };
        let window = (i64::from(sent.window) << scale).max(1);
        if !ours.has_sent {
            (ours.sent, ours.allowed) = (sent.end(), sent.end() + window);
            ours.expects = Some(sent.acknowledgement);
        }
        ours.has_sent = true;
        ours.sent = later(ours.sent, sent.end());
        if !self.sides[1 - side].has_sent {
            ours.allowed = ours.allowed.max(ours.sent);
        }
        ours.finished |= sent.has(FIN);
        ours.window = ours.window.max(window);
        if sent.has(ACK) {
            let before = ours.expects.unwrap_or(sent.acknowledgement);
            ours.expects = Some(later(before, sent.acknowledgement));
        }
        self.sides[side] = ours;
    }

    pub(super) fn other(&mut self, protocol: Protocol, chunk: u8, side: usize) -> Expected {
        self.state = match (protocol, self.state, chunk) {
            (Protocol::UDP, "udp-one-way", _) if side == 1 => "udp-two-way",
            (Protocol::SCTP, "sctp-setup", 11) if side == 1 => "sctp-established",
            (Protocol::SCTP, "sctp-setup" | "sctp-established", 6 | 14) => "sctp-shutdown",
            (Protocol::SCTP, "sctp-shutdown", 1) => return Expected::Reopen,
            (Protocol::SCTP, "sctp-established", 1) if side == 1 => return Expected::Invalid,
            (_, "other-one-way", _) if side == 1 => "other",
            (_, state, _) => state,
        };
        Expected::Pass
    }

    /// A side in the form of the table.
    pub(super) fn side(&self, side: usize) -> TcpSide {
        let half = self.sides[side];
        let number = |at: i64| self.first[side].wrapping_add(at as u32);
        TcpSide {
            end: number(half.sent),
            max_end: number(self.limit(side)),
            max_window: half.window as u32,
            acknowledged: half.expects.map_or(0, |at| self.first[1 - side].wrapping_add(at as u32)),
            scale: half.scale as u8,
            finished: half.finished,
        }
    }

    pub(super) fn timeout_ms(&self) -> u64 {
        let seconds = match self.state {
            "syn-sent" | "syn-received" | "udp-one-way" | "echo" | "sctp-setup" | "other-one-way" => 30,
            "unacknowledged" => 300,
            "established" => 86_400,
            "sctp-established" => 7440,
            "fin-wait" | "last-ack" | "udp-two-way" => 120,
            "time-wait" => 60,
            "reset" | "sctp-shutdown" => 10,
            "other" => 600,
            state => panic!("no such state: {state}"),
        };
        seconds * 1000
    }

    /// The class of flows in its state that are within their quota.
    pub(super) fn class(&self) -> QuotaClass {
        match self.state {
            "established" | "fin-wait" | "last-ack" | "udp-two-way" | "sctp-established" | "other" => {
                QuotaClass::Assured
            }
            "time-wait" | "reset" | "sctp-shutdown" => QuotaClass::Ended,
            _ => QuotaClass::Unassured,
        }
    }
}

/// The later of two numbers in 32-bit sequence space (RFC 9293 section 3.4): a side without an answer may
/// jump further than windows reach, and half of all jumps are steps back in that space.
pub(super) fn later(a: i64, b: i64) -> i64 {
    a + i64::from((b - a) as i32).max(0)
}
