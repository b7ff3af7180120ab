//! The ACL tables that decide on a flow.

use super::port::{PolicyMode, PortView};
use crate::dataplane::DropReason;
use crate::ids::AclId;
use crate::net::address::Address;
use crate::net::flow::Protocol;

/// Who is asked whether a flow may pass: first the egress table of its source about the address of its destination, then the
/// ingress table of its destination about that of its source. The first that denies has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EffectiveAcls {
    /// The source's table.
    pub egress: Option<AclId>,
    /// The destination's table.
    pub ingress: Option<AclId>,
    /// Why it is dropped whatever those say that are asked.
    pub closed: Option<DropReason>,
}

impl EffectiveAcls {
    /// Of a flow between these ports.
    #[inline(always)]
    pub(crate) fn between(flow: &Flow, from: &PortView, to: &PortView) -> EffectiveAcls {
        match (from.policy_mode, to.policy_mode) {
            (PolicyMode::Tables { egress, .. }, PolicyMode::Tables { ingress, .. })
                if from.attachment != to.attachment =>
            {
                EffectiveAcls { egress: Some(egress), ingress: Some(ingress), closed: None }
            }
            _ => EffectiveAcls::of_any(flow, from, to),
        }
    }

    #[inline(never)]
    fn of_any(flow: &Flow, from: &PortView, to: &PortView) -> EffectiveAcls {
        const OPEN: EffectiveAcls = EffectiveAcls { egress: None, ingress: None, closed: None };
        const CLOSED: EffectiveAcls = EffectiveAcls { closed: Some(DropReason::UnknownPod), ..OPEN };
        if from.is_pod() && from.attachment == to.attachment && to.owns(flow.dst) {
            return OPEN; // A pod cannot be kept from itself.
        }
        let egress = match from.policy_mode {
            PolicyMode::None | PolicyMode::Open => None,
            PolicyMode::Closed => return CLOSED,
            PolicyMode::Tables { egress, .. } => Some(egress),
        };
        match to.policy_mode {
            PolicyMode::None | PolicyMode::Open => EffectiveAcls { egress, ..OPEN },
            PolicyMode::Closed => EffectiveAcls { egress, ..CLOSED },
            // The pod's own node is always let in (`networking/v1` types.go, ingress).
            PolicyMode::Tables { .. } if from.is_node_address(flow.src) => EffectiveAcls { egress, ..OPEN },
            PolicyMode::Tables { ingress, .. } => {
                EffectiveAcls { egress, ingress: Some(ingress), closed: None }
            }
        }
    }
}

/// What of a flow is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Who opens it.
    pub src: Address,
    /// To whom.
    pub dst: Address,
    /// By which protocol.
    pub protocol: Protocol,
    /// On which port.
    pub dst_port: u16,
}
