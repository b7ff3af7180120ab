//! Events of the kernel's interfaces: links that appear, change or go.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rtnetlink::constants::RTMGRP_LINK;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::Socket;

use super::interface::Interface;
use super::socket::{messages, receive, subscribe};

/// Receive buffer of the socket. A message of a veth has some 1,500 bytes, so thousands of events fit.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// An event of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// The link has appeared or changed.
    Present {
        /// Index of the interface.
        index: u32,
        /// Name of the interface.
        name: String,
        /// Whether it has an XDP program.
        has_program: bool,
    },
    /// The link has left this network namespace, or is deleted.
    Removed {
        /// Index of the interface.
        index: u32,
    },
    /// Events were lost (`ENOBUFS`): anything may have changed.
    Overrun,
}

/// A netlink socket that receives every event of a link.
pub(crate) struct LinkEvents(Socket);

impl LinkEvents {
    /// Subscribes to the links of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<LinkEvents> {
        let socket = subscribe(RTMGRP_LINK)?;
        // A smaller buffer is no error: an overrun has everything read again.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket.as_fd(), RECEIVE_BUFFER_BYTES);
        Ok(LinkEvents(socket))
    }

    /// The socket, readable while events wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Hands the events that wait to `handle`, each as soon as it is read.
    pub(crate) fn read(&self, mut handle: impl FnMut(LinkEvent)) {
        loop {
            match receive(&self.0) {
                Ok(bytes) => {
                    let bytes = bytes.unwrap_or_default();
                    messages(&bytes).filter_map(|message| event(message.payload)).for_each(&mut handle);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // ENOBUFS: the kernel sends faster than this thread reads.
                    tracing::debug!("events of links are lost: {error}");
                    handle(LinkEvent::Overrun);
                    return;
                }
            }
        }
    }
}

fn event(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<LinkEvent> {
    // A bridge sends messages about its ports with family AF_BRIDGE. RTM_DELLINK of that family is a port
    // that leaves the bridge, not an interface that is deleted (`br_ifinfo_notify` of
    // `net/bridge/br_netlink.c`).
    let is_link = |message: &LinkMessage| message.header.interface_family == AddressFamily::Unspec;
    match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)) if is_link(&message) => {
            let Interface { index, name, .. } = Interface::from(&message);
            (!name.is_empty()).then(|| LinkEvent::Present { index, name, has_program: has_program(&message) })
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message)) if is_link(&message) => {
            Some(LinkEvent::Removed { index: message.header.index })
        }
        NetlinkPayload::Overrun(_) => Some(LinkEvent::Overrun),
        _ => None,
    }
}

fn has_program(message: &LinkMessage) -> bool {
    let is_one = |xdp: &LinkXdp| match xdp {
        LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id) => {
            *id != 0
        }
        _ => false,
    };
    message
        .attributes
        .iter()
        .any(|attribute| matches!(attribute, LinkAttribute::Xdp(xdp) if xdp.iter().any(is_one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: AddressFamily, attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.interface_family = family;
        message.header.index = 7;
        message.attributes = attributes;
        message
    }

    #[test]
    fn an_interface_that_leaves_a_bridge_is_not_removed() {
        let gone = |family| {
            event(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message(family, vec![]))))
        };
        assert_eq!(gone(AddressFamily::Bridge), None);
        assert_eq!(gone(AddressFamily::Unspec), Some(LinkEvent::Removed { index: 7 }));
    }

    #[test]
    fn an_event_tells_the_name_and_whether_there_is_a_program() {
        let is = |xdp: Vec<LinkXdp>| {
            let attributes = vec![LinkAttribute::IfName("veth0".to_owned()), LinkAttribute::Xdp(xdp)];
            let message = message(AddressFamily::Unspec, attributes);
            event(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)))
        };
        let expected =
            |has_program| Some(LinkEvent::Present { index: 7, name: "veth0".to_owned(), has_program });
        assert_eq!(is(vec![]), expected(false));
        assert_eq!(is(vec![LinkXdp::ProgId(9)]), expected(true));
        assert_eq!(is(vec![LinkXdp::ProgId(0)]), expected(false));
    }
}
