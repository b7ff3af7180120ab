//! A port in a snapshot: its properties, its pod, and the policy of that pod.

use std::net::IpAddr;
use std::sync::Arc;

use super::policer::Policer;
use crate::dataplane::packet::Packet;
use crate::dataplane::{Bandwidth, PortKind, RateLimit};
use crate::ids::{AclId, AttachmentId, ClassId, Generation};
use crate::limits::POD_ADDRESSES_MAX;
use crate::net::address::{Address, from_v4, pack};
use crate::net::mac::Mac;

/// Policy of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyMode {
    /// No policy: there is no pod behind the port.
    None,
    /// Deny all: the tables do not know the pod, or there are none.
    Closed,
    /// Allow all: the tables do not know the pod, and the operator has set `fail_open`.
    Open,
    /// The ACL tables of the pod.
    Tables {
        /// Table for flows to the pod.
        ingress: AclId,
        /// Table for flows from the pod.
        egress: AclId,
    },
    /// No new flows: the port is drained. Established flows have the policy of the pod.
    Draining,
}

/// A port in a snapshot. It has the values of a port that the packet path reads, in the form of packet fields, side
/// by side.
#[derive(Debug, Clone)]
pub(crate) struct PortView {
    /// Kind of the port.
    pub kind: PortKind,
    /// VLAN identifier of its frames, 0 without.
    pub vlan: u16,
    /// Largest IP packet that it takes, bytes.
    pub mtu: u16,
    /// Attachment of the pod behind it.
    pub attachment: AttachmentId,
    /// Generation since which that pod has been there with the same addresses. `None` without a pod, and
    /// where another pod has one of its addresses too.
    pub(super) attached_since: Option<Generation>,
    /// Policy of that pod.
    policy_mode: PolicyMode,
    /// Policy of that pod for new flows: the same, or [`PolicyMode::Draining`].
    admission_mode: PolicyMode,
    /// Ethernet address behind it, if the desired state gives it.
    pub mac: Option<Mac>,
    /// Ethernet address of the switch on this port. On an uplink it is that of the NIC.
    pub own_mac: Mac,
    /// Whether a program at the node's end marks the frames of the node's sockets, and drops others that have the mark.
    marks_node_sockets: bool,
    /// Whether its queues are those of a tap device, which takes packets with segments.
    takes_segments: bool,
    /// First addresses of the pod, IPv6 and IPv4; for a family without one, an address that no packet of that
    /// family has.
    pub(super) pod_addresses: [Address; 2],
    /// Classes of these addresses in the tables.
    pub(super) pod_classes: [ClassId; 2],
    addresses: [Address; POD_ADDRESSES_MAX],
    addresses_len: usize,
    /// Policer of packets to the pod.
    ingress_policer: Option<Arc<Policer>>,
    /// Policer of packets from the pod.
    egress_policer: Option<Arc<Policer>>,
}

/// Addresses that no IPv6 packet and no IPv4 packet has: each is of the other family.
const NO_ADDRESSES: [Address; 2] = [from_v4(0), 0];

impl PortView {
    /// Builds the view of an open port without a pod. `nic` is the Ethernet address of an uplink.
    pub(crate) fn new(kind: PortKind, vlan: Option<u16>, mtu: u16, nic: Option<Mac>) -> PortView {
        let policy_mode = if kind.has_pod() { PolicyMode::Closed } else { PolicyMode::None };
        PortView {
            kind,
            vlan: vlan.unwrap_or(0),
            mtu,
            attachment: AttachmentId::NONE,
            attached_since: None,
            policy_mode,
            admission_mode: policy_mode,
            mac: None,
            own_mac: nic.unwrap_or_default(),
            marks_node_sockets: false,
            takes_segments: kind == PortKind::Tap,
            pod_addresses: NO_ADDRESSES,
            pod_classes: [ClassId::WORLD; 2],
            addresses: [0; POD_ADDRESSES_MAX],
            addresses_len: 0,
            ingress_policer: None,
            egress_policer: None,
        }
    }

    /// The view of a port at whose other end the frames of the node's sockets are marked.
    pub(crate) fn with_marked_node_sockets(self, marks_node_sockets: bool) -> PortView {
        PortView { marks_node_sockets, ..self }
    }

    /// The view of a port whose upcalls come by a tap device.
    pub(crate) fn with_upcalls(self) -> PortView {
        PortView { takes_segments: true, ..self }
    }

    /// Whether the port takes packets with segments.
    pub(crate) fn takes_segments(&self) -> bool {
        self.takes_segments
    }

    /// Whether the frames of the node's sockets are marked at the other end.
    #[inline]
    pub(crate) fn marks_node_sockets(&self) -> bool {
        self.marks_node_sockets
    }

    /// Whether a packet from this port has been sent by a socket of the node: its frame has the mark.
    #[inline]
    pub(crate) fn is_by_node_socket(&self, packet: &Packet) -> bool {
        self.marks_node_sockets && packet.is_marked()
    }

    /// Policy of the pod behind the port.
    #[inline]
    pub(crate) fn policy_mode(&self) -> PolicyMode {
        self.policy_mode
    }

    /// Policy of the pod behind the port for new flows.
    #[inline]
    pub(super) fn admission_mode(&self) -> PolicyMode {
        self.admission_mode
    }

    /// Sets the policy of the pod behind the port. A drain goes on.
    pub(super) fn set_policy_mode(&mut self, mode: PolicyMode) {
        if self.admission_mode != PolicyMode::Draining {
            self.admission_mode = mode;
        }
        self.policy_mode = mode;
    }

    /// Keeps new flows from and to the pod behind the port.
    pub(super) fn drain(&mut self) {
        self.admission_mode = PolicyMode::Draining;
    }

    pub(super) fn set_addresses(&mut self, addresses: &[IpAddr], mac: Option<Mac>) {
        let addresses = &addresses[..addresses.len().min(POD_ADDRESSES_MAX)];
        for (slot, address) in self.addresses.iter_mut().zip(addresses) {
            *slot = pack(*address);
        }
        self.addresses_len = addresses.len();
        self.mac = mac;
    }

    /// Sets the bandwidth of the pod. Policers of the port `before` whose limits stay keep their tokens.
    pub(super) fn set_bandwidth(&mut self, bandwidth: &Bandwidth, before: Option<&PortView>) {
        let before = before.filter(|before| before.attachment == self.attachment);
        let next = |limit: Option<RateLimit>, kept: Option<&Arc<Policer>>| {
            let limit = limit?;
            let kept = kept.filter(|kept| kept.limit() == limit).cloned();
            Some(kept.unwrap_or_else(|| Arc::new(Policer::new(limit))))
        };
        let kept = before.and_then(|before| before.ingress_policer.as_ref());
        self.ingress_policer = next(bandwidth.ingress(), kept);
        let kept = before.and_then(|before| before.egress_policer.as_ref());
        self.egress_policer = next(bandwidth.egress(), kept);
    }

    /// Policer of packets to the pod behind the port.
    #[inline]
    pub(crate) fn ingress_policer(&self) -> Option<&Policer> {
        self.ingress_policer.as_deref()
    }

    /// Policer of packets from the pod behind the port.
    #[inline]
    pub(crate) fn egress_policer(&self) -> Option<&Policer> {
        self.egress_policer.as_deref()
    }

    /// Sets the addresses of a pod, from which alone packets may come by this port.
    pub(super) fn set_pod_addresses(&mut self, addresses: &[IpAddr]) {
        for (is_v4, place) in [false, true].into_iter().zip(&mut self.pod_addresses) {
            if let Some(first) = addresses.iter().find(|address| address.is_ipv4() == is_v4) {
                *place = pack(*first);
            }
        }
    }

    /// First address of this family of the pod behind the port.
    #[inline]
    pub(crate) fn pod_address(&self, is_v4: bool) -> Address {
        self.pod_addresses[usize::from(is_v4)]
    }

    /// Class of an address of this family, if it is the first one of the pod behind the port. These classes
    /// are known before a packet comes.
    #[inline(always)]
    pub(crate) fn class_of_pod(&self, address: Address, is_v4: bool) -> Option<ClassId> {
        let family = usize::from(is_v4);
        (address == self.pod_addresses[family]).then_some(self.pod_classes[family])
    }

    /// Addresses of the pod or the node behind the port.
    #[inline]
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses[..self.addresses_len]
    }

    /// Whether the pod or node behind the port has the address.
    #[inline]
    pub(crate) fn owns(&self, address: Address) -> bool {
        self.addresses().contains(&address)
    }

    /// Whether the address is one of the node's, behind this port.
    pub(crate) fn is_node_address(&self, address: Address) -> bool {
        self.kind == PortKind::Host && self.owns(address)
    }

    pub(super) fn has_pod(&self) -> bool {
        self.attachment != AttachmentId::NONE
    }

    /// Whether a pod behind the port has the address.
    #[inline]
    pub(crate) fn has_pod_address(&self, address: Address) -> bool {
        self.has_pod() && self.owns(address)
    }

    /// Generation since which the pod behind the port has been there. Evaluations of its flows since then may
    /// still be current.
    pub(crate) fn attached_since(&self) -> Option<Generation> {
        self.attached_since
    }

    /// Whether there is a pod behind the port.
    #[inline]
    pub(crate) fn is_pod(&self) -> bool {
        self.policy_mode != PolicyMode::None
    }
}
