//! Changes of links: veth pairs, bridges, names, states and network namespaces.

use std::os::fd::{AsRawFd, BorrowedFd};

use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoVeth, LinkAttribute, LinkMessage,
};
use rtnetlink::{LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::io::Errno;

use super::NetlinkError;
use super::error::Context;
use super::socket::RouteSocket;
use crate::net::mac::Mac;

/// A veth pair to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Veth<'a> {
    /// Names of the two ends.
    pub(crate) names: [&'a str; 2],
    /// Ethernet address of the first end. The kernel chooses the other one's.
    pub(crate) mac: Mac,
    /// Receive queues and transmit queues of each end.
    pub(crate) queues: u16,
    /// MTU of both ends, bytes.
    pub(crate) mtu: u32,
    /// Network namespace of the second end; that of the first one where absent.
    pub(crate) peer_namespace: Option<BorrowedFd<'a>>,
}

impl RouteSocket {
    /// Makes a veth pair in this network namespace, both ends down. An end that is made elsewhere needs no move, for which the
    /// kernel would wait until every processor has seen it.
    pub(crate) fn add_veth(&self, veth: &Veth<'_>) -> Result<(), NetlinkError> {
        let end = |link: LinkMessageBuilder<LinkVeth>| {
            link.append_extra_attribute(LinkAttribute::NumTxQueues(u32::from(veth.queues)))
                .append_extra_attribute(LinkAttribute::NumRxQueues(u32::from(veth.queues)))
                .mtu(veth.mtu)
        };
        let [name, peer_name] = veth.names;
        let peer = end(LinkMessageBuilder::<LinkVeth>::default().name(peer_name.to_owned()));
        let peer = match veth.peer_namespace {
            Some(namespace) => peer.setns_by_fd(namespace.as_raw_fd()).build(),
            None => peer.build(),
        };
        let link = end(LinkVeth::new(name, peer_name).address(veth.mac.0.to_vec()))
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        self.add_link(link, || format!("make a veth pair {name} and {peer_name}"))
    }

    /// Makes a bridge in this network namespace, and sets it up.
    pub(crate) fn add_bridge(&self, name: &str) -> Result<(), NetlinkError> {
        self.add_link(LinkBridge::new(name).up().build(), || format!("make the bridge {name}"))
    }

    fn add_link(&self, link: LinkMessage, action: impl FnOnce() -> String) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::NewLink(link);
        self.change(request, NLM_F_CREATE | NLM_F_EXCL).context(action)
    }

    /// Sets the alias of an interface, a text without meaning to the kernel.
    pub(crate) fn set_alias(&self, name: &str, alias: &str) -> Result<(), NetlinkError> {
        self.set_link(name, "set the alias of", |link| link.alias(alias))
    }

    /// Sets an interface up.
    pub(crate) fn set_up(&self, name: &str) -> Result<(), NetlinkError> {
        self.set_link(name, "set up", LinkMessageBuilder::up)
    }

    /// Sets an interface down.
    pub(crate) fn set_down(&self, name: &str) -> Result<(), NetlinkError> {
        self.set_link(name, "set down", LinkMessageBuilder::down)
    }

    /// Moves an interface to another network namespace, in which it is down and has no addresses.
    pub(crate) fn set_namespace(&self, name: &str, namespace: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let fd = namespace.as_raw_fd();
        self.set_link(name, "move to another network namespace", |link| link.setns_by_fd(fd))
    }

    /// Makes an interface a port of a bridge, and sets it up.
    pub(crate) fn set_bridge(&self, name: &str, bridge: &str) -> Result<(), NetlinkError> {
        let bridge = self.index(bridge)?;
        self.set_link(name, "put on the bridge", |link| link.controller(bridge).up())
    }

    /// Sets the Ethernet address of an interface.
    pub(crate) fn set_mac(&self, name: &str, mac: Mac) -> Result<(), NetlinkError> {
        self.set_link(name, "set the Ethernet address of", |link| link.address(mac.0.to_vec()))
    }

    /// Sets the MTU of an interface, bytes.
    pub(crate) fn set_mtu(&self, name: &str, mtu: u32) -> Result<(), NetlinkError> {
        self.set_link(name, "set the MTU of", |link| link.mtu(mtu))
    }

    /// Sets the number of segments that the network stack puts into one packet of an interface at most.
    pub(crate) fn set_segments_max(&self, name: &str, segments: u32) -> Result<(), NetlinkError> {
        self.set_link(name, "limit the segments of", |link| {
            link.append_extra_attribute(LinkAttribute::GsoMaxSegs(segments))
        })
    }

    /// Keeps the kernel from giving an interface an IPv6 address of its own, and from sending by it what announces one. Has no
    /// effect in a kernel without IPv6.
    pub(crate) fn set_no_ipv6_address(&self, name: &str) -> Result<(), NetlinkError> {
        let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        self.set_link(name, "keep IPv6 addresses from", |link| {
            link.append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![mode]))
        })
    }

    /// Removes an interface, and with one end of a veth pair the other.
    pub(crate) fn remove_link(&self, name: &str) -> Result<(), NetlinkError> {
        self.remove_link_with_index(self.index(name)?)
    }

    /// Removes the interface with this index.
    pub(crate) fn remove_link_with_index(&self, index: u32) -> Result<(), NetlinkError> {
        let name = format!("number {index}");
        let link = LinkUnspec::new_with_index(index).build();
        self.change(RouteNetlinkMessage::DelLink(link), 0).on(&name, || format!("remove interface {name}"))
    }

    /// Reads the alias of an interface; `None` where there is no such interface, empty where it has none.
    pub(crate) fn alias(&self, name: &str) -> Result<Option<String>, NetlinkError> {
        let link = match self.link(LinkUnspec::new_with_name(name).build()) {
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => return Ok(None),
            link => link.context(|| format!("look for interface {name}"))?,
        };
        let alias = link.attributes.into_iter().find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias),
            _ => None,
        });
        Ok(Some(alias.unwrap_or_default()))
    }

    /// Returns the index of an interface.
    pub(super) fn index(&self, name: &str) -> Result<u32, NetlinkError> {
        let link = self.link(LinkUnspec::new_with_name(name).build());
        link.map(|link| link.header.index).on(name, || format!("look for interface {name}"))
    }

    fn set_link(
        &self,
        name: &str,
        verb: &str,
        edit: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec>,
    ) -> Result<(), NetlinkError> {
        let link = edit(LinkUnspec::new_with_index(self.index(name)?)).build();
        self.change(RouteNetlinkMessage::SetLink(link), 0).on(name, || format!("{verb} interface {name}"))
    }
}
