//! Catalogue of the systems.

mod bridge;
mod cross_connect;
mod dpdk;
mod iptables;
mod kernel;
mod kernel_conntrack;
mod nftables;
mod noop;
mod ovs;
mod palisade;
mod tc_identity;

use ::palisade::lab::PodPorts;

use self::palisade::Palisade;
use crate::system::System;

pub(crate) use noop::{forward, forward_taps};

/// Returns all systems, in the order of their turns.
pub(crate) fn all() -> Vec<Box<dyn System>> {
    vec![
        Box::new(Palisade::of(PodPorts::Veth)),
        Box::new(Palisade::of(PodPorts::Tap)),
        Box::new(Palisade::of(PodPorts::Offload)),
        Box::new(Palisade { rps: true, ..Palisade::of(PodPorts::Offload) }),
        Box::new(Palisade { real_time: true, ..Palisade::of(PodPorts::Veth) }),
        Box::new(Palisade { real_time: true, ..Palisade::of(PodPorts::Tap) }),
        Box::new(noop::Noop(PodPorts::Veth)),
        Box::new(noop::Noop(PodPorts::Tap)),
        Box::new(kernel::Kernel),
        Box::new(bridge::Bridge),
        Box::new(nftables::Nftables),
        Box::new(iptables::Iptables),
        Box::new(tc_identity::TcIdentity),
        Box::new(ovs::Ovs),
        Box::new(dpdk::Dpdk),
    ]
}
