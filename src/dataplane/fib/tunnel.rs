//! Tunnels to the pods of other nodes (VXLAN, RFC 7348): the routes that take one, and the ends of each.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::dataplane::{TunnelMode, TunnelSettings};
use crate::net::address::{Address, from_v4, pack};
use crate::net::vxlan;

/// Routes between nodes, which tunnels take.
pub(crate) struct Underlay<'a> {
    settings: Option<&'a TunnelSettings>,
    /// Prefixes and next routers, without the routes to pods.
    routes: Vec<(IpNet, Option<IpAddr>)>,
}

impl<'a> Underlay<'a> {
    /// Routes between nodes, of all `routes`: prefix, next hop, and whether this is another node with pods.
    pub(crate) fn new(
        settings: Option<&'a TunnelSettings>,
        routes: impl Iterator<Item = (IpNet, Option<IpAddr>, bool)>,
    ) -> Underlay<'a> {
        let between = routes.filter(|(_, _, to_pods)| settings.is_some() && !to_pods);
        Underlay { settings, routes: between.map(|(prefix, next_hop, _)| (prefix, next_hop)).collect() }
    }

    /// Address on the link of the uplink that gets packets in a tunnel to the node at `remote`. `None` where its pods are reached
    /// without one.
    pub(crate) fn next_hop(&self, remote: IpAddr) -> Option<IpAddr> {
        let settings = self.settings?;
        settings.address(remote.is_ipv4())?;
        let covering = self.routes.iter().filter(|(prefix, _)| prefix.contains(&remote));
        let router = covering.max_by_key(|(prefix, _)| prefix.prefix_len()).and_then(|(_, router)| *router);
        let is_tunnelled = settings.mode == TunnelMode::Always || router.is_some();
        is_tunnelled.then(|| router.unwrap_or(remote))
    }
}

/// Tunnels of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Tunnels {
    /// UDP port of all nodes.
    pub(crate) port: u16,
    /// VXLAN network identifier.
    pub(crate) vni: u32,
    /// This node's ends, of IPv6 and IPv4; for a family without one, an address that no packet of that family has.
    own: [Address; 2],
    /// Other end of the tunnel of each hop, by its number.
    remotes: Vec<Option<Address>>,
}

impl Tunnels {
    /// Tunnels with these remote ends, by number of the hop.
    pub(super) fn new(settings: &TunnelSettings, remotes: Vec<Option<Address>>) -> Tunnels {
        let own = [settings.address(false).map_or(from_v4(0), pack), settings.address(true).map_or(0, pack)];
        Tunnels { port: settings.port, vni: settings.vni, own, remotes }
    }

    /// This node's end of tunnels of a family.
    #[inline]
    pub(crate) fn own(&self, is_v4: bool) -> Address {
        self.own[usize::from(is_v4)]
    }

    /// Other end of the tunnel of the hop with this number.
    #[inline]
    pub(crate) fn remote(&self, hop: u32) -> Option<Address> {
        self.remotes[hop as usize]
    }
}

/// MTU of a tunnel to `remote` by a port with this MTU: what is left of it for an IP packet.
pub(super) fn mtu(port_mtu: u16, remote: Address) -> u16 {
    port_mtu.saturating_sub(vxlan::overhead_bytes(crate::net::address::is_v4(remote)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mode: TunnelMode) -> TunnelSettings {
        TunnelSettings { mode, port: vxlan::PORT, vni: 1, addresses: vec!["192.0.2.1".parse().unwrap()] }
    }

    #[test]
    fn nodes_behind_a_router_are_reached_by_a_tunnel() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let routes = [
            ("0.0.0.0/0", Some("192.0.2.254"), false),
            ("192.0.2.0/24", None, false),
            ("203.0.113.0/24", Some("192.0.2.253"), false),
            // Pods are no way between nodes.
            ("198.51.100.0/24", None, true),
        ];
        let routes = routes.map(|(prefix, next_hop, pods)| (prefix.parse().unwrap(), next_hop.map(ip), pods));
        let next_hops = |mode| {
            let settings = settings(mode);
            let underlay = Underlay::new(Some(&settings), routes.into_iter());
            ["192.0.2.7", "203.0.113.7", "198.51.100.7", "2001:db8::7"].map(|to| underlay.next_hop(ip(to)))
        };
        let [router, other] = ["192.0.2.254", "192.0.2.253"].map(ip);
        assert_eq!(next_hops(TunnelMode::Auto), [None, Some(other), Some(router), None]);
        let on_link = Some(ip("192.0.2.7"));
        assert_eq!(next_hops(TunnelMode::Always), [on_link, Some(other), Some(router), None]);
        assert_eq!(Underlay::new(None, routes.into_iter()).next_hop(ip("203.0.113.7")), None);
    }
}
