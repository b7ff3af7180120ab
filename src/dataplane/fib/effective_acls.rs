//! The ACL tables that decide on a flow between two ports.

use super::port::{PolicyMode, PortView};
use crate::dataplane::DropReason;
use crate::ids::AclId;
use crate::net::address::Address;
use crate::net::flow::Protocol;

/// Tables that decide on a flow: the egress table of the source, by the address of the destination, then the
/// ingress table of the destination, by the address of the source. The first one that denies is decisive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EffectiveAcls {
    /// Table of the source.
    pub egress: Option<AclId>,
    /// Table of the destination.
    pub ingress: Option<AclId>,
    /// Whether the ingress table decides on a packet that the node forwards under an address of its own: see
    /// [`Rules::peer_of_forwarded`](super::rules::Rules::peer_of_forwarded).
    pub is_forwarded: bool,
    /// Reason to drop the flow if no table denies it.
    pub closed: Option<DropReason>,
}

impl EffectiveAcls {
    /// Selects the tables for a new flow from port `from` to port `to`.
    #[inline(always)]
    pub(crate) fn between(flow: &Flow, from: &PortView, to: &PortView) -> EffectiveAcls {
        match (from.admission_mode(), to.admission_mode()) {
            (PolicyMode::Tables { egress, .. }, PolicyMode::Tables { ingress, .. })
                if from.attachment != to.attachment =>
            {
                EffectiveAcls {
                    egress: Some(egress),
                    ingress: Some(ingress),
                    is_forwarded: false,
                    closed: None,
                }
            }
            modes => EffectiveAcls::of_any(flow, from, to).of_new_flow(modes),
        }
    }

    /// Selects the tables for a flow that may be established: a drain does not touch it.
    pub(crate) fn of_established(flow: &Flow, from: &PortView, to: &PortView) -> EffectiveAcls {
        EffectiveAcls::of_any(flow, from, to)
    }

    /// Closes the tables of a flow with a port that is drained.
    fn of_new_flow(self, modes: (PolicyMode, PolicyMode)) -> EffectiveAcls {
        match modes {
            (PolicyMode::Draining, _) | (_, PolicyMode::Draining) => {
                EffectiveAcls { closed: self.closed.or(Some(DropReason::Draining)), ..self }
            }
            _ => self,
        }
    }

    #[inline(never)]
    fn of_any(flow: &Flow, from: &PortView, to: &PortView) -> EffectiveAcls {
        const OPEN: EffectiveAcls =
            EffectiveAcls { egress: None, ingress: None, is_forwarded: false, closed: None };
        const CLOSED: EffectiveAcls = EffectiveAcls { closed: Some(DropReason::UnknownPod), ..OPEN };
        if from.is_pod() && from.attachment == to.attachment && to.owns(flow.dst) {
            return OPEN; // A pod cannot be kept from itself.
        }
        let egress = match from.policy_mode() {
            PolicyMode::None | PolicyMode::Open => None,
            PolicyMode::Closed | PolicyMode::Draining => return CLOSED,
            PolicyMode::Tables { egress, .. } => Some(egress),
        };
        match to.policy_mode() {
            PolicyMode::None | PolicyMode::Open => EffectiveAcls { egress, ..OPEN },
            PolicyMode::Closed | PolicyMode::Draining => EffectiveAcls { egress, ..CLOSED },
            // "Traffic is allowed to a pod if [...] the traffic source is the pod's local node"
            // (`networking/v1`, NetworkPolicySpec.ingress). The source is the sender's address, before the node
            // masquerades.
            PolicyMode::Tables { .. } if flow.by_node_socket && from.is_node_address(flow.src) => {
                EffectiveAcls { egress, ..OPEN }
            }
            PolicyMode::Tables { ingress, .. } => {
                let is_forwarded = from.is_node_address(flow.src);
                EffectiveAcls { egress, ingress: Some(ingress), is_forwarded, closed: None }
            }
        }
    }
}

/// The fields of a flow that policy reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Address of the initiator.
    pub src: Address,
    /// Address of the responder.
    pub dst: Address,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Port of the responder.
    pub dst_port: u16,
    /// Whether a socket of the node opened it: [`PortView::is_by_node_socket`].
    pub by_node_socket: bool,
}
