//! Interfaces of ports: checks before they open, settings, addresses and routes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use super::rules::gateways;
use crate::dataplane::{DesiredState, PortError, PortHealth, PortKind, PortSpec};
use crate::netlink::{
    Interface, NetlinkError, RouteSocket, forward_from, raise_host_end, raise_routed_host_end, xdp_programs,
};
use crate::render::is_interface_name;

/// Routes to pods: interface, and source of the node's own packets.
pub(super) type Routes = BTreeMap<IpAddr, (String, Option<IpAddr>)>;

/// Finds the interface of a port. Refuses those whose packets the kernel does not forward by its rules.
pub(super) fn examine(spec: &PortSpec) -> Result<Interface, PortError> {
    let name = &spec.interface;
    let refuse = |reason: String| Err(PortError::Kernel(format!("interface {name}: {reason}")));
    if spec.kind == PortKind::Tap {
        return refuse(
            "the backend nftables opens no tap ports: give the pod a veth pair (kind = \"pod\"), or use the backend af-xdp"
                .to_owned(),
        );
    }
    if let Some(vlan) = spec.vlan {
        return refuse(format!(
            "the backend nftables takes no tags off: `ip link add link {name} name {name}.{vlan} type vlan id {vlan}` makes an \
             interface for tag {vlan}, which can be a port without `vlan`"
        ));
    }
    check_name(name)?;
    let interface = Interface::find(name)?;
    if interface.controller.is_some() {
        return refuse(format!(
            "it is a port of a bridge or a bond, which forwards before the rules: `ip link set {name} nomaster`"
        ));
    }
    let programs = xdp_programs(&interface)?;
    if spec.kind == PortKind::Pod && programs.iter().any(|id| *id != 0) {
        return refuse(
            "it has an XDP program, which takes its packets from the kernel. Of a switch with the backend af-xdp: start and stop \
             that with on_stop = \"detach\", or remove the pin of its link and `ip link set {name} xdp off`"
                .replace("{name}", name),
        );
    }
    Ok(interface)
}

/// Refuses a name that rules cannot have.
pub(super) fn check_name(interface: &str) -> Result<(), PortError> {
    if is_interface_name(interface) {
        return Ok(());
    }
    Err(PortError::Kernel(format!(
        "interface {interface:?}: rules name interfaces, and this name is none of up to 15 letters, digits and - _ .: rename \
         it (a port whose interface gets such a name is set down)"
    )))
}

/// Sets an interface down that no rule can close.
pub(super) fn set_down(interface: &str) {
    let done = RouteSocket::open().and_then(|kernel| kernel.set_down(interface));
    if let Err(error) = done {
        tracing::error!(interface, "packets of a pod enter the node's stack unchecked: {error}");
    }
}

/// Makes the kernel forward the packets of a port. Returns warnings for the operator.
pub(super) fn raise(
    interface: &str,
    kind: PortKind,
    desired: &DesiredState,
) -> Result<Vec<String>, NetlinkError> {
    let warning = match kind {
        PortKind::Pod => {
            let kernel = RouteSocket::open()?;
            // A pod that moves between backends keeps its neighbour entry. Even a change to the same address removes the
            // node's entries for the pod, and drops a packet that uses one at that moment.
            if Interface::find(interface)?.mac != desired.gateway.mac {
                kernel.set_mac(interface, desired.gateway.mac)?;
            }
            let warning = raise_routed_host_end(interface)?;
            for address in gateways(desired) {
                keep_address(&kernel, interface, address)?;
            }
            warning
        }
        PortKind::Uplink => forward_from(interface)?,
        PortKind::Host | PortKind::Tap => None,
    };
    Ok(warning.into_iter().collect())
}

/// A kernel without IPv6 takes no such address.
fn keep_address(kernel: &RouteSocket, interface: &str, address: IpAddr) -> Result<(), NetlinkError> {
    match kernel.keep_address(interface, address) {
        Err(error) if address.is_ipv6() => {
            tracing::debug!(interface, "{error}");
            Ok(())
        }
        result => result,
    }
}

/// Returns the interface of a pod to the state in which its packets go nowhere.
pub(super) fn lower(interface: &str, desired: &DesiredState) -> Result<(), NetlinkError> {
    raise_host_end(interface)?;
    let kernel = RouteSocket::open()?;
    gateways(desired)
        .into_iter()
        .filter(IpAddr::is_ipv4)
        .try_for_each(|address| kernel.remove_address(interface, address))
}

/// Routes that a desired state needs. `names` has the interfaces of pods.
pub(super) fn routes(desired: &DesiredState, name: impl Fn(crate::ids::PortId) -> Option<String>) -> Routes {
    let node = desired.node.iter().flat_map(|node| &node.addresses);
    let source = |address: &IpAddr| node.clone().find(|node| node.is_ipv4() == address.is_ipv4()).copied();
    let pods = desired.pods.iter().filter_map(|pod| Some((name(pod.port)?, &pod.addresses)));
    pods.flat_map(|(name, addresses)| {
        addresses.iter().map(move |address| (*address, (name.clone(), *address)))
    })
    .map(|(address, (name, of))| (address, (name, source(&of))))
    .collect()
}

/// Changes the kernel's routes from `installed` to `wanted`. `installed` is the state that is reached.
pub(super) fn change_routes(installed: &mut Routes, wanted: &Routes) -> Result<(), NetlinkError> {
    let kernel = RouteSocket::open()?;
    installed.retain(|address, (interface, _)| {
        let stays = wanted.contains_key(address);
        if !stays && let Err(error) = kernel.remove_link_route(interface, (*address).into()) {
            // The route has gone with its interface.
            tracing::debug!(interface, "{error}");
        }
        stays
    });
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
    for (address, (interface, source)) in wanted.iter().filter(|(address, _)| address.is_ipv4() || has_ipv6) {
        if installed.get(address) == Some(&(interface.clone(), *source)) {
            continue;
        }
        let replaced = kernel.replace_link_route(interface, *address, *source);
        // The address of the node may be on no interface.
        replaced.or_else(|error| match source {
            Some(_) => kernel.replace_link_route(interface, *address, None),
            None => Err(error),
        })?;
        installed.insert(*address, (interface.clone(), *source));
    }
    Ok(())
}

/// Compares the interface of a port with its state when the port was opened.
pub(super) fn check(was: &Interface) -> Result<PortHealth, PortError> {
    let is = match Interface::with_index(was.index) {
        Ok(is) => is,
        Err(NetlinkError::NoInterface { .. }) => return Ok(PortHealth::Gone),
        Err(error) => return Err(error.into()),
    };
    if is.name != was.name {
        return Ok(PortHealth::Changed(format!("its name is {}, and was {}", is.name, was.name)));
    }
    if is.mtu != was.mtu {
        return Ok(PortHealth::Changed(format!("its MTU is {}, and was {}", is.mtu, was.mtu)));
    }
    let obstacle = match (is.is_up, is.has_carrier) {
        (false, _) => Some(format!("interface {0} is set down: `ip link set {0} up`", is.name)),
        (true, false) => {
            Some(format!("interface {} has no carrier: its other end is down, or no cable is in it", is.name))
        }
        (true, true) => None,
    };
    Ok(PortHealth::Good { interface: is.name, obstacle })
}
