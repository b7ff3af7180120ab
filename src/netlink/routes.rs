//! Addresses and routes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteScope};
use rtnetlink::{AddressMessageBuilder, RouteMessageBuilder};
use rustix::io::Errno;

use super::NetlinkError;
use super::error::Context;
use super::socket::RouteSocket;

impl RouteSocket {
    /// Gives an interface an address that is alone in its prefix. It is usable at once: `IFA_F_NODAD` leaves
    /// duplicate address detection out.
    pub(crate) fn add_address(&self, name: &str, address: IpAddr) -> Result<(), NetlinkError> {
        let mut message = address_message(self.index(name)?, address);
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
            .context(|| format!("give {name} the address {address}"))
    }

    /// Routes a prefix by way of a gateway that needs no route of its own. Packets are as long as the
    /// interface takes, or at most `mtu` bytes.
    pub(crate) fn add_gateway_route(
        &self,
        name: &str,
        prefix: IpNet,
        gateway: IpAddr,
        mtu: Option<u32>,
    ) -> Result<(), NetlinkError> {
        let action = || format!("route {prefix} on {name} by way of {gateway}");
        let mut route = gateway_route(self.index(name)?, prefix, gateway).context(action)?;
        route.attributes.extend(mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL).context(action)
    }

    /// Routes a prefix as [`RouteSocket::add_gateway_route`] does, in place of any route to it.
    pub(crate) fn replace_gateway_route(
        &self,
        name: &str,
        prefix: IpNet,
        gateway: IpAddr,
    ) -> Result<(), NetlinkError> {
        let action = || format!("route {prefix} on {name} by way of {gateway}");
        let route = gateway_route(self.index(name)?, prefix, gateway).context(action)?;
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE).context(action)
    }

    /// Removes a route that [`RouteSocket::replace_gateway_route`] adds. A removed one has no effect.
    pub(crate) fn remove_gateway_route(
        &self,
        name: &str,
        prefix: IpNet,
        gateway: IpAddr,
    ) -> Result<(), NetlinkError> {
        let action = || format!("remove the route to {prefix} on {name}");
        let route = gateway_route(self.index(name)?, prefix, gateway).context(action)?;
        match self.change(RouteNetlinkMessage::DelRoute(route), 0) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(()),
            other => other.context(action),
        }
    }

    /// Adds a route to a prefix whose addresses are all on the link.
    pub(crate) fn add_link_route(&self, name: &str, prefix: IpNet) -> Result<(), NetlinkError> {
        let route = link_route(self.index(name)?, prefix);
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL)
            .context(|| format!("route {prefix} to {name}"))
    }

    /// Removes the route that [`RouteSocket::add_link_route`] adds.
    pub(crate) fn remove_link_route(&self, name: &str, prefix: IpNet) -> Result<(), NetlinkError> {
        let route = link_route(self.index(name)?, prefix);
        self.change(RouteNetlinkMessage::DelRoute(route), 0)
            .context(|| format!("remove the route of {prefix}"))
    }

    /// Routes an address to an interface, in place of any route to it. The node's own packets to it come from `source`, if
    /// that is given.
    pub(crate) fn replace_link_route(
        &self,
        name: &str,
        address: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<(), NetlinkError> {
        let mut route = link_route(self.index(name)?, address.into());
        route.attributes.extend(source.map(preferred_source));
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE)
            .context(|| format!("route {address} to {name}"))
    }

    /// Gives an interface an address on which the node answers, and which it never sends from by itself (`RT_SCOPE_HOST`).
    /// An address that is there stays.
    pub(crate) fn keep_address(&self, name: &str, address: IpAddr) -> Result<(), NetlinkError> {
        let mut message = address_message(self.index(name)?, address);
        message.header.scope = AddressScope::Host;
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
            .context(|| format!("give {name} the address {address}"))
    }

    /// Takes an address from an interface. A removed one has no effect.
    pub(crate) fn remove_address(&self, name: &str, address: IpAddr) -> Result<(), NetlinkError> {
        let message = address_message(self.index(name)?, address);
        match self.change(RouteNetlinkMessage::DelAddress(message), 0) {
            Err(error) if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) => Ok(()),
            other => other.context(|| format!("take the address {address} from {name}")),
        }
    }

    /// Returns the gateway of the route to an address, or the address itself where it is on the link.
    pub(crate) fn next_hop(&self, to: IpAddr) -> Result<IpAddr, NetlinkError> {
        let request = match to {
            IpAddr::V4(to) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to, 32).build(),
            IpAddr::V6(to) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(to, 128).build(),
        };
        let reply = self.get(RouteNetlinkMessage::GetRoute(request));
        let attributes = match reply.context(|| format!("find the route to {to}"))? {
            RouteNetlinkMessage::NewRoute(route) => route.attributes,
            _ => Vec::new(),
        };
        let gateway = attributes.into_iter().find_map(|attribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(hop)) => Some(IpAddr::V4(hop)),
            RouteAttribute::Gateway(RouteAddress::Inet6(hop)) => Some(IpAddr::V6(hop)),
            _ => None,
        });
        Ok(gateway.unwrap_or(to))
    }
}

/// Source of packets by a route, where their socket has none.
pub(super) fn preferred_source(source: IpAddr) -> RouteAttribute {
    RouteAttribute::PrefSource(match source {
        IpAddr::V4(source) => RouteAddress::Inet(source),
        IpAddr::V6(source) => RouteAddress::Inet6(source),
    })
}

pub(super) fn gateway_route(index: u32, prefix: IpNet, gateway: IpAddr) -> io::Result<RouteMessage> {
    match (prefix, gateway) {
        (IpNet::V4(net), IpAddr::V4(gateway)) => Ok(RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .output_interface(index)
            .gateway(gateway)
            .onlink()
            .build()),
        (IpNet::V6(net), IpAddr::V6(gateway)) => Ok(RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .output_interface(index)
            .gateway(gateway)
            .build()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn address_message(index: u32, address: IpAddr) -> AddressMessage {
    match address {
        IpAddr::V4(address) => {
            AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(address, 32).build()
        }
        IpAddr::V6(address) => {
            AddressMessageBuilder::<Ipv6Addr>::new().index(index).address(address, 128).build()
        }
    }
}

fn link_route(index: u32, prefix: IpNet) -> RouteMessage {
    match prefix {
        IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .scope(RouteScope::Link)
            .output_interface(index)
            .build(),
        IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .output_interface(index)
            .build(),
    }
}
