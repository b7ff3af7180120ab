//! Events of the kernel's neighbour table: ARP and neighbour discovery (`NUD_*` of `linux/neighbour.h`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rtnetlink::constants::RTMGRP_NEIGH;
use rtnetlink::packet_core::{NLM_F_DUMP, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::neighbour::NeighbourMessage;
use rtnetlink::sys::Socket;

use super::neighbor::{self, Neighbor, NudState};
use super::socket::{messages, receive, send, subscribe};

/// An event of the neighbour table, or of a dump of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeighborEvent {
    /// The state of a neighbour.
    State(Neighbor, NudState),
    /// The end of a dump: the kernel has named every neighbour.
    DumpDone,
    /// Events were lost (`ENOBUFS`): anything may have changed.
    Overrun,
}

/// A netlink socket that receives every event of the neighbour table.
pub(crate) struct NeighborEvents(Socket);

impl NeighborEvents {
    /// Subscribes to the neighbour table of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<NeighborEvents> {
        subscribe(RTMGRP_NEIGH).map(NeighborEvents)
    }

    /// The socket, readable while events wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Requests a dump: an event for every neighbour, then [`NeighborEvent::DumpDone`].
    pub(crate) fn dump(&self) -> io::Result<()> {
        send(&self.0, RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()), NLM_F_DUMP)
    }

    /// Has the kernel resolve a neighbour, or confirm it. The outcome is an event.
    pub(crate) fn resolve(&self, wanted: Neighbor) -> io::Result<()> {
        let (request, flags) = neighbor::resolution_request(wanted);
        send(&self.0, request, flags)
    }

    /// Has the kernel forget a neighbour.
    pub(crate) fn remove(&self, neighbor: Neighbor) -> io::Result<()> {
        send(&self.0, neighbor::removal_request(neighbor), 0)
    }

    /// Reads the events that wait.
    pub(crate) fn events(&self) -> Vec<NeighborEvent> {
        let mut events = Vec::new();
        loop {
            match receive(&self.0) {
                Ok(bytes) => {
                    let bytes = bytes.unwrap_or_default();
                    events.extend(messages(&bytes).filter_map(|message| event(message.payload)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return events,
                Err(error) => {
                    // ENOBUFS: the kernel sends faster than this thread reads.
                    tracing::debug!("events of the neighbour table are lost: {error}");
                    events.push(NeighborEvent::Overrun);
                    return events;
                }
            }
        }
    }
}

fn event(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<NeighborEvent> {
    match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) => {
            Some(NeighborEvent::State(neighbor::address_of(&message)?, neighbor::state_of(&message)))
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(message)) => {
            Some(NeighborEvent::State(neighbor::address_of(&message)?, NudState::Removed))
        }
        NetlinkPayload::Done(_) => Some(NeighborEvent::DumpDone),
        NetlinkPayload::Overrun(_) => Some(NeighborEvent::Overrun),
        NetlinkPayload::Error(error) if error.code.is_some() => {
            tracing::debug!("the kernel does not resolve a neighbour: {}", error.to_io());
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::NetlinkMessage;
    use rtnetlink::packet_route::AddressFamily;
    use rtnetlink::packet_route::neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourState,
    };

    use std::net::IpAddr;

    use super::*;
    use crate::net::mac::Mac;

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

    /// A datagram of several messages, as the kernel sends them.
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
    fn an_event_carries_the_state_of_the_neighbour() {
        let mac = [2, 0, 0, 0, 0, 9];
        let neighbor = (7, IpAddr::from([192, 0, 2, 1]));
        for (state, expected) in [
            (NeighbourState::Reachable, NudState::Reachable(Mac(mac))),
            (NeighbourState::Probe, NudState::Reachable(Mac(mac))),
            (NeighbourState::Stale, NudState::Stale(Mac(mac))),
            (NeighbourState::Permanent, NudState::Permanent(Mac(mac))),
            (NeighbourState::Failed, NudState::Failed),
            (NeighbourState::Incomplete, NudState::Unresolved),
        ] {
            let bytes = datagram(vec![RouteNetlinkMessage::NewNeighbour(message(state, &mac))]);
            let events: Vec<NeighborEvent> =
                messages(&bytes).filter_map(|message| event(message.payload)).collect();
            assert_eq!(events, [NeighborEvent::State(neighbor, expected)]);
        }
    }

    #[test]
    fn several_messages_in_one_datagram_are_all_read_and_a_cut_one_ends_it() {
        let mac = [2, 0, 0, 0, 0, 9];
        let new = RouteNetlinkMessage::NewNeighbour(message(NeighbourState::Reachable, &mac));
        let gone = RouteNetlinkMessage::DelNeighbour(message(NeighbourState::Reachable, &mac));
        let bytes = datagram(vec![new, gone]);
        let events =
            |bytes: &[u8]| messages(bytes).filter_map(|message| event(message.payload)).collect::<Vec<_>>();
        let neighbor = (7, IpAddr::from([192, 0, 2, 1]));
        let all = [
            NeighborEvent::State(neighbor, NudState::Reachable(Mac(mac))),
            NeighborEvent::State(neighbor, NudState::Removed),
        ];
        assert_eq!(events(&bytes), all);
        assert_eq!(events(&bytes[..bytes.len() - 1]), all[..1]);
        assert_eq!(events(&[]), []);
        assert_eq!(events(&[0; 40]), [], "a length of zero leads nowhere");
    }

    #[test]
    fn an_address_that_is_not_ethernet_is_unresolved_and_a_proxy_entry_is_no_neighbour() {
        let long = message(NeighbourState::Reachable, &[0; 20]);
        assert_eq!(neighbor::state_of(&long), NudState::Unresolved);
        let mut proxy = message(NeighbourState::Permanent, &[2; 6]);
        proxy.header.flags = NeighbourFlags::Proxy;
        assert_eq!(neighbor::address_of(&proxy), None);
    }
}
