//! Gateways behind uplinks: addresses to which the kernel sends packets of recorded flows. Workers add them, and only a start
//! removes those that no record has.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::Offload;
use super::flow::Gateway;
use crate::net::address::Address;
use crate::xdp::offload::layout::{GATEWAYS, Gateway as Slot, address_words, mix};

/// States of a slot.
const FREE: u32 = 0;
const BEING_FILLED: u32 = 1;
const FILLED: u32 = 2;
/// Slots that an address may have.
const PROBES: usize = 16;

impl Offload {
    /// The gateway with this address. `None` where its slots are taken: its flows stay with the workers, and are
    /// counted as refused.
    pub(crate) fn gateway(&self, address: Address) -> Option<Gateway> {
        let wanted = address_words(address);
        let hash = wanted.into_iter().fold(self.maps.seed[0], |hash, word| mix(hash ^ word));
        let numbers = (0..PROBES).map(|step| (hash as usize).wrapping_add(step) % GATEWAYS);
        let is_filled = |slot: &Slot| {
            slot.state.load(Acquire) == FILLED
                && slot.address.iter().zip(wanted).all(|(word, value)| word.load(Relaxed) == value)
        };
        let slots = || numbers.clone().map(|number| (number, &self.maps.gateways[number]));
        if let Some((number, _)) = slots().find(|(_, slot)| is_filled(slot)) {
            return Some(Gateway::Number(number as u16));
        }
        let take = |slot: &Slot| slot.state.compare_exchange(FREE, BEING_FILLED, AcqRel, Relaxed).is_ok();
        let Some((number, slot)) = slots().find(|(_, slot)| take(slot)) else {
            self.refused.fetch_add(1, Relaxed);
            return None;
        };
        slot.address.iter().zip(wanted).for_each(|(word, value)| word.store(value, Relaxed));
        slot.state.store(FILLED, Release);
        Some(Gateway::Number(number as u16))
    }

    /// Frees the slots of gateways that no record has which was ever taken. No worker runs yet.
    pub(super) fn free_gateways(&self, taken: u32) {
        let mut is_used = [false; GATEWAYS];
        let records = &self.maps.records[..taken as usize];
        for number in records.iter().filter_map(|record| record.head().gateway) {
            is_used.get_mut(usize::from(number)).into_iter().for_each(|is_used| *is_used = true);
        }
        for (slot, is_used) in self.maps.gateways.iter().zip(is_used) {
            if !is_used {
                slot.state.store(FREE, Relaxed);
            }
        }
    }
}
