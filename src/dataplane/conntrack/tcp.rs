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

use super::FlowState::{
    self, Established, FinWait, LastAck, Reset, SynReceived, SynSent, TimeWait, Unacknowledged,
};
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

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It passes.
    Pass,
    /// It does not belong to the connection.
    Invalid,
    /// It opens a new connection between the same ports: to be policy_epoch anew.
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
mod tests {
    use std::fmt::Write;

    use super::*;

    const INITIATOR: Side = Side::Initiator;
    const RESPONDER: Side = Side::Responder;
    const SYN: u8 = Flags::SYN;
    const ACK: u8 = Flags::ACK;
    const FIN: u8 = Flags::FIN;
    const RST: u8 = Flags::RST;

    /// Two hosts that talk through a flow: they know what to send next, the flow only what it has seen.
    #[derive(Clone)]
    struct Talk {
        flow: TcpFlow,
        next: [u32; 2],
    }

    impl Talk {
        /// A SYN from a sequence number that is about to wrap.
        fn opened() -> Talk {
            let next = [u32::MAX - 5, 0x8000_0000];
            let syn = Segment { scale: Some(7), ..segment(SYN, next[0], 0) };
            let flow = TcpFlow::open(&syn, false).unwrap();
            Talk { flow, next: [next[0].wrapping_add(1), next[1]] }
        }

        fn answered() -> Talk {
            let mut talk = Talk::opened();
            let syn_ack = Segment { scale: Some(7), ..segment(SYN | ACK, talk.next[1], talk.next[0]) };
            assert_eq!(talk.flow.advance(&syn_ack, RESPONDER), Outcome::Pass);
            talk.next[1] += 1;
            talk
        }

        fn established() -> Talk {
            let mut talk = Talk::answered();
            talk.say(ACK, INITIATOR, 0);
            talk
        }

        fn picked_up() -> Talk {
            let next = [1000, 2000];
            let flow = TcpFlow::open(&segment(ACK, next[0], next[1]), true).unwrap();
            Talk { flow, next }
        }

        /// A segment that comes next from `sender`.
        fn next(&self, flags: u8, sender: Side, payload_bytes: u32) -> Segment {
            let [sequence, acknowledgement] =
                [sender as usize, 1 - sender as usize].map(|side| self.next[side]);
            Segment { payload_bytes, ..segment(flags, sequence, acknowledgement) }
        }

        fn say(&mut self, flags: u8, sender: Side, payload_bytes: u32) {
            let segment = self.next(flags, sender, payload_bytes);
            assert_eq!(self.flow.advance(&segment, sender), Outcome::Pass);
            self.next[sender as usize] = segment.end();
        }

        fn hears(&self, segment: &Segment, sender: Side) -> (Outcome, FlowState) {
            let mut flow = self.flow;
            (flow.advance(segment, sender), flow.state)
        }
    }

    fn segment(flags: u8, sequence: u32, acknowledgement: u32) -> Segment {
        let flags = Flags(flags);
        Segment { flags, sequence, acknowledgement, window: 1000, payload_bytes: 0, scale: None }
    }

    fn talks() -> Vec<(&'static str, Talk)> {
        let mut talks =
            vec![("SYN", Talk::opened()), ("SYN-ACK", Talk::answered()), ("ACK", Talk::established())];
        let mut go_on = |name, flags, sender, payload_bytes| {
            let mut talk = talks.last().unwrap().1.clone();
            talk.say(flags, sender, payload_bytes);
            talks.push((name, talk));
        };
        go_on("data", ACK, INITIATOR, 10);
        go_on("FIN of the initiator", FIN | ACK, INITIATOR, 0);
        go_on("its ACK", ACK, RESPONDER, 0);
        go_on("FIN of the responder", FIN | ACK, RESPONDER, 0);
        go_on("its ACK", ACK, INITIATOR, 0);
        let mut reset = Talk::established();
        reset.say(RST, RESPONDER, 0);
        talks.push(("RST", reset));
        talks.push(("picked up", Talk::picked_up()));
        talks
    }

    /// Every state by every event: what passes, and which state follows.
    #[test]
    fn golden_table_of_states_and_events() {
        type Event = fn(&Talk, Side) -> Segment;
        let events: [(&str, Event); 12] = [
            ("SYN", |talk, sender| talk.next(SYN, sender, 0)),
            ("SYN of another number", |talk, sender| Segment { sequence: 77, ..talk.next(SYN, sender, 0) }),
            ("SYN-ACK", |talk, sender| talk.next(SYN | ACK, sender, 0)),
            ("SYN-ACK of something else", |talk, sender| Segment {
                acknowledgement: 77,
                ..talk.next(SYN | ACK, sender, 0)
            }),
            ("ACK", |talk, sender| talk.next(ACK, sender, 0)),
            ("data", |talk, sender| talk.next(ACK, sender, 100)),
            ("data beyond the window", |talk, sender| {
                let next = talk.next(ACK, sender, 100);
                Segment { sequence: next.sequence.wrapping_add(1 << 30), ..next }
            }),
            ("FIN", |talk, sender| talk.next(FIN | ACK, sender, 0)),
            ("FIN beyond the window", |talk, sender| {
                let next = talk.next(FIN | ACK, sender, 0);
                Segment { sequence: next.sequence.wrapping_add(1 << 30), ..next }
            }),
            ("RST", |talk, sender| talk.next(RST | ACK, sender, 0)),
            ("RST in the window", |talk, sender| {
                let next = talk.next(RST, sender, 0);
                Segment { sequence: next.sequence.wrapping_add(500), ..next }
            }),
            ("RST beyond the window", |talk, sender| {
                let next = talk.next(RST, sender, 0);
                Segment { sequence: next.sequence.wrapping_add(1 << 30), ..next }
            }),
        ];
        let mut table = String::new();
        for (after, talk) in talks() {
            writeln!(table, "{} (after {after})", talk.flow.state.name()).unwrap();
            for (name, event) in events {
                write!(table, "  {name:<26}").unwrap();
                for sender in [INITIATOR, RESPONDER] {
                    let (outcome, state) = talk.hears(&event(&talk, sender), sender);
                    let then = if outcome == Outcome::Pass { state.name() } else { "" };
                    let cell = format!("{sender:?}: {outcome:?} {then}");
                    write!(table, "{cell:<36}").unwrap();
                }
                table.truncate(table.trim_end().len());
                table.push('\n');
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_stray_reset_outside_the_window_is_dropped_and_changes_nothing() {
        let talk = Talk::established();
        for sender in [INITIATOR, RESPONDER] {
            let sequence = talk.next[sender as usize];
            for away in [200_000, 1 << 31, (1u32 << 31) - 1, u32::MAX - 200_000] {
                let reset = segment(RST, sequence.wrapping_add(away), 0);
                assert_eq!(talk.hears(&reset, sender), (Outcome::Invalid, Established), "{sender:?} {away}");
            }
        }
    }

    #[test]
    fn of_all_resets_in_the_window_only_the_one_with_the_next_number_closes() {
        let talk = Talk::established();
        for sender in [INITIATOR, RESPONDER] {
            let next = talk.next[sender as usize];
            for away in -900..900i32 {
                let reset = segment(RST, next.wrapping_add_signed(away), 0);
                let state = if away == 0 { Reset } else { Established };
                assert_eq!(talk.hears(&reset, sender), (Outcome::Pass, state), "{sender:?} {away}");
            }
        }
    }

    #[test]
    fn a_reset_closes_by_what_its_receiver_expects_also_where_later_segments_were_lost() {
        for sender in [INITIATOR, RESPONDER] {
            let mut talk = Talk::established();
            talk.say(ACK, sender, 100);
            let expected = talk.next[sender as usize];
            // Its receiver has taken the first hundred bytes and says so; the next three hundred it never sees.
            let receiver = if sender == INITIATOR { RESPONDER } else { INITIATOR };
            talk.say(ACK, receiver, 0);
            talk.say(ACK, sender, 300);
            let sent = talk.next[sender as usize];
            for (sequence, state) in [
                (expected, Reset),
                (sent, Reset),
                (expected.wrapping_sub(100), Established),
                (expected.wrapping_add(1), Established),
                (sent.wrapping_sub(1), Established),
                (sent.wrapping_add(1), Established),
            ] {
                let reset = segment(RST, sequence, 0);
                assert_eq!(talk.hears(&reset, sender), (Outcome::Pass, state), "{sender:?} {sequence}");
            }
        }
    }

    #[test]
    fn a_reset_that_is_not_exact_is_challenged_and_the_exact_one_that_answers_closes() {
        let mut talk = Talk::established();
        // Fifty bytes that the switch has not seen: lost before it.
        let ahead = segment(RST, talk.next[0].wrapping_add(50), 0);
        assert_eq!(talk.flow.advance(&ahead, INITIATOR), Outcome::Pass);
        assert_eq!(talk.flow.state, Established);
        talk.say(ACK, RESPONDER, 0);
        talk.say(RST, INITIATOR, 0);
        assert_eq!(talk.flow.state, Reset);
    }

    #[test]
    fn a_host_that_forgot_a_connection_resets_it_by_the_challenge_to_its_syn_and_opens_the_next() {
        // The switch still has the connection; or has forgotten it too, and sees a SYN first.
        for mut talk in [Talk::established(), Talk::opened()] {
            let syn = segment(SYN, 77, 0);
            assert_eq!(talk.flow.advance(&syn, INITIATOR), Outcome::Pass);
            let expected = if talk.flow.state == Established { talk.next[0] } else { 123_456 };
            let challenge = segment(ACK, talk.next[1], expected);
            assert_eq!(talk.flow.advance(&challenge, RESPONDER), Outcome::Pass);
            assert_eq!(talk.flow.advance(&segment(RST, expected, 0), INITIATOR), Outcome::Pass);
            assert_eq!(talk.flow.state, Reset);
            assert_eq!(talk.flow.advance(&syn, INITIATOR), Outcome::Reopen);
        }
    }

    #[test]
    fn a_reset_of_an_initiator_that_nobody_has_answered_has_the_number_behind_its_syn() {
        let talk = Talk::opened();
        for away in [-1, 1, 100, 1 << 30] {
            let reset = segment(RST, talk.next[0].wrapping_add_signed(away), 0);
            assert_eq!(talk.hears(&reset, INITIATOR), (Outcome::Invalid, SynSent), "{away}");
        }
        assert_eq!(talk.hears(&segment(RST, 0, 0), INITIATOR), (Outcome::Invalid, SynSent));
        assert_eq!(talk.hears(&talk.next(RST, INITIATOR, 0), INITIATOR), (Outcome::Pass, Reset));
    }

    #[test]
    fn a_reset_that_refuses_a_syn_has_to_acknowledge_it() {
        let talk = Talk::opened();
        let refusal = segment(RST | ACK, 0, talk.next[0]);
        assert_eq!(talk.hears(&refusal, RESPONDER), (Outcome::Pass, Reset));
        for wrong in [segment(RST, 0, talk.next[0]), segment(RST | ACK, 0, talk.next[0].wrapping_add(1))] {
            assert_eq!(talk.hears(&wrong, RESPONDER), (Outcome::Invalid, SynSent));
        }
    }

    #[test]
    fn a_syn_of_the_responder_of_an_open_connection_is_invalid() {
        for talk in [Talk::answered(), Talk::established()] {
            assert_eq!(talk.hears(&talk.next(SYN, RESPONDER, 0), RESPONDER).0, Outcome::Invalid);
        }
    }

    #[test]
    fn a_syn_ack_opens_nothing_and_neither_does_a_reset() {
        for flags in [SYN | ACK, RST, RST | ACK, 0, FIN] {
            assert_eq!(TcpFlow::open(&segment(flags, 1, 1), true), None, "{flags:#x}");
        }
    }

    #[test]
    fn both_sides_finish_and_the_connection_waits() {
        let mut talk = Talk::established();
        let mut states = Vec::new();
        for (flags, sender) in [
            (FIN | ACK, INITIATOR),
            (ACK, RESPONDER),
            (ACK, RESPONDER),
            (FIN | ACK, RESPONDER),
            (ACK, INITIATOR),
        ] {
            talk.say(flags, sender, 0);
            states.push(talk.flow.state);
        }
        assert_eq!(states, [FinWait, FinWait, FinWait, LastAck, TimeWait]);
    }

    #[test]
    fn a_fin_outside_the_window_ends_nothing() {
        let talk = Talk::established();
        for sender in [INITIATOR, RESPONDER] {
            let fin = talk.next(FIN | ACK, sender, 0);
            let fin = Segment { sequence: fin.sequence.wrapping_add(1 << 29), ..fin };
            assert_eq!(talk.hears(&fin, sender), (Outcome::Pass, Established));
        }
    }

    #[test]
    fn a_syn_in_time_wait_reopens_from_either_side() {
        let (_, talk) = talks().into_iter().find(|(_, talk)| talk.flow.state == TimeWait).unwrap();
        for sender in [INITIATOR, RESPONDER] {
            assert_eq!(talk.hears(&talk.next(SYN, sender, 0), sender).0, Outcome::Reopen);
        }
    }

    #[test]
    fn the_middle_of_a_connection_is_picked_up_only_where_that_is_wanted() {
        for flags in [ACK, FIN | ACK] {
            let middle = segment(flags, 1000, 2000);
            assert_eq!(TcpFlow::open(&middle, false), None);
            assert_eq!(TcpFlow::open(&middle, true).map(|flow| flow.state), Some(Unacknowledged));
        }
    }

    #[test]
    fn a_picked_up_connection_is_established_by_an_answer_that_fits_and_by_nothing_else() {
        let mut talk = Talk::picked_up();
        talk.say(ACK, INITIATOR, 100);
        let fits = talk.next(ACK, RESPONDER, 10);
        for wrong in [
            Segment { acknowledgement: talk.next[0] + 1, ..fits },
            Segment { acknowledgement: talk.next[0].wrapping_sub((1000 << 14) + 1), ..fits },
            Segment { sequence: fits.sequence.wrapping_add((1000 << 14) + 2), ..fits },
            Segment { sequence: fits.sequence.wrapping_sub(1 << 28), ..fits },
            Segment { flags: Flags(FIN), ..fits },
        ] {
            assert_eq!(talk.hears(&wrong, RESPONDER), (Outcome::Pass, Unacknowledged), "{wrong:?}");
        }
        assert_eq!(talk.hears(&fits, INITIATOR).1, Unacknowledged);
        for (finished, states) in [(false, [Established, FinWait]), (true, [FinWait, LastAck])] {
            let mut talk = talk.clone();
            if finished {
                talk.say(FIN | ACK, INITIATOR, 0);
                assert_eq!(talk.flow.state, Unacknowledged);
            }
            for (flags, state) in [ACK, FIN | ACK].into_iter().zip(states) {
                assert_eq!(talk.hears(&talk.next(flags, RESPONDER, 0), RESPONDER), (Outcome::Pass, state));
            }
        }
    }

    #[test]
    fn a_syn_opens_a_connection_in_place_of_one_that_was_picked_up_and_not_answered() {
        let talk = Talk::picked_up();
        for sender in [INITIATOR, RESPONDER] {
            assert_eq!(talk.hears(&talk.next(SYN, sender, 0), sender).0, Outcome::Reopen);
        }
    }

    #[test]
    fn a_connection_picked_up_is_followed_from_the_first_reply_on() {
        let mut talk = Talk::picked_up();
        talk.say(ACK, RESPONDER, 500);
        talk.say(ACK, INITIATOR, 0);
        talk.say(FIN | ACK, RESPONDER, 0);
        talk.say(FIN | ACK, INITIATOR, 0);
        talk.say(ACK, RESPONDER, 0);
        assert_eq!(talk.flow.state, TimeWait);
    }

    #[test]
    fn the_side_of_a_picked_up_connection_that_has_not_spoken_may_reset_it() {
        let talk = Talk::picked_up();
        assert_eq!(talk.hears(&segment(RST, 2000, 0), RESPONDER), (Outcome::Pass, Reset));
        assert_eq!(talk.hears(&segment(RST, 1999, 0), RESPONDER), (Outcome::Invalid, Unacknowledged));
    }

    #[test]
    fn a_syn_with_data_may_be_acknowledged_with_and_without_it() {
        let syn = Segment { payload_bytes: 100, ..segment(SYN, 10, 0) };
        let flow = TcpFlow::open(&syn, false).unwrap();
        let talk = Talk { flow, next: [11, 50] };
        for (acknowledgement, outcome) in
            [(10, Outcome::Invalid), (11, Outcome::Pass), (111, Outcome::Pass), (112, Outcome::Invalid)]
        {
            let syn_ack = segment(SYN | ACK, 50, acknowledgement);
            assert_eq!(talk.hears(&syn_ack, RESPONDER).0, outcome, "{acknowledgement}");
        }
        let mut talk = talk;
        assert_eq!(talk.flow.advance(&segment(SYN | ACK, 50, 111), RESPONDER), Outcome::Pass);
        assert_eq!(talk.flow.advance(&segment(ACK, 111, 51), INITIATOR), Outcome::Pass);
        assert_eq!(talk.flow.state, Established);
    }

    #[test]
    fn a_second_syn_cookie_replaces_the_first() {
        let mut talk = Talk::answered();
        let cookie = segment(SYN | ACK, 123_456, talk.next[0]);
        assert_eq!(talk.flow.advance(&cookie, RESPONDER), Outcome::Pass);
        talk.next[1] = 123_457;
        talk.say(ACK, INITIATOR, 0);
        assert_eq!(talk.flow.state, Established);
    }

    #[test]
    fn a_responder_may_send_what_the_syn_has_offered_before_the_handshake_is_over() {
        let mut talk = Talk::answered();
        talk.say(ACK, RESPONDER, 600);
        talk.say(ACK, RESPONDER, 400);
        talk.say(ACK, INITIATOR, 0);
        assert_eq!(talk.flow.state, Established);
    }

    #[test]
    fn both_sides_may_open_at_once() {
        let mut talk = Talk::opened();
        talk.say(SYN, RESPONDER, 0);
        let syn_ack = segment(SYN | ACK, talk.next[0].wrapping_sub(1), talk.next[1]);
        assert_eq!(talk.flow.advance(&syn_ack, INITIATOR), Outcome::Pass);
        let syn_ack = segment(SYN | ACK, talk.next[1].wrapping_sub(1), talk.next[0]);
        assert_eq!(talk.flow.advance(&syn_ack, RESPONDER), Outcome::Pass);
        assert_eq!(talk.flow.state, Established);
        talk.say(ACK, INITIATOR, 500);
        talk.say(FIN | ACK, INITIATOR, 0);
        assert_eq!(talk.flow.state, FinWait);
    }

    #[test]
    fn windows_are_scaled_only_where_both_sides_scale() {
        for (scale, max_end) in [(Some(7), 1000 << 7), (None, 1000)] {
            let mut talk = Talk::opened();
            let syn_ack = Segment { scale, ..segment(SYN | ACK, talk.next[1], talk.next[0]) };
            assert_eq!(talk.flow.advance(&syn_ack, RESPONDER), Outcome::Pass);
            talk.next[1] += 1;
            talk.say(ACK, INITIATOR, 0);
            assert_eq!(talk.flow.sides[1].max_end.wrapping_sub(talk.next[1]), max_end, "{scale:?}");
        }
    }
}
