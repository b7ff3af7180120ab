//! The kernel's rtnetlink: interfaces and neighbours, as they come and go.

mod link_monitor;
mod neighbor_monitor;

pub(crate) use link_monitor::{LinkNews, LinkTable, programs_on};
pub(crate) use neighbor_monitor::{Neighbor, NeighborTable, News, Standing, vlan_device};

use std::io;

use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::Socket;

pub(crate) fn send(socket: &Socket, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// The messages in a datagram, as far as they can be read.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> {
    std::iter::from_fn(move || {
        loop {
            let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
            let message = NetlinkMessage::deserialize(bytes.get(..length).filter(|_| length >= 16)?);
            // Each begins at a multiple of four bytes (netlink(7)).
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            // A message of a kind that the library does not know is none of ours.
            if let Ok(message) = message {
                return Some(message);
            }
        }
    })
}
