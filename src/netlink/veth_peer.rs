//! Other end of a veth pair.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};

use super::error::Context;
use super::interface::request_for;
use super::namespace::DIRECTORY;
use super::socket::RouteSocket;
use super::{Interface, NetlinkError, NetworkNamespace};

/// Most named namespaces that are compared with that of a peer.
const NAMESPACES_MAX: usize = 4096;

/// Other end of a veth pair.
#[derive(Debug)]
pub struct VethPeer {
    /// Index in its network namespace.
    pub index: u32,
    /// Namespace, where it is not that of the calling thread.
    pub namespace: Option<NetworkNamespace>,
}

impl VethPeer {
    /// Finds the other end of `interface`: in the calling thread's network namespace or in a named one
    /// (ip-netns(8)).
    pub fn of(interface: &Interface) -> Result<VethPeer, NetlinkError> {
        let failed = |reason: &str| {
            let action = || format!("find the other end of interface {}", interface.name);
            Err(io::Error::other(reason.to_owned())).context(action)
        };
        let socket = RouteSocket::open()?;
        let (index, number) = VethPeer::place_of(interface, &socket)?;
        let Some(number) = number else { return Ok(VethPeer { index, namespace: None }) };
        match named_namespace(&socket, number) {
            Some(namespace) => Ok(VethPeer { index, namespace: Some(namespace) }),
            None => failed("it is in a network namespace without a name below /run/netns"),
        }
    }

    /// Whether the other end of `interface` is in another network namespace than the calling thread. Fails for an interface
    /// that is no end of a veth pair.
    pub fn is_elsewhere(interface: &Interface) -> Result<bool, NetlinkError> {
        VethPeer::place_of(interface, &RouteSocket::open()?).map(|(_, number)| number.is_some())
    }

    /// Index of the other end of `interface`, and the number of its namespace where that is another one.
    fn place_of(interface: &Interface, socket: &RouteSocket) -> Result<(u32, Option<i64>), NetlinkError> {
        let name = &interface.name;
        let action = || format!("find the other end of interface {name}");
        let failed = |reason: &str| Err(io::Error::other(reason.to_owned())).context(action);
        if interface.kind.as_deref() != Some("veth") {
            return failed("it is no end of a veth pair");
        }
        let link = socket.link(request_for(interface.index)).on(name, action)?;
        let find = |of: fn(&LinkAttribute) -> Option<i64>| link.attributes.iter().find_map(of);
        // IFLA_LINK is the peer's index, in the namespace with the number IFLA_LINK_NETNSID (`linux/if_link.h`).
        let index = find(|attribute| match attribute {
            LinkAttribute::Link(index) => Some(i64::from(*index)),
            _ => None,
        });
        let number = find(|attribute| match attribute {
            LinkAttribute::LinkNetNsId(number) => Some(i64::from(*number)),
            _ => None,
        });
        let Some(index) = index.and_then(|index| u32::try_from(index).ok()).filter(|index| *index > 0) else {
            return failed("the kernel does not tell it");
        };
        Ok((index, number))
    }

    /// Runs `f` in the network namespace of the peer.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.namespace {
            Some(namespace) => namespace.run(f),
            None => Ok(f()),
        }
    }
}

/// Named namespace that has this number in the namespace of `socket`.
fn named_namespace(socket: &RouteSocket, number: i64) -> Option<NetworkNamespace> {
    let entries = fs::read_dir(DIRECTORY).ok()?.flatten().take(NAMESPACES_MAX);
    let opened = entries.filter_map(|entry| NetworkNamespace::open(entry.file_name().to_str()?).ok());
    let mut opened = opened.into_iter();
    opened.find(|namespace| number_of(socket, namespace) == Some(number))
}

/// Number of a namespace in that of `socket` (`RTM_GETNSID`); `None` without one.
fn number_of(socket: &RouteSocket, namespace: &NetworkNamespace) -> Option<i64> {
    let mut request = NsidMessage::default();
    request.attributes.push(NsidAttribute::Fd(namespace.as_fd().as_raw_fd().cast_unsigned()));
    let RouteNetlinkMessage::NewNsId(reply) = socket.get(RouteNetlinkMessage::GetNsId(request)).ok()? else {
        return None;
    };
    // NETNSA_NSID_NOT_ASSIGNED is -1.
    reply.attributes.iter().find_map(|attribute| match attribute {
        NsidAttribute::Id(number) if *number >= 0 => Some(i64::from(*number)),
        _ => None,
    })
}
