//! Neighbours that workers have missed, and that the kernel has not resolved yet.
//!
//! Each takes a place in the kernel's table, which all ports share. Packets of one port ask for a bounded number of neighbours at
//! a time, and a port that asks for more loses its oldest. If all ports together ask for too many, the port that asks for
//! most loses one: no port takes a place of one that asks for fewer.

use std::collections::VecDeque;

use crate::ids::PortId;
use crate::limits::{PORT_UNRESOLVED_MAX, SOLICITS_WAITING_MAX};
use crate::netlink::Neighbor;

/// Ticks after which a neighbour is given up whose outcome was lost. The kernel gives one up after three seconds.
const TICKS_MAX: u8 = 10;

/// Unresolved neighbours, the oldest first.
#[derive(Default)]
pub(super) struct Unresolved(VecDeque<Waiting>);

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
    pub(super) given_up: Option<Neighbor>,
}

impl Unresolved {
    /// Adds a neighbour that a packet from the port `by` misses. `None`: it is there already, or there is no place.
    pub(super) fn add(&mut self, by: PortId, wanted: Neighbor) -> Option<Request> {
        if self.0.iter().any(|waiting| waiting.neighbor == wanted) {
            return None;
        }
        let own = self.count(by);
        let loser = if own >= PORT_UNRESOLVED_MAX {
            Some(by)
        } else if self.0.len() >= SOLICITS_WAITING_MAX {
            let most = self.0.iter().map(|waiting| waiting.by).max_by_key(|port| self.count(*port))?;
            let is_fair = self.count(most) > own;
            Some(if is_fair { most } else { by })
        } else {
            None
        };
        let given_up = match loser {
            Some(port) => Some(self.give_up_oldest(port)?),
            None => None,
        };
        self.0.push_back(Waiting { by, neighbor: wanted, ticks: 0 });
        Some(Request { wanted, given_up })
    }

    /// Removes a neighbour whose outcome is known. Returns whether it was there.
    pub(super) fn remove(&mut self, neighbor: Neighbor) -> bool {
        let place = self.0.iter().position(|waiting| waiting.neighbor == neighbor);
        place.and_then(|place| self.0.remove(place)).is_some()
    }

    /// Begins a tick. Returns the neighbours that are given up.
    pub(super) fn start_tick(&mut self) -> Vec<Neighbor> {
        self.0.iter_mut().for_each(|waiting| waiting.ticks += 1);
        let is_over = |waiting: &Waiting| waiting.ticks > TICKS_MAX;
        let over = self.0.iter().filter(|waiting| is_over(waiting)).map(|waiting| waiting.neighbor).collect();
        self.0.retain(|waiting| !is_over(waiting));
        over
    }

    fn count(&self, by: PortId) -> usize {
        self.0.iter().filter(|waiting| waiting.by == by).count()
    }

    fn give_up_oldest(&mut self, by: PortId) -> Option<Neighbor> {
        let place = self.0.iter().position(|waiting| waiting.by == by)?;
        self.0.remove(place).map(|waiting| waiting.neighbor)
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
            Some(Request { wanted: neighbor(1), given_up: None })
        );
        assert_eq!(unresolved.add(PortId(2), neighbor(1)), None, "it is asked for already");
        let most = PORT_UNRESOLVED_MAX as u32;
        for number in 0..1000 {
            let request = unresolved.add(PortId(2), neighbor(100 + number)).unwrap();
            let oldest = number.checked_sub(most).map(|oldest| neighbor(100 + oldest));
            assert_eq!(request.given_up, oldest);
        }
        assert!(unresolved.remove(neighbor(1)) && !unresolved.remove(neighbor(1)));
    }

    #[test]
    fn beside_many_that_try_all_addresses_each_port_has_a_place() {
        let mut unresolved = Unresolved::default();
        for round in 0..100 {
            for port in 1..=250 {
                unresolved.add(PortId(port), neighbor(round << 16 | u32::from(port)));
            }
            assert!(unresolved.0.len() <= SOLICITS_WAITING_MAX);
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
        let given_up: Vec<Neighbor> = (0..=TICKS_MAX).flat_map(|_| unresolved.start_tick()).collect();
        assert_eq!(given_up, [neighbor(1)]);
        assert!(!unresolved.remove(neighbor(1)));
    }
}
