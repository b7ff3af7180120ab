//! Recovery of the table that a process has left in a file, before any worker sees it.
//!
//! A process may end at any instruction and leave torn flows: a slot that is claimed and not published, a
//! removed flow whose tag is still there, one key inserted twice. Recovery removes them and recounts all
//! counters. It trusts no word of the file, as if an attacker had written it: any content leads to a
//! consistent table.

use super::table::{Conntrack, FREE, Slot, TOMBSTONE, tag_of};
use crate::ids::Generation;
use crate::net::address::is_v4;

/// Result of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Number of intact flows.
    pub flows: u64,
    /// Number of torn flows that were removed.
    pub torn: u64,
}

impl Conntrack {
    /// Removes torn flows, and flows that a generation after `newest` has evaluated. No worker may use the
    /// table yet.
    pub(super) fn recover(&self, newest: Generation, now_ms: u32) -> Recovered {
        let mut recovered = Recovered::default();
        self.clear_overflow();
        for slot in self.all_slots() {
            if self.is_intact(slot, newest) {
                recovered.flows += 1;
                self.entry(slot).clamp_last_seen(now_ms);
                self.entry(slot).agree_on_state();
            } else {
                recovered.torn += u64::from(self.reset_slot(slot));
            }
        }
        self.recount();
        recovered.torn += self.remove_duplicates();
        recovered.flows = self.len() as u64;
        recovered
    }

    /// Whether a slot has an intact flow, in a bucket in which a lookup finds it.
    fn is_intact(&self, slot: Slot, newest: Generation) -> bool {
        let tag = self.tag(slot);
        if tag <= TOMBSTONE {
            return false;
        }
        self.entry(slot).intact_key(newest).is_some_and(|key| {
            let is_translated = self.entry(slot).flow_word(true).is_translated();
            if is_translated && is_v4(self.virtual_end(slot).address) != key.is_v4() {
                return false;
            }
            let hash = self.hash(&key);
            let bucket = slot.bucket();
            tag == tag_of(hash) && (bucket == self.first_bucket(hash) || bucket == self.second_bucket(hash))
        })
    }

    /// Frees a slot. Returns whether its entry held a flow.
    fn reset_slot(&self, slot: Slot) -> bool {
        let (is_free, was_flow) = (self.tag(slot) == FREE, self.entry(slot).is_flow());
        self.entry(slot).clear();
        if !is_free {
            self.set_tag(slot, FREE);
        }
        was_flow
    }

    /// Counts the keys in their second buckets, and the flows of each port.
    fn recount(&self) {
        for slot in self.all_slots() {
            let Some(key) = self.entry(slot).key() else { continue };
            let first = self.first_bucket(self.hash(&key));
            if slot.bucket() != first {
                self.add_overflow(first, 1);
            }
            if let Some(owner) = self.entry(slot).quota_owner() {
                self.quotas.add(owner);
            }
        }
    }

    /// Removes all entries of a key but the one that lookups find. Returns their number.
    fn remove_duplicates(&self) -> u64 {
        let mut removed = 0;
        for slot in self.all_slots() {
            let Some(key) = self.entry(slot).key() else { continue };
            let hash = self.hash(&key);
            if self.look_up(&key, hash) == Some(slot) {
                continue;
            }
            if let Some(owner) = self.entry(slot).quota_owner() {
                self.quotas.remove(owner);
            }
            if slot.bucket() != self.first_bucket(hash) {
                self.add_overflow(self.first_bucket(hash), -1);
            }
            self.reset_slot(slot);
            removed += 1;
        }
        removed
    }
}
