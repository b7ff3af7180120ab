//! Routes: the longest prefix of a destination gives a next hop.

use std::net::IpAddr;

use ipnet::IpNet;

use super::prefix_table::PrefixTable;

/// Which next hop leads to an address, by index into a list that the owner of the table keeps.
#[derive(Clone, Default)]
pub struct RouteTable {
    prefixes: PrefixTable,
}

impl RouteTable {
    /// What batches give for an address that no route covers.
    pub const NO_ROUTE: u32 = PrefixTable::NO_MATCH;

    /// The table of `routes`: prefix and index of the next hop. Of equal prefixes the last one counts.
    pub fn build(routes: impl IntoIterator<Item = (IpNet, u32)>) -> RouteTable {
        RouteTable { prefixes: PrefixTable::build(routes) }
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// The next hop of `destination`, if any route covers it.
    pub fn next_hop(&self, destination: IpAddr) -> Option<u32> {
        self.prefixes.lookup(destination)
    }

    /// [`RouteTable::next_hop`] of an IPv4 address in host byte order.
    #[inline]
    pub fn next_hop_v4(&self, destination: u32) -> Option<u32> {
        self.prefixes.lookup_v4(destination)
    }

    /// [`RouteTable::next_hop`] of an IPv6 address in host byte order.
    #[inline]
    pub fn next_hop_v6(&self, destination: u128) -> Option<u32> {
        self.prefixes.lookup_v6(destination)
    }

    /// The next hop of every destination (host byte order), or [`RouteTable::NO_ROUTE`].
    #[inline]
    pub fn next_hops_v4(&self, destinations: &[u32], next_hops: &mut [u32]) {
        self.prefixes.lookup_batch_v4(destinations, next_hops);
    }

    /// The next hop of every destination (host byte order), or [`RouteTable::NO_ROUTE`].
    #[inline]
    pub fn next_hops_v6(&self, destinations: &[u128], next_hops: &mut [u32]) {
        self.prefixes.lookup_batch_v6(destinations, next_hops);
    }

    /// Adds a route or changes where it leads; gives where it led before.
    pub fn insert(&mut self, prefix: IpNet, next_hop: u32) -> Option<u32> {
        self.prefixes.insert(prefix, next_hop)
    }

    /// Removes a route; gives where it led.
    pub fn remove(&mut self, prefix: IpNet) -> Option<u32> {
        self.prefixes.remove(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_route_leads_and_the_next_takes_over_when_it_goes() {
        let net = |text: &str| -> IpNet { text.parse().unwrap() };
        let mut routes =
            RouteTable::build([(net("0.0.0.0/0"), 0), (net("10.1.0.0/16"), 1), (net("fd00::/8"), 2)]);
        assert_eq!(routes.insert(net("10.1.2.3/32"), 3), None);
        let to = |routes: &RouteTable, text: &str| routes.next_hop(text.parse().unwrap());
        assert_eq!(to(&routes, "10.1.2.3"), Some(3));
        assert_eq!(to(&routes, "10.1.2.4"), Some(1));
        assert_eq!(to(&routes, "192.0.2.1"), Some(0));
        assert_eq!(to(&routes, "fd00::1"), Some(2));
        assert_eq!(to(&routes, "2001:db8::1"), None);
        assert_eq!(routes.remove(net("10.1.2.3/32")), Some(3));
        let mut next_hops = [9; 2];
        routes.next_hops_v4(&[0x0a01_0203, 0xc000_0201], &mut next_hops);
        assert_eq!(next_hops, [1, 0]);
        routes.next_hops_v6(&[0xfd << 120, 1], &mut next_hops);
        assert_eq!(next_hops, [2, RouteTable::NO_ROUTE]);
    }
}
