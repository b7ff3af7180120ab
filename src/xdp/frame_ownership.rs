//! Which frames of a UMEM are lent to which queue, and by which of its two ways.

/// A queue's account in the ledger. Numbers are re-used after the queue's frames have been taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account(u16);

/// By which way a queue got a frame, and so by which ring it must come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Through the fill ring; comes back by the rx ring.
    Receive,
    /// Through the tx ring; comes back by the completion ring.
    Transmit,
}

/// Most queues that one UMEM serves at a time.
const ACCOUNTS_MAX: u16 = u16::MAX / 2;
const HELD: u16 = 0;

impl Account {
    fn entry(self, way: Way) -> u16 {
        1 + 2 * self.0 + u16::from(way == Way::Transmit)
    }
}

/// Hands out accounts.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    unused: Vec<Account>,
    opened: u16,
}

impl Accounts {
    /// An account that nobody has; none when all are in use.
    pub(super) fn open(&mut self) -> Option<Account> {
        if let Some(account) = self.unused.pop() {
            return Some(account);
        }
        let fresh = (self.opened < ACCOUNTS_MAX).then_some(Account(self.opened))?;
        self.opened += 1;
        Some(fresh)
    }

    /// Gives an account back. No frame may be lent to it.
    pub(super) fn close(&mut self, account: Account) {
        self.unused.push(account);
    }
}

/// For each frame, who has it.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: Vec<u16>,
    lent: usize,
}

impl Ledger {
    /// A ledger of `frames` frames, none of them lent.
    pub(super) fn new(frames: usize) -> Ledger {
        Ledger { entries: vec![HELD; frames], lent: 0 }
    }

    /// Frames lent to any queue.
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Enters that a frame was lent. Its token, which the caller gives up, proves that it was not lent before.
    #[inline]
    pub(super) fn lend(&mut self, index: usize, account: Account, way: Way) {
        debug_assert_eq!(self.entries[index], HELD);
        self.entries[index] = account.entry(way);
        self.lent += 1;
    }

    /// Strikes the entry out, if it is there: `true` says that the caller may make the frame's token.
    #[inline]
    pub(super) fn take_back(&mut self, index: usize, account: Account, way: Way) -> bool {
        let Some(entry) = self.entries.get_mut(index).filter(|entry| **entry == account.entry(way)) else {
            return false;
        };
        *entry = HELD;
        self.lent -= 1;
        true
    }

    /// Strikes out everything lent to the account, and names the frames.
    pub(super) fn take_back_all(&mut self, account: Account, mut each: impl FnMut(usize)) {
        let ours = [account.entry(Way::Receive), account.entry(Way::Transmit)];
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
        let mut accounts = Accounts::default();
        let (ours, other) = (accounts.open().unwrap(), accounts.open().unwrap());
        let mut ledger = Ledger::new(4);
        ledger.lend(2, ours, Way::Receive);
        assert_eq!(ledger.lent(), 1);
        assert!(!ledger.take_back(2, other, Way::Receive));
        assert!(!ledger.take_back(2, ours, Way::Transmit));
        assert!(!ledger.take_back(3, ours, Way::Receive));
        assert!(!ledger.take_back(4, ours, Way::Receive), "there is no frame 4");
        assert!(!ledger.take_back(usize::MAX, ours, Way::Receive));
        assert!(ledger.take_back(2, ours, Way::Receive));
        assert!(!ledger.take_back(2, ours, Way::Receive));
        assert_eq!(ledger.lent(), 0);
    }

    #[test]
    fn a_closed_account_gives_back_its_own_frames_by_both_ways_and_no_others() {
        let mut accounts = Accounts::default();
        let (ours, other) = (accounts.open().unwrap(), accounts.open().unwrap());
        let mut ledger = Ledger::new(8);
        ledger.lend(1, ours, Way::Receive);
        ledger.lend(5, ours, Way::Transmit);
        ledger.lend(6, other, Way::Receive);
        let mut back = Vec::new();
        ledger.take_back_all(ours, |index| back.push(index));
        assert_eq!(back, [1, 5]);
        assert_eq!(ledger.lent(), 1);
    }

    #[test]
    fn accounts_are_distinct_until_closed_and_bounded() {
        let mut accounts = Accounts::default();
        let mut seen = std::collections::HashSet::new();
        while let Some(account) = accounts.open() {
            assert!(seen.insert(account.entry(Way::Receive)) && seen.insert(account.entry(Way::Transmit)));
            assert_ne!(account.entry(Way::Receive), HELD);
        }
        assert_eq!(seen.len(), 2 * ACCOUNTS_MAX as usize);
        accounts.close(Account(7));
        assert_eq!(accounts.open(), Some(Account(7)));
    }
}
