//! Entries of the kernel's neighbour table, and requests to resolve them.

use std::net::IpAddr;

use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::NetlinkError;
use super::error::Context;
use super::socket::RouteSocket;
use crate::net::mac::Mac;

/// A neighbour: the index of the interface, and the IP address.
pub(crate) type Neighbor = (u32, IpAddr);

/// State of a neighbour, by `NUD_*` of `linux/neighbour.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NudState {
    /// No Ethernet address: `NUD_INCOMPLETE`, or an address that is not Ethernet.
    Unresolved,
    /// Nobody has answered: `NUD_FAILED`.
    Failed,
    /// No entry. The kernel has dropped the packets that waited for it.
    Removed,
    /// An address that was confirmed lately or is being confirmed: `NUD_REACHABLE`, `NUD_DELAY`, `NUD_PROBE`.
    Reachable(Mac),
    /// An address that was not confirmed for a while: `NUD_STALE`.
    Stale(Mac),
    /// An address that the operator has entered: `NUD_PERMANENT`, `NUD_NOARP`.
    Permanent(Mac),
}

impl NudState {
    /// The Ethernet address, where the state has one.
    pub(crate) fn mac(self) -> Option<Mac> {
        match self {
            NudState::Unresolved | NudState::Failed | NudState::Removed => None,
            NudState::Reachable(mac) | NudState::Stale(mac) | NudState::Permanent(mac) => Some(mac),
        }
    }
}

impl RouteSocket {
    /// Reads the states of all neighbours.
    pub(crate) fn neighbors(&self) -> Result<Vec<(Neighbor, NudState)>, NetlinkError> {
        let replies = self.dump(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()));
        let replies = replies.context(|| "list neighbours".to_owned())?;
        let entries = replies.iter().filter_map(|reply| match reply {
            RouteNetlinkMessage::NewNeighbour(message) => Some((address_of(message)?, state_of(message))),
            _ => None,
        });
        Ok(entries.collect())
    }

    /// Has the kernel resolve a neighbour.
    pub(crate) fn resolve(&self, neighbor: Neighbor) -> Result<(), NetlinkError> {
        let (request, flags) = resolution_request(neighbor);
        self.change(request, flags).context(|| format!("resolve neighbour {}", neighbor.1))
    }
}

/// The request to resolve or confirm a neighbour as if a packet waited for it: `NTF_USE`, for which
/// `neigh_add` of `net/core/neighbour.c` calls `neigh_event_send`.
pub(super) fn resolution_request((interface, address): Neighbor) -> (RouteNetlinkMessage, u16) {
    let mut message = NeighbourMessage::default();
    message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.ifindex = interface;
    message.header.state = NeighbourState::None;
    message.header.flags = NeighbourFlags::Use;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    (RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// The request to remove a neighbour.
pub(super) fn removal_request((interface, address): Neighbor) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.ifindex = interface;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    RouteNetlinkMessage::DelNeighbour(message)
}

/// The neighbour that a message is about; `None` for a proxy entry: it is an address that the
/// kernel itself answers for (`NTF_PROXY`).
pub(super) fn address_of(message: &NeighbourMessage) -> Option<Neighbor> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })?;
    Some((message.header.ifindex, address))
}

/// Returns the state in a message.
pub(super) fn state_of(message: &NeighbourMessage) -> NudState {
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(address) => Some(Mac(address.as_slice().try_into().ok()?)),
        _ => None,
    });
    if message.header.state == NeighbourState::Failed {
        return NudState::Failed;
    }
    let Some(mac) = mac else { return NudState::Unresolved };
    match message.header.state {
        NeighbourState::Reachable | NeighbourState::Delay | NeighbourState::Probe => NudState::Reachable(mac),
        NeighbourState::Stale => NudState::Stale(mac),
        NeighbourState::Permanent | NeighbourState::Noarp => NudState::Permanent(mac),
        _ => NudState::Unresolved,
    }
}
