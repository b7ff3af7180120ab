//! Interfaces that no port can use, whatever the kernel says when the switch opens their queues.

use crate::dataplane::{PortError, PortKind};
use crate::netlink::Interface;

/// Kinds whose ports are no links of their own for an uplink: their controller receives for them.
const CONTROLLERS: [&str; 4] = ["bond", "team", "bridge", "openvswitch"];

/// Fails for an interface that would be open and carry no packet.
pub fn check_link(kind: PortKind, interface: &Interface) -> Result<(), PortError> {
    let name = &interface.name;
    if !interface.is_ethernet {
        return Err(PortError::Unsuitable {
            reason: format!(
                "interface {name} has no Ethernet headers{}: a port is an Ethernet interface; for a tunnel, take the NIC below it",
                interface.kind.as_ref().map(|kind| format!(" (it is of kind {kind})")).unwrap_or_default()
            ),
        });
    }
    if interface.kind.as_deref() == Some("netkit") {
        return Err(PortError::Unsuitable {
            reason: format!(
                "interface {name} is a netkit device, on which AF_XDP receives nothing: make a veth pair in its place"
            ),
        });
    }
    let controller = interface.controller.filter(|_| kind == PortKind::Uplink);
    let Some(controller) = controller.and_then(|index| Interface::with_index(index).ok()) else {
        return Ok(());
    };
    match controller.kind.as_deref() {
        Some(kind) if CONTROLLERS.contains(&kind) => Err(PortError::Unsuitable {
            reason: format!(
                "interface {name} is a member of the {kind} {0}, which owns its neighbours and addresses: use {0} as the \
                 uplink, or take {name} out of it (`ip link set {name} nomaster`)",
                controller.name
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_that_carry_no_frame_of_a_port_are_refused() {
        let of = |kind: &str, is_ethernet| Interface {
            name: "x0".to_owned(),
            kind: Some(kind.to_owned()),
            is_ethernet,
            ..Interface::default()
        };
        let refused = |interface: &Interface| {
            check_link(PortKind::Uplink, interface).map_err(|error| error.to_string())
        };
        assert_eq!(refused(&of("veth", true)), Ok(()));
        assert_eq!(refused(&of("bond", true)), Ok(()));
        assert!(
            refused(&of("wireguard", false))
                .unwrap_err()
                .contains("no Ethernet headers (it is of kind wireguard)")
        );
        assert!(refused(&of("netkit", true)).unwrap_err().contains("AF_XDP receives nothing"));
    }
}
