//! Service maps of an uplink's program: the ports of Services whose packets it redirects to the switch instead
//! of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::limits::{NODE_ADDRESSES_MAX, UPLINK_SERVICE_PORTS_MAX};
use crate::net::flow::Protocol;
use crate::xdp::error::XdpError;

/// Names of the maps in `bpf/uplink.bpf.c`, and their numbers of entries.
pub(in crate::xdp) const MAPS: [(&str, usize); 2] = [
    ("addresses", UPLINK_SERVICE_PORTS_MAX + NODE_ADDRESSES_MAX),
    ("service_ports", UPLINK_SERVICE_PORTS_MAX),
];

/// Bits of the values of `addresses`.
const EXTERNAL_ADDRESS: u32 = 1;
const NODE_ADDRESS: u32 = 2;
/// Value of every entry of `service_ports`. Only the presence of an entry has a meaning.
const HERE: u32 = 1;

/// Destinations of Services that an uplink takes from the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceDestinations {
    /// Ports of Services at external addresses, and at single addresses of the node. An unspecified address stands for those of the node of its family.
    pub ports: BTreeSet<(Protocol, SocketAddr)>,
    /// Addresses of the node.
    pub node_addresses: BTreeSet<IpAddr>,
}

/// Keys of a map with their values.
type Entries = BTreeMap<Vec<u8>, u32>;

/// The maps, and their entries.
pub(in crate::xdp) struct ServiceMaps {
    maps: [MapHandle; 2],
    set: [Entries; 2],
    /// Last destinations that were set without an error, and whether there are no others.
    last: Option<(Arc<ServiceDestinations>, bool)>,
}

impl ServiceMaps {
    /// Takes the maps of a loaded program.
    pub(in crate::xdp) fn of(maps: [MapHandle; 2]) -> ServiceMaps {
        ServiceMaps { maps, set: Default::default(), last: None }
    }

    /// Sets the destinations, by difference: others are removed before missing ones are added, so that there is
    /// room for these. With `keeps_others` those of an earlier program stay beside them. After a refusal of the kernel the rest
    /// is unchanged.
    pub(in crate::xdp) fn set(
        &mut self,
        wanted: &Arc<ServiceDestinations>,
        keeps_others: bool,
    ) -> Result<(), XdpError> {
        let is_whole = !keeps_others;
        if self.last.as_ref().is_some_and(|(last, was_whole)| (last, *was_whole) == (wanted, is_whole)) {
            return Ok(());
        }
        self.last = None;
        for ((map, set), mut wanted) in self.maps.iter().zip(&mut self.set).zip(entries(wanted)) {
            if keeps_others {
                set.iter().for_each(|(key, bits)| *wanted.entry(key.clone()).or_default() |= bits);
            }
            let stale: Vec<Vec<u8>> = set.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
            for key in stale {
                match map.delete(&key) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(refused(&error)),
                    _ => set.remove(&key),
                };
            }
            for (key, value) in wanted {
                if set.get(&key) != Some(&value) {
                    map.update(&key, &value.to_ne_bytes(), MapFlags::ANY).map_err(|error| refused(&error))?;
                    set.insert(key, value);
                }
            }
        }
        self.last = Some((wanted.clone(), is_whole));
        Ok(())
    }

    /// Copies the entries of an earlier program's maps: connections to Services go on when the sockets are there,
    /// and nothing of them reaches the kernel, which would reset them. They end with the next
    /// [`ServiceMaps::set`]. Entries that cannot be read are left out.
    pub(in crate::xdp) fn inherit(&mut self, program: u32) {
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let earlier = ProgInfoIter::with_query_opts(options).find(|info| info.id == program);
        for id in earlier.map(|info| info.map_ids).unwrap_or_default() {
            let Ok(map) = MapHandle::from_map_id(id) else { continue };
            let mine = self.maps.iter().zip(&mut self.set).find(|(mine, _)| mine.name() == map.name());
            let Some((mine, set)) = mine else { continue };
            for key in map.keys() {
                let Ok(Some(value)) = map.lookup(&key, MapFlags::ANY) else { continue };
                let Some(value) = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)) else {
                    continue;
                };
                if let Err(error) = mine.update(&key, &value.to_ne_bytes(), MapFlags::ANY) {
                    tracing::warn!("a port of a Service of an earlier run is not kept: {error:#}");
                    break;
                }
                set.insert(key, value);
            }
        }
        self.last = None;
    }
}

/// Entries of both maps. Addresses are those of the ports, and of the node if there is a port at it.
fn entries(wanted: &ServiceDestinations) -> [Entries; 2] {
    let external = wanted.ports.iter().map(|(_, at)| at.ip()).filter(|address| !address.is_unspecified());
    let is_served = |address: &&IpAddr| {
        wanted.ports.iter().any(|(_, at)| at.ip().is_unspecified() && at.is_ipv4() == address.is_ipv4())
    };
    let node = wanted.node_addresses.iter().filter(is_served);
    let parts = external
        .map(|address| (address, EXTERNAL_ADDRESS))
        .chain(node.map(|address| (*address, NODE_ADDRESS)));
    let mut addresses = Entries::new();
    parts.for_each(|(address, part)| *addresses.entry(address_key(address)).or_default() |= part);
    let ports = wanted.ports.iter().map(|(protocol, at)| (port_key(*protocol, *at), HERE));
    [addresses, ports.collect()]
}

/// Key of `addresses`.
fn address_key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Key of `service_ports`, `struct service_port`.
fn port_key(protocol: Protocol, at: SocketAddr) -> Vec<u8> {
    let mut key = address_key(at.ip());
    key.extend(at.port().to_be_bytes());
    key.extend([protocol.0, 0]);
    key
}

fn refused(error: &libbpf_rs::Error) -> XdpError {
    XdpError::from_bpf("change the ports of Services of the uplink's XDP program", error, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_node_are_taken_only_with_a_node_port_of_their_family() {
        let node_addresses = ["192.0.2.5", "2001:db8::5"].map(|text| text.parse().unwrap()).into();
        let ports = [(Protocol::TCP, "0.0.0.0:30080".parse().unwrap())].into();
        let [addresses, ports] = entries(&ServiceDestinations { ports, node_addresses });
        let mapped: Vec<u8> = [&[0; 10][..], &[0xff, 0xff, 192, 0, 2, 5]].concat();
        assert_eq!(addresses, [(mapped, NODE_ADDRESS)].into());
        let port = [&[0; 10][..], &[0xff, 0xff, 0, 0, 0, 0, 0x75, 0x80, 6, 0]].concat();
        assert_eq!(ports, [(port, HERE)].into());
    }

    #[test]
    fn an_address_of_the_node_may_have_a_port_of_its_own_beside_one_of_all() {
        let node_addresses = ["192.0.2.5".parse().unwrap()].into();
        let at = |text: &str| (Protocol::TCP, text.parse().unwrap());
        let ports = [at("0.0.0.0:30080"), at("192.0.2.5:8080")].into();
        let [addresses, ports] = entries(&ServiceDestinations { ports, node_addresses });
        assert_eq!(addresses.into_values().collect::<Vec<_>>(), [EXTERNAL_ADDRESS | NODE_ADDRESS]);
        assert_eq!(ports.len(), 2);
    }
}
