//! Lookup of virtual addresses, a part of the snapshot.

mod page;

pub(crate) use self::page::PAGES;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use self::page::{Destination, NODE, Page, Place, destinations, page_and_tag};
use super::address_filter::Filter;
use super::address_set::AddressSet;
use super::local_addresses::LocalAddresses;
use super::port_entry::{BackendsFor, PortEntry};
use super::uplink_ports::{Changes, UplinkPorts};
use crate::dataplane::ServiceFlows;
use crate::ids::Generation;
use crate::net::address::{Address, pack};
use crate::net::flow::Protocol;
use crate::tables::{PersistentMap, ServicePort, ServicePortName, ServiceSet};
use crate::xdp::ServiceDestinations;

/// Virtual addresses of a snapshot. Later snapshots share its unchanged parts.
pub(crate) struct ServiceFib {
    set: Arc<ServiceSet>,
    pages: Box<[Arc<Page>]>,
    entries: PersistentMap<Arc<ServicePortName>, Arc<PortEntry>>,
    /// Virtual addresses: those of all places but node ports.
    addresses: AddressSet,
    filter: Arc<Filter>,
    /// Addresses at which node ports are served.
    node_addresses: Arc<[Address]>,
    local: Arc<LocalAddresses>,
    /// Virtual addresses that a pod, the switch or the node has, in order: they are not virtual.
    refused: Box<[Address]>,
    uplink: UplinkPorts,
    /// Number of the last change: bindings to backends that were checked since then are current.
    pub revision: u16,
    /// Generation that is laid out.
    generation: Generation,
    /// The last one that changed more than the ports of Services: addresses of the node.
    node_changed: Generation,
}

/// The Services' part in an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Services inside the cluster, and perhaps external ones.
    Cluster,
    /// Services with an external address.
    External,
    /// The node, whose ports may be Services'.
    Node,
}

/// A port of a Service that serves a destination.
#[derive(Clone, Copy)]
pub(crate) struct ServiceMatch<'a> {
    /// Port of the Service.
    pub entry: &'a PortEntry,
    /// The backends for the packet.
    pub backends: BackendsFor,
    /// Place of the port.
    pub place: PlaceId,
    /// Whether only some sources reach the destination.
    is_guarded: bool,
    /// Whether it is a port of the node.
    is_nodes: bool,
}

impl ServiceMatch<'_> {
    /// Whether packets from an address reach the destination.
    #[inline]
    pub(crate) fn admits(&self, source: Address) -> bool {
        !self.is_guarded || self.entry.admits(source)
    }
}

/// Place of a port of a Service in one snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaceId {
    page: u16,
    index: u32,
}

const _: () = assert!(PAGES <= 1 << 16, "a page's number fits into a PlaceId");

impl ServiceFib {
    /// Lays out the Services of the next snapshot, at the cost of their difference to those of the snapshot `before`.
    pub(crate) fn next(
        before: Option<&Arc<ServiceFib>>,
        set: Option<&Arc<ServiceSet>>,
        local: impl FnOnce() -> LocalAddresses,
        generation: Generation,
    ) -> Option<Arc<ServiceFib>> {
        let set = set.filter(|set| !set.is_empty())?;
        let local = local();
        let is_same_set = |before: &&Arc<ServiceFib>| Arc::ptr_eq(&before.set, set);
        if let Some(before) = before.filter(is_same_set).filter(|before| *before.local == local) {
            return Some(before.clone());
        }
        let mut next = match before {
            Some(before) => before.copy(),
            None => ServiceFib::empty(),
        };
        next.generation = generation;
        let moved = before.map_or(Some(Vec::new()), |before| local.moved(&before.local));
        next.local = Arc::new(local);
        let (last, mut moves) = (next.set.clone(), last_addresses(&next) != set.node_addresses());
        let (mut changes, mut uplink) = (Vec::new(), Changes::default());
        last.ports().for_each_difference(set.ports(), |name, before, after| {
            moves |= match (before, after) {
                (Some(before), Some(after)) => {
                    (&before.cluster, &before.external, before.node_port, &before.mapped)
                        != (&after.cluster, &after.external, after.node_port, &after.mapped)
                }
                _ => true,
            };
            changes.push((name, before, after));
        });
        // All removals come first: an address may move from one port of a Service to another in one difference.
        for (name, before, _) in &changes {
            next.remove_places(name, before.map(|port| &**port), &mut uplink);
        }
        for (name, _, after) in &changes {
            next.set(name, after.map(|port| &**port), &mut uplink);
        }
        next.lay_out_local(set, moved.as_deref(), &mut uplink);
        if !Arc::ptr_eq(&last, set) {
            next.revision = generation.0 as u16;
        }
        next.set = set.clone();
        let is_same_node = next.refuse_local();
        if !is_same_node || before.is_none() {
            next.node_changed = generation;
        }
        next.uplink.apply(&uplink, is_same_node, &next.refused, &next.node_addresses);
        if moves {
            next.filter = Arc::new(Filter::of(next.virtual_addresses()));
        }
        Some(Arc::new(next))
    }

    fn empty() -> ServiceFib {
        ServiceFib {
            set: Arc::default(),
            pages: vec![Arc::default(); PAGES].into(),
            entries: PersistentMap::new(),
            addresses: AddressSet::new(),
            filter: Arc::default(),
            node_addresses: Arc::default(),
            local: Arc::default(),
            refused: Box::default(),
            uplink: UplinkPorts::default(),
            revision: 0,
            generation: Generation::default(),
            node_changed: Generation::default(),
        }
    }

    fn copy(&self) -> ServiceFib {
        ServiceFib {
            set: self.set.clone(),
            pages: self.pages.clone(),
            entries: self.entries.clone(),
            addresses: self.addresses.clone(),
            filter: self.filter.clone(),
            node_addresses: self.node_addresses.clone(),
            local: self.local.clone(),
            refused: self.refused.clone(),
            uplink: self.uplink.clone(),
            revision: self.revision,
            generation: self.generation,
            node_changed: self.node_changed,
        }
    }

    /// The page of a destination to change, and the tag of the destination there. Flows to a port of the node have the epoch of
    /// that port at all addresses.
    fn change_page(
        &mut self,
        address: Address,
        port: u16,
        protocol: Protocol,
        is_nodes: bool,
    ) -> (&mut Page, u16) {
        if is_nodes {
            let (page, _) = page_and_tag(NODE, port, protocol);
            Arc::make_mut(&mut self.pages[page]).changed = self.generation;
        }
        let (page, tag) = page_and_tag(address, port, protocol);
        let page = Arc::make_mut(&mut self.pages[page]);
        page.changed = self.generation;
        (page, tag)
    }

    /// Removes the destinations of a port as it was.
    fn remove_places(&mut self, name: &ServicePortName, before: Option<&ServicePort>, uplink: &mut Changes) {
        if let (Some(before), Some(entry)) = (before, self.entries.get(name)) {
            uplink.remove(name.protocol, before, entry);
        }
        for Destination { address, port, is_external, is_nodes } in before.into_iter().flat_map(destinations)
        {
            if !is_nodes {
                self.addresses.remove(address, is_external);
            }
            let (page, tag) = self.change_page(address, port, name.protocol, is_nodes);
            page.remove(tag, address, port, name.protocol);
        }
    }

    /// Lays out a port whose former destinations have been removed; `None` removes it.
    fn set(&mut self, name: &Arc<ServicePortName>, after: Option<&ServicePort>, uplink: &mut Changes) {
        let last = self.entries.remove(&**name);
        let Some(after) = after else { return };
        let entry = Arc::new(PortEntry::new(after, last.as_deref(), &self.local));
        uplink.add(name.protocol, after, &entry);
        for Destination { address, port, is_external, is_nodes } in destinations(after) {
            if !is_nodes {
                self.addresses.add(address, is_external);
            }
            let is_guarded = after.guarded.iter().any(|at| (pack(at.ip()), at.port()) == (address, port));
            let protocol = name.protocol;
            let place =
                Place { address, port, protocol, is_external, is_nodes, is_guarded, entry: entry.clone() };
            let (page, tag) = self.change_page(address, port, name.protocol, is_nodes);
            page.set(tag, place);
        }
        self.entries.insert(name.clone(), entry);
    }

    /// Lays out ports again with backends at addresses that have come to this node or left it: all ports with `None`.
    fn lay_out_local(&mut self, set: &ServiceSet, moved: Option<&[Address]>, uplink: &mut Changes) {
        let is_stale =
            |entry: &PortEntry| moved.is_none_or(|moved| !moved.is_empty() && entry.has_backend_at(moved));
        let stale = self.entries.iter().filter(|(_, entry)| is_stale(entry));
        let stale: Vec<Arc<ServicePortName>> = stale.map(|(name, _)| name.clone()).collect();
        for name in stale {
            let port = set.ports().get(&*name).map(|port| &**port);
            self.remove_places(&name, port, uplink);
            self.set(&name, port, uplink);
        }
    }

    /// Keeps Services from the addresses of this node: they have only ports of the node itself. Returns whether nothing changes.
    fn refuse_local(&mut self) -> bool {
        let node_addresses = self.set.node_addresses().iter().map(|address| pack(*address));
        let node_addresses: Arc<[Address]> =
            node_addresses.filter(|address| !self.local.is_pod(*address)).collect();
        let own = self.local.iter().chain(node_addresses.iter().copied());
        let mut refused: Vec<Address> = own.filter(|own| self.addresses.find(*own).is_some()).collect();
        refused.sort_unstable();
        let is_same = node_addresses == self.node_addresses && *refused == *self.refused;
        (self.node_addresses, self.refused) = (node_addresses, refused.into());
        is_same
    }

    /// All virtual addresses, and those of the node.
    fn virtual_addresses(&self) -> impl Iterator<Item = Address> {
        self.addresses.iter().chain(last_addresses(self).iter().map(|address| pack(*address)))
    }

    /// Whether an address may be a virtual one, or the node's. False for nearly all others.
    #[inline]
    pub(crate) fn may_serve(&self, address: Address) -> bool {
        self.filter.may_have(address)
    }

    /// Whether a pod, the switch or the node has a virtual address.
    #[inline]
    pub(crate) fn refuses(&self, address: Address) -> bool {
        !self.refused.is_empty() && self.refused.binary_search(&address).is_ok()
    }

    /// The Services' part in an address. `None` for an address that they do not have.
    #[inline]
    pub(crate) fn owner(&self, address: Address) -> Option<Owner> {
        match self.addresses.find(address).filter(|_| !self.refuses(address)) {
            Some(true) => Some(Owner::Cluster),
            Some(false) => Some(Owner::External),
            None => self.node_addresses.contains(&address).then_some(Owner::Node),
        }
    }

    /// Whether an address is that of a Service inside the cluster, on any port.
    pub(crate) fn is_cluster_address(&self, address: Address) -> bool {
        self.may_serve(address) && self.owner(address) == Some(Owner::Cluster)
    }

    /// Whether an address is the node's, as the Services have it.
    pub(crate) fn is_node_address(&self, address: Address) -> bool {
        self.may_serve(address) && self.node_addresses.contains(&address)
    }

    /// Whether a port at an address of the node is a Service's.
    #[inline]
    pub(crate) fn has_node_port(&self, address: Address, protocol: Protocol, port: u16) -> bool {
        self.find_place(NODE, protocol, port, true).is_some()
            || self.find_mapped(address, protocol, port, true).is_some()
    }

    /// The pod's port that a port at an address of the node leads to.
    fn find_mapped(
        &self,
        address: Address,
        protocol: Protocol,
        port: u16,
        is_outside: bool,
    ) -> Option<ServiceMatch<'_>> {
        let found = self.find_place(address, protocol, port, is_outside)?;
        (found.is_nodes && self.node_addresses.contains(&address)).then_some(found)
    }

    /// The port of a Service that serves a destination, for packets from outside or of this node.
    #[inline]
    pub(crate) fn find(
        &self,
        address: Address,
        protocol: Protocol,
        port: u16,
        is_outside: bool,
    ) -> Option<ServiceMatch<'_>> {
        let found = self.find_place(address, protocol, port, is_outside);
        let is_virtual = |found: &ServiceMatch<'_>| !found.is_nodes && !self.refuses(address);
        found.filter(is_virtual).or_else(|| match self.owner(address)? {
            Owner::Cluster | Owner::External => None,
            Owner::Node => self
                .find_mapped(address, protocol, port, is_outside)
                .or_else(|| self.find_place(NODE, protocol, port, is_outside)),
        })
    }

    #[inline]
    fn find_place(
        &self,
        address: Address,
        protocol: Protocol,
        port: u16,
        is_outside: bool,
    ) -> Option<ServiceMatch<'_>> {
        let (page, tag) = page_and_tag(address, port, protocol);
        let index = self.pages[page].find(tag, address, port, protocol)?;
        let place = &self.pages[page].places[index];
        let backends = match (place.is_external, is_outside) {
            (false, _) => BackendsFor::Cluster,
            (true, true) => BackendsFor::Outside,
            (true, false) => BackendsFor::ShortCircuit,
        };
        let id = PlaceId { page: page as u16, index: index as u32 };
        let Place { entry, is_guarded, is_nodes, .. } = place;
        Some(ServiceMatch { entry, backends, place: id, is_guarded: *is_guarded, is_nodes: *is_nodes })
    }

    /// Number of the page that has a destination.
    pub(crate) fn page_of(&self, address: Address, protocol: Protocol, port: u16) -> u16 {
        let is_node = self.owner(address) == Some(Owner::Node);
        page_and_tag(if is_node { NODE } else { address }, port, protocol).0 as u16
    }

    /// By page, the last generation that may have changed what becomes of packets to its destinations.
    pub(crate) fn page_epochs(&self) -> impl Iterator<Item = Generation> {
        self.pages.iter().map(|page| page.changed.max(self.node_changed))
    }

    /// The port at a place of this snapshot.
    #[inline]
    pub(crate) fn entry(&self, place: PlaceId) -> &PortEntry {
        &self.pages[usize::from(place.page)].places[place.index as usize].entry
    }

    /// Destinations that uplinks take from the kernel.
    pub(crate) fn uplink_destinations(&self) -> &Arc<ServiceDestinations> {
        self.uplink.destinations()
    }

    /// Number of destinations that stay with the kernel, because uplinks take no more.
    pub(crate) fn uplink_left_out(&self) -> usize {
        self.uplink.left_out()
    }

    /// Flows that the ports have opened.
    pub(crate) fn flows(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
        let flows = |(name, entry): (&Arc<ServicePortName>, &Arc<PortEntry>)| {
            (ServicePortName::clone(name), entry.flows())
        };
        self.entries.iter().map(flows).collect()
    }
}

fn last_addresses(fib: &ServiceFib) -> &[IpAddr] {
    fib.set.node_addresses()
}

#[cfg(test)]
mod tests;
