//! A port of one generation: its properties, its pod, and the policy of that pod.

use std::net::IpAddr;

use crate::dataplane::PortKind;
use crate::ids::{AclId, AttachmentId, ClassId, Generation};
use crate::limits::POD_ADDRESSES_MAX;
use crate::net::address::{Address, from_v4, pack};
use crate::net::mac::Mac;

/// What the pod behind a port may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyMode {
    /// Nobody asks: not a pod.
    None,
    /// Nothing: the tables do not know the pod, or there are none.
    Closed,
    /// Everything: unknown, and the operator wants it so.
    Open,
    /// What its tables say.
    Tables {
        /// Table for flows in.
        ingress: AclId,
        /// Table for flows out.
        egress: AclId,
    },
}

/// A port, as of one generation.
#[derive(Debug, Clone)]
pub(crate) struct PortView {
    /// What it is for.
    pub kind: PortKind,
    /// 802.1Q identifier of its frames, 0 without.
    pub vlan: u16,
    /// Largest IP packet that it takes.
    pub mtu: u16,
    /// The pod behind it.
    pub attachment: AttachmentId,
    /// The generation since which that pod has been there, by the same addresses. `None` without a pod, and where another
    /// one has one of its addresses too.
    pub(super) attached_since: Option<Generation>,
    /// What that pod may do.
    pub policy_mode: PolicyMode,
    /// Ethernet address behind it, if given.
    pub mac: Option<Mac>,
    /// Ethernet address that frames come to and leave from: the switch's, on an uplink the NIC's.
    pub own_mac: Mac,
    /// First addresses of the pod: IPv6, IPv4. Where it has none, one that no packet of that family has.
    pub(super) pod_addresses: [Address; 2],
    /// The classes of those by the tables.
    pub(super) pod_classes: [ClassId; 2],
    addresses: [Address; POD_ADDRESSES_MAX],
    addresses_len: usize,
}

/// No address of IPv6 packets and of IPv4 packets: each is of the other family.
const NO_ADDRESSES: [Address; 2] = [from_v4(0), 0];

/// What the control side knows of an open port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortProperties {
    pub kind: PortKind,
    pub vlan: u16,
    pub mtu: u16,
    /// Of an uplink, the NIC's Ethernet address.
    pub mac: Option<Mac>,
}

impl PortView {
    pub(super) fn new(properties: PortProperties, gateway: Mac) -> PortView {
        PortView {
            kind: properties.kind,
            vlan: properties.vlan,
            mtu: properties.mtu,
            attachment: AttachmentId::NONE,
            attached_since: None,
            policy_mode: if properties.kind == PortKind::Pod { PolicyMode::Closed } else { PolicyMode::None },
            mac: None,
            own_mac: properties.mac.unwrap_or(gateway),
            pod_addresses: NO_ADDRESSES,
            pod_classes: [ClassId::WORLD; 2],
            addresses: [0; POD_ADDRESSES_MAX],
            addresses_len: 0,
        }
    }

    pub(super) fn set_addresses(&mut self, addresses: &[IpAddr], mac: Option<Mac>) {
        let addresses = &addresses[..addresses.len().min(POD_ADDRESSES_MAX)];
        for (slot, address) in self.addresses.iter_mut().zip(addresses) {
            *slot = pack(*address);
        }
        self.addresses_len = addresses.len();
        self.mac = mac;
    }

    /// Lets the addresses be those of a pod, which alone may speak by them here.
    pub(super) fn set_pod_addresses(&mut self, addresses: &[IpAddr]) {
        for (is_v4, place) in [false, true].into_iter().zip(&mut self.pod_addresses) {
            if let Some(first) = addresses.iter().find(|address| address.is_ipv4() == is_v4) {
                *place = pack(*first);
            }
        }
    }

    /// The first address of this family that the pod behind the port has.
    #[inline]
    pub(crate) fn pod_address(&self, is_v4: bool) -> Address {
        self.pod_addresses[usize::from(is_v4)]
    }

    /// The class of an address of this family, if it is the first one that the pod behind the port has: these are known
    /// beforehand.
    #[inline(always)]
    pub(crate) fn class_of_pod(&self, address: Address, is_v4: bool) -> Option<ClassId> {
        let family = usize::from(is_v4);
        (address == self.pod_addresses[family]).then_some(self.pod_classes[family])
    }

    /// Addresses of the pod, or of the node, behind the port.
    #[inline]
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses[..self.addresses_len]
    }

    /// Whether the pod or node behind the port has the address.
    #[inline]
    pub(crate) fn owns(&self, address: Address) -> bool {
        self.addresses().contains(&address)
    }

    /// Whether the address, behind this port, is the node's.
    pub(crate) fn is_node_address(&self, address: Address) -> bool {
        self.kind == PortKind::Host && self.owns(address)
    }

    pub(super) fn has_pod(&self) -> bool {
        self.attachment != AttachmentId::NONE
    }

    /// Whether there is a pod behind the port that has the address.
    #[inline]
    pub(crate) fn has_pod_address(&self, address: Address) -> bool {
        self.has_pod() && self.owns(address)
    }

    /// The generation since which the pod behind it has been there: what evaluated the pod's flows since then may be held to.
    pub(crate) fn attached_since(&self) -> Option<Generation> {
        self.attached_since
    }

    /// Whether a pod is behind it.
    #[inline]
    pub(crate) fn is_pod(&self) -> bool {
        self.policy_mode != PolicyMode::None
    }
}
