//! Links, addresses and routes by rtnetlink, in the namespace of the calling thread.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMetric};
use rtnetlink::{
    Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection,
};

use super::error::Doing;
use super::namespace::on_a_thread;
use super::{LabError, PodPlan};
use crate::dataplane::Mac;
use crate::lab::plan::POD_INTERFACE;

/// A netlink socket.
pub(super) struct Links {
    handle: Handle,
}

/// Runs `f` with a netlink socket of the calling thread's namespace. Not for use inside a tokio runtime.
pub(super) fn here<T>(f: impl AsyncFnOnce(Links) -> Result<T, LabError>) -> Result<T, LabError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.doing(|| "start an event loop".to_owned())?.block_on(async {
        let (connection, handle, _) = new_connection().doing(|| "open a netlink socket".to_owned())?;
        tokio::spawn(connection);
        f(Links { handle }).await
    })
}

/// The same on a thread of its own, in the namespace of the calling thread.
pub(super) fn beside<T: Send>(
    f: impl AsyncFnOnce(Links) -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    on_a_thread("lab netlink", || here(f))
}

impl Links {
    /// Makes a veth pair in this namespace, both ends down, with `queues` queues each.
    pub(super) async fn add_veth(&self, pod: &PodPlan, queues: u16, mtu: u32) -> Result<(), LabError> {
        let end = |link: LinkMessageBuilder<LinkVeth>| {
            link.append_extra_attribute(LinkAttribute::NumTxQueues(u32::from(queues)))
                .append_extra_attribute(LinkAttribute::NumRxQueues(u32::from(queues)))
                .mtu(mtu)
        };
        let host = LinkMessageBuilder::<LinkVeth>::default().name(pod.host_interface.clone());
        let own = LinkVeth::new(POD_INTERFACE, &pod.host_interface).address(pod.mac.0.to_vec());
        let own = end(own).set_info_data(InfoData::Veth(InfoVeth::Peer(end(host).build()))).build();
        let added = self.handle.link().add(own).execute().await;
        refused(added, || format!("make a veth pair {POD_INTERFACE} and {}", pod.host_interface))
    }

    /// Makes a bridge in this namespace, and sets it up.
    pub(super) async fn add_bridge(&self, name: &str) -> Result<(), LabError> {
        let bridge = LinkBridge::new(name).up().build();
        refused(self.handle.link().add(bridge).execute().await, || format!("make the bridge {name}"))
    }

    /// Sets the alias of an interface.
    pub(super) async fn mark(&self, name: &str, mark: &str) -> Result<(), LabError> {
        self.change(name, "mark", |link| link.alias(mark)).await
    }

    /// Sets the alias of an interface, and sets it up.
    pub(super) async fn mark_and_raise(&self, name: &str, mark: &str) -> Result<(), LabError> {
        self.change(name, "set up", |link| link.alias(mark).up()).await
    }

    /// Sets an interface up.
    pub(super) async fn raise(&self, name: &str) -> Result<(), LabError> {
        self.change(name, "set up", LinkMessageBuilder::up).await
    }

    /// Sets an interface down.
    pub(super) async fn lower(&self, name: &str) -> Result<(), LabError> {
        self.change(name, "set down", LinkMessageBuilder::down).await
    }

    /// Gives an interface to another namespace, where it is down and has no addresses.
    pub(super) async fn give(&self, name: &str, namespace: BorrowedFd<'_>) -> Result<(), LabError> {
        let fd = namespace.as_raw_fd();
        self.change(name, "give to another namespace", |link| link.setns_by_fd(fd)).await
    }

    /// Makes an interface a port of a bridge.
    pub(super) async fn enslave(&self, name: &str, bridge: &str) -> Result<(), LabError> {
        let bridge = self.index(bridge).await?;
        self.change(name, "put on the bridge", |link| link.controller(bridge).up()).await
    }

    /// Gives an interface an Ethernet address.
    pub(super) async fn set_mac(&self, name: &str, mac: Mac) -> Result<(), LabError> {
        self.change(name, "give an Ethernet address to", |link| link.address(mac.0.to_vec())).await
    }

    /// Removes an interface, and with one end of a veth pair the other.
    pub(super) async fn remove(&self, name: &str) -> Result<(), LabError> {
        let index = self.index(name).await?;
        refused(self.handle.link().del(index).execute().await, || format!("remove interface {name}"))
    }

    /// The alias of an interface; `None` where there is no such interface, empty where it has none.
    pub(super) async fn alias(&self, name: &str) -> Result<Option<String>, LabError> {
        let Some(link) = self.find(name).await? else { return Ok(None) };
        let alias = link.attributes.into_iter().find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias),
            _ => None,
        });
        Ok(Some(alias.unwrap_or_default()))
    }

    /// Gives an interface an address, usable at once: duplicate address detection is off for it.
    pub(super) async fn add_address(&self, name: &str, address: IpAddr) -> Result<(), LabError> {
        let index = self.index(name).await?;
        let alone = if address.is_ipv4() { 32 } else { 128 };
        let mut request = self.handle.address().add(index, address, alone);
        request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        refused(request.execute().await, || format!("give {name} the address {address}"))
    }

    /// Routes a prefix by way of a gateway that needs no route of its own; packets as long as the interface takes, or `mtu`.
    pub(super) async fn add_gateway_route(
        &self,
        name: &str,
        prefix: IpNet,
        gateway: IpAddr,
        mtu: Option<u32>,
    ) -> Result<(), LabError> {
        let index = self.index(name).await?;
        let mut route = match (prefix, gateway) {
            (IpNet::V4(net), IpAddr::V4(gateway)) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .output_interface(index)
                .gateway(gateway)
                .onlink()
                .build(),
            (IpNet::V6(net), IpAddr::V6(gateway)) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .output_interface(index)
                .gateway(gateway)
                .build(),
            _ => return Err(LabError::Plan(format!("{gateway} is no gateway for {prefix}"))),
        };
        let metrics = mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
        route.attributes.extend(metrics);
        refused(self.handle.route().add(route).execute().await, || {
            format!("route {prefix} on {name} by way of {gateway}")
        })
    }

    /// Adds a route to a prefix whose addresses are all on the link.
    pub(super) async fn add_link_route(&self, name: &str, prefix: IpNet) -> Result<(), LabError> {
        let route = self.link_route(name, prefix).await?;
        refused(self.handle.route().add(route).execute().await, || format!("route {prefix} to {name}"))
    }

    /// Removes what [`Links::add_link_route`] added.
    pub(super) async fn remove_link_route(&self, name: &str, prefix: IpNet) -> Result<(), LabError> {
        let route = self.link_route(name, prefix).await?;
        refused(self.handle.route().del(route).execute().await, || format!("remove the route of {prefix}"))
    }

    async fn link_route(
        &self,
        name: &str,
        prefix: IpNet,
    ) -> Result<rtnetlink::packet_route::route::RouteMessage, LabError> {
        use rtnetlink::packet_route::route::RouteScope;
        let index = self.index(name).await?;
        Ok(match prefix {
            IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .scope(RouteScope::Link)
                .output_interface(index)
                .build(),
            IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .output_interface(index)
                .build(),
        })
    }

    async fn change(
        &self,
        name: &str,
        what: &str,
        edit: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec>,
    ) -> Result<(), LabError> {
        let link = edit(LinkUnspec::new_with_index(self.index(name).await?)).build();
        refused(self.handle.link().change(link).execute().await, || format!("{what} interface {name}"))
    }

    async fn index(&self, name: &str) -> Result<u32, LabError> {
        match self.find(name).await? {
            Some(link) => Ok(link.header.index),
            None => Err(io::Error::from_raw_os_error(NO_DEVICE)).doing(|| format!("find interface {name}")),
        }
    }

    async fn find(&self, name: &str) -> Result<Option<LinkMessage>, LabError> {
        let mut found = self.handle.link().get().match_name(name).execute();
        match found.try_next().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -NO_DEVICE => Ok(None),
            found => refused(found, || format!("look for interface {name}")),
        }
    }
}

/// `ENODEV`.
const NO_DEVICE: i32 = rustix::io::Errno::NODEV.raw_os_error();

fn refused<T>(result: Result<T, rtnetlink::Error>, what: impl FnOnce() -> String) -> Result<T, LabError> {
    let as_io = |error| match error {
        rtnetlink::Error::NetlinkError(error) => error.to_io(),
        other => io::Error::other(other.to_string()),
    };
    result.map_err(as_io).doing(what)
}
