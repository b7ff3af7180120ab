//! The flow word: everything that a packet of a known flow reads besides the key.

use super::super::state::{FlowState, Side};
use crate::ids::Generation;

/// A socket of the node opened the flow, as the mark of its packet told.
const BY_NODE_SOCKET: u64 = 1 << 7;
/// The higher end of the key opened the flow.
pub(super) const OPENED_BY_HIGH: u64 = 1 << 8;
/// The lower end was a pod of this node when the flow was inserted.
pub(super) const LOW_IS_POD: u64 = 1 << 9;
/// The higher end was a pod of this node when the flow was inserted.
pub(super) const HIGH_IS_POD: u64 = 1 << 10;
/// The initiator has sent to a virtual address.
const TRANSLATED: u64 = 1 << 11;
/// Window scale of the end, four bits.
const SCALE_SHIFT: u32 = 12;
const SCALE: u64 = 0xf << SCALE_SHIFT;
const STATE: u64 = 0x7f;
const UDP_TWO_WAY: u64 = FlowState::UdpTwoWay as u64;
const ESTABLISHED: u64 = FlowState::Established as u64;
/// The bits by which most packets are known to leave the state as it is. Packets of the node's sockets are checked one by one.
const PLAIN: u64 = STATE | BY_NODE_SOCKET | TRANSLATED;
/// The bits that a revalidation keeps: state, opener, its kind, pods, scale.
const STATUS: u64 = 0xffff;

/// The flow word of one end, from the high bits down: the policy epoch, 32 bits; the hop plus one, 16 bits,
/// zero for none; the end's window scale, whether the flow is translated, the ends that were pods of this node, the end that opened the flow,
/// whether a socket of the node did; the flow's state, seven bits.
///
/// The policy epoch is the generation that last evaluated packets of this end, and under which their hop was
/// noted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowWord(pub(super) u64);

impl FlowWord {
    #[inline]
    pub(super) fn new(policy_epoch: Generation, hop: Option<u16>, status: u64) -> FlowWord {
        // Hop 65535 does not fit beside the value for none: it is looked up each time.
        let hop = hop.map_or(0, |hop| hop.wrapping_add(1));
        FlowWord(u64::from(policy_epoch.0) << 32 | u64::from(hop) << 16 | status)
    }

    /// Status bits of a flow in this state, for an end with this window scale. `pods`: whether the lower and
    /// the higher end is a pod of this node.
    #[inline]
    pub(super) fn status_of(
        state: FlowState,
        (opened_by_low, by_node_socket): (bool, bool),
        pods: [bool; 2],
        translated: bool,
        scale: u8,
    ) -> u64 {
        let opened = if opened_by_low { 0 } else { OPENED_BY_HIGH };
        let [low, high] = pods.map(u64::from);
        u64::from(state as u8)
            | u64::from(by_node_socket) * BY_NODE_SOCKET
            | opened
            | low * LOW_IS_POD
            | high * HIGH_IS_POD
            | if translated { TRANSLATED } else { 0 }
            | u64::from(scale) << SCALE_SHIFT
    }

    /// The generation that last evaluated packets of this end.
    #[inline]
    pub(crate) fn policy_epoch(self) -> Generation {
        Generation((self.0 >> 32) as u32)
    }

    /// The hop of packets of this end, if one was noted under that generation.
    #[inline]
    pub(crate) fn hop(self) -> Option<u16> {
        ((self.0 >> 16) as u16).checked_sub(1)
    }

    /// The hop of packets of this end, if most packets do not change the state of the flow any more: it is UDP, and both
    /// directions were seen, or an established connection. `None` for a translated flow, and one of a socket of the node.
    #[inline]
    pub(crate) fn plain_hop(self) -> Option<u16> {
        let is_plain = (self.0 & PLAIN == UDP_TWO_WAY) | (self.0 & PLAIN == ESTABLISHED);
        if is_plain { self.hop() } else { None }
    }

    /// The same for a translated flow, and `None` for any other.
    #[inline]
    pub(crate) fn plain_hop_translated(self) -> Option<u16> {
        FlowWord(self.0 ^ TRANSLATED).plain_hop()
    }

    /// Whether the flow is translated, and no packet changes it any more: packets of a cached hop need no entry.
    #[inline]
    pub(crate) fn needs_no_entry(self) -> bool {
        self.0 & PLAIN == UDP_TWO_WAY | TRANSLATED
    }

    /// The state as this half has it: see [`Entry::set_state`](super::Entry::set_state).
    #[inline]
    pub(crate) fn state(self) -> FlowState {
        FlowState::from_number((self.0 & STATE) as u8)
    }

    /// The side of the end, given whether it is the lower one.
    #[inline]
    pub(crate) fn side(self, is_low: bool) -> Side {
        if is_low == (self.0 & OPENED_BY_HIGH != 0) { Side::Responder } else { Side::Initiator }
    }

    /// Whether a socket of the node opened the flow.
    #[inline]
    pub(crate) fn is_by_node_socket(self) -> bool {
        self.0 & BY_NODE_SOCKET != 0
    }

    /// Whether the initiator has sent to a virtual address, in whose place the responder is.
    #[inline]
    pub(crate) fn is_translated(self) -> bool {
        self.0 & TRANSLATED != 0
    }

    /// Whether the lower and the higher end was a pod of this node when the flow was inserted.
    #[inline]
    pub(crate) fn pods(self) -> [bool; 2] {
        [LOW_IS_POD, HIGH_IS_POD].map(|bit| self.0 & bit != 0)
    }

    /// Whether both words are of a flow with the same opener, the same pods and the same translation.
    pub(super) fn has_same_ends(self, other: FlowWord) -> bool {
        (self.0 ^ other.0) & (BY_NODE_SOCKET | OPENED_BY_HIGH | LOW_IS_POD | HIGH_IS_POD | TRANSLATED) == 0
    }

    /// Whether the bits of the state are a state's number.
    pub(super) fn has_valid_state(self) -> bool {
        self.0 & STATE == self.state() as u64
    }

    /// The word with another policy epoch and hop.
    pub(super) fn revalidated(self, policy_epoch: Generation, hop: Option<u16>) -> FlowWord {
        FlowWord::new(policy_epoch, hop, self.0 & STATUS)
    }

    pub(super) fn with_state(self, state: FlowState) -> FlowWord {
        FlowWord(self.0 & !STATE | u64::from(state as u8))
    }

    #[inline]
    pub(super) fn scale(self) -> u8 {
        ((self.0 & SCALE) >> SCALE_SHIFT) as u8
    }

    pub(super) fn with_scale(self, scale: u8) -> FlowWord {
        FlowWord(self.0 & !SCALE | u64::from(scale) << SCALE_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_of_a_socket_of_the_node_stays_one_through_changes_of_state_and_revalidations() {
        for by_node_socket in [false, true] {
            for state in FlowState::ALL {
                let status = FlowWord::status_of(*state, (true, by_node_socket), [false, true], false, 7);
                let word = FlowWord::new(Generation(3), Some(5), status);
                let next =
                    word.with_state(FlowState::UdpTwoWay).with_scale(2).revalidated(Generation(4), None);
                assert!(word.has_valid_state() && word.state() == *state);
                assert!(word.has_same_ends(next) && next.state() == FlowState::UdpTwoWay);
                assert_eq!([word, next].map(FlowWord::is_by_node_socket), [by_node_socket; 2]);
                assert_eq!((next.pods(), next.scale(), next.hop()), ([false, true], 2, None));
            }
            let two_way =
                FlowWord::status_of(FlowState::UdpTwoWay, (true, by_node_socket), [true; 2], false, 0);
            let word = FlowWord::new(Generation(3), Some(5), two_way);
            // Each packet of such a flow is checked for the mark.
            assert_eq!(word.plain_hop(), (!by_node_socket).then_some(5));
            assert!(!word.has_same_ends(FlowWord(word.0 ^ BY_NODE_SOCKET)));
        }
    }
}
