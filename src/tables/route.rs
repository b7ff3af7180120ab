//! Route table: from a destination to its next hop, by longest prefix.

use std::net::IpAddr;

use ipnet::IpNet;

use super::prefix_table::PrefixTable;

/// Next hops by prefix. A next hop is an index into a list of the owner of the table.
#[derive(Clone, Default)]
pub struct RouteTable {
    prefixes: PrefixTable,
}

impl RouteTable {
    /// Result of batched lookups without a route.
    pub const NO_ROUTE: u32 = PrefixTable::NO_MATCH;

    /// Table of `routes`: prefix and index of the next hop. Of equal prefixes the last one counts.
    pub fn build(routes: impl IntoIterator<Item = (IpNet, u32)>) -> RouteTable {
        RouteTable { prefixes: PrefixTable::build(routes) }
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Tests whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Next hop of `destination`, if a route covers it.
    pub fn next_hop(&self, destination: IpAddr) -> Option<u32> {
        self.prefixes.lookup(destination)
    }

    /// Next hop of an IPv4 address in host byte order.
    #[inline]
    pub fn next_hop_v4(&self, destination: u32) -> Option<u32> {
        self.prefixes.lookup_v4(destination)
    }

    /// Next hop of an IPv6 address in host byte order.
    #[inline]
    pub fn next_hop_v6(&self, destination: u128) -> Option<u32> {
        self.prefixes.lookup_v6(destination)
    }

    /// Next hops of IPv4 addresses (host byte order), or [`RouteTable::NO_ROUTE`].
    #[inline]
    pub fn next_hops_v4(&self, destinations: &[u32], next_hops: &mut [u32]) {
        self.prefixes.lookup_batch_v4(destinations, next_hops);
    }

    /// Next hops of IPv6 addresses (host byte order), or [`RouteTable::NO_ROUTE`].
    #[inline]
    pub fn next_hops_v6(&self, destinations: &[u128], next_hops: &mut [u32]) {
        self.prefixes.lookup_batch_v6(destinations, next_hops);
    }

    /// Adds a route or replaces its next hop. Returns the previous next hop.
    pub fn insert(&mut self, prefix: IpNet, next_hop: u32) -> Option<u32> {
        self.prefixes.insert(prefix, next_hop)
    }

    /// Removes a route. Returns its next hop.
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
