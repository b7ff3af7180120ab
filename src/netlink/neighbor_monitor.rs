//! The kernel's neighbour table, followed; and the VLAN device of an interface.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rtnetlink::constants::RTMGRP_NEIGH;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NetlinkPayload};
use rtnetlink::packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::{messages, send};
use crate::net::mac::Mac;

/// A neighbour: the kernel's number of the interface, and its address.
pub(crate) type Neighbor = (u32, IpAddr);

/// What the kernel says of its neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// A neighbour is as follows.
    Is(Neighbor, Standing),
    /// All neighbours have been named.
    AllNamed,
    /// Messages were lost.
    Lost,
}

/// What the kernel knows of a neighbour (`NUD_*` of `linux/neighbour.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No Ethernet address, or none any more.
    Unknown,
    /// Nothing: the kernel has forgotten it, and what it was asked about it.
    Gone,
    /// This address, which is being confirmed or has been of late.
    Confirmed(Mac),
    /// This address, which nobody has confirmed for a while.
    Stale(Mac),
    /// This address, because the operator says so.
    Permanent(Mac),
}

/// A netlink socket that hears of every change of the neighbour table.
pub(crate) struct NeighborTable(Socket);

impl NeighborTable {
    /// The table of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<NeighborTable> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, RTMGRP_NEIGH))?;
        socket.set_non_blocking(true)?;
        Ok(NeighborTable(socket))
    }

    /// Readable while there is news.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Has the kernel name all neighbours.
    pub(crate) fn ask_for_all(&self) -> io::Result<()> {
        send(&self.0, RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()), NLM_F_DUMP)
    }

    /// Has the kernel resolve a neighbour, or confirm it, as if it had a packet for it (`neigh_event_send` of
    /// `net/core/neighbour.c`).
    pub(crate) fn resolve(&self, (interface, address): Neighbor) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.ifindex = interface;
        message.header.state = NeighbourState::None;
        message.header.flags = NeighbourFlags::Use;
        message.attributes.push(NeighbourAttribute::Destination(address.into()));
        send(&self.0, RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// The news that have come.
    pub(crate) fn news(&self) -> Vec<News> {
        let mut news = Vec::new();
        loop {
            match self.0.recv_from_full() {
                // Only the kernel has number 0; anybody may send to a netlink socket.
                Ok((bytes, from)) if from.port_number() == 0 => {
                    news.extend(messages(&bytes).filter_map(|message| said(message.payload)));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return news,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // ENOBUFS: they came faster than they were read.
                    tracing::debug!("messages of the neighbour table are lost: {error}");
                    news.push(News::Lost);
                    return news;
                }
            }
        }
    }
}

/// The VLAN device for tag `vlan` over the interface with this number, in the calling thread's network namespace.
pub(crate) fn vlan_device(interface: u32, vlan: u16) -> io::Result<Option<String>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    send(&socket, RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
    let mut found = None;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        for message in messages(&bytes) {
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    found = found.or_else(|| vlan_name(&link, interface, vlan));
                }
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
    }
}

fn vlan_name(link: &LinkMessage, interface: u32, vlan: u16) -> Option<String> {
    let has = |wanted: &dyn Fn(&LinkAttribute) -> bool| link.attributes.iter().any(wanted);
    let is_tag = |info: &LinkInfo| matches!(info, LinkInfo::Data(InfoData::Vlan(vlans)) if vlans.contains(&InfoVlan::Id(vlan)));
    let fits = has(&|attribute| *attribute == LinkAttribute::Link(interface))
        && has(&|attribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(is_tag)));
    link.attributes.iter().filter(|_| fits).find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

fn said(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<News> {
    match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) => {
            Some(News::Is(neighbor(&message)?, standing(&message)))
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(message)) => {
            Some(News::Is(neighbor(&message)?, Standing::Gone))
        }
        NetlinkPayload::Done(_) => Some(News::AllNamed),
        NetlinkPayload::Overrun(_) => Some(News::Lost),
        NetlinkPayload::Error(error) if error.code.is_some() => {
            tracing::debug!("the kernel does not resolve a neighbour: {}", error.to_io());
            None
        }
        _ => None,
    }
}

fn neighbor(message: &NeighbourMessage) -> Option<Neighbor> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    });
    // A proxy entry says for whom the kernel answers, not who is there.
    let is_proxy = message.header.flags.contains(NeighbourFlags::Proxy);
    Some((message.header.ifindex, address.filter(|_| !is_proxy)?))
}

fn standing(message: &NeighbourMessage) -> Standing {
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Some(Mac(bytes.as_slice().try_into().ok()?)),
        _ => None,
    });
    let Some(mac) = mac else { return Standing::Unknown };
    match message.header.state {
        NeighbourState::Reachable | NeighbourState::Delay | NeighbourState::Probe => Standing::Confirmed(mac),
        NeighbourState::Stale => Standing::Stale(mac),
        NeighbourState::Permanent | NeighbourState::Noarp => Standing::Permanent(mac),
        _ => Standing::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::NetlinkMessage;

    use super::*;

    fn message(state: NeighbourState, mac: &[u8]) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = 7;
        message.header.state = state;
        message
            .attributes
            .push(NeighbourAttribute::Destination(NeighbourAddress::Inet([192, 0, 2, 1].into())));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        message
    }

    /// As the kernel sends them: one datagram of several messages.
    fn datagram(messages: Vec<RouteNetlinkMessage>) -> Vec<u8> {
        let mut datagram = Vec::new();
        for message in messages {
            let mut message = NetlinkMessage::from(message);
            message.finalize();
            let mut bytes = vec![0; message.buffer_len()];
            message.serialize(&mut bytes);
            datagram.extend(bytes);
        }
        datagram
    }

    #[test]
    fn what_the_kernel_says_of_a_neighbour_is_read_by_its_state() {
        let mac = [2, 0, 0, 0, 0, 9];
        let neighbor = (7, IpAddr::from([192, 0, 2, 1]));
        for (state, expected) in [
            (NeighbourState::Reachable, Standing::Confirmed(Mac(mac))),
            (NeighbourState::Probe, Standing::Confirmed(Mac(mac))),
            (NeighbourState::Stale, Standing::Stale(Mac(mac))),
            (NeighbourState::Permanent, Standing::Permanent(Mac(mac))),
            (NeighbourState::Failed, Standing::Unknown),
            (NeighbourState::Incomplete, Standing::Unknown),
        ] {
            let bytes = datagram(vec![RouteNetlinkMessage::NewNeighbour(message(state, &mac))]);
            let heard: Vec<News> = messages(&bytes).filter_map(|message| said(message.payload)).collect();
            assert_eq!(heard, [News::Is(neighbor, expected)]);
        }
    }

    #[test]
    fn several_messages_in_one_datagram_are_all_read_and_a_cut_one_ends_it() {
        let mac = [2, 0, 0, 0, 0, 9];
        let new = RouteNetlinkMessage::NewNeighbour(message(NeighbourState::Reachable, &mac));
        let gone = RouteNetlinkMessage::DelNeighbour(message(NeighbourState::Reachable, &mac));
        let bytes = datagram(vec![new, gone]);
        let heard =
            |bytes: &[u8]| messages(bytes).filter_map(|message| said(message.payload)).collect::<Vec<_>>();
        let neighbor = (7, IpAddr::from([192, 0, 2, 1]));
        let all = [News::Is(neighbor, Standing::Confirmed(Mac(mac))), News::Is(neighbor, Standing::Gone)];
        assert_eq!(heard(&bytes), all);
        assert_eq!(heard(&bytes[..bytes.len() - 1]), all[..1]);
        assert_eq!(heard(&[]), []);
        assert_eq!(heard(&[0; 40]), [], "a length of zero leads nowhere");
    }

    #[test]
    fn an_address_that_is_not_ethernet_and_a_proxy_entry_are_nobodys() {
        let long = message(NeighbourState::Reachable, &[0; 20]);
        assert_eq!(standing(&long), Standing::Unknown);
        let mut proxy = message(NeighbourState::Permanent, &[2; 6]);
        proxy.header.flags = NeighbourFlags::Proxy;
        assert_eq!(neighbor(&proxy), None);
    }
}
