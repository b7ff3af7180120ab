//! Sequence numbers of received frames: duplicates and reordering, by flow.

use crate::pktgen::traffic::stamp::Stamp;

/// Sequence numbers of a flow that are remembered. A duplicate further behind the highest one counts as a
/// reordered frame.
const WINDOW: u32 = 64;

/// Sequence numbers seen, by flow.
#[derive(Debug)]
pub(crate) struct Tracker {
    slots: Vec<Slot>,
    counts: Counts,
}

/// Counts of a tracker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Stamped frames, duplicates included.
    pub(crate) frames: u64,
    /// Frames that arrived again.
    pub(crate) duplicates: u64,
    /// Frames that arrived after one that was sent later (RFC 4737 section 3.3).
    pub(crate) reordered: u64,
}

/// Sequence numbers seen of one flow.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Newest flow of this slot.
    flow: u32,
    /// Sequence number that follows the highest one seen; 0 before the first.
    next: u32,
    /// Bit n: sequence number `next` - 1 - n was seen.
    seen: u64,
}

impl Tracker {
    /// Makes room for so many flows at a time, as the generator has them.
    pub(crate) fn new(flows: u32) -> Tracker {
        Tracker { slots: vec![Slot::default(); flows.max(1) as usize], counts: Counts::default() }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts a received frame.
    #[inline]
    pub(crate) fn take(&mut self, stamp: Stamp) {
        self.counts.frames += 1;
        let at = stamp.flow as usize % self.slots.len();
        let slot = &mut self.slots[at];
        if slot.flow != stamp.flow {
            // Serial number arithmetic (RFC 1982): flow numbers wrap around.
            if slot.next != 0 && stamp.flow.wrapping_sub(slot.flow).cast_signed() < 0 {
                // A newer flow has the slot, so the sequence numbers of this one are not remembered any more.
                self.counts.reordered += 1;
                return;
            }
            *slot = Slot { flow: stamp.flow, ..Slot::default() };
        }
        slot.take(stamp.sequence, &mut self.counts);
    }
}

impl Slot {
    #[inline]
    fn take(&mut self, sequence: u32, counts: &mut Counts) {
        if sequence >= self.next {
            let ahead = sequence - self.next;
            self.seen = if ahead + 1 >= WINDOW { 1 } else { self.seen << (ahead + 1) | 1 };
            self.next = sequence.saturating_add(1);
            return;
        }
        let behind = self.next - 1 - sequence;
        let bit = if behind < WINDOW { 1 << behind } else { 0 };
        if self.seen & bit != 0 {
            counts.duplicates += 1;
        } else {
            counts.reordered += 1;
            self.seen |= bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(flows: u32, frames: &[(u32, u32)]) -> (u64, u64, u64) {
        let mut tracker = Tracker::new(flows);
        frames.iter().for_each(|&(flow, sequence)| tracker.take(Stamp { flow, sequence, sent_ns: 0 }));
        let counts = tracker.counts();
        (counts.frames, counts.duplicates, counts.reordered)
    }

    #[test]
    fn frames_in_order_are_neither_late_nor_double_and_gaps_do_not_matter() {
        assert_eq!(counts(2, &[(0, 0), (1, 0), (0, 1), (1, 5), (0, 200), (1, 6)]), (6, 0, 0));
    }

    #[test]
    fn a_late_frame_is_reordered_once_and_its_double_is_a_duplicate() {
        assert_eq!(counts(1, &[(0, 0), (0, 2), (0, 1)]), (3, 0, 1));
        assert_eq!(counts(1, &[(0, 0), (0, 2), (0, 1), (0, 1), (0, 2), (0, 0)]), (6, 3, 1));
    }

    #[test]
    fn the_first_frame_seen_may_be_any() {
        assert_eq!(counts(1, &[(0, 70), (0, 70), (0, 69)]), (3, 1, 1));
    }

    #[test]
    fn a_frame_at_the_edge_of_the_window_is_known_and_one_beyond_is_late() {
        let run: Vec<(u32, u32)> = (0..64).map(|sequence| (0, sequence)).collect();
        assert_eq!(counts(1, &[&run[..], &[(0, 0)]].concat()), (65, 1, 0));
        let run: Vec<(u32, u32)> = (0..65).map(|sequence| (0, sequence)).collect();
        assert_eq!(counts(1, &[&run[..], &[(0, 0)]].concat()), (66, 0, 1));
    }

    #[test]
    fn a_fresh_flow_begins_anew_in_an_older_ones_place_and_the_older_ones_frames_are_late() {
        assert_eq!(counts(2, &[(1, 0), (1, 1), (3, 0), (3, 1), (1, 2), (3, 1)]), (6, 1, 1));
    }

    #[test]
    fn a_gap_wider_than_the_window_forgets_what_was_before() {
        assert_eq!(counts(1, &[(0, 0), (0, 63), (0, 0)]), (3, 1, 0));
        assert_eq!(counts(1, &[(0, 0), (0, 64), (0, 0)]), (3, 0, 1));
    }
}
