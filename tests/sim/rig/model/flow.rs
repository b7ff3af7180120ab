//! Flow of the model: its state and its counters after each packet.

use palisade::ids::AttachmentId;
use palisade::net::flow::FlowKey;

use crate::frames::{Spec, Transport};

/// TCP control bits.
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// Conntrack flow.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Key of the original direction.
    pub(crate) key: FlowKey,
    /// Type of the request, for ICMP.
    pub(crate) query: Option<u8>,
    pub(super) attachments: [AttachmentId; 2],
    pub(super) generation: u32,
    /// Whether its first packet came by the host port.
    pub(super) by_host: bool,
    pub(crate) state: &'static str,
    /// Sides of a TCP connection that have sent FIN.
    pub(super) finished: [bool; 2],
    /// Next sequence number of each side of a TCP connection.
    pub(crate) end: [u32; 2],
    pub(super) seen_ms: u64,
    /// Packet and byte counters of each side.
    pub(crate) packets: [u64; 2],
    pub(crate) bytes: [u64; 2],
}

/// Tells whether a flow's next state lets a packet pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Pass,
    Invalid,
    Reopen,
}

impl Flow {
    pub(super) fn count(&mut self, side: usize, spec: &Spec, now_ms: u64) {
        self.packets[side] += 1;
        self.bytes[side] += spec.ip().len() as u64;
        self.seen_ms = now_ms;
    }

    pub(super) fn step(&mut self, side: usize, spec: &Spec) -> Outcome {
        match spec.transport {
            Transport::Tcp { flags, sequence, acknowledgement, .. } => {
                self.step_tcp(side, flags, [sequence, acknowledgement], spec.payload.len() as u32)
            }
            Transport::Udp { .. } => {
                if side == 1 {
                    self.state = "udp-two-way";
                }
                Outcome::Pass
            }
            Transport::Sctp { chunk, .. } => self.step_sctp(side, chunk),
            Transport::Other(_) => {
                if side == 1 {
                    self.state = "other";
                }
                Outcome::Pass
            }
            _ => Outcome::Pass,
        }
    }

    fn step_sctp(&mut self, side: usize, chunk: u8) -> Outcome {
        const INIT: u8 = 1;
        match (self.state, chunk) {
            ("sctp-setup", 11) if side == 1 => self.state = "sctp-established",
            ("sctp-setup" | "sctp-established", 6 | 14) => self.state = "sctp-shutdown",
            ("sctp-shutdown", INIT) => return Outcome::Reopen,
            ("sctp-established", INIT) if side == 1 => return Outcome::Invalid,
            _ => {}
        }
        Outcome::Pass
    }

    /// Processes a segment within the window. Every segment of the generator on a live connection lies in it.
    fn step_tcp(
        &mut self,
        side: usize,
        flags: u8,
        [sequence, acknowledgement]: [u32; 2],
        bytes: u32,
    ) -> Outcome {
        let is = |bits: u8| flags & bits != 0;
        match (self.state, side) {
            ("time-wait" | "reset", _) if is(SYN) => {
                return if is(ACK) { Outcome::Invalid } else { Outcome::Reopen };
            }
            ("unacknowledged", _) if is(SYN) && !is(ACK) => return Outcome::Reopen,
            // A refusal (RST) acknowledges the SYN (RFC 9293 section 3.10.7.3).
            ("syn-sent", 1) if is(RST) => self.state = "reset",
            (_, _) if is(RST) && sequence == self.end[side] => self.state = "reset",
            ("syn-sent", _) if is(RST) => return Outcome::Invalid,
            // A reset in the window without the exact number: the receiver challenges it (RFC 5961 section
            // 3.2).
            (_, _) if is(RST) => {}
            ("syn-sent", 0) if is(SYN) && !is(ACK) => self.end[0] = sequence + 1,
            ("syn-sent", 0) => return Outcome::Invalid,
            ("syn-sent", _) if is(SYN) => {
                self.state = "syn-received";
                self.end[1] = sequence + 1;
            }
            ("syn-sent", _) => {}
            ("syn-received", 1) if is(SYN) && is(ACK) => self.end[1] = sequence + 1,
            ("syn-received", 0) if is(SYN) && is(ACK) => self.state = "established",
            (_, 0) if is(SYN) && is(ACK) => return Outcome::Invalid,
            (_, 1) if is(SYN) && !is(ACK) => return Outcome::Invalid,
            _ if is(SYN) => {}
            _ => {
                self.end[side] = self.end[side].max(sequence + bytes + u32::from(is(FIN)));
                self.finished[side] |= is(FIN);
                self.state = match self.state {
                    "unacknowledged" if side == 0 => "unacknowledged",
                    "unacknowledged" if self.finished == [true; 2] => "last-ack",
                    "unacknowledged" if self.finished != [false; 2] => "fin-wait",
                    "unacknowledged" => "established",
                    "syn-received" | "established" if is(FIN) => "fin-wait",
                    "syn-received" if side == 0 => "established",
                    "fin-wait" if is(FIN) && self.finished[1 - side] => "last-ack",
                    "last-ack" if !is(FIN) && acknowledgement == self.end[1 - side] => "time-wait",
                    state => state,
                };
            }
        }
        Outcome::Pass
    }
}

/// Idle timeouts as in `Timeouts::default`, milliseconds.
pub(super) fn timeout_ms(state: &str) -> u64 {
    let seconds = match state {
        "syn-sent" | "syn-received" | "udp-one-way" | "echo" | "sctp-setup" | "other-one-way" => 30,
        "unacknowledged" => 300,
        "established" => 86_400,
        "sctp-established" => 7440,
        "fin-wait" | "last-ack" | "udp-two-way" => 120,
        "time-wait" => 60,
        "reset" | "sctp-shutdown" => 10,
        "other" => 600,
        _ => panic!("no such state: {state}"),
    };
    seconds * 1000
}
