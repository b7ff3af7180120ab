//! Exact set of the virtual addresses of a snapshot.

use std::sync::Arc;

use super::maglev::mix;
use crate::net::address::Address;

/// Pages of the set. A change copies those that it writes.
const PAGES: usize = 1024;

/// Virtual addresses, with the number of ports that claim each. A clone shares all pages.
#[derive(Clone)]
pub(super) struct AddressSet {
    pages: Box<[Arc<Vec<Claims>>]>,
}

/// Claims of one address.
#[derive(Clone, Copy)]
struct Claims {
    address: Address,
    /// Destinations inside the cluster.
    cluster: u32,
    /// External destinations.
    external: u32,
}

impl AddressSet {
    pub(super) fn new() -> AddressSet {
        AddressSet { pages: vec![Arc::default(); PAGES].into() }
    }

    /// Adds a claim of an address.
    pub(super) fn add(&mut self, address: Address, is_external: bool) {
        let page = Arc::make_mut(&mut self.pages[page_of(address)]);
        let place = match place_in(page, address) {
            Ok(place) => place,
            Err(place) => {
                page.insert(place, Claims { address, cluster: 0, external: 0 });
                place
            }
        };
        *page[place].count(is_external) += 1;
    }

    /// Removes a claim that has been added.
    pub(super) fn remove(&mut self, address: Address, is_external: bool) {
        let page = Arc::make_mut(&mut self.pages[page_of(address)]);
        let Ok(place) = place_in(page, address) else { return };
        *page[place].count(is_external) -= 1;
        if page[place].cluster + page[place].external == 0 {
            page.remove(place);
        }
    }

    /// Whether the set has an address: `Some(true)` for one inside the cluster.
    #[inline]
    pub(super) fn find(&self, address: Address) -> Option<bool> {
        let page = &self.pages[page_of(address)];
        let place = place_in(page, address).ok()?;
        Some(page[place].cluster > 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Address> {
        self.pages.iter().flat_map(|page| page.iter()).map(|claims| claims.address)
    }
}

impl Claims {
    fn count(&mut self, is_external: bool) -> &mut u32 {
        if is_external { &mut self.external } else { &mut self.cluster }
    }
}

#[inline]
fn page_of(address: Address) -> usize {
    mix(mix(0, address as u64), (address >> 64) as u64) as usize % PAGES
}

#[inline]
fn place_in(page: &[Claims], address: Address) -> Result<usize, usize> {
    page.binary_search_by_key(&address, |claims| claims.address)
}
