//! Source addresses that packets of a port may have.

use super::Snapshot;
use crate::dataplane::PortKind;
use crate::dataplane::fib::next_hop::Hop;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::service::ServiceFib;
use crate::ids::PortId;
use crate::net::address::{self, Address};

impl Snapshot {
    /// Whether packets from the address `source` may come by a port.
    pub(crate) fn may_send(&self, port: &PortView, id: PortId, source: Address) -> bool {
        if port.is_pod() {
            port.owns(source)
        } else {
            // Behind ports without a pod there may be routers: any source address is allowed, except one that
            // is known to be elsewhere, and one of Services inside the cluster: the switch alone sends from that. The
            // node is not behind an uplink, and what its kernel forwards may be from any card, but not from pods of other
            // nodes, which come by an uplink.
            let is_own = |services: &ServiceFib| {
                services.is_cluster_address(source)
                    || port.kind == PortKind::Uplink && services.is_node_address(source)
            };
            let poses_as_pod = || port.kind == PortKind::Host && self.is_of_another_node(source, id);
            !address::is_group(source)
                && !self.is_elsewhere(source, id)
                && !poses_as_pod()
                && !self.services().is_some_and(is_own)
        }
    }

    /// Whether an address is in a prefix of another node's pods, behind another port than this one.
    fn is_of_another_node(&self, address: Address, port: PortId) -> bool {
        let number = self.hop_number(address).map(|number| number as usize);
        number.is_some_and(|number| {
            self.to_other_pods[number] && matches!(self.hops[number], Hop::Port(out, _) if out != port)
        })
    }

    /// Whether an address is the switch's own, in a prefix of this node's pods without a pod, or that of a
    /// pod or the node behind a port other than this one.
    pub(crate) fn is_elsewhere(&self, address: Address, port: PortId) -> bool {
        match self.hop(address) {
            Some(Hop::Gateway | Hop::Nowhere) => true,
            Some(Hop::Port(out, _)) if out != port => self.port(out).is_some_and(|out| out.owns(address)),
            _ => false,
        }
    }
}
