//! Requests over a netlink socket and the replies to them (netlink(7)), in the network namespace of the
//! thread that opens it.
//!
//! The kernel answers a request before `send` returns, so a reply is never waited for long and no event loop
//! is needed.

use std::fmt::Debug;
use std::io;

use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::NetlinkError;
use super::error::Context;

/// Bytes of `struct nlmsghdr` of `linux/netlink.h`.
const HEADER_BYTES: usize = 16;

/// A netlink socket that takes one request at a time.
#[derive(Debug)]
pub(super) struct RequestSocket(Socket);

/// Requests of rtnetlink (rtnetlink(7)): links, addresses, routes and neighbours of one network namespace.
#[derive(Debug)]
pub(crate) struct RouteSocket(RequestSocket);

impl RequestSocket {
    /// Opens a socket for a protocol, `NETLINK_*` of `linux/netlink.h`.
    pub(super) fn open(protocol: isize) -> io::Result<RequestSocket> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        Ok(RequestSocket(socket))
    }

    /// Sends a request and returns the messages of its reply, up to the acknowledgement or the end of a dump.
    ///
    /// # Errors
    /// The error number that the kernel answers with, as [`io::Error::raw_os_error`].
    pub(super) fn request<M>(&self, payload: impl Into<NetlinkPayload<M>>, flags: u16) -> io::Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        let flags = if flags & NLM_F_DUMP == NLM_F_DUMP { flags } else { flags | NLM_F_ACK };
        send(&self.0, payload, flags)?;
        let mut replies = Vec::new();
        loop {
            let Some(bytes) = receive(&self.0)? else { continue };
            for message in messages::<M>(&bytes) {
                match message.payload {
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    NetlinkPayload::Done(_) => return Ok(replies),
                    // struct nlmsgerr: "Negative errno or 0 for acknowledgements" (netlink(7)).
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(replies),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Overrun(_) => return Err(io::Error::other("a netlink reply is cut off")),
                    _ => {}
                }
            }
        }
    }
}

impl RouteSocket {
    /// Opens a socket in the network namespace of the calling thread.
    pub(crate) fn open() -> Result<RouteSocket, NetlinkError> {
        RequestSocket::open(NETLINK_ROUTE).map(RouteSocket).context(|| "open a netlink socket".to_owned())
    }

    /// Reads one object. A reply that the library does not decode is an error.
    pub(super) fn get(&self, request: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.0.request(request, 0)?.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads one link.
    ///
    /// # Errors
    /// `ENODEV` where there is none that fits.
    pub(super) fn link(&self, request: LinkMessage) -> io::Result<LinkMessage> {
        match self.get(RouteNetlinkMessage::GetLink(request))? {
            RouteNetlinkMessage::NewLink(link) => Ok(link),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Reads every object of a kind.
    pub(super) fn dump(&self, request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.0.request(request, NLM_F_DUMP)
    }

    /// Makes, changes or removes an object, with `NLM_F_CREATE` and the like as `flags`.
    pub(super) fn change(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.0.request(request, flags).map(drop)
    }
}

/// Sends one message.
pub(super) fn send<M>(socket: &Socket, payload: impl Into<NetlinkPayload<M>>, flags: u16) -> io::Result<()>
where
    M: NetlinkSerializable,
{
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload.into());
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Reads one datagram; `None` where a process sent it or a signal interrupted the call.
pub(super) fn receive(socket: &Socket) -> io::Result<Option<Vec<u8>>> {
    match socket.recv_from_full() {
        // Any process may send to a netlink socket. The kernel alone has port 0 (netlink(7), nl_pid).
        Ok((bytes, from)) => Ok((from.port_number() == 0).then_some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a socket that the kernel sends the events of a multicast group to (`RTMGRP_*` of
/// `linux/rtnetlink.h`). Reading from it does not block.
pub(super) fn subscribe(group: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, group))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Decodes the messages of a datagram, up to the first one that is cut off. Messages that the library does
/// not decode are left out.
pub(super) fn messages<M: NetlinkDeserializable>(
    mut bytes: &[u8],
) -> impl Iterator<Item = NetlinkMessage<M>> {
    std::iter::from_fn(move || {
        loop {
            let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
            let message =
                NetlinkMessage::deserialize(bytes.get(..length).filter(|_| length >= HEADER_BYTES)?);
            // NLMSG_ALIGNTO of `linux/netlink.h`: a message begins at a multiple of four bytes.
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            if let Ok(message) = message {
                return Some(message);
            }
        }
    })
}
