//! Prefix maps of an uplink's program: the destinations that it redirects to the switch instead of the
//! kernel, and the exceptions of masquerading.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::limits::UPLINK_PREFIXES_MAX;
use crate::xdp::error::XdpError;

/// Names of the maps in `bpf/uplink.bpf.c`: IPv4, IPv6.
pub(in crate::xdp) const MAPS: [&str; 2] = ["prefixes_v4", "prefixes_v6"];
/// Names of the maps of exceptions: IPv4, IPv6.
pub(in crate::xdp) const EXCEPTIONS: [&str; 2] = ["exceptions_v4", "exceptions_v6"];
/// Value of every entry. Only the presence of an entry has a meaning.
const HERE: [u8; 4] = [1, 0, 0, 0];

/// The maps, and the prefixes that this process has added to them.
pub(in crate::xdp) struct Prefixes {
    maps: [MapHandle; 2],
    set: BTreeSet<IpNet>,
}

impl Prefixes {
    /// Takes the maps of a loaded program.
    pub(in crate::xdp) fn of(maps: [MapHandle; 2]) -> Prefixes {
        Prefixes { maps, set: BTreeSet::new() }
    }

    /// Sets the prefixes, by difference: missing ones are added before others are removed. After a refusal of
    /// the kernel the rest is unchanged.
    pub(in crate::xdp) fn set(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), XdpError> {
        if self.set == *wanted {
            return Ok(());
        }
        for prefix in wanted.difference(&self.set.clone()) {
            self.map(prefix)
                .update(&key(prefix), &HERE, MapFlags::ANY)
                .map_err(|error| refused("add", prefix, &error))?;
            self.set.insert(*prefix);
        }
        for prefix in self.set.clone().difference(wanted) {
            match self.map(prefix).delete(&key(prefix)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(refused("remove", prefix, &error));
                }
                _ => self.set.remove(prefix),
            };
        }
        Ok(())
    }

    /// Copies the single addresses of an earlier program's maps, up to half of the capacity, so that its pods
    /// stay closed to the kernel until they are attached again. Prefixes come from the configuration, which
    /// may have changed. Entries that cannot be read are left out.
    pub(in crate::xdp) fn inherit(&self, program: u32) {
        for (mine, map) in self.maps.iter().zip(maps_of(program, &self.maps)) {
            let keys = map.iter().flat_map(MapHandle::keys);
            for key in keys.filter(|key| is_single(key)).take(UPLINK_PREFIXES_MAX / 2) {
                if let Err(error) = mine.update(&key, &HERE, MapFlags::ANY) {
                    tracing::warn!("an address of an earlier run is not kept closed: {error:#}");
                }
            }
        }
    }

    /// Copies all prefixes of an earlier program's maps. They go with the next [`Prefixes::set`] without them.
    pub(in crate::xdp) fn inherit_all(&mut self, program: u32) {
        for (mine, map) in self.maps.iter().zip(maps_of(program, &self.maps)) {
            for key in map.iter().flat_map(MapHandle::keys) {
                let prefix = prefix_of(&key).filter(|_| mine.update(&key, &HERE, MapFlags::ANY).is_ok());
                self.set.extend(prefix);
            }
        }
    }

    fn map(&self, prefix: &IpNet) -> &MapHandle {
        &self.maps[usize::from(prefix.addr().is_ipv6())]
    }
}

/// Key of the maps, `struct bpf_lpm_trie_key_u8` of `linux/bpf.h`: the prefix length, and the address in
/// network order.
fn key(prefix: &IpNet) -> Vec<u8> {
    let mut key = u32::from(prefix.prefix_len()).to_ne_bytes().to_vec();
    match prefix.network() {
        IpAddr::V4(address) => key.extend(address.octets()),
        IpAddr::V6(address) => key.extend(address.octets()),
    }
    key
}

/// Maps of an earlier program with the names of these.
fn maps_of(program: u32, mine: &[MapHandle; 2]) -> [Option<MapHandle>; 2] {
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let earlier = ProgInfoIter::with_query_opts(options).find(|info| info.id == program);
    let ids = earlier.map(|info| info.map_ids).unwrap_or_default();
    let mut maps: Vec<MapHandle> = ids.into_iter().filter_map(|id| MapHandle::from_map_id(id).ok()).collect();
    mine.each_ref().map(|mine| {
        let at = maps.iter().position(|map| map.name() == mine.name())?;
        Some(maps.swap_remove(at))
    })
}

/// Prefix of a key.
fn prefix_of(key: &[u8]) -> Option<IpNet> {
    let (bits, address) = key.split_first_chunk()?;
    let address = match *address {
        [a, b, c, d] => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(*address.first_chunk::<16>()?),
    };
    IpNet::new(address, u8::try_from(u32::from_ne_bytes(*bits)).ok()?).ok()
}

/// Whether the prefix is a single address.
fn is_single(key: &[u8]) -> bool {
    key.split_first_chunk().is_some_and(|(bits, address)| {
        let bits = u32::from_ne_bytes(*bits) as usize;
        !address.is_empty() && bits == 8 * address.len()
    })
}

fn refused(verb: &str, prefix: &IpNet, error: &libbpf_rs::Error) -> XdpError {
    XdpError::from_bpf(format!("{verb} {prefix} to the prefixes of the uplink's XDP program"), error, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_number_of_bits_and_the_network() {
        let key_of = |text: &str| key(&text.parse().unwrap());
        assert_eq!(key_of("10.1.2.3/16"), [&16u32.to_ne_bytes()[..], &[10, 1, 0, 0]].concat());
        let v6 = key_of("fd00::1/128");
        assert_eq!((v6.len(), &v6[4..6], v6[19]), (20, &[0xfd, 0][..], 1));
        for text in ["10.1.0.0/16", "fd00::1/128"] {
            assert_eq!(prefix_of(&key_of(text)), Some(text.parse().unwrap()));
        }
    }

    #[test]
    fn only_single_addresses_outlive_the_process_that_set_them() {
        let single = |text: &str| is_single(&key(&text.parse().unwrap()));
        assert!(single("10.1.2.3/32") && single("fd00::1/128"));
        assert!(!single("10.1.2.0/31") && !single("fd00::/32") && !single("0.0.0.0/0"));
        assert!(!is_single(&[]) && !is_single(&[0; 4]));
    }
}
