//! Frame ownership: the queue and direction that each frame of a UMEM is lent to.

/// Id of a queue in the ownership table. It is reused after the queue's frames are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueId(u16);

/// Direction in which a queue was lent a frame. It determines the ring that the frame comes back by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Lent to the fill ring; comes back by the rx ring.
    Receive,
    /// Lent to the tx ring; comes back by the completion ring.
    Transmit,
}

/// Most queues that one UMEM serves at a time.
const QUEUES_MAX: u16 = u16::MAX / 2;
const HELD: u16 = 0;

impl QueueId {
    fn entry(self, direction: Direction) -> u16 {
        1 + 2 * self.0 + u16::from(direction == Direction::Transmit)
    }
}

/// Allocator of queue ids.
#[derive(Debug, Default)]
pub(super) struct QueueIds {
    unused: Vec<QueueId>,
    opened: u16,
}

impl QueueIds {
    /// Allocates an unused id; `None` when all are in use.
    pub(super) fn open(&mut self) -> Option<QueueId> {
        if let Some(queue_id) = self.unused.pop() {
            return Some(queue_id);
        }
        let fresh = (self.opened < QUEUES_MAX).then_some(QueueId(self.opened))?;
        self.opened += 1;
        Some(fresh)
    }

    /// Releases an id, to which no frame is lent any more.
    pub(super) fn close(&mut self, queue_id: QueueId) {
        self.unused.push(queue_id);
    }
}

/// Ownership table of the frames of a UMEM.
#[derive(Debug)]
pub(super) struct FrameOwnership {
    entries: Vec<u16>,
    lent: usize,
}

impl FrameOwnership {
    /// Makes a table of `frames` frames, none of them lent.
    pub(super) fn new(frames: usize) -> FrameOwnership {
        FrameOwnership { entries: vec![HELD; frames], lent: 0 }
    }

    /// Frames lent to queues.
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Marks a frame as lent. Its token, which the caller gives up, proves that it was not lent before.
    #[inline]
    pub(super) fn lend(&mut self, index: usize, queue_id: QueueId, direction: Direction) {
        debug_assert_eq!(self.entries[index], HELD);
        self.entries[index] = queue_id.entry(direction);
        self.lent += 1;
    }

    /// Takes a frame back. Returns whether it was lent to this queue in this direction: only then the caller
    /// may make its token.
    #[inline]
    pub(super) fn take_back(&mut self, index: usize, queue_id: QueueId, direction: Direction) -> bool {
        let Some(entry) = self.entries.get_mut(index).filter(|entry| **entry == queue_id.entry(direction))
        else {
            return false;
        };
        *entry = HELD;
        self.lent -= 1;
        true
    }

    /// Takes back every frame lent to a queue, and calls `each` with them.
    pub(super) fn take_back_all(&mut self, queue_id: QueueId, mut each: impl FnMut(usize)) {
        let ours = [queue_id.entry(Direction::Receive), queue_id.entry(Direction::Transmit)];
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if ours.contains(entry) {
                *entry = HELD;
                self.lent -= 1;
                each(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_only_once_and_only_from_where_it_was_lent() {
        let mut queue_ids = QueueIds::default();
        let (ours, other) = (queue_ids.open().unwrap(), queue_ids.open().unwrap());
        let mut ownership = FrameOwnership::new(4);
        ownership.lend(2, ours, Direction::Receive);
        assert_eq!(ownership.lent(), 1);
        assert!(!ownership.take_back(2, other, Direction::Receive));
        assert!(!ownership.take_back(2, ours, Direction::Transmit));
        assert!(!ownership.take_back(3, ours, Direction::Receive));
        assert!(!ownership.take_back(4, ours, Direction::Receive), "there is no frame 4");
        assert!(!ownership.take_back(usize::MAX, ours, Direction::Receive));
        assert!(ownership.take_back(2, ours, Direction::Receive));
        assert!(!ownership.take_back(2, ours, Direction::Receive));
        assert_eq!(ownership.lent(), 0);
    }

    #[test]
    fn a_closed_queue_id_gives_back_its_own_frames_by_both_ways_and_no_others() {
        let mut queue_ids = QueueIds::default();
        let (ours, other) = (queue_ids.open().unwrap(), queue_ids.open().unwrap());
        let mut ownership = FrameOwnership::new(8);
        ownership.lend(1, ours, Direction::Receive);
        ownership.lend(5, ours, Direction::Transmit);
        ownership.lend(6, other, Direction::Receive);
        let mut back = Vec::new();
        ownership.take_back_all(ours, |index| back.push(index));
        assert_eq!(back, [1, 5]);
        assert_eq!(ownership.lent(), 1);
    }

    #[test]
    fn accounts_are_distinct_until_closed_and_bounded() {
        let mut queue_ids = QueueIds::default();
        let mut seen = std::collections::HashSet::new();
        while let Some(queue_id) = queue_ids.open() {
            assert!(
                seen.insert(queue_id.entry(Direction::Receive))
                    && seen.insert(queue_id.entry(Direction::Transmit))
            );
            assert_ne!(queue_id.entry(Direction::Receive), HELD);
        }
        assert_eq!(seen.len(), 2 * QUEUES_MAX as usize);
        queue_ids.close(QueueId(7));
        assert_eq!(queue_ids.open(), Some(QueueId(7)));
    }
}
