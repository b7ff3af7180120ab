//! TCP, followed by state and by window.
//!
//! ```text
//!            SYN               SYN-ACK (other side)            ACK (initiator)
//!   (none) ------> syn-sent ------------------------> syn-received ----------> established
//!                                                                                  | FIN
//!       ACK                       FIN (other side)                                 v
//!   time-wait <------ last-ack <------------------------------------------- fin-wait
//!
//!   A reset with exactly the next sequence number leads from every state to `reset`; a SYN leads from `time-wait` and `reset`
//!   to a new connection, which is policy_epoch like any other.
//!
//!   With pick-up (`tcp_loose` of nf_conntrack):
//!            ACK, not of a known flow          answer (other side)
//!   (none) -------------------------> unacknowledged -------------> established, or fin-wait after the initiator's FIN
//! ```
//!
//! The sender of the first packet is the initiator, always.
//!
//! Sequence numbers decide who may change the state: a segment outside the window passes (its receiver deals
//! with it, RFC 9293 section 3.10.7) but moves nothing, and a reset outside the window is dropped. One in the window that is not
//! exact passes and ends nothing: its receiver answers with a challenge, and who has really given the connection up resets it
//! again, exactly (RFC 5961 section 3.2). So a stranger that does not see the connection cannot end it. The window rules are those of van Rooij, "Real Stateful TCP Packet Filtering in
//! IP Filter", which Linux follows too.

use super::state::FlowState::{
    self, Established, FinWait, LastAck, Reset, SynReceived, SynSent, TimeWait, Unacknowledged,
};
use super::state::{Outcome, Side};
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
    /// Highest number that it acknowledged: the next one that it expects. Before it has acknowledged any, the first one that its
    /// peer may send.
    pub acknowledged: u32,
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
    /// The connection that a first segment opens, whose sender is the initiator: a SYN, or with `pickup` any segment of a connection
    /// that was open before the switch was; `None` where it opens none.
    pub(crate) fn open(segment: &Segment, pickup: bool) -> Option<TcpFlow> {
        let flags = segment.flags;
        let is_syn = flags.has(Flags::SYN) && !flags.has(Flags::ACK);
        let is_middle = flags.has(Flags::ACK) && !flags.has(Flags::SYN) && !flags.has(Flags::RST);
        let unheard = TcpSide { scale: UNKNOWN_SCALE, ..TcpSide::default() };
        let mut flow = TcpFlow { state: SynSent, sides: [unheard; 2] };
        if is_syn {
            flow.record_syn(segment, Side::Initiator);
        } else if is_middle && pickup {
            flow.state = Unacknowledged;
            flow.update_windows(segment, Side::Initiator);
            flow.sides[1].acknowledged = flow.sides[0].end;
        } else {
            return None;
        }
        Some(flow)
    }

    /// Follows a segment.
    #[inline]
    pub(crate) fn advance(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let flags = segment.flags;
        if flags.0 & (Flags::SYN | Flags::RST | Flags::FIN) == 0 && self.state == Established {
            if self.is_in_window(segment, sender) {
                self.update_windows(segment, sender);
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
            // The initiator cannot acknowledge what it has not heard.
            if sender == Side::Initiator {
                return Outcome::Invalid;
            }
            // A challenge passes (RFC 5961 section 4.2): the responder still has an earlier connection, which the initiator is
            // about to reset with the number that is asked for here.
            if flags.has(Flags::ACK) {
                self.sides[Side::Responder as usize].acknowledged = segment.acknowledgement;
            }
            return Outcome::Pass;
        }
        // A late segment moves nothing: the responder may never have been heard.
        if self.state != Reset && self.is_in_window(segment, sender) {
            self.update_windows(segment, sender);
            self.state = self.after_data(flags, sender, segment.acknowledgement);
        }
        Outcome::Pass
    }

    /// The state after a segment without SYN and RST that fits.
    fn after_data(&self, flags: Flags, sender: Side, acknowledgement: u32) -> FlowState {
        let fin = flags.has(Flags::FIN);
        match self.state {
            Unacknowledged if sender == Side::Initiator => Unacknowledged,
            Unacknowledged if fin && self.sides[0].finished => LastAck,
            Unacknowledged if fin || self.sides[0].finished => FinWait,
            Unacknowledged => Established,
            SynReceived | Established if fin => FinWait,
            // Only what acknowledges the responder's SYN finishes the handshake.
            SynReceived if sender == Side::Initiator && flags.has(Flags::ACK) => Established,
            FinWait if fin && self.sides[1 - sender as usize].finished => LastAck,
            LastAck if !fin && acknowledgement == self.sides[1 - sender as usize].end => TimeWait,
            state => state,
        }
    }

    fn reset(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let peer = &self.sides[1 - sender as usize];
        let ours = &self.sides[sender as usize];
        let is_unanswered = self.state == SynSent || self.state == Reset && !ours.has_sent();
        if is_unanswered && sender == Side::Responder {
            // It refuses the SYN, and says so by acknowledging it (RFC 9293 section 3.10.7.3).
            if !(segment.flags.has(Flags::ACK) && self.acknowledges_syn(segment)) {
                return Outcome::Invalid;
            }
            self.state = Reset;
            return Outcome::Pass;
        }
        // "If the RST bit is set and the sequence number exactly matches the next expected sequence number (RCV.NXT), then TCP
        // MUST reset the connection" (RFC 5961 section 3.2). That number is known to be what the peer has acknowledged, or, where
        // its acknowledgement has not been seen yet, what the sender sends next.
        if segment.sequence == peer.acknowledged || (ours.has_sent() && segment.sequence == ours.end) {
            self.state = Reset;
            return Outcome::Pass;
        }
        // Of a connection picked up in its middle the side that has not spoken may send what its peer allows.
        let start = if ours.has_sent() { ours.end } else { ours.max_end };
        let fits = !after(start.wrapping_sub(peer.max_window), segment.sequence)
            && !after(segment.sequence, ours.max_end);
        if fits { Outcome::Pass } else { Outcome::Invalid }
    }

    fn synchronize(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let answer = segment.flags.has(Flags::ACK);
        match (self.state, sender, answer) {
            // Neither is what was picked up a connection yet: its ports are used for another one.
            (TimeWait | Reset | Unacknowledged, _, false) => return Outcome::Reopen,
            (SynSent, Side::Responder, true) if !self.acknowledges_syn(segment) => return Outcome::Invalid,
            // Sent again, or anew with another sequence number: nobody has answered the first.
            (SynSent, Side::Initiator, false) => self.record_syn(segment, sender),
            (SynSent, Side::Responder, _) => self.record_syn_ack(segment),
            // Sent again, with another sequence number where it is a cookie (RFC 4987 section 3.6).
            (SynReceived, Side::Responder, true) if segment.acknowledgement == self.sides[0].end => {
                self.record_syn_ack(segment);
            }
            // Both sides have opened at once, and each answers the other (RFC 9293 section 3.5).
            (SynReceived, Side::Initiator, true) if segment.acknowledgement == self.sides[1].end => {
                self.update_windows(segment, sender);
                self.state = Established;
            }
            // A responder that opens would be a connection in the other direction, which nobody has policy_epoch.
            (TimeWait | Reset, _, true) | (_, Side::Initiator, true) | (_, Side::Responder, false) => {
                return Outcome::Invalid;
            }
            // Sent again, or a challenge to a connection that one side has forgotten: the other side answers.
            (_, Side::Initiator, false) | (_, Side::Responder, true) => {}
        }
        Outcome::Pass
    }

    /// Whether a segment acknowledges the initiator's SYN, without or with the data that came with it (RFC 7413).
    fn acknowledges_syn(&self, segment: &Segment) -> bool {
        let initiator = &self.sides[0];
        !after(initiator.end, segment.acknowledgement) && !after(segment.acknowledgement, initiator.max_end)
    }

    /// Notes the responder's SYN.
    fn record_syn_ack(&mut self, segment: &Segment) {
        self.record_syn(segment, Side::Responder);
        let [initiator, responder] = &mut self.sides;
        // The initiator's SYN has offered a window: the responder need not wait for the handshake's end to use it.
        responder.max_end = responder.max_end.wrapping_add(initiator.max_window);
        if segment.flags.has(Flags::ACK) {
            (initiator.end, initiator.max_end) = (segment.acknowledgement, segment.acknowledgement);
        }
        initiator.max_end = initiator.max_end.wrapping_add(responder.max_window);
        // Scaling holds only if both sides offer it (RFC 7323 section 2.2).
        if segment.scale.is_none() {
            initiator.scale = 0;
        }
        self.state = SynReceived;
    }

    /// Notes a side's SYN. Data that came with it counts when the other side takes it.
    fn record_syn(&mut self, segment: &Segment, sender: Side) {
        let end = segment.sequence.wrapping_add(1);
        let ours = &mut self.sides[sender as usize];
        let acknowledges = segment.flags.has(Flags::ACK);
        *ours = TcpSide {
            end,
            max_end: segment.end(),
            max_window: u32::from(segment.window).max(1),
            acknowledged: if acknowledges { segment.acknowledgement } else { ours.acknowledged },
            scale: segment.scale.unwrap_or(0),
            finished: false,
        };
        self.sides[1 - sender as usize].acknowledged = end;
    }

    /// Whether a segment lies in the windows that both sides have offered.
    #[inline]
    fn is_in_window(&self, segment: &Segment, sender: Side) -> bool {
        let ours = &self.sides[sender as usize];
        let peer = &self.sides[1 - sender as usize];
        if !ours.has_sent() || !peer.has_sent() {
            // Picked up in the middle: the initiator is alone, or the other side speaks for the first time.
            return !peer.has_sent() || self.answers_pickup(segment);
        }
        let peer_end_min = peer.end.wrapping_sub(ours.max_window.max(ACKNOWLEDGED_LATE));
        let not_beyond = !after(segment.sequence, ours.max_end.wrapping_add(1));
        let not_before = !after(ours.end.wrapping_sub(peer.max_window.max(1)), segment.end());
        let acknowledges = !segment.flags.has(Flags::ACK)
            || (!after(segment.acknowledgement, peer.end) && !after(peer_end_min, segment.acknowledgement));
        not_beyond && not_before && acknowledges
    }

    /// Whether the first segment of the responder of a picked-up connection fits what the initiator has sent. Of the responder's window
    /// only this segment tells.
    fn answers_pickup(&self, segment: &Segment) -> bool {
        let [initiator, responder] = &self.sides;
        let window = segment.scaled_window(responder.scale).max(ACKNOWLEDGED_LATE);
        let start = responder.max_end.wrapping_sub(initiator.max_window).wrapping_sub(ACKNOWLEDGED_LATE);
        segment.flags.has(Flags::ACK)
            && !after(segment.acknowledgement, initiator.end)
            && !after(initiator.end.wrapping_sub(window), segment.acknowledgement)
            && !after(segment.sequence, responder.max_end.wrapping_add(1))
            && !after(start, segment.end())
    }

    /// Moves the windows.
    #[inline]
    fn update_windows(&mut self, segment: &Segment, sender: Side) {
        let alone = !self.sides[1 - sender as usize].has_sent();
        let ours = &mut self.sides[sender as usize];
        let window = segment.scaled_window(ours.scale).max(1);
        let end = segment.end();
        if !ours.has_sent() {
            (ours.end, ours.max_end) = (end, end.wrapping_add(window));
            ours.acknowledged = segment.acknowledgement;
        }
        if after(end, ours.end) {
            ours.end = end;
            // Nothing limits a side whose peer was not heard. Its limit keeps up with it, so that the two stay comparable.
            if alone && after(end, ours.max_end) {
                ours.max_end = end;
            }
        }
        ours.finished |= segment.flags.has(Flags::FIN);
        ours.max_window = ours.max_window.max(window);
        if !segment.flags.has(Flags::ACK) {
            return;
        }
        if after(segment.acknowledgement, ours.acknowledged) {
            ours.acknowledged = segment.acknowledgement;
        }
        let peer = &mut self.sides[1 - sender as usize];
        let allowed = segment.acknowledgement.wrapping_add(window);
        if !peer.has_sent() || after(allowed, peer.max_end) {
            peer.max_end = allowed;
        }
    }
}

/// How far behind the newest byte an acknowledgement may be, at least: `MAXACKWINCONST` of Linux.
const ACKNOWLEDGED_LATE: u32 = 66_000;

impl TcpSide {
    /// Whether the side has said anything yet.
    #[inline]
    fn has_sent(&self) -> bool {
        self.max_window != 0
    }
}

#[cfg(test)]
mod tests;
