//! State machine of TCP connections, by segments and windows.
//!
//! ```text
//!            SYN               SYN-ACK (other side)            ACK (initiator)
//!   (none) ------> syn-sent ------------------------> syn-received ----------> established
//!                                                                                  | FIN
//!       ACK                       FIN (other side)                                 v
//!   time-wait <------ last-ack <------------------------------------------- fin-wait
//!
//!   A reset with exactly the next sequence number leads from every state to `reset`; a SYN leads from `time-wait`
//!   and `reset` to a new connection, which policy evaluates like any other.
//!
//!   With pick-up (`nf_conntrack_tcp_loose` of Linux):
//!            ACK, not of a known flow          answer (other side)
//!   (none) -------------------------> unacknowledged -------------> established, or fin-wait after the initiator's FIN
//! ```
//!
//! The sender of the first packet is always the initiator.
//!
//! Sequence numbers decide whether a segment may change the state. A segment outside the window passes and
//! changes nothing; its receiver answers it: "If an incoming segment is not acceptable, an acknowledgment
//! should be sent in reply" (RFC 9293 section 3.10.7.4). A reset outside the window is dropped. A reset in
//! the window without the exact number passes and ends nothing: its receiver sends a challenge ACK, and a
//! sender that has really given the connection up resets it again, with the exact number (RFC 5961 section
//! 3.2). So a host that does not see the connection cannot end it. The window rules are those of van Rooij,
//! "Real Stateful TCP Packet Filtering in IP Filter", as in `nf_conntrack_proto_tcp.c` of Linux.

use super::state::FlowState::{
    self, Established, FinWait, LastAck, Reset, SynReceived, SynSent, TimeWait, Unacknowledged,
};
use super::state::{Outcome, Side};
use crate::dataplane::offload::TcpNumbers;
use crate::net::tcp::Flags;

/// Sequence numbers and window of one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TcpSide {
    /// One more than the highest sequence number that it sent.
    pub end: u32,
    /// Sequence number that a window of its peer is known to allow. [`TcpSide::limit`] is the highest one.
    pub max_end: u32,
    /// Largest window that it offered, bytes; zero before its first segment.
    pub max_window: u32,
    /// Highest number that it acknowledged: the next one that it expects. Before its first acknowledgement,
    /// the first number that its peer may send.
    pub acknowledged: u32,
    /// Shift count of its windows.
    pub scale: u8,
    /// It has sent its FIN.
    pub finished: bool,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpFlow {
    /// Its state.
    pub state: FlowState,
    /// The initiator's and the responder's side.
    pub sides: [TcpSide; 2],
}

/// Fields of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// Control bits.
    pub flags: Flags,
    /// Sequence number of its first byte.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Window field, before scaling.
    pub window: u16,
    /// Bytes of payload.
    pub payload_bytes: u32,
    /// Shift count of the window scale option; `None` in segments other than SYNs.
    pub scale: Option<u8>,
}

/// Shift count assumed for a connection whose SYN the switch has not seen: the largest, so that no valid
/// segment counts as invalid. "the shift count MUST be limited to 14" (RFC 7323 section 2.3).
const UNKNOWN_SCALE: u8 = 14;

impl Segment {
    /// The sequence number behind the segment: SYN and FIN occupy one number each (RFC 9293 section 3.4).
    #[inline]
    fn end(&self) -> u32 {
        let syn = u32::from(self.flags.has(Flags::SYN));
        let fin = u32::from(self.flags.has(Flags::FIN));
        self.sequence.wrapping_add(self.payload_bytes).wrapping_add(syn + fin)
    }

    #[inline]
    fn scaled_window(&self, scale: u8) -> u32 {
        // "The window field in a segment where the SYN bit is set [...] MUST NOT be scaled" (RFC 7323 section
        // 2.2).
        let scale = if self.flags.has(Flags::SYN) { 0 } else { scale };
        u32::from(self.window) << scale
    }
}

/// Whether `a` comes after `b` in sequence space, with "all arithmetic [...] performed modulo 2^32" (RFC 9293
/// section 3.4).
#[inline]
fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl TcpFlow {
    /// The connection that a first segment opens; its sender is the initiator. A SYN opens one, and with
    /// `pickup` any segment of a connection that is older than the switch. `None` where the segment opens
    /// none.
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
            let [initiator, responder] = &mut flow.sides;
            initiator.update_windows(responder, segment);
            flow.sides[1].acknowledged = flow.sides[0].end;
        } else {
            return None;
        }
        Some(flow)
    }

    /// Advances the state by a segment.
    #[inline]
    pub(crate) fn advance(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let flags = segment.flags;
        if flags.0 & (Flags::SYN | Flags::RST | Flags::FIN) == 0 && self.state == Established {
            let (ours, peer) = self.sender_first(sender);
            ours.pass(peer, segment);
            return Outcome::Pass;
        }
        if flags.has(Flags::RST) {
            return self.reset(segment, sender);
        }
        if flags.has(Flags::SYN) {
            return self.synchronize(segment, sender);
        }
        if self.state == SynSent {
            // The initiator has nothing to acknowledge before the responder's first segment.
            if sender == Side::Initiator {
                return Outcome::Invalid;
            }
            // A challenge ACK passes: "If the SYN bit is set, irrespective of the state, TCP MUST send an
            // ACK" (RFC 5961 section 4.2). The responder still has an earlier connection, and the initiator
            // resets it with the number acknowledged here.
            if flags.has(Flags::ACK) {
                self.sides[Side::Responder as usize].acknowledged = segment.acknowledgement;
            }
            return Outcome::Pass;
        }
        // After a reset a late segment changes nothing: the responder may never have sent one.
        if self.state == Reset {
            return Outcome::Pass;
        }
        let (ours, peer) = self.sender_first(sender);
        if ours.is_in_window(peer, segment) {
            ours.update_windows(peer, segment);
            self.state = self.after_data(flags, sender, segment.acknowledgement);
        }
        Outcome::Pass
    }

    /// The state after a segment in the window, without SYN and RST.
    fn after_data(&self, flags: Flags, sender: Side, acknowledgement: u32) -> FlowState {
        let fin = flags.has(Flags::FIN);
        match self.state {
            Unacknowledged if sender == Side::Initiator => Unacknowledged,
            Unacknowledged if fin && self.sides[0].finished => LastAck,
            Unacknowledged if fin || self.sides[0].finished => FinWait,
            Unacknowledged => Established,
            SynReceived | Established if fin => FinWait,
            // Only the acknowledgement of the responder's SYN completes the handshake.
            SynReceived if sender == Side::Initiator && flags.has(Flags::ACK) => Established,
            FinWait if fin && self.sides[1 - sender as usize].finished => LastAck,
            LastAck if !fin && acknowledgement == self.sides[1 - sender as usize].end => TimeWait,
            state => state,
        }
    }

    /// Takes over the numbers of the segments that the kernel has forwarded. They are not compared with those from before, which
    /// may be more than half of the sequence space behind.
    pub(crate) fn take_over(&mut self, numbers: [TcpNumbers; 2]) {
        for (side, forwarded) in self.sides.iter_mut().zip(numbers) {
            let largest = u32::from(u16::MAX) << side.scale;
            side.end = forwarded.end;
            side.acknowledged = forwarded.acknowledged;
            side.max_window = side.max_window.max(forwarded.max_window.min(largest));
        }
        for sender in [0, 1] {
            let TcpSide { acknowledged, max_window, .. } = self.sides[1 - sender];
            let side = &mut self.sides[sender];
            // The kernel's number of a segment may be lost, but not that of all acknowledgements.
            if after(acknowledged, side.end) {
                side.end = acknowledged;
            }
            let allowed = acknowledged.wrapping_add(max_window);
            side.max_end = if after(side.end, allowed) { side.end } else { allowed };
        }
    }

    /// Numbers of both sides.
    pub(crate) fn numbers(&self) -> [TcpNumbers; 2] {
        self.sides.map(|TcpSide { end, acknowledged, max_window, scale, .. }| TcpNumbers {
            end,
            acknowledged,
            max_window,
            scale,
        })
    }

    /// Whether both sides have sent a segment.
    pub(crate) fn have_both_sent(&self) -> bool {
        self.sides.iter().all(TcpSide::has_sent)
    }

    fn reset(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let peer = &self.sides[1 - sender as usize];
        let ours = &self.sides[sender as usize];
        let is_unanswered = self.state == SynSent || self.state == Reset && !ours.has_sent();
        if is_unanswered && sender == Side::Responder {
            // "In the SYN-SENT state (a RST received in response to an initial SYN), the RST is acceptable if
            // the ACK field acknowledges the SYN" (RFC 9293 section 3.5.3).
            if !(segment.flags.has(Flags::ACK) && self.acknowledges_syn(segment)) {
                return Outcome::Invalid;
            }
            self.state = Reset;
            return Outcome::Pass;
        }
        // No number is known of a connection whose record a restart has lost: its receiver judges.
        if !ours.has_sent() && !peer.has_sent() {
            return Outcome::Pass;
        }
        // "If the RST bit is set and the sequence number exactly matches the next expected sequence number
        // (RCV.NXT), then TCP MUST reset the connection" (RFC 5961 section 3.2). That number is the one that
        // the peer has acknowledged, or, before the switch has seen that acknowledgement, the one behind the
        // sender's last byte.
        if segment.sequence == peer.acknowledged || (ours.has_sent() && segment.sequence == ours.end) {
            self.state = Reset;
            return Outcome::Pass;
        }
        // In a picked-up connection a side without segments so far may use the window that its peer offers.
        let limit = ours.limit(peer);
        let start = if ours.has_sent() { ours.end } else { limit };
        let fits =
            !after(start.wrapping_sub(peer.max_window), segment.sequence) && !after(segment.sequence, limit);
        if fits { Outcome::Pass } else { Outcome::Invalid }
    }

    fn synchronize(&mut self, segment: &Segment, sender: Side) -> Outcome {
        let answer = segment.flags.has(Flags::ACK);
        match (self.state, sender, answer) {
            // A picked-up flow without an answer is no connection yet: another one may use its ports.
            (TimeWait | Reset | Unacknowledged, _, false) => return Outcome::Reopen,
            (SynSent, Side::Responder, true) if !self.acknowledges_syn(segment) => return Outcome::Invalid,
            // A retransmission, or a new SYN with another sequence number before any answer to the first.
            (SynSent, Side::Initiator, false) => self.record_syn(segment, sender),
            (SynSent, Side::Responder, _) => self.record_syn_ack(segment),
            // A retransmission, with another sequence number where that is a SYN cookie (RFC 4987 section
            // 3.6).
            (SynReceived, Side::Responder, true) if segment.acknowledgement == self.sides[0].end => {
                self.record_syn_ack(segment);
            }
            // A simultaneous open, in which each side answers the other's SYN (RFC 9293 section 3.5, figure
            // 7).
            (SynReceived, Side::Initiator, true) if segment.acknowledgement == self.sides[1].end => {
                let (ours, peer) = self.sender_first(sender);
                ours.update_windows(peer, segment);
                self.state = Established;
            }
            // A responder's SYN opens a connection in the other direction, which policy has not evaluated.
            (TimeWait | Reset, _, true) | (_, Side::Initiator, true) | (_, Side::Responder, false) => {
                return Outcome::Invalid;
            }
            // A retransmission, or a SYN for a connection that one side has forgotten: the other side answers
            // it.
            (_, Side::Initiator, false) | (_, Side::Responder, true) => {}
        }
        Outcome::Pass
    }

    /// Whether a segment acknowledges the initiator's SYN, with or without the data in it (TCP Fast Open, RFC
    /// 7413).
    fn acknowledges_syn(&self, segment: &Segment) -> bool {
        let initiator = &self.sides[0];
        !after(initiator.end, segment.acknowledgement) && !after(segment.acknowledgement, initiator.max_end)
    }

    /// Records the responder's SYN.
    fn record_syn_ack(&mut self, segment: &Segment) {
        self.record_syn(segment, Side::Responder);
        let [initiator, responder] = &mut self.sides;
        // The initiator's SYN offers a window, which the responder may use before the handshake completes.
        responder.max_end = responder.max_end.wrapping_add(initiator.max_window);
        if segment.flags.has(Flags::ACK) {
            (initiator.end, initiator.max_end) = (segment.acknowledgement, segment.acknowledgement);
        }
        initiator.max_end = initiator.max_end.wrapping_add(responder.max_window);
        // "both sides MUST send Window Scale options in their <SYN> segments to enable window scaling in
        // either direction" (RFC 7323 section 2.2).
        if segment.scale.is_none() {
            initiator.scale = 0;
        }
        self.state = SynReceived;
    }

    /// Records a side's SYN. Data in it counts when the other side acknowledges it.
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

    /// The sender and its peer.
    #[inline(always)]
    fn sender_first(&mut self, sender: Side) -> (&mut TcpSide, &TcpSide) {
        let [initiator, responder] = &mut self.sides;
        if sender == Side::Initiator { (initiator, responder) } else { (responder, initiator) }
    }
}

/// Least distance, bytes, by which an acknowledgement may be behind the newest byte: `MAXACKWINCONST` of
/// `nf_conntrack_proto_tcp.c`.
const ACKNOWLEDGED_LATE: u32 = 66_000;

impl TcpSide {
    /// Whether the side has sent a segment.
    #[inline]
    fn has_sent(&self) -> bool {
        self.max_window != 0
    }

    /// Highest sequence number that the largest window of the peer allows.
    #[inline]
    pub(crate) fn limit(&self, peer: &TcpSide) -> u32 {
        let allowed = peer.acknowledged.wrapping_add(peer.max_window);
        let is_later = !self.has_sent() || after(allowed, self.max_end);
        if peer.has_sent() && is_later { allowed } else { self.max_end }
    }

    /// Takes the numbers of a segment of this side, without SYN, RST and FIN, that goes on in an established connection where
    /// the side's last segment has ended: as [`TcpSide::pass`], with less to read. Returns false, and changes nothing, for any
    /// other segment.
    ///
    /// A segment goes on that ends within the window which the peer is known to have offered, and acknowledges what its sender has
    /// acknowledged before, or more of what the peer has sent, up to `peer_end`.
    #[inline(always)]
    pub(super) fn take_in_order(&mut self, segment: &Segment, peer_end: impl FnOnce() -> u32) -> bool {
        let end = segment.end();
        let goes_on = segment.flags.has(Flags::ACK)
            & self.has_sent()
            & !after(end, self.max_end)
            & !after(self.end, end)
            & (segment.scaled_window(self.scale) <= self.max_window)
            && (segment.acknowledgement == self.acknowledged
                || after(segment.acknowledgement, self.acknowledged)
                    && !after(segment.acknowledgement, peer_end()));
        if goes_on {
            (self.end, self.acknowledged) = (end, segment.acknowledgement);
        }
        goes_on
    }

    /// Takes the numbers of any segment of this side, without SYN, RST and FIN, in an established connection: those of a segment
    /// outside the windows change nothing.
    pub(super) fn pass(&mut self, peer: &TcpSide, segment: &Segment) {
        if self.is_in_window(peer, segment) {
            self.update_windows(peer, segment);
        }
    }

    /// Whether a segment of this side is within the windows of both sides.
    fn is_in_window(&self, peer: &TcpSide, segment: &Segment) -> bool {
        if !self.has_sent() || !peer.has_sent() {
            // In a connection that was picked up, either the peer has sent nothing yet, or this is the first segment of its
            // sender.
            return !peer.has_sent() || self.answers_pickup(peer, segment);
        }
        let peer_end_min = peer.end.wrapping_sub(self.max_window.max(ACKNOWLEDGED_LATE));
        let not_beyond = !after(segment.sequence, self.limit(peer).wrapping_add(1));
        let not_before = !after(self.end.wrapping_sub(peer.max_window), segment.end());
        // A sender may wait for more than a window before it acknowledges again, and then acknowledge less than all.
        let is_late = after(peer_end_min, segment.acknowledgement)
            && !after(segment.acknowledgement, self.acknowledged);
        let acknowledges = !segment.flags.has(Flags::ACK)
            || segment.acknowledgement == self.acknowledged
            || (!after(segment.acknowledgement, peer.end) && !is_late);
        not_beyond && not_before && acknowledges
    }

    /// Whether the first segment of one side of a picked-up connection answers the segments of the other.
    /// Only this segment has the window of its sender.
    #[cold]
    fn answers_pickup(&self, peer: &TcpSide, segment: &Segment) -> bool {
        let window = segment.scaled_window(self.scale).max(ACKNOWLEDGED_LATE);
        let limit = self.limit(peer);
        let start = limit.wrapping_sub(peer.max_window).wrapping_sub(ACKNOWLEDGED_LATE);
        segment.flags.has(Flags::ACK)
            && !after(segment.acknowledgement, peer.end)
            && !after(peer.end.wrapping_sub(window), segment.acknowledgement)
            && !after(segment.sequence, limit.wrapping_add(1))
            && !after(start, segment.end())
    }

    /// Updates numbers and windows by a segment of this side in the window.
    fn update_windows(&mut self, peer: &TcpSide, segment: &Segment) {
        let window = segment.scaled_window(self.scale).max(1);
        let end = segment.end();
        self.max_end = self.limit(peer);
        if !self.has_sent() {
            (self.end, self.max_end) = (end, end.wrapping_add(window));
            self.acknowledged = segment.acknowledgement;
        }
        if after(end, self.end) {
            self.end = end;
            // No window limits a side whose peer has sent nothing. Its limit follows its numbers, so that the
            // two stay within half of the sequence space.
            if !peer.has_sent() && after(end, self.max_end) {
                self.max_end = end;
            }
        }
        self.finished |= segment.flags.has(Flags::FIN);
        self.max_window = self.max_window.max(window);
        if segment.flags.has(Flags::ACK) && after(segment.acknowledgement, self.acknowledged) {
            self.acknowledged = segment.acknowledgement;
        }
    }
}

#[cfg(test)]
mod tests;
