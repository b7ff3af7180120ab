//! TCP, followed by state and by window.
//!
//! ```text
//!            SYN               SYN-ACK (other side)            ACK (initiator)
//!   (none) ------> syn-sent ------------------------> syn-received ----------> established
//!                                                                                  | FIN
//!       ACK                       FIN (other side)                                 v
//!   time-wait <------ last-ack <------------------------------------------- fin-wait
//!
//!   A reset that fits the window leads from every state to `reset`; a SYN leads from `time-wait` and `reset`
//!   to a new connection, which is judged like any other.
//! ```
//!
//! Sequence numbers decide who may change the state: a segment outside the window passes (its receiver deals
//! with it, RFC 9293 section 3.10.7) but moves nothing, and a reset outside the window is dropped: a stranger that does not see the
//! connection cannot end it (RFC 5961). The window rules are those of van Rooij, "Real Stateful TCP Packet Filtering in
//! IP Filter", which Linux follows too.

use super::FlowState::{self, Established, FinWait, LastAck, Reset, SynReceived, SynSent, TimeWait};
use super::Side;
use crate::net::tcp::Flags;

/// What is known of what one side may send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TcpSide {
    /// Highest sequence number that it sent, plus one.
    pub end: u32,
    /// Highest sequence number that its peer allowed it.
    pub max_end: u32,
    /// Largest window that it offered; zero while it has not been heard.
    pub max_window: u32,
    /// Shift of its windows.
    pub scale: u8,
    /// It has sent its FIN.
    pub finished: bool,
}

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpFlow {
    /// Its state.
    pub state: FlowState,
    /// Initiator and responder.
    pub sides: [TcpSide; 2],
}

/// A segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// Control bits.
    pub flags: Flags,
    /// Sequence number of its first byte.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Window, not scaled.
    pub window: u16,
    /// Bytes of payload.
    pub payload_bytes: u32,
    /// Window scale option; only looked for in a SYN.
    pub scale: Option<u8>,
}

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It passes.
    Pass,
    /// It does not belong to the connection.
    Invalid,
    /// It opens a new connection between the same ports: to be judged anew.
    Reopen,
}

/// Scale assumed of a connection whose SYN was not seen: the largest (RFC 7323 section 2.3), so that nothing that may be right is
/// taken for wrong.
const UNKNOWN_SCALE: u8 = 14;

impl Segment {
    /// Sequence number behind the segment: SYN and FIN count one each.
    #[inline]
    fn end(&self) -> u32 {
        let syn = u32::from(self.flags.has(Flags::SYN));
        let fin = u32::from(self.flags.has(Flags::FIN));
        self.sequence.wrapping_add(self.payload_bytes).wrapping_add(syn + fin)
    }

    #[inline]
    fn scaled_window(&self, scale: u8) -> u32 {
        // The window of a SYN is never scaled (RFC 7323 section 2.2).
        let scale = if self.flags.has(Flags::SYN) { 0 } else { scale };
        u32::from(self.window) << scale
    }
}

/// Whether `a` comes after `b` in sequence space (RFC 9293 section 3.4).
#[inline]
fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl TcpFlow {
    /// The connection that a first segment opens: a SYN of the initiator, or with `pickup` any segment of a connection
    /// that was open before the switch was; `None` where it opens none.
    pub(crate) fn open(segment: &Segment, sender: Side, pickup: bool) -> Option<TcpFlow> {
        let flags = segment.flags;
        let syn = flags.has(Flags::SYN) && !flags.has(Flags::ACK) && sender == Side::Initiator;
        let middle = flags.has(Flags::ACK) && !flags.has(Flags::SYN) && !flags.has(Flags::RST);
        let state = match (syn, middle && pickup) {
            (true, _) => SynSent,
            (false, true) if flags.has(Flags::FIN) => FinWait,
            (false, true) => Established,
            (false, false) => return None,
        };
        let unheard = TcpSide { scale: UNKNOWN_SCALE, ..TcpSide::default() };
        let mut flow = TcpFlow { state, sides: [unheard; 2] };
        if syn {
            flow.hear(segment, sender);
        } else {
            flow.advance(segment, sender);
        }
        Some(flow)
    }

    /// Follows a segment.
    #[inline]
    pub(crate) fn follow(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let flags = segment.flags;
        if flags.0 & (Flags::SYN | Flags::RST | Flags::FIN) == 0 && self.state == Established {
            if self.fits(segment, sender) {
                self.advance(segment, sender);
            }
            return Outcome::Pass;
        }
        if flags.has(Flags::RST) {
            return self.reset(segment, sender);
        }
        if flags.has(Flags::SYN) {
            return self.synchronize(segment, sender);
        }
        if self.state == SynSent {
            // The initiator cannot acknowledge what it has not heard; a challenge from the other side passes.
            return if sender == Side::Initiator { Outcome::Invalid } else { Outcome::Pass };
        }
        if self.fits(segment, sender) {
            self.advance(segment, sender);
            self.state = self.after_data(flags, sender, segment.acknowledgement);
        }
        Outcome::Pass
    }

    /// The state after a segment without SYN and RST that fits.
    fn after_data(&self, flags: Flags, sender: Side, acknowledgement: u32) -> FlowState {
        let fin = flags.has(Flags::FIN);
        match self.state {
            SynReceived if fin => FinWait,
            // Only what acknowledges the responder's SYN finishes the handshake.
            SynReceived if sender == Side::Initiator && flags.has(Flags::ACK) => Established,
            Established if fin => FinWait,
            FinWait if fin && self.sides[1 - sender as usize].finished => LastAck,
            LastAck if !fin && acknowledgement == self.sides[1 - sender as usize].end => TimeWait,
            state => state,
        }
    }

    fn reset(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let peer = &self.sides[1 - sender as usize];
        let ours = &self.sides[sender as usize];
        let fits = if !ours.heard() {
            // Never heard: it refuses the peer's SYN, and says so by acknowledging it (RFC 9293 section 3.10.7.3).
            segment.flags.has(Flags::ACK) && segment.acknowledgement == peer.end
        } else {
            !after(ours.end.wrapping_sub(peer.max_window), segment.sequence)
                && !after(segment.sequence, ours.max_end)
        };
        if !fits {
            return Outcome::Invalid;
        }
        self.state = Reset;
        Outcome::Pass
    }

    fn synchronize(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let answer = segment.flags.has(Flags::ACK);
        match self.state {
            TimeWait | Reset => return if answer { Outcome::Invalid } else { Outcome::Reopen },
            SynSent if sender == Side::Initiator && answer => return Outcome::Invalid,
            SynSent if sender == Side::Initiator => {
                // Sent again, or anew with another sequence number: nobody has answered the first.
                self.hear(segment, sender);
            }
            SynSent => {
                if answer && segment.acknowledgement != self.sides[0].end {
                    return Outcome::Invalid;
                }
                self.hear(segment, sender);
                if answer {
                    let window = u32::from(segment.window);
                    self.sides[0].max_end = segment.acknowledgement.wrapping_add(window.max(1));
                }
                // Scaling holds only if both sides offer it (RFC 7323 section 2.2).
                if segment.scale.is_none() {
                    self.sides[0].scale = 0;
                }
                self.state = SynReceived;
            }
            // A responder that opens would be a connection in the other direction, which nobody has judged.
            _ if answer != (sender == Side::Responder) => return Outcome::Invalid,
            // Sent again, or a challenge to a connection that one side has forgotten: the other side answers.
            _ => {}
        }
        Outcome::Pass
    }

    /// Notes a side's SYN.
    fn hear(&mut self, segment: &Segment, sender: Side) {
        self.sides[sender as usize] = TcpSide {
            end: segment.end(),
            max_end: segment.end(),
            max_window: u32::from(segment.window).max(1),
            scale: segment.scale.unwrap_or(0),
            finished: false,
        };
    }

    /// Whether a segment lies in the windows that both sides have offered.
    #[inline]
    fn fits(&self, segment: &Segment, sender: Side) -> bool {
        let ours = &self.sides[sender as usize];
        let peer = &self.sides[1 - sender as usize];
        if !ours.heard() || !peer.heard() {
            return true; // picked up in the middle: the first words of a side
        }
        let peer_end_min = peer.end.wrapping_sub(ours.max_window.max(ACKNOWLEDGED_LATE));
        let not_beyond = !after(segment.sequence, ours.max_end.wrapping_add(1));
        let not_before = !after(ours.end.wrapping_sub(peer.max_window.max(1)), segment.end());
        let acknowledges = !segment.flags.has(Flags::ACK)
            || (!after(segment.acknowledgement, peer.end) && !after(peer_end_min, segment.acknowledgement));
        not_beyond && not_before && acknowledges
    }

    /// Moves the windows.
    #[inline]
    fn advance(&mut self, segment: &Segment, sender: Side) {
        let ours = &mut self.sides[sender as usize];
        let window = segment.scaled_window(ours.scale).max(1);
        let end = segment.end();
        if !ours.heard() {
            (ours.end, ours.max_end) = (end, end.wrapping_add(window));
        }
        if after(end, ours.end) {
            ours.end = end;
        }
        ours.finished |= segment.flags.has(Flags::FIN);
        ours.max_window = ours.max_window.max(window);
        if !segment.flags.has(Flags::ACK) {
            return;
        }
        let peer = &mut self.sides[1 - sender as usize];
        let allowed = segment.acknowledgement.wrapping_add(window);
        if !peer.heard() || after(allowed, peer.max_end) {
            peer.max_end = allowed;
        }
    }
}

/// How far behind the newest byte an acknowledgement may be, at least: `MAXACKWINCONST` of Linux.
const ACKNOWLEDGED_LATE: u32 = 66_000;

impl TcpSide {
    /// Whether the side has said anything yet.
    #[inline]
    fn heard(&self) -> bool {
        self.max_window != 0
    }
}
