//! Neighbours that workers have missed, and that the kernel has not resolved yet.
//!
//! Each takes a place in the kernel's table, which all ports share. Packets of one port ask for a bounded number of neighbours at
//! a time, and a port that asks for more loses its oldest. If all ports together ask for too many, the port that asks for
//! most loses one: no port takes a place of one that asks for fewer.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::PortId;
use crate::limits::{PORT_UNRESOLVED_MAX, SOLICITS_WAITING_MAX};
use crate::netlink::Neighbor;

/// Ticks after which a neighbour is given up whose outcome was lost. The kernel gives one up after three seconds.
const TICKS_MAX: u8 = 10;

/// Unresolved neighbours.
#[derive(Default)]
pub(super) struct Unresolved {
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    /// Number of neighbours that each port asks for.
    counts: BTreeMap<PortId, usize>,
}

struct Waiting {
    /// Port whose packet was the first to the neighbour.
    by: PortId,
    neighbor: Neighbor,
    ticks: u8,
}

/// Request for a neighbour.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Neighbour to be resolved.
    pub(super) wanted: Neighbor,
    /// Neighbour that is given up for it.
    pub(super) replaced: Option<Neighbor>,
}

impl Unresolved {
    /// Adds a neighbour that a packet from the port `by` misses. `None`: it is there already, or there is no place.
    pub(super) fn add(&mut self, by: PortId, wanted: Neighbor) -> Option<Request> {
        if self.waiting.iter().any(|waiting| waiting.neighbor == wanted) {
            return None;
        }
        let own = self.count(by);
        let loser = if own >= PORT_UNRESOLVED_MAX {
            Some(by)
        } else if self.waiting.len() >= SOLICITS_WAITING_MAX {
            let (most, count) = self.counts.iter().max_by_key(|(_, count)| **count)?;
            Some(if *count > own { *most } else { by })
        } else {
            None
        };
        let replaced = match loser {
            Some(port) => Some(self.take(|waiting| waiting.by == port)?),
            None => None,
        };
        self.waiting.push_back(Waiting { by, neighbor: wanted, ticks: 0 });
        *self.counts.entry(by).or_default() += 1;
        Some(Request { wanted, replaced })
    }

    /// Removes a neighbour whose outcome is known. Returns whether it was there.
    pub(super) fn remove(&mut self, neighbor: Neighbor) -> bool {
        self.take(|waiting| waiting.neighbor == neighbor).is_some()
    }

    /// Begins a tick. Returns the neighbours that are given up.
    pub(super) fn start_tick(&mut self) -> Vec<Neighbor> {
        self.waiting.iter_mut().for_each(|waiting| waiting.ticks += 1);
        std::iter::from_fn(|| self.take(|waiting| waiting.ticks > TICKS_MAX)).collect()
    }

    fn count(&self, by: PortId) -> usize {
        self.counts.get(&by).copied().unwrap_or(0)
    }

    /// Removes the oldest neighbour that is wanted.
    fn take(&mut self, is_wanted: impl Fn(&Waiting) -> bool) -> Option<Neighbor> {
        let place = self.waiting.iter().position(is_wanted)?;
        let Waiting { by, neighbor, .. } = self.waiting.remove(place)?;
        if let Some(count) = self.counts.get_mut(&by) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&by);
            }
        }
        Some(neighbor)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn neighbor(number: u32) -> Neighbor {
        (7, IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn a_port_gives_up_its_oldest_and_nothing_of_others() {
        let mut unresolved = Unresolved::default();
        assert_eq!(
            unresolved.add(PortId(1), neighbor(1)),
            Some(Request { wanted: neighbor(1), replaced: None })
        );
        assert_eq!(unresolved.add(PortId(2), neighbor(1)), None, "it is asked for already");
        let most = PORT_UNRESOLVED_MAX as u32;
        for number in 0..1000 {
            let request = unresolved.add(PortId(2), neighbor(100 + number)).unwrap();
            let oldest = number.checked_sub(most).map(|oldest| neighbor(100 + oldest));
            assert_eq!(request.replaced, oldest);
        }
        assert!(unresolved.remove(neighbor(1)) && !unresolved.remove(neighbor(1)));
    }

    #[test]
    fn beside_many_that_try_all_addresses_each_port_has_a_place() {
        let mut unresolved = Unresolved::default();
        for round in 0..20 {
            for port in 1..=250 {
                unresolved.add(PortId(port), neighbor(round << 16 | u32::from(port)));
            }
            assert!(unresolved.waiting.len() <= SOLICITS_WAITING_MAX);
            // One that asks for nothing else is served at once, and keeps its place for this round.
            let own = neighbor(1 << 30 | round);
            assert!(unresolved.add(PortId(300), own).is_some(), "{round}");
            assert!(unresolved.remove(own), "{round}");
        }
    }

    #[test]
    fn a_neighbour_whose_outcome_is_lost_is_given_up() {
        let mut unresolved = Unresolved::default();
        assert!(unresolved.add(PortId(1), neighbor(1)).is_some());
        let expired: Vec<Neighbor> = (0..=TICKS_MAX).flat_map(|_| unresolved.start_tick()).collect();
        assert_eq!(expired, [neighbor(1)]);
        assert!(!unresolved.remove(neighbor(1)));
    }
}
