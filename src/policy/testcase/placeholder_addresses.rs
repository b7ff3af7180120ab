//! Placeholder addresses for pods whose manifests have no address.
//!
//! Commands that work on manifests give every pod without an address one from a reserved range: 240.0.0.0/4
//! (RFC 1112 section 4: "reserved for future addressing modes"), or `100::/64` (RFC 6666, discard-only) if the
//! cluster has IPv6. Selectors treat a placeholder like the real address. Only blocks of all addresses match
//! it, because the real address may lie outside of any other block ([`Pod::placeholder`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::policy::objects::{Object, Pod, replicas};
use crate::tables::PodName;

/// Range of placeholders: the first address of each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceholderRange {
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl PlaceholderRange {
    /// 240.0.0.1 and `100::1`: no network uses these addresses, and no host accepts packets from them.
    pub const RESERVED: PlaceholderRange =
        PlaceholderRange { v4: Ipv4Addr::new(240, 0, 0, 1), v6: Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1) };
    /// 198.18.0.1 (RFC 2544 appendix C.2.2) and `2001:2::1` (RFC 5180 section 8): reserved for benchmarks
    /// with real packets.
    pub const BENCHMARK: PlaceholderRange =
        PlaceholderRange { v4: Ipv4Addr::new(198, 18, 0, 1), v6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1) };
}

/// Assigns reserved addresses to the pods without one; a pod with the same name in several lists gets the
/// same addresses. Returns the names of these pods.
pub fn assign_placeholders(lists: &mut [&mut Vec<Object>]) -> BTreeSet<PodName> {
    assign_placeholders_from(PlaceholderRange::RESERVED, lists)
}

/// Assigns addresses from a given range, as [`assign_placeholders`] does.
pub fn assign_placeholders_from(
    range: PlaceholderRange,
    lists: &mut [&mut Vec<Object>],
) -> BTreeSet<PodName> {
    let pods = || lists.iter().flat_map(|list| list.iter()).filter_map(as_pod);
    let known: BTreeSet<IpAddr> = pods().flat_map(|pod| pod.addresses.iter().copied()).collect();
    let awaiting: BTreeSet<PodName> =
        pods().filter(|pod| awaits_address(pod)).map(|pod| pod.name.clone()).collect();
    let has_v6 = known.iter().any(IpAddr::is_ipv6);
    let has_v4 = known.iter().any(IpAddr::is_ipv4) || !has_v6;
    let v4 = (range.v4.to_bits()..).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
    let v6 = (range.v6.to_bits()..).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)));
    let (mut v4, mut v6) = (v4.filter(|a| !known.contains(a)), v6.filter(|a| !known.contains(a)));
    let mut take = || {
        let v4 = if has_v4 { v4.next() } else { None };
        v4.into_iter().chain(if has_v6 { v6.next() } else { None }).collect()
    };
    let given: BTreeMap<PodName, Vec<IpAddr>> = awaiting.iter().map(|name| (name.clone(), take())).collect();
    for object in lists.iter_mut().flat_map(|list| list.iter_mut()) {
        if let Object::Pod(pod) = object
            && awaits_address(pod)
        {
            pod.addresses.clone_from(&given[&pod.name]);
            pod.placeholder = true;
        }
    }
    awaiting
}

/// Pods, and workloads, that are to get an address and have none yet.
pub fn without_address(objects: &[Object]) -> Vec<&PodName> {
    let pods = objects.iter().filter_map(as_pod).filter(|pod| awaits_address(pod)).map(|pod| &pod.name);
    pods.filter(|pod| replicas::workload_of_second_replica(pod).is_none()).collect()
}

/// Tests whether the pod is to get an address and has none yet.
fn awaits_address(pod: &Pod) -> bool {
    pod.addresses.is_empty() && !pod.host_network && !pod.finished
}

fn as_pod(object: &Object) -> Option<&Pod> {
    match object {
        Object::Pod(pod) => Some(pod),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, addresses: &[&str]) -> Object {
        Object::Pod(Pod {
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..Pod::new(PodName::new("default", name), BTreeMap::new())
        })
    }

    fn addresses(object: &Object) -> Vec<String> {
        as_pod(object).unwrap().addresses.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn a_pod_has_one_placeholder_in_every_list() {
        let (mut old, mut new) = (vec![pod("b", &[])], vec![pod("a", &[]), pod("b", &[])]);
        let named = assign_placeholders(&mut [&mut old, &mut new]);
        assert_eq!(named.len(), 2);
        assert_eq!(addresses(&old[0]), ["240.0.0.2"]);
        assert_eq!([addresses(&new[0]), addresses(&new[1])], [["240.0.0.1"], ["240.0.0.2"]]);
    }

    #[test]
    fn placeholders_are_of_the_families_that_the_cluster_has() {
        let mut objects = vec![pod("a", &["2001:db8::1"]), pod("b", &[])];
        assign_placeholders(&mut [&mut objects]);
        assert_eq!(addresses(&objects[1]), ["100::1"]);
        let mut objects = vec![pod("a", &["2001:db8::1", "240.0.0.1"]), pod("b", &[])];
        assign_placeholders(&mut [&mut objects]);
        assert_eq!(addresses(&objects[1]), ["240.0.0.2", "100::1"]);
    }

    #[test]
    fn placeholders_of_a_range_begin_with_its_first() {
        let mut objects = vec![pod("a", &["2001:db8::1", "192.0.2.1"]), pod("b", &[])];
        assign_placeholders_from(PlaceholderRange::BENCHMARK, &mut [&mut objects]);
        assert_eq!(addresses(&objects[1]), ["198.18.0.1", "2001:2::1"]);
    }

    #[test]
    fn pods_to_which_no_policy_applies_get_no_placeholder() {
        let mut objects = vec![pod("host", &[]), pod("done", &[])];
        for (object, host_network) in objects.iter_mut().zip([true, false]) {
            let Object::Pod(pod) = object else { unreachable!() };
            (pod.host_network, pod.finished) = (host_network, !host_network);
        }
        assert!(assign_placeholders(&mut [&mut objects]).is_empty());
        assert!(objects.iter().all(|object| addresses(object).is_empty()));
    }
}
