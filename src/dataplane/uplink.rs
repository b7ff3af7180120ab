//! Uplinks: ports on a NIC that the switch shares with the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::neighbor::uplink_table::UplinkDevice;
use super::{Mac, PortError};
use crate::netlink::{Interface, node_addresses, vlan_device};

/// Properties of an uplink on its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uplink {
    /// Ethernet address of the node on the link.
    pub(super) mac: Mac,
    /// Kernel interface that has its neighbours.
    pub(super) device: UplinkDevice,
    /// Warning for the operator, with the remedy.
    pub(super) warning: Option<String>,
}

/// Reads the properties of an uplink on `interface`. With a VLAN tag, the kernel is attached to that network
/// by a VLAN device: neighbours know the device's Ethernet address, and the kernel keeps their entries under
/// the device.
pub(super) fn probe(interface: &Interface, vlan: Option<u16>) -> Result<Uplink, PortError> {
    let own = Uplink {
        mac: interface.mac,
        device: UplinkDevice { interface: interface.index, resolves: true },
        warning: None,
    };
    let Some(vlan) = vlan else { return Ok(own) };
    let name = &interface.name;
    if let Some(device) = vlan_device(interface.index, vlan)? {
        let vlan_interface = Interface::find(&device)?;
        let device = UplinkDevice { interface: vlan_interface.index, resolves: true };
        return Ok(Uplink { mac: vlan_interface.mac, device, warning: None });
    }
    Ok(Uplink {
        device: UplinkDevice { resolves: false, ..own.device },
        warning: Some(format!(
            "interface {name} has no VLAN device for tag {vlan}, so the kernel resolves nobody there: make one \
             (`ip link add link {name} name {name}.{vlan} type vlan id {vlan}`) and add the port again, or enter its next \
             hops for good (`ip neigh replace ADDRESS lladdr MAC dev {name} nud permanent`)"
        )),
        ..own
    })
}

/// Rejects pod prefixes that contain an address of the node. Frames to that address would go to the switch,
/// and the node would be cut off.
pub(super) fn check_prefixes(interface: &str, prefixes: &BTreeSet<IpNet>) -> Result<(), PortError> {
    match find_own_address(&node_addresses(interface), prefixes) {
        None => Ok(()),
        Some((prefix, address)) => Err(PortError::Kernel(format!(
            "interface {interface} has the node's own address {address}, and {prefix} is configured as its pods': the \
             node would be cut off; make the pods' prefixes narrower"
        ))),
    }
}

/// Warning that the driver copies frames between the NIC and the UMEM (`XDP_COPY`).
pub(super) fn copy_mode_warning(interface: &str) -> String {
    format!(
        "interface {interface}: frames are copied between the driver and the switch (no zero-copy): a worker's packet \
         memory is shared by all its ports, and veth has none"
    )
}

fn find_own_address(addresses: &[IpAddr], prefixes: &BTreeSet<IpNet>) -> Option<(IpNet, IpAddr)> {
    let of = |prefix: &IpNet| addresses.iter().copied().find(|address| prefix.contains(address));
    prefixes.iter().find_map(|prefix| of(prefix).map(|address| (*prefix, address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_that_contain_an_address_of_the_node_are_found() {
        let nets =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<BTreeSet<IpNet>>();
        let node: Vec<IpAddr> = vec!["192.0.2.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        assert_eq!(find_own_address(&node, &nets(&["10.0.0.0/8", "fd00:1::/64", "192.0.2.6/32"])), None);
        for wrong in ["192.0.0.0/16", "192.0.2.5/32", "::/0"] {
            let found = find_own_address(&node, &nets(&["10.0.0.0/8", wrong])).unwrap();
            assert_eq!(found.0, wrong.parse().unwrap());
        }
    }

    #[test]
    fn without_a_tag_the_neighbours_are_those_of_the_interface() {
        let loopback = Interface::find("lo").unwrap();
        let uplink = probe(&loopback, None).unwrap();
        assert_eq!(uplink.device, UplinkDevice { interface: loopback.index, resolves: true });
        assert_eq!((uplink.mac, uplink.warning), (Mac([0; 6]), None));
    }

    #[test]
    fn a_tag_without_a_vlan_device_gives_a_warning_with_the_remedy() {
        let loopback = Interface::find("lo").unwrap();
        let uplink = probe(&loopback, Some(7)).unwrap();
        assert!(!uplink.device.resolves);
        assert!(uplink.warning.unwrap().contains("ip link add link lo name lo.7 type vlan id 7"));
    }
}
