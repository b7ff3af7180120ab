//! Addresses that lie on this node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::net::address::{Address, pack};

/// Addresses of this node. Services take none of them, and backends with one of them are local.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LocalAddresses {
    /// Addresses of pods and of the switch, in order.
    pods: Box<[Address]>,
    /// Addresses of the node's own network stack, in order.
    node: Box<[Address]>,
    /// Prefixes of routes to ports other than uplinks.
    prefixes: Box<[IpNet]>,
    /// Families in which clients outside reach backends elsewhere, with an address of the node: IPv4, IPv6.
    carried: [bool; 2],
}

impl LocalAddresses {
    /// Collects the addresses of pods and of the switch, those of the node, and the prefixes of routes to ports of this
    /// node. `carried`: families in which clients outside reach backends elsewhere, IPv4 and IPv6.
    pub(crate) fn new(
        pods: impl Iterator<Item = Address>,
        node: impl Iterator<Item = Address>,
        prefixes: impl Iterator<Item = IpNet>,
        carried: [bool; 2],
    ) -> LocalAddresses {
        LocalAddresses { pods: sorted(pods), node: sorted(node), prefixes: prefixes.collect(), carried }
    }

    /// Families in which clients outside reach backends elsewhere: IPv4, IPv6.
    pub(super) fn carried(&self) -> [bool; 2] {
        self.carried
    }

    /// Whether a pod of this node or the switch has an address.
    pub(super) fn is_pod(&self, address: Address) -> bool {
        self.pods.binary_search(&address).is_ok()
    }

    /// Whether packets to an address may leave by a port of this node. The routes decide it.
    pub(super) fn may_have(&self, address: IpAddr) -> bool {
        let packed = pack(address);
        self.is_pod(packed)
            || self.node.binary_search(&packed).is_ok()
            || self.prefixes.iter().any(|prefix| prefix.contains(&address))
    }

    /// Addresses that have come or gone since these. `None` if prefixes or families have.
    pub(super) fn moved(&self, since: &LocalAddresses) -> Option<Vec<Address>> {
        let (now, then): (BTreeSet<Address>, BTreeSet<Address>) =
            (self.iter().collect(), since.iter().collect());
        ((&self.prefixes, self.carried) == (&since.prefixes, since.carried))
            .then(|| now.symmetric_difference(&then).copied().collect())
    }

    /// Addresses of pods, of the switch and of the node.
    pub(super) fn iter(&self) -> impl Iterator<Item = Address> {
        self.pods.iter().chain(&self.node).copied()
    }
}

fn sorted(addresses: impl Iterator<Item = Address>) -> Box<[Address]> {
    let mut addresses: Vec<Address> = addresses.collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into()
}
