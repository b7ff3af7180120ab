//! The kernel's bridge between the pods of a lab, the baseline for the switch.
//!
//! The bridge and the pods' host ends are in a namespace of their own, away from the host's packet filters
//! and addresses. The pods get routes that put the pods' prefixes on the link, since a bridge is no gateway.

use std::os::fd::AsFd;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::LabError;
use super::host_ends::move_host_ends;
use super::journal::Journal;
use super::namespace::{Namespace, current};
use super::plan::POD_INTERFACE;
use crate::netlink::{NetlinkError, RouteSocket, raise_host_end};

/// Name of the bridge in its namespace.
const BRIDGE: &str = "br0";

/// Pods connected by the kernel's bridge. Dropped, it moves their host ends back and sets them up.
#[derive(Debug)]
pub struct Bridge {
    journal: Journal,
    namespace: Namespace,
}

impl Bridge {
    pub(super) fn up(journal: &Journal) -> Result<Bridge, LabError> {
        let namespace = Namespace::create(&journal.bridge_netns(), &journal.mark())?;
        let bridge = Bridge { journal: journal.clone(), namespace };
        bridge.connect()?;
        Ok(bridge)
    }

    /// Network namespace of the bridge.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Keeps the bridge until the lab is removed.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    fn connect(&self) -> Result<(), LabError> {
        let names = move_host_ends(&self.journal, &self.namespace)?;
        self.namespace.run(|| {
            let kernel = RouteSocket::open()?;
            kernel.add_bridge(BRIDGE)?;
            names.iter().try_for_each(|name| kernel.set_bridge(name, BRIDGE))
        })??;
        self.in_each_pod(|kernel, prefix| kernel.add_link_route(POD_INTERFACE, prefix))
    }

    fn disconnect(&self) -> Result<(), LabError> {
        let outside = current()?;
        self.in_each_pod(|kernel, prefix| kernel.remove_link_route(POD_INTERFACE, prefix))?;
        self.namespace.run(|| {
            let kernel = RouteSocket::open()?;
            for interface in self.journal.host_ends() {
                kernel.set_down(interface)?;
                kernel.set_namespace(interface, outside.as_fd())?;
            }
            Ok::<(), NetlinkError>(())
        })??;
        self.journal.host_ends().try_for_each(raise_host_end)?;
        self.namespace.remove()
    }

    fn in_each_pod(
        &self,
        change: impl Fn(&RouteSocket, IpNet) -> Result<(), NetlinkError> + Sync,
    ) -> Result<(), LabError> {
        let prefixes = prefixes(&self.journal);
        for pod in &self.journal.pods {
            let inside = Namespace::named(&pod.netns);
            inside.run(|| {
                let kernel = RouteSocket::open()?;
                prefixes.into_iter().try_for_each(|prefix| change(&kernel, prefix))
            })??;
        }
        Ok(())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Err(error) = self.disconnect() {
            // The teardown of the lab removes the rest, which the journal names.
            eprintln!("lab {}: {error}", self.journal.id);
        }
    }
}

/// Returns the longest prefixes that contain all pods' addresses.
fn prefixes(journal: &Journal) -> [IpNet; 2] {
    let v4 = journal.pods.iter().map(|pod| pod.v4().to_bits());
    let v6 = journal.pods.iter().map(|pod| pod.v6().to_bits());
    let common4 = v4.clone().fold(0, |differ, address| differ | (address ^ journal.pods[0].v4().to_bits()));
    let common6 = v6.clone().fold(0, |differ, address| differ | (address ^ journal.pods[0].v6().to_bits()));
    [
        Ipv4Net::new_assert(journal.pods[0].v4(), common4.leading_zeros() as u8).trunc().into(),
        Ipv6Net::new_assert(journal.pods[0].v6(), common6.leading_zeros() as u8).trunc().into(),
    ]
}
