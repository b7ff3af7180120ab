//! Ethernet addresses of the stations behind ports, as learned from their frames, and of neighbours on
//! uplinks, as the kernel has resolved them.
//!
//! A pod or the node is the only station behind its port, so one address a port is enough. Workers write it
//! and read it without order: a worker that reads late uses the earlier address for one more packet.
//!
//! An uplink has many neighbours, which the kernel resolves. The resolver alone writes them
//! ([`super::resolver`]). Workers look an address up without waiting: each slot has a sequence lock ([`super::slot`]).

use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;

use super::slot::Slot;
use super::solicit::Solicitation;
use crate::dataplane::eventfd::EventFd;
use crate::ids::PortId;
use crate::limits::{NEIGHBORS_MAX, PORTS_MAX, SOLICITS_WAITING_MAX};
use crate::net::address::Address;
use crate::net::mac::Mac;

/// Slots that an address may be in, one after the other.
const PROBES: usize = 16;

/// Known Ethernet addresses. Zero is none.
pub(crate) struct Neighbors {
    /// Learned addresses by port.
    ports: Box<[AtomicU64]>,
    /// Neighbours on uplinks: an open-addressing hash table.
    uplinks: Box<[Slot]>,
    seed: [u64; 2],
}

/// Bounded queue of neighbours on uplinks that workers want resolved. A worker that finds it full asks again
/// later.
pub(crate) struct SolicitQueue {
    queue: ArrayQueue<Solicitation>,
    eventfd: EventFd,
}

impl SolicitQueue {
    pub(crate) fn new() -> std::io::Result<SolicitQueue> {
        Ok(SolicitQueue { queue: ArrayQueue::new(SOLICITS_WAITING_MAX), eventfd: EventFd::new()? })
    }

    /// Adds a neighbour, and wakes the resolver.
    pub(crate) fn push(&self, solicitation: Solicitation) {
        if self.queue.push(solicitation).is_ok() {
            self.wake();
        }
    }

    /// Removes the first neighbour, if there is one.
    pub(crate) fn pop(&self) -> Option<Solicitation> {
        self.queue.pop()
    }

    /// Wakes the resolver.
    pub(crate) fn wake(&self) {
        self.eventfd.signal();
    }

    /// File descriptor that is readable after a wake-up, until [`SolicitQueue::drain_wakeups`].
    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.fd()
    }

    /// Clears all wake-ups until this call.
    pub(crate) fn drain_wakeups(&self) {
        self.eventfd.drain();
    }
}

impl Neighbors {
    pub(crate) fn new() -> Neighbors {
        Neighbors {
            ports: (0..PORTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            uplinks: (0..NEIGHBORS_MAX).map(|_| Slot::default()).collect(),
            // A random seed: stations on the link choose their addresses, and must not know which addresses
            // share slots.
            seed: [0, 1].map(|i: u64| RandomState::new().hash_one(i)),
        }
    }

    /// Ethernet address behind a port.
    #[inline]
    pub(crate) fn port_mac(&self, port: PortId) -> Option<Mac> {
        let bits = self.port_mac_bits(port);
        (bits != 0).then(|| Mac::from_bits(bits))
    }

    /// Ethernet address behind a port, as [`Mac::to_bits`] has it; zero is none.
    #[inline]
    pub(crate) fn port_mac_bits(&self, port: PortId) -> u64 {
        self.ports[port.index()].load(Ordering::Relaxed)
    }

    /// Learns the source address of a frame from the port, as [`Mac::to_bits`] has it. Returns the known
    /// address.
    #[cold]
    pub(crate) fn learn(&self, port: PortId, bits: u64) -> u64 {
        if Mac::from_bits(bits).is_unicast() {
            self.ports[port.index()].store(bits, Ordering::Relaxed);
        }
        self.port_mac_bits(port)
    }

    /// Forgets the Ethernet address behind a port.
    pub(crate) fn forget_port(&self, port: PortId) {
        self.ports[port.index()].store(0, Ordering::Relaxed);
    }

    /// Forgets all neighbours on an uplink, by one thread at a time.
    pub(crate) fn forget_uplink(&self, port: PortId) {
        for slot in &self.uplinks {
            if slot.is_of(port) {
                slot.clear();
            }
        }
    }

    /// Ethernet address of a neighbour on an uplink. Marks the neighbour as used.
    #[inline]
    pub(crate) fn uplink_mac(&self, port: PortId, address: Address) -> Option<Mac> {
        self.slots(port, address).find_map(|slot| {
            let mac = slot.read(port, address)?;
            slot.mark_used();
            Some(mac)
        })
    }

    /// Ethernet address of a neighbour on an uplink, for output. The neighbour is not marked as used.
    pub(crate) fn peek_uplink_mac(&self, port: PortId, address: Address) -> Option<Mac> {
        self.slots(port, address).find_map(|slot| slot.read(port, address))
    }

    /// Sets the Ethernet address of a neighbour on an uplink, or removes it with `None`, by one thread at a
    /// time. Returns false if there is no free slot.
    pub(crate) fn set_uplink_mac(&self, port: PortId, address: Address, mac: Option<Mac>) -> bool {
        let own = self.slots(port, address).find(|slot| slot.read(port, address).is_some());
        let Some(mac) = mac.filter(|mac| mac.is_unicast()) else {
            if let Some(slot) = own {
                slot.clear();
            }
            return true;
        };
        match own.or_else(|| self.slots(port, address).find(|slot| slot.is_free())) {
            Some(slot) if slot.read(port, address) == Some(mac) => true,
            Some(slot) => {
                slot.write(port, address, mac);
                true
            }
            None => false,
        }
    }

    /// Whether a worker has looked the neighbour up since the last call.
    pub(crate) fn take_used(&self, port: PortId, address: Address) -> bool {
        let own = self.slots(port, address).find(|slot| slot.read(port, address).is_some());
        own.is_some_and(Slot::take_used)
    }

    #[inline]
    fn slots(&self, port: PortId, address: Address) -> impl Iterator<Item = &Slot> {
        let mixed = |word: u64, seed: u64| {
            let product = u128::from(word ^ seed) * 0x9e37_79b9_7f4a_7c15;
            product as u64 ^ (product >> 64) as u64
        };
        let high = mixed((address >> 64) as u64 ^ u64::from(port.0), self.seed[0]);
        let start = mixed(address as u64 ^ high, self.seed[1]) as usize;
        (0..PROBES).map(move |step| &self.uplinks[start.wrapping_add(step) % NEIGHBORS_MAX])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const PORT: PortId = PortId(3);

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    #[test]
    fn a_neighbour_is_found_on_its_own_port_until_it_is_forgotten() {
        let neighbors = Neighbors::new();
        assert!(neighbors.set_uplink_mac(PORT, 7, Some(mac(1))));
        assert!(neighbors.set_uplink_mac(PortId(4), 7, Some(mac(2))));
        assert_eq!(neighbors.uplink_mac(PORT, 7), Some(mac(1)));
        assert_eq!(neighbors.uplink_mac(PortId(4), 7), Some(mac(2)));
        assert_eq!(neighbors.uplink_mac(PORT, 8), None);
        assert!(neighbors.set_uplink_mac(PORT, 7, Some(mac(3))));
        assert_eq!(neighbors.uplink_mac(PORT, 7), Some(mac(3)));
        neighbors.forget_uplink(PORT);
        assert_eq!(neighbors.uplink_mac(PORT, 7), None);
        assert_eq!(neighbors.uplink_mac(PortId(4), 7), Some(mac(2)));
        assert!(neighbors.set_uplink_mac(PortId(4), 7, None));
        assert_eq!(neighbors.uplink_mac(PortId(4), 7), None);
    }

    #[test]
    fn an_address_that_is_not_unicast_removes_the_neighbour() {
        let neighbors = Neighbors::new();
        for wrong in [Mac::default(), Mac::BROADCAST] {
            assert!(neighbors.set_uplink_mac(PORT, 7, Some(mac(1))));
            assert!(neighbors.set_uplink_mac(PORT, 7, Some(wrong)));
            assert_eq!(neighbors.uplink_mac(PORT, 7), None);
        }
    }

    #[test]
    fn two_neighbours_fill_a_cache_line() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (32, 32));
    }

    #[test]
    fn a_use_is_reported_once() {
        let neighbors = Neighbors::new();
        neighbors.set_uplink_mac(PORT, 7, Some(mac(1)));
        assert!(!neighbors.take_used(PORT, 7));
        neighbors.uplink_mac(PORT, 7);
        assert!(neighbors.take_used(PORT, 7));
        assert!(!neighbors.take_used(PORT, 7));
    }

    #[test]
    fn as_many_as_linux_keeps_have_a_slot_and_a_full_table_is_reported() {
        let neighbors = Neighbors::new();
        assert!((0..2048).all(|address| neighbors.set_uplink_mac(PORT, address, Some(mac(1)))));
        assert!((0..2048).all(|address| neighbors.uplink_mac(PORT, address).is_some()));
        let mut last = 2048..;
        assert!(
            last.any(|address| !neighbors.set_uplink_mac(PORT, address, Some(mac(1)))),
            "the table has a bound"
        );
    }

    #[test]
    fn a_reader_never_sees_the_address_of_another_neighbour() {
        // All neighbours share the same slots: each write replaces another neighbour.
        let neighbors = Neighbors::new();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0u32;
                while !stop.load(Ordering::Relaxed) || seen == 0 {
                    for last in 1..=2u8 {
                        let found =
                            neighbors.uplinks[0].read(PORT, Address::from(last) << 64 | u128::from(last));
                        assert!(found.is_none_or(|found| found == mac(last)), "{found:?} for {last}");
                        seen += u32::from(found.is_some());
                    }
                }
            });
            for round in 0..200_000u32 {
                let last = (round % 2 + 1) as u8;
                neighbors.uplinks[0].write(PORT, Address::from(last) << 64 | u128::from(last), mac(last));
            }
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
    }

    proptest! {

        #![proptest_config(crate::random::cases(60))]

        #[test]
        fn the_table_equals_a_map(steps in prop::collection::vec((0..4u16, 0..40u128, 0..5u8), 0..300)) {
            let neighbors = Neighbors::new();
            let mut model = BTreeMap::new();
            for (port, address, last) in steps {
                let mac = (last != 0).then(|| mac(last));
                assert!(neighbors.set_uplink_mac(PortId(port), address, mac));
                match mac {
                    Some(mac) => model.insert((port, address), mac),
                    None => model.remove(&(port, address)),
                };
                for port in 0..4 {
                    for address in 0..40 {
                        let expected = model.get(&(port, address)).copied();
                        prop_assert_eq!(neighbors.uplink_mac(PortId(port), address), expected);
                    }
                }
            }
        }
    }
}
