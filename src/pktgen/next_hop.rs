//! Ethernet addresses that nobody gave: the sending interface's own, and the next hop's from the kernel's tables.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use rtnetlink::{Handle, RouteMessageBuilder, new_connection};

use super::{PktgenError, Target};
use crate::net::mac::Mac;

/// So long the kernel may take to find a neighbour.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

impl Target {
    /// The interface's own Ethernet address.
    pub fn mac(&self) -> Result<Mac, PktgenError> {
        Ok(Mac(self.find()?.mac))
    }

    /// The Ethernet address of the next hop to `dst` by this interface: what the kernel knows or, within two seconds, finds
    /// out.
    pub fn next_hop_mac(&self, dst: IpAddr) -> Result<Mac, PktgenError> {
        let index = self.find()?.index;
        let unknown = |why: String| {
            PktgenError::Neighbor(format!(
                "the Ethernet address of {dst} from {self} is not known ({why}): give --dst-mac"
            ))
        };
        self.enter(|| {
            let hop = ask(async |handle| next_hop(&handle, dst).await)
                .map_err(|error| unknown(error.to_string()))?;
            let deadline = Instant::now() + PATIENCE;
            nudge(hop);
            loop {
                let found = ask(async |handle| find(&handle, index, hop).await);
                match found.map_err(|error| unknown(error.to_string()))? {
                    Some(mac) => return Ok(mac),
                    None if Instant::now() > deadline => {
                        return Err(unknown(format!("{hop} does not answer")));
                    }
                    None => thread::sleep(POLL),
                }
            }
        })
    }
}

/// Asks the kernel by netlink, in the namespace of the calling thread.
fn ask<T>(question: impl AsyncFnOnce(Handle) -> Result<T, rtnetlink::Error>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection()?;
        tokio::spawn(connection);
        question(handle).await.map_err(|error| match error {
            rtnetlink::Error::NetlinkError(error) => error.to_io(),
            other => io::Error::other(other.to_string()),
        })
    })
}

/// The gateway to an address, or the address itself on its own link.
async fn next_hop(handle: &Handle, dst: IpAddr) -> Result<IpAddr, rtnetlink::Error> {
    let request: RouteMessage = match dst {
        IpAddr::V4(dst) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(dst, 32).build(),
        IpAddr::V6(dst) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(dst, 128).build(),
    };
    let route = handle.route().get(request).execute().try_next().await?;
    let attributes = route.map(|route| route.attributes).unwrap_or_default();
    let gateway = attributes.into_iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(hop)) => Some(IpAddr::V4(hop)),
        RouteAttribute::Gateway(RouteAddress::Inet6(hop)) => Some(IpAddr::V6(hop)),
        _ => None,
    });
    Ok(gateway.unwrap_or(dst))
}

/// What the neighbour table says.
async fn find(handle: &Handle, index: u32, hop: IpAddr) -> Result<Option<Mac>, rtnetlink::Error> {
    let mut neighbors = handle.neighbours().get().execute();
    while let Some(neighbor) = neighbors.try_next().await? {
        if neighbor.header.ifindex == index
            && let Some(mac) = mac_of(&neighbor, hop)
        {
            return Ok(Some(mac));
        }
    }
    Ok(None)
}

fn mac_of(neighbor: &NeighbourMessage, hop: IpAddr) -> Option<Mac> {
    let is_hop = neighbor.attributes.iter().any(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => hop == IpAddr::V4(*address),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => hop == IpAddr::V6(*address),
        _ => false,
    });
    neighbor.attributes.iter().filter(|_| is_hop).find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(mac) => Some(Mac(mac.as_slice().try_into().ok()?)),
        _ => None,
    })
}

/// Lets the kernel look for a neighbour: it does when it has something to send (to the discard port, RFC 863).
fn nudge(hop: IpAddr) {
    let any: IpAddr = if hop.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    if let Ok(socket) = UdpSocket::bind(SocketAddr::new(any, 0)) {
        // That it cannot be sent is seen by there being no neighbour.
        let _ = socket.send_to(&[], SocketAddr::new(hop, 9));
    }
}
