//! Ethernet addresses that the traffic leaves out: the sending interface's own, and the next hop's from the
//! kernel's tables.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::{PktgenError, Target};
use crate::net::mac::Mac;
use crate::netlink::{NetlinkError, NudState, RouteSocket};

/// Longest wait for the kernel to resolve a neighbour, and the time between two looks at it.
const RESOLUTION_MAX: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

impl Target {
    /// The interface's own Ethernet address.
    pub fn mac(&self) -> Result<Mac, PktgenError> {
        Ok(self.find()?.mac)
    }

    /// Finds the Ethernet address of the next hop to `dst` by this interface. The kernel knows it, or
    /// resolves it within two seconds.
    pub fn next_hop_mac(&self, dst: IpAddr) -> Result<Mac, PktgenError> {
        let index = self.find()?.index;
        let unknown = |reason: String| {
            PktgenError::Neighbor(format!(
                "the Ethernet address of {dst} from {self} is not known ({reason}): give --dst-mac"
            ))
        };
        self.enter(|| {
            let refused = |error: NetlinkError| unknown(error.to_string());
            let kernel = RouteSocket::open().map_err(refused)?;
            let hop = (index, kernel.next_hop(dst).map_err(refused)?);
            let deadline = Instant::now() + RESOLUTION_MAX;
            let mut is_asked = false;
            loop {
                let neighbors = kernel.neighbors().map_err(refused)?;
                let known = neighbors.into_iter().find(|(neighbor, _)| *neighbor == hop);
                match known.and_then(|(_, state)| NudState::mac(state)) {
                    Some(mac) => return Ok(mac),
                    None if Instant::now() > deadline => {
                        return Err(unknown(format!("{} does not answer", hop.1)));
                    }
                    None if !is_asked => {
                        kernel.resolve(hop).map_err(refused)?;
                        is_asked = true;
                    }
                    None => thread::sleep(POLL),
                }
            }
        })
    }
}
