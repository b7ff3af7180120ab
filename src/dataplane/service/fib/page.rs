//! Pages of the lookup: places of ports of Services by their destination.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::dataplane::service::maglev::mix;
use crate::dataplane::service::port_entry::PortEntry;
use crate::ids::Generation;
use crate::net::address::{Address, pack};
use crate::net::flow::Protocol;
use crate::tables::ServicePort;

/// Pages of the lookup. A change copies those that it writes.
pub(crate) const PAGES: usize = 1024;

/// Address of the places of node ports.
pub(super) const NODE: Address = 0;

/// A virtual address and its port of a Service.
#[derive(Clone)]
pub(super) struct Place {
    /// Virtual address, or [`NODE`].
    pub(super) address: Address,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    pub(super) is_external: bool,
    /// Whether it is a port of the node at one of its addresses.
    pub(super) is_nodes: bool,
    /// Whether only some sources reach it.
    pub(super) is_guarded: bool,
    pub(super) entry: Arc<PortEntry>,
}

/// Places whose destinations have one number of a page, in no order.
#[derive(Clone, Default)]
pub(super) struct Page {
    /// Tag of each place: one says which places a destination cannot have, without a look at these.
    pub(super) tags: Vec<u16>,
    pub(super) places: Vec<Place>,
    /// Generation of the last change.
    pub(super) changed: Generation,
}

impl Page {
    /// Index of a destination.
    #[inline]
    pub(super) fn find(&self, tag: u16, address: Address, port: u16, protocol: Protocol) -> Option<usize> {
        let is_its =
            |place: &Place| (place.address == address) & (place.port == port) & (place.protocol == protocol);
        let tagged = self.tags.iter().enumerate().filter(|(_, other)| **other == tag);
        tagged.map(|(index, _)| index).find(|index| self.places.get(*index).is_some_and(is_its))
    }

    /// Adds a place, or replaces that of its destination.
    pub(super) fn set(&mut self, tag: u16, place: Place) {
        if let Some(index) = self.find(tag, place.address, place.port, place.protocol) {
            self.places[index] = place;
        } else {
            self.tags.push(tag);
            self.places.push(place);
        }
    }

    pub(super) fn remove(&mut self, tag: u16, address: Address, port: u16, protocol: Protocol) {
        if let Some(index) = self.find(tag, address, port, protocol) {
            self.tags.swap_remove(index);
            self.places.swap_remove(index);
        }
    }
}

/// Destination of a port of a Service. A node port has the address [`NODE`].
pub(super) struct Destination {
    pub(super) address: Address,
    pub(super) port: u16,
    pub(super) is_external: bool,
    /// Whether the address is the node's.
    pub(super) is_nodes: bool,
}

pub(super) fn destinations(port: &ServicePort) -> impl Iterator<Item = Destination> + '_ {
    let of = |is_external, is_nodes| {
        move |at: &SocketAddr| Destination { address: pack(at.ip()), port: at.port(), is_external, is_nodes }
    };
    let virtual_ones =
        port.cluster.iter().map(of(false, false)).chain(port.external.iter().map(of(true, false)));
    let node_port =
        port.node_port.map(|port| Destination { address: NODE, port, is_external: true, is_nodes: true });
    virtual_ones.chain(port.mapped.iter().map(of(true, true))).chain(node_port)
}

/// Number of the page of a destination, and its tag there.
#[inline]
pub(super) fn page_and_tag(address: Address, port: u16, protocol: Protocol) -> (usize, u16) {
    let rest = u64::from(port) << 8 | u64::from(protocol.0);
    let hash = mix(mix(address as u64 ^ 0x51_7c_c1, (address >> 64) as u64), rest);
    (hash as usize % PAGES, (hash >> 48) as u16)
}
