//! Fragmented datagrams that one worker knows: a set-associative table, in which the oldest datagram of a
//! full set is evicted.

use super::coverage::Coverage;
use super::first_verdict::FirstVerdict;
use crate::dataplane::conntrack::Key;
use crate::ids::PortId;
use crate::limits::{DATAGRAMS_MAX, FRAGMENT_TIMEOUT_MS, FRAGMENT_WAYS};

/// A datagram of which some fragments have come.
#[derive(Debug, Clone)]
pub(super) struct Datagram {
    key: Key,
    port: PortId,
    used: bool,
    /// End of its time.
    pub until_ms: u32,
    /// Verdict on its first fragment.
    pub first: FirstVerdict,
    /// Parts that have come.
    pub coverage: Coverage,
    /// Number of its waiting fragments.
    pub waiting: u16,
}

/// The datagrams of one worker.
pub(super) struct Datagrams(Box<[Datagram]>);

/// Whether a time has come. The two times may be from the clocks of two workers.
pub(super) fn is_past(until_ms: u32, now_ms: u32) -> bool {
    now_ms.wrapping_sub(until_ms) as i32 >= 0
}

impl Datagrams {
    pub(super) fn new() -> Datagrams {
        let none = Datagram {
            key: Key::default(),
            port: PortId(0),
            used: false,
            until_ms: 0,
            first: FirstVerdict::Unknown,
            coverage: Coverage::NONE,
            waiting: 0,
        };
        Datagrams(vec![none; DATAGRAMS_MAX].into())
    }

    fn set(&mut self, hash: u64) -> &mut [Datagram] {
        // The low bits choose the slot in the shared table.
        let set = (hash >> 32) as usize % (DATAGRAMS_MAX / FRAGMENT_WAYS);
        &mut self.0[set * FRAGMENT_WAYS..][..FRAGMENT_WAYS]
    }

    /// Finds a datagram whose time is not over.
    pub(super) fn find(&mut self, key: &Key, hash: u64, now_ms: u32) -> Option<&mut Datagram> {
        self.set(hash).iter_mut().find(|datagram| datagram.is_live(now_ms) && datagram.key == *key)
    }

    /// Finds a datagram, or inserts it, in the place of another one if need be.
    pub(super) fn find_or_insert(
        &mut self,
        key: &Key,
        hash: u64,
        port: PortId,
        now_ms: u32,
    ) -> &mut Datagram {
        let set = self.set(hash);
        let known = set.iter().position(|datagram| datagram.is_live(now_ms) && datagram.key == *key);
        if let Some(known) = known {
            return &mut set[known];
        }
        let place = &mut set[victim(set, port, now_ms)];
        *place = Datagram {
            key: *key,
            port,
            used: true,
            until_ms: now_ms.wrapping_add(FRAGMENT_TIMEOUT_MS),
            first: FirstVerdict::Unknown,
            coverage: Coverage::NONE,
            waiting: 0,
        };
        place
    }
}

/// The place in a set for another datagram of a port: a free one; else that of the oldest datagram, or of the
/// port's own oldest one where it has half of the set.
fn victim(set: &[Datagram], port: PortId, now_ms: u32) -> usize {
    let own = set.iter().filter(|datagram| datagram.is_live(now_ms) && datagram.port == port).count();
    let has_share = own >= FRAGMENT_WAYS / 2;
    let may = |datagram: &Datagram| !has_share || datagram.port == port;
    let rank = |datagram: &Datagram| {
        let left_ms = datagram.until_ms.wrapping_sub(now_ms) as i32;
        (datagram.is_live(now_ms), left_ms)
    };
    let candidates = set.iter().enumerate().filter(|(_, datagram)| may(datagram));
    candidates.min_by_key(|(_, datagram)| rank(datagram)).map_or(0, |(place, _)| place)
}

impl Datagram {
    fn is_live(&self, now_ms: u32) -> bool {
        self.used && !is_past(self.until_ms, now_ms)
    }

    /// Whether all of it has come and been decided on.
    pub(super) fn is_done(&self) -> bool {
        self.coverage.is_complete() && self.waiting == 0 && self.first != FirstVerdict::Unknown
    }

    /// Frees its place.
    pub(super) fn remove(&mut self) {
        self.used = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::new(1, 2, n)
    }

    #[test]
    fn a_port_takes_half_of_a_set_and_then_evicts_its_own_oldest() {
        let mut datagrams = Datagrams::new();
        datagrams.find_or_insert(&key(100), 0, PortId(1), 5);
        for n in 0..20 {
            datagrams.find_or_insert(&key(n), 0, PortId(2), 10 + n as u32);
        }
        assert!(datagrams.find(&key(100), 0, 50).is_some(), "the other port's, though older");
        let left: Vec<u64> = (0..20).filter(|n| datagrams.find(&key(*n), 0, 50).is_some()).collect();
        assert_eq!(left, [16, 17, 18, 19]);
    }

    #[test]
    fn the_oldest_of_a_full_set_is_evicted() {
        let mut datagrams = Datagrams::new();
        for n in 0..9 {
            datagrams.find_or_insert(&key(n), 0, PortId(n as u16), 10 + n as u32);
        }
        assert!(datagrams.find(&key(0), 0, 50).is_none());
        assert!((1..9).all(|n| datagrams.find(&key(n), 0, 50).is_some()));
    }

    #[test]
    fn a_datagram_is_known_for_as_long_as_its_fragments_have_time() {
        let mut datagrams = Datagrams::new();
        datagrams.find_or_insert(&key(1), 9, PortId(0), u32::MAX);
        assert!(datagrams.find(&key(1), 9, FRAGMENT_TIMEOUT_MS - 2).is_some());
        assert!(datagrams.find(&key(1), 9, FRAGMENT_TIMEOUT_MS - 1).is_none());
    }
}
