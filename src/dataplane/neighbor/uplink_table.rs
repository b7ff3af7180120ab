//! Uplinks, their neighbours as the kernel reports them, and the requests that are due.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::table::Neighbors;
use super::unresolved::{Request, Unresolved};
use crate::ids::PortId;
use crate::net::address::pack;
use crate::net::mac::Mac;
use crate::netlink::{Neighbor, NeighborEvent, NudState};

/// Kernel interface that has the neighbours of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataplane) struct UplinkDevice {
    /// Interface index: that of the port, or of its VLAN device.
    pub(in crate::dataplane) interface: u32,
    /// Whether the kernel resolves neighbours there. If not, only permanent ones count.
    pub(in crate::dataplane) resolves: bool,
}

/// Uplinks and their neighbours. The thread that holds its lock is the one writer of [`Neighbors`].
#[derive(Default)]
pub(super) struct UplinkTable {
    devices: BTreeMap<PortId, UplinkDevice>,
    /// Next hops of routes, resolved before the first packet.
    next_hops: BTreeSet<(PortId, IpAddr)>,
    /// Neighbours with an Ethernet address, and whether the address is stale.
    known: BTreeMap<Neighbor, bool>,
    /// Known neighbours that the current dump has not named yet.
    not_in_dump: BTreeSet<Neighbor>,
    /// Next hops and stale neighbours that the thread has requested since the last tick.
    requested: BTreeSet<Neighbor>,
    /// Neighbours that workers have missed.
    unresolved: Unresolved,
    /// Neighbours that the kernel is to forget.
    expired: Vec<Neighbor>,
    /// Whether a dump is needed: after the addition of an uplink, and after lost events.
    needs_dump: bool,
}

impl UplinkTable {
    pub(super) fn add_uplink(&mut self, port: PortId, device: UplinkDevice) {
        self.devices.insert(port, device);
        self.needs_dump = true;
    }

    pub(super) fn remove_uplink(&mut self, port: PortId) {
        if let Some(device) = self.devices.remove(&port) {
            self.known.retain(|(interface, _), _| *interface != device.interface);
        }
    }

    pub(super) fn set_next_hops(&mut self, next_hops: Vec<(PortId, IpAddr)>) {
        self.next_hops = next_hops.into_iter().collect();
    }

    /// Prepares the table for a dump of all neighbours, if one is needed. Returns whether it is.
    pub(super) fn start_dump(&mut self) -> bool {
        let needs_dump = std::mem::take(&mut self.needs_dump);
        if needs_dump {
            self.not_in_dump = self.known.keys().copied().collect();
        }
        needs_dump
    }

    /// Allows one request for each next hop again.
    pub(super) fn start_tick(&mut self) {
        self.requested.clear();
        let over = self.unresolved.start_tick();
        self.give_up(over);
    }

    /// Neighbours that the kernel is to forget, since the last call: nobody has answered for them.
    pub(super) fn take_given_up(&mut self) -> Vec<Neighbor> {
        std::mem::take(&mut self.expired)
    }

    fn give_up(&mut self, neighbors: impl IntoIterator<Item = Neighbor>) {
        let forgotten: Vec<Neighbor> =
            neighbors.into_iter().filter(|neighbor| self.may_forget(*neighbor)).collect();
        self.expired.extend(forgotten);
    }

    /// Takes over an event of the kernel's neighbour table.
    pub(super) fn apply_event(&mut self, event: NeighborEvent, neighbors: &Neighbors) {
        match event {
            NeighborEvent::State(neighbor, nud_state) => {
                self.not_in_dump.remove(&neighbor);
                if nud_state == NudState::Removed && self.is_next_hop(neighbor) {
                    self.requested.remove(&neighbor);
                }
                self.set_state(neighbor, nud_state, neighbors);
                if nud_state != NudState::Unresolved
                    && self.unresolved.remove(neighbor)
                    && nud_state == NudState::Failed
                {
                    self.give_up([neighbor]);
                }
            }
            NeighborEvent::DumpDone => {
                for neighbor in std::mem::take(&mut self.not_in_dump) {
                    self.set_state(neighbor, NudState::Unresolved, neighbors);
                }
            }
            NeighborEvent::Overrun => self.needs_dump = true,
        }
    }

    fn set_state(&mut self, neighbor: Neighbor, nud_state: NudState, neighbors: &Neighbors) {
        let (interface, address) = neighbor;
        let on_it = self.devices.iter().filter(|(_, device)| device.interface == interface);
        for (port, device) in on_it.map(|(port, device)| (*port, *device)).collect::<Vec<_>>() {
            let (mac, is_stale): (Option<Mac>, bool) = match nud_state {
                NudState::Permanent(mac) => (Some(mac), false),
                NudState::Reachable(mac) if device.resolves => (Some(mac), false),
                NudState::Stale(mac) if device.resolves => (Some(mac), true),
                _ => (None, false),
            };
            if !neighbors.set_uplink_mac(port, pack(address), mac) {
                tracing::warn!(
                    "there is no place for neighbour {address}: packets to it are dropped as unresolved"
                );
            }
            match mac {
                Some(_) => self.known.insert(neighbor, is_stale),
                None => self.known.remove(&neighbor),
            };
        }
    }

    /// Requests confirmation of stale neighbours that workers use.
    pub(super) fn stale_in_use(&mut self, neighbors: &Neighbors) -> Vec<Neighbor> {
        let ports: BTreeMap<u32, PortId> =
            self.devices.iter().map(|(port, device)| (device.interface, *port)).collect();
        let in_use = |(interface, address): Neighbor| {
            ports.get(&interface).is_some_and(|port| neighbors.take_used(*port, pack(address)))
        };
        let stale = self.known.iter().filter(|(_, is_stale)| **is_stale).map(|(neighbor, _)| *neighbor);
        let wanted: Vec<Neighbor> = stale.filter(|neighbor| in_use(*neighbor)).collect();
        self.requested.extend(&wanted);
        wanted
    }

    /// Requests the next hops of routes that have no Ethernet address.
    pub(super) fn missing_next_hops(&mut self) -> Vec<Neighbor> {
        let wanted: Vec<Neighbor> = self
            .next_hops
            .iter()
            .filter_map(|(port, address)| self.resolvable(*port, *address))
            .filter(|neighbor| !self.known.contains_key(neighbor) && !self.requested.contains(neighbor))
            .collect();
        self.requested.extend(&wanted);
        wanted
    }

    /// Requests a neighbour that a worker misses for a packet from the port `by`.
    pub(super) fn request(&mut self, by: PortId, port: PortId, address: IpAddr) -> Option<Request> {
        let neighbor = self.resolvable(port, address)?;
        if self.known.contains_key(&neighbor) || self.requested.contains(&neighbor) {
            return None;
        }
        let Request { wanted, replaced } = self.unresolved.add(by, neighbor)?;
        Some(Request { wanted, replaced: replaced.filter(|neighbor| self.may_forget(*neighbor)) })
    }

    /// Whether the kernel may forget a neighbour: it is no next hop of a route, and has no address.
    fn may_forget(&self, neighbor: Neighbor) -> bool {
        !self.known.contains_key(&neighbor) && !self.is_next_hop(neighbor)
    }

    fn is_next_hop(&self, (interface, address): Neighbor) -> bool {
        let is_it = |(port, device): (&PortId, &UplinkDevice)| {
            device.interface == interface && self.next_hops.contains(&(*port, address))
        };
        self.devices.iter().any(is_it)
    }

    fn resolvable(&self, port: PortId, address: IpAddr) -> Option<Neighbor> {
        let device = self.devices.get(&port).filter(|device| device.resolves)?;
        Some((device.interface, address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PORT_UNRESOLVED_MAX;

    const PORT: PortId = PortId(4);
    const DEVICE: UplinkDevice = UplinkDevice { interface: 7, resolves: true };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    fn bench(device: UplinkDevice) -> (UplinkTable, Neighbors) {
        (UplinkTable { devices: [(PORT, device)].into(), ..UplinkTable::default() }, Neighbors::new())
    }

    #[test]
    fn workers_see_the_kernels_neighbours_of_uplinks_only() {
        let (mut table, neighbors) = bench(DEVICE);
        let router = ip("fe80::1");
        let seen = |neighbors: &Neighbors| neighbors.uplink_mac(PORT, pack(router));
        table.apply_event(NeighborEvent::State((8, router), NudState::Reachable(mac(8))), &neighbors);
        assert_eq!(seen(&neighbors), None);
        for nud_state in [NudState::Reachable(mac(1)), NudState::Stale(mac(2)), NudState::Permanent(mac(3))] {
            table.apply_event(NeighborEvent::State((7, router), nud_state), &neighbors);
            let (NudState::Reachable(mac) | NudState::Stale(mac) | NudState::Permanent(mac)) = nud_state
            else {
                unreachable!("the list above has no other")
            };
            assert_eq!(seen(&neighbors), Some(mac));
        }
        table.apply_event(NeighborEvent::State((7, router), NudState::Unresolved), &neighbors);
        assert_eq!(seen(&neighbors), None);
    }

    #[test]
    fn a_neighbour_that_a_dump_does_not_name_is_removed() {
        let (mut table, neighbors) = bench(DEVICE);
        for last in 1..=2 {
            let address = IpAddr::from([192, 0, 2, last]);
            table.apply_event(NeighborEvent::State((7, address), NudState::Reachable(mac(last))), &neighbors);
        }
        table.apply_event(NeighborEvent::Overrun, &neighbors);
        assert!(table.start_dump());
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.2")), NudState::Reachable(mac(2))), &neighbors);
        table.apply_event(NeighborEvent::DumpDone, &neighbors);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.1"))), None);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.2"))), Some(mac(2)));
    }

    #[test]
    fn a_missing_next_hop_is_requested_without_a_packet_and_once_a_tick() {
        let (mut table, neighbors) = bench(DEVICE);
        table.next_hops = [(PORT, ip("192.0.2.1")), (PortId(9), ip("192.0.2.9"))].into();
        assert_eq!(table.missing_next_hops(), [(7, ip("192.0.2.1"))]);
        assert_eq!(table.missing_next_hops(), []);
        table.start_tick();
        assert_eq!(table.missing_next_hops(), [(7, ip("192.0.2.1"))]);
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        table.start_tick();
        assert_eq!(table.missing_next_hops(), []);
    }

    #[test]
    fn a_next_hop_that_the_kernel_removes_is_requested_at_once() {
        let (mut table, neighbors) = bench(DEVICE);
        let router = (7, ip("192.0.2.1"));
        table.next_hops = [(PORT, router.1)].into();
        table.apply_event(NeighborEvent::State(router, NudState::Reachable(mac(1))), &neighbors);
        // Resolution fails, and the kernel removes the neighbour: the request ends with it.
        table.apply_event(NeighborEvent::State(router, NudState::Unresolved), &neighbors);
        assert_eq!(table.missing_next_hops(), [router]);
        table.apply_event(NeighborEvent::State(router, NudState::Removed), &neighbors);
        assert_eq!(table.missing_next_hops(), [router]);
        assert_eq!(table.missing_next_hops(), []);
    }

    #[test]
    fn a_stale_neighbour_is_confirmed_when_it_is_used_and_not_before() {
        let (mut table, neighbors) = bench(DEVICE);
        table.apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Stale(mac(1))), &neighbors);
        assert_eq!(table.stale_in_use(&neighbors), []);
        neighbors.uplink_mac(PORT, pack(ip("192.0.2.1")));
        assert_eq!(table.stale_in_use(&neighbors), [(7, ip("192.0.2.1"))]);
        neighbors.uplink_mac(PORT, pack(ip("192.0.2.1")));
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        assert_eq!(table.stale_in_use(&neighbors), []);
    }

    #[test]
    fn a_pod_that_tries_every_address_has_few_places_in_the_kernels_table() {
        let (mut table, neighbors) = bench(DEVICE);
        let [hostile, other] = [PortId(1), PortId(2)];
        let router = ip("192.0.2.1");
        table.next_hops = [(PORT, router)].into();
        assert_eq!(table.missing_next_hops(), [(7, router)]);
        let own = (7, ip("192.0.2.9"));
        assert_eq!(table.request(other, PORT, own.1), Some(Request { wanted: own, replaced: None }));
        let mut places = BTreeSet::new();
        for number in 0..10_000u32 {
            let request = table.request(hostile, PORT, IpAddr::from((0x0a00_0000 | number).to_be_bytes()));
            let Request { wanted, replaced } = request.unwrap();
            assert!(replaced.is_none_or(|gone| places.remove(&gone)), "the neighbours of others stay");
            places.insert(wanted);
            assert!(places.len() <= PORT_UNRESOLVED_MAX);
        }
        assert_eq!(table.request(other, PORT, own.1), None, "once is enough");
        // Nobody answers for them, and the kernel forgets them; a neighbour that answers stays.
        let failed: Vec<Neighbor> = places.iter().copied().collect();
        for neighbor in &failed {
            table.apply_event(NeighborEvent::State(*neighbor, NudState::Failed), &neighbors);
        }
        assert_eq!(table.take_given_up(), failed);
        table.apply_event(NeighborEvent::State(own, NudState::Reachable(mac(9))), &neighbors);
        assert_eq!((table.take_given_up(), neighbors.uplink_mac(PORT, pack(own.1))), (vec![], Some(mac(9))));
    }

    #[test]
    fn where_the_kernel_cannot_resolve_only_permanent_neighbours_count() {
        let (mut table, neighbors) = bench(UplinkDevice { resolves: false, ..DEVICE });
        table.next_hops = [(PORT, ip("192.0.2.1"))].into();
        assert_eq!(table.missing_next_hops(), []);
        assert_eq!(table.request(PORT, PORT, ip("192.0.2.2")), None);
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.1"))), None);
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Permanent(mac(1))), &neighbors);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.1"))), Some(mac(1)));
    }
}
