//! Routes of the switch in the node's own routing table, known by their protocol number.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol};
use rustix::io::Errno;

use super::NetlinkError;
use super::error::Context;
use super::routes::{gateway_route, preferred_source};
use super::socket::RouteSocket;

/// `rtm_protocol` of the switch's routes: `ip route show proto 80` lists them. Linux and iproute2 name no program of this
/// number.
pub const NODE_ROUTE_PROTOCOL: u8 = 80;

/// Main table: `RT_TABLE_MAIN` of `linux/rtnetlink.h`.
const MAIN_TABLE: u8 = 254;

/// Way of the node's own packets to a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeRoute {
    /// A router, on the link of some interface.
    Router(IpAddr),
    /// The switch.
    Switch {
        /// Address of the switch.
        gateway: IpAddr,
        /// Source of the packets, where a socket has none.
        source: IpAddr,
    },
}

impl NodeRoute {
    /// Address that gets the packets.
    pub(crate) fn gateway(self) -> IpAddr {
        match self {
            NodeRoute::Router(gateway) | NodeRoute::Switch { gateway, .. } => gateway,
        }
    }
}

impl RouteSocket {
    /// Lists the routes with [`NODE_ROUTE_PROTOCOL`]: prefixes and gateways.
    pub(crate) fn node_routes(&self) -> Result<BTreeMap<IpNet, IpAddr>, NetlinkError> {
        let requests =
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
        let mut routes = BTreeMap::new();
        for request in requests {
            let replies = self.dump(RouteNetlinkMessage::GetRoute(request));
            let replies = replies.context(|| "list the node's routes".to_owned())?;
            routes.extend(replies.into_iter().filter_map(|reply| match reply {
                RouteNetlinkMessage::NewRoute(route) => own_route(&route),
                _ => None,
            }));
        }
        Ok(routes)
    }

    /// Adds a route, or with `replaces` puts it in the place of the switch's route to the same prefix. The kernel finds the
    /// interface by the router; `node_end` is that of the switch, by its index.
    pub(crate) fn put_node_route(
        &self,
        prefix: IpNet,
        route: NodeRoute,
        node_end: u32,
        replaces: bool,
    ) -> Result<(), NetlinkError> {
        let flags = NLM_F_CREATE | if replaces { NLM_F_REPLACE } else { NLM_F_EXCL };
        let gateway = route.gateway();
        let request = match route {
            NodeRoute::Router(_) => message(prefix, gateway),
            NodeRoute::Switch { source, .. } => gateway_route(node_end, prefix, gateway).map(|mut route| {
                route.header.protocol = RouteProtocol::Other(NODE_ROUTE_PROTOCOL);
                route.attributes.push(preferred_source(source));
                route
            }),
        };
        let put = request.and_then(|request| self.change(RouteNetlinkMessage::NewRoute(request), flags));
        put.context(|| format!("route {prefix} by way of {gateway}"))
    }

    /// Removes a route of the switch. A removed one has no effect.
    pub(crate) fn remove_node_route(&self, prefix: IpNet, gateway: IpAddr) -> Result<(), NetlinkError> {
        let request = message(prefix, gateway).map(RouteNetlinkMessage::DelRoute);
        match request.and_then(|request| self.change(request, 0)) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(()),
            other => other.context(|| format!("remove the route to {prefix}")),
        }
    }
}

/// Number of the switch's routes in the node's table.
pub fn node_routes_of_the_switch() -> Result<usize, NetlinkError> {
    Ok(RouteSocket::open()?.node_routes()?.len())
}

/// Prefix and gateway of a route of the switch.
fn own_route(route: &RouteMessage) -> Option<(IpNet, IpAddr)> {
    if route.header.protocol != RouteProtocol::Other(NODE_ROUTE_PROTOCOL) || route.header.table != MAIN_TABLE
    {
        return None;
    }
    let mut ends = [None, None];
    for attribute in &route.attributes {
        let (end, address) = match attribute {
            RouteAttribute::Destination(address) => (0, address),
            RouteAttribute::Gateway(address) => (1, address),
            _ => continue,
        };
        ends[end] = match address {
            RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
            RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
            _ => None,
        };
    }
    let [destination, gateway] = ends;
    Some((IpNet::new(destination?, route.header.destination_prefix_length).ok()?, gateway?))
}

fn message(prefix: IpNet, gateway: IpAddr) -> std::io::Result<RouteMessage> {
    let mut route = match (prefix, gateway) {
        (IpNet::V4(net), IpAddr::V4(gateway)) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .gateway(gateway)
            .build(),
        (IpNet::V6(net), IpAddr::V6(gateway)) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .gateway(gateway)
            .build(),
        _ => return Err(ErrorKind::InvalidInput.into()),
    };
    route.header.protocol = RouteProtocol::Other(NODE_ROUTE_PROTOCOL);
    Ok(route)
}
