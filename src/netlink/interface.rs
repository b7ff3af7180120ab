//! Facts of a network interface, as far as a port depends on them.
//!
//! They are asked for by netlink rather than read from /sys, which shows the network namespace of the process
//! that mounted it.

use std::net::IpAddr;

use rtnetlink::packet_core::Nla;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};

use super::error::Context;
use super::socket::RouteSocket;
use super::{NetlinkError, ethtool};
use crate::net::mac::Mac;

/// `IFNAMSIZ` of `linux/if.h`: bytes of a name with its closing zero.
const NAME_BYTES: usize = 16;

/// An interface of the calling thread's network namespace, at the moment of asking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index, the kernel's number for it.
    pub index: u32,
    /// Largest packet without the Ethernet header, bytes.
    pub mtu: u32,
    /// Ethernet address; zeroes where it has none.
    pub mac: Mac,
    /// Receive queues in use.
    pub rx_queues: u16,
    /// Transmit queues in use.
    pub tx_queues: u16,
    /// Kind of a virtual interface, such as `veth` (`IFLA_INFO_KIND` of `linux/if_link.h`).
    pub kind: Option<String>,
    /// Whether its packets have Ethernet headers (`ARPHRD_ETHER` of `linux/if_arp.h`).
    pub is_ethernet: bool,
    /// Administrative state (`IFF_UP` of `linux/if.h`).
    pub is_up: bool,
    /// Whether it has a carrier (`IFF_RUNNING`).
    pub has_carrier: bool,
    /// Index of the bridge, bond or similar that it is a port of (`IFLA_MASTER`).
    pub controller: Option<u32>,
}

impl Interface {
    /// Looks for the interface `name`.
    pub fn find(name: &str) -> Result<Interface, NetlinkError> {
        let missing = || NetlinkError::NoInterface { interface: name.to_owned() };
        if name.is_empty() || name.len() >= NAME_BYTES || name.contains(['/', '\0']) {
            return Err(missing());
        }
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        // An alternative name finds the interface, too, which keeps the name it was asked for by.
        Ok(Interface { name: name.to_owned(), ..Interface::ask(request, name)? })
    }

    /// Looks for the interface with this index, whatever its name is.
    pub fn with_index(index: u32) -> Result<Interface, NetlinkError> {
        Interface::ask(request_for(index), &format!("number {index}"))
    }

    /// Lists all interfaces. Their queues are not counted.
    pub fn all() -> Result<Vec<Interface>, NetlinkError> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let links = RouteSocket::open()?.dump(request).context(|| "list interfaces".to_owned())?;
        let interface = |link| match link {
            RouteNetlinkMessage::NewLink(link) => Some(Interface::from(&link)),
            _ => None,
        };
        Ok(links.into_iter().filter_map(interface).collect())
    }

    /// Looks for the interface `name` in the network namespace of `socket`. Its queues are not counted.
    pub(crate) fn find_by(socket: &RouteSocket, name: &str) -> Result<Interface, NetlinkError> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let link = socket.link(request).on(name, || format!("look for interface {name}"))?;
        Ok(Interface::from(&link))
    }

    /// Looks for the interface with this index in the network namespace of `socket`. Its queues are not counted.
    pub(crate) fn with_index_by(socket: &RouteSocket, index: u32) -> Result<Interface, NetlinkError> {
        let name = format!("number {index}");
        let link = socket.link(request_for(index)).on(&name, || format!("look for interface {name}"))?;
        Ok(Interface::from(&link))
    }

    /// Descriptors attached to the tap device with this index, in the network namespace of `socket`
    /// (`IFLA_TUN_NUM_QUEUES` and `IFLA_TUN_NUM_DISABLED_QUEUES` of `linux/if_link.h`); `None` for a device with one
    /// queue.
    pub(crate) fn tap_queues_by(socket: &RouteSocket, index: u32) -> Result<Option<u32>, NetlinkError> {
        const COUNTS: [u16; 2] = [8, 9];
        let name = format!("number {index}");
        let link =
            socket.link(request_for(index)).on(&name, || format!("count the queues of interface {name}"))?;
        let infos = link.attributes.iter().filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        });
        let facts = infos.flatten().filter_map(|info| match info {
            LinkInfo::Data(InfoData::Tun(facts)) => Some(facts),
            _ => None,
        });
        let counts = facts.flatten().filter(|fact| COUNTS.contains(&fact.kind())).filter_map(|fact| {
            let mut value = vec![0; fact.value_len()];
            fact.emit_value(&mut value);
            Some(u32::from_ne_bytes(*value.first_chunk()?))
        });
        Ok(counts.fold(None, |sum, count| Some(sum.unwrap_or(0) + count)))
    }

    /// Packets that the interface with this index has not sent, in the network namespace of `socket` (`tx_dropped` of
    /// `struct rtnl_link_stats64` of `linux/if_link.h`).
    pub(crate) fn unsent_by(socket: &RouteSocket, index: u32) -> Result<u64, NetlinkError> {
        let name = format!("number {index}");
        let link =
            socket.link(request_for(index)).on(&name, || format!("read the counters of interface {name}"))?;
        let unsent = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Stats64(stats) => Some(stats.tx_dropped),
            _ => None,
        });
        Ok(unsent.unwrap_or_default())
    }

    fn ask(request: LinkMessage, name: &str) -> Result<Interface, NetlinkError> {
        let link = RouteSocket::open()?.link(request).on(name, || format!("look for interface {name}"))?;
        let mut interface = Interface::from(&link);
        let counts = ethtool::queue_counts(interface.index)
            .on(name, || format!("count the queues of interface {name} (CONFIG_ETHTOOL_NETLINK)"))?;
        // A driver that does not count its queues has one of each.
        (interface.rx_queues, interface.tx_queues) = counts.unwrap_or((1, 1));
        Ok(interface)
    }

    /// Whether an interface with this index is there, by whatever name.
    pub fn is_there(&self) -> bool {
        !matches!(Interface::with_index(self.index), Err(NetlinkError::NoInterface { .. }))
    }

    /// Whether it is a bond or a team, which sends and receives by its members.
    pub fn is_bond(&self) -> bool {
        matches!(self.kind.as_deref(), Some("bond" | "team"))
    }

    /// Queues that work in both directions.
    pub fn queues(&self) -> u16 {
        self.rx_queues.min(self.tx_queues)
    }
}

impl From<&LinkMessage> for Interface {
    /// Every fact but the queues.
    fn from(link: &LinkMessage) -> Interface {
        let mut interface = Interface {
            index: link.header.index,
            is_ethernet: matches!(
                link.header.link_layer_type,
                LinkLayerType::Ether | LinkLayerType::Loopback
            ),
            is_up: link.header.flags.contains(LinkFlags::Up),
            has_carrier: link.header.flags.contains(LinkFlags::Running),
            ..Interface::default()
        };
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
                LinkAttribute::Controller(index) => {
                    interface.controller = Some(*index).filter(|index| *index > 0);
                }
                LinkAttribute::Address(address) => {
                    // Links of other types have longer addresses, or none.
                    interface.mac = Mac(std::array::from_fn(|byte| address.get(byte).copied().unwrap_or(0)));
                }
                LinkAttribute::LinkInfo(infos) => {
                    interface.kind = infos.iter().find_map(|info| match info {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        interface
    }
}

pub(super) fn request_for(index: u32) -> LinkMessage {
    let mut request = LinkMessage::default();
    request.header.index = index;
    request
}

/// Lists the node's own addresses on the interface `name`; none if the kernel refuses.
pub fn node_addresses(name: &str) -> Vec<IpAddr> {
    let Ok(Interface { index, .. }) = Interface::find(name) else { return Vec::new() };
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let replies = RouteSocket::open().ok().and_then(|socket| socket.dump(request).ok()).unwrap_or_default();
    let on_it = replies.into_iter().filter_map(|reply| match reply {
        RouteNetlinkMessage::NewAddress(address) if address.header.index == index => local_address(&address),
        _ => None,
    });
    on_it.collect()
}

/// `IFA_LOCAL`, or `IFA_ADDRESS` where there is none: of a point-to-point link that one is the peer's
/// (`linux/if_addr.h`).
fn local_address(message: &AddressMessage) -> Option<IpAddr> {
    let attributes = || message.attributes.iter();
    let local = attributes().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = attributes().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    local.or(address)
}

/// Finds the VLAN device for tag `vlan` over the interface with this index.
pub(crate) fn vlan_device(interface: u32, vlan: u16) -> Result<Option<String>, NetlinkError> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let links = RouteSocket::open()?.dump(request).context(|| "list interfaces".to_owned())?;
    Ok(links.into_iter().find_map(|link| match link {
        RouteNetlinkMessage::NewLink(link) => vlan_name(&link, interface, vlan),
        _ => None,
    }))
}

fn vlan_name(link: &LinkMessage, interface: u32, vlan: u16) -> Option<String> {
    let has = |wanted: &dyn Fn(&LinkAttribute) -> bool| link.attributes.iter().any(wanted);
    let is_tag = |info: &LinkInfo| matches!(info, LinkInfo::Data(InfoData::Vlan(vlans)) if vlans.contains(&InfoVlan::Id(vlan)));
    let fits = has(&|attribute| *attribute == LinkAttribute::Link(interface))
        && has(&|attribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(is_tag)));
    fits.then(|| Interface::from(link).name)
}

/// Ids of the XDP programs on an interface: in the driver's hook, the generic hook and the hardware's. 0 is
/// none. The request is for this interface alone, so its cost does not grow with their number.
pub(crate) fn xdp_programs(interface: &Interface) -> Result<[u32; 3], NetlinkError> {
    let name = &interface.name;
    let link = RouteSocket::open()?
        .link(request_for(interface.index))
        .on(name, || format!("tell the XDP programs of interface {name}"))?;
    let mut programs = [0; 3];
    for attribute in &link.attributes {
        let LinkAttribute::Xdp(xdp) = attribute else { continue };
        for part in xdp {
            match part {
                LinkXdp::DrvProgId(id) => programs[0] = *id,
                LinkXdp::SkbProgId(id) => programs[1] = *id,
                LinkXdp::HwProgId(id) => programs[2] = *id,
                _ => {}
            }
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let loopback = Interface::find("lo").unwrap();
        assert_eq!((loopback.name.as_str(), loopback.index, loopback.mac), ("lo", 1, Mac([0; 6])));
        assert_eq!((loopback.queues(), &loopback.kind), (1, &None));
        assert!(loopback.mtu > 0);
        assert_eq!(Interface::with_index(1).unwrap(), loopback);
    }

    #[test]
    fn the_nodes_addresses_on_an_interface_are_those_of_this_interface() {
        // The loopback interface has loopback addresses only, if it is up.
        let addresses = node_addresses("lo");
        assert!(addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
        assert_eq!(node_addresses("nowhere0"), Vec::<IpAddr>::new());
    }

    #[test]
    fn an_interface_that_does_not_exist_is_named() {
        for name in ["nowhere0", "", "a-name-that-is-too-long", "a/b"] {
            let error = Interface::find(name).unwrap_err();
            assert!(
                matches!(&error, NetlinkError::NoInterface { interface } if interface == name),
                "{error}"
            );
        }
        let error = Interface::with_index(u32::MAX >> 1).unwrap_err();
        assert!(matches!(&error, NetlinkError::NoInterface { .. }), "{error}");
    }
}
