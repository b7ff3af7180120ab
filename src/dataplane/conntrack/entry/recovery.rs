//! Checks of the entries that a process has left in a file: see [`super::super::recover`].

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::super::key::Key;
use super::super::parts::PORTS_MAX;
use super::half::Half;
use super::head::{READY, check_of};
use super::{Entry, splits_addresses};
use crate::ids::Generation;

impl Entry {
    /// The entry in these words of memory.
    pub(in crate::dataplane::conntrack) fn from_words(words: [u64; 16]) -> Entry {
        let halves = words.as_chunks::<8>().0;
        Entry { halves: [Half::from_words(halves[0]), Half::from_words(halves[1])] }
    }

    /// Empties the entry, whatever its words.
    pub(in crate::dataplane::conntrack) fn clear(&self) {
        for half in &self.halves {
            half.head.store(0, Release);
        }
    }

    /// The key, if the entry holds a whole flow whose policy epochs are generation `newest` or before.
    pub(in crate::dataplane::conntrack) fn intact_key(&self, newest: Generation) -> Option<Key> {
        let key = self.key()?;
        let [low, high] = &self.halves;
        let heads_agree = high.head.load(Acquire) == key.word | READY | check_of(&key);
        let halves_agree = low.flow_word().has_same_ends(high.flow_word())
            && (splits_addresses(key.protocol()) && !key.is_v4()
                || low.address() == high.address()
                    && (key.is_v4() || low.second_address() == high.second_address()));
        let is_sound = |half: &Half| {
            let flow_word = half.flow_word();
            flow_word.policy_epoch() <= newest
                && flow_word.has_valid_state()
                && flow_word.state().is_of(key.protocol())
        };
        let is_intact = heads_agree
            && halves_agree
            && key.is_canonical()
            && self.quota_owner().is_some_and(|owner| owner.port.index() < PORTS_MAX)
            && self.halves.iter().all(is_sound);
        is_intact.then_some(key)
    }

    /// Gives the higher half the state of the lower one, which holds.
    pub(in crate::dataplane::conntrack) fn agree_on_state(&self) {
        self.set_state(self.state(), self.state());
    }

    /// Replaces times of last packets that are in the future by `now_ms`.
    pub(in crate::dataplane::conntrack) fn clamp_last_seen(&self, now_ms: u32) {
        for half in &self.halves {
            if half.idle_ms(now_ms) == 0 {
                half.last_seen_ms.store(now_ms, Relaxed);
            }
        }
    }
}
