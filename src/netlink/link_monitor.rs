//! The kernel's interfaces, followed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rtnetlink::constants::RTMGRP_LINK;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::{messages, send};

/// Bytes of messages that may wait to be read. A message of a veth is some 1,500 bytes: thousands of changes at once are heard of.
const BACKLOG_BYTES: usize = 8 << 20;

/// Facts of an interface, from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkNews {
    /// It is there, or has changed.
    Is {
        /// The kernel's number of it.
        index: u32,
        /// Its name.
        name: String,
        /// Whether it has an XDP program.
        has_program: bool,
    },
    /// It is gone, from this network namespace at least.
    Gone {
        /// The kernel's number of it.
        index: u32,
    },
    /// Messages were lost: anything may have changed.
    Lost,
}

/// A netlink socket that hears of every change of an interface.
pub(crate) struct LinkTable(Socket);

impl LinkTable {
    /// The interfaces of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<LinkTable> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        // A smaller backlog serves: what is lost is read again.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket.as_fd(), BACKLOG_BYTES);
        socket.bind(&SocketAddr::new(0, RTMGRP_LINK))?;
        socket.set_non_blocking(true)?;
        Ok(LinkTable(socket))
    }

    /// Readable while there is news.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Hands the news that have come to `hear`, each as soon as it is read.
    pub(crate) fn read(&self, mut hear: impl FnMut(LinkNews)) {
        loop {
            match self.0.recv_from_full() {
                // Only the kernel has number 0; anybody may send to a netlink socket.
                Ok((bytes, from)) if from.port_number() == 0 => {
                    messages(&bytes).filter_map(|message| said(message.payload)).for_each(&mut hear);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // ENOBUFS: they came faster than they were read.
                    tracing::debug!("messages about interfaces are lost: {error}");
                    hear(LinkNews::Lost);
                    return;
                }
            }
        }
    }
}

fn said(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<LinkNews> {
    // Bridges speak of their ports with a family of their own: that one leaves a bridge does not mean that it is gone.
    let is_link = |message: &LinkMessage| message.header.interface_family == AddressFamily::Unspec;
    match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)) if is_link(&message) => {
            let name = message.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            })?;
            Some(LinkNews::Is { index: message.header.index, name, has_program: has_program(&message) })
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message)) if is_link(&message) => {
            Some(LinkNews::Gone { index: message.header.index })
        }
        NetlinkPayload::Overrun(_) => Some(LinkNews::Lost),
        _ => None,
    }
}

/// Ids of the XDP programs on the interface with this number, in the driver, in the generic hook and in the hardware; 0 is none. Asks about
/// this interface alone: a list of all takes as long as there are many.
pub(crate) fn programs_on(index: u32) -> io::Result<[u32; 3]> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    let mut question = LinkMessage::default();
    question.header.index = index;
    send(&socket, RouteNetlinkMessage::GetLink(question), 0)?;
    let (bytes, _) = socket.recv_from_full()?;
    let answer = messages(&bytes).next().map(|message| message.payload);
    match answer {
        Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link))) => Ok(programs(&link)),
        Some(NetlinkPayload::Error(error)) => Err(error.to_io()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn programs(message: &LinkMessage) -> [u32; 3] {
    let mut programs = [0; 3];
    for attribute in &message.attributes {
        let LinkAttribute::Xdp(xdp) = attribute else { continue };
        for part in xdp {
            match part {
                LinkXdp::DrvProgId(id) => programs[0] = *id,
                LinkXdp::SkbProgId(id) => programs[1] = *id,
                LinkXdp::HwProgId(id) => programs[2] = *id,
                _ => {}
            }
        }
    }
    programs
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
    fn an_interface_that_leaves_a_bridge_is_not_gone() {
        let gone = |family| {
            said(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message(family, vec![]))))
        };
        assert_eq!(gone(AddressFamily::Bridge), None);
        assert_eq!(gone(AddressFamily::Unspec), Some(LinkNews::Gone { index: 7 }));
    }

    #[test]
    fn what_is_said_of_an_interface_is_its_name_and_whether_it_has_a_program() {
        let is = |xdp: Vec<LinkXdp>| {
            let attributes = vec![LinkAttribute::IfName("veth0".to_owned()), LinkAttribute::Xdp(xdp)];
            let message = message(AddressFamily::Unspec, attributes);
            said(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)))
        };
        let expected = |has_program| Some(LinkNews::Is { index: 7, name: "veth0".to_owned(), has_program });
        assert_eq!(is(vec![]), expected(false));
        assert_eq!(is(vec![LinkXdp::ProgId(9)]), expected(true));
        assert_eq!(is(vec![LinkXdp::ProgId(0)]), expected(false));
    }
}
