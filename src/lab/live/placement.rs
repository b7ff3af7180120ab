//! Placement of the addresses of cases at sites. Pure.
//!
//! A site is a network namespace with some addresses. Every list of addresses that a pod of any case has is a
//! site, and one site outside the cluster has all other addresses. Cases whose pods differ in nothing but
//! names, labels and policies share their sites, so that only tables change between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use super::case::LiveCase;
use crate::lab::{GATEWAY_V4, GATEWAY_V6};
use crate::net::flow::{FlowKey, Protocol};

/// Most sites of pods in one lab, unless a single case has more. A port may have 2,048 frames in its fill
/// ring, and a worker has 32,768 by default.
const SITES_MAX: usize = 12;
/// Address of the node in the configuration of the switch. No case may use it (RFC 7600, "IPv4 dummy
/// address"), so no traffic of a case is the node's own. The nodes of a case are among its objects, and its
/// tables have them.
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// Number of a site in a lab.
pub(super) type Site = usize;
/// Site of all addresses that are no pod's.
pub(super) const OUTSIDE: Site = 0;

/// Service of a site: an address, a protocol, and a port for protocols whose sockets have ports.
pub(super) type Service = (IpAddr, Protocol, u16);

/// Sites of some cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// Addresses of the sites of pods; the first is site 1.
    pods: Vec<Vec<IpAddr>>,
    /// Addresses outside the cluster.
    outside: BTreeSet<IpAddr>,
    /// Services by site.
    services: BTreeMap<Site, BTreeSet<Service>>,
}

/// Divides cases into runs that share their sites.
pub(super) fn plan(cases: &[LiveCase]) -> Vec<(Range<usize>, Placement)> {
    let mut runs: Vec<(Range<usize>, Placement)> = vec![];
    for (number, case) in cases.iter().enumerate() {
        match runs.last_mut() {
            Some((run, placement)) if placement.fits(case) => {
                placement.add(case);
                run.end = number + 1;
            }
            _ => {
                let mut placement = Placement::default();
                placement.add(case);
                runs.push((number..number + 1, placement));
            }
        }
    }
    runs
}

/// Whether one host can have each end of a flow, and the two can reach each other through a switch.
pub(super) fn can_be_sent(case: &LiveCase, flow: &FlowKey) -> bool {
    [flow.src, flow.dst].into_iter().all(|end| is_host(end) && case.claims(end) <= 1)
}

fn is_host(address: IpAddr) -> bool {
    match address {
        // 0.0.0.0/8 and 127.0.0.0/8 do not leave their host; 224.0.0.0/3 is multicast, reserved or broadcast
        // (RFC 6890).
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            !matches!(first, 0 | 127 | 224..) && v4 != GATEWAY_V4 && v4 != NODE
        }
        IpAddr::V6(v6) => {
            let special = v6.is_multicast() || v6.is_loopback() || v6.is_unspecified();
            !special && !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none() && v6 != GATEWAY_V6
        }
    }
}

impl Placement {
    /// Addresses of each site. The first one outside is the node's, so that the site has an address in any
    /// case.
    pub(super) fn addresses(&self) -> Vec<Vec<IpAddr>> {
        let outside = [NODE.into()].into_iter().chain(self.outside.iter().copied()).collect();
        [outside].into_iter().chain(self.pods.iter().cloned()).collect()
    }

    /// Services of a site.
    pub(super) fn services(&self, site: Site) -> impl Iterator<Item = Service> + '_ {
        self.services.get(&site).into_iter().flatten().copied()
    }

    /// Site of a pod with these addresses.
    pub(super) fn of_pod(&self, addresses: &[IpAddr]) -> Option<Site> {
        let wanted = sorted(addresses);
        self.pods.iter().position(|pod| *pod == wanted).map(|index| index + 1)
    }

    /// Site of an address in a case.
    pub(super) fn of_address(&self, case: &LiveCase, address: IpAddr) -> Site {
        let pod = case.pods.values().find(|addresses| addresses.contains(&address));
        pod.and_then(|addresses| self.of_pod(addresses)).unwrap_or(OUTSIDE)
    }

    /// Whether a case fits: there is room, and no address is a pod's in one case and outside in another. The
    /// host outside has such an address for its own, and never sends to the pod.
    fn fits(&self, case: &LiveCase) -> bool {
        let mut both = self.clone();
        both.add(case);
        let few = both.pods.len() <= SITES_MAX.max(self.pods.len());
        few && both.pods.iter().flatten().all(|address| !both.outside.contains(address))
    }

    fn add(&mut self, case: &LiveCase) {
        for (_, addresses) in case.pods_to_make() {
            if self.of_pod(addresses).is_none() {
                self.pods.push(sorted(addresses));
            }
        }
        for flow in case.probes.iter().map(|probe| &probe.flow).filter(|flow| can_be_sent(case, flow)) {
            for address in [flow.src, flow.dst] {
                if self.of_address(case, address) == OUTSIDE {
                    self.outside.insert(address);
                }
            }
            let port = if matches!(flow.protocol, Protocol::TCP | Protocol::UDP) { flow.dst_port } else { 0 };
            let services = self.services.entry(self.of_address(case, flow.dst)).or_default();
            services.insert((flow.dst, flow.protocol, port));
        }
    }
}

fn sorted(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses = addresses.to_vec();
    addresses.sort();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::live::case::LiveProbe;
    use crate::tables::{RuleTables, Verdict};

    fn case(pods: &[(&str, &str)], flows: &[(&str, &str, u16)]) -> LiveCase {
        let probes = flows.iter().map(|(src, dst, dst_port)| {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: *dst_port };
            LiveProbe { flow, through: None, expect: Verdict::Allow }
        });
        LiveCase {
            name: String::new(),
            pods: pods
                .iter()
                .map(|(name, address)| (name.parse().unwrap(), vec![address.parse().unwrap()]))
                .collect(),
            tables: RuleTables::default(),
            services: crate::tables::ServiceTable::default(),
            probes: probes.collect(),
        }
    }

    #[test]
    fn pods_of_other_names_with_the_same_addresses_share_a_site() {
        let cases = [
            case(&[("a/x", "10.0.0.1"), ("a/y", "10.0.0.2")], &[("10.0.0.1", "10.0.0.2", 80)]),
            case(&[("b/z", "10.0.0.2")], &[("192.0.2.1", "10.0.0.2", 81)]),
        ];
        let runs = plan(&cases);
        let [(run, placement)] = runs.as_slice() else { panic!("{runs:?}") };
        assert_eq!((run.clone(), placement.addresses().len()), (0..2, 3));
        let second = placement.of_pod(&["10.0.0.2".parse().unwrap()]).unwrap();
        assert_eq!(placement.services(second).map(|(_, _, port)| port).collect::<Vec<_>>(), [80, 81]);
        let outside = "192.0.2.1".parse().unwrap();
        assert_eq!(placement.of_address(&cases[1], outside), OUTSIDE);
        assert_eq!(placement.addresses()[OUTSIDE], [NODE.into(), outside]);
    }

    #[test]
    fn what_is_a_pod_here_and_outside_there_is_in_two_labs() {
        let pods = case(&[("a/x", "10.0.0.1"), ("a/y", "10.0.0.2")], &[("10.0.0.1", "10.0.0.2", 80)]);
        let outside = case(&[("a/y", "10.0.0.2")], &[("10.0.0.1", "10.0.0.2", 80)]);
        let runs = |cases: &[LiveCase]| plan(cases).into_iter().map(|(run, _)| run).collect::<Vec<_>>();
        assert_eq!(runs(&[pods.clone(), outside.clone()]), [0..1, 1..2]);
        assert_eq!(runs(&[outside.clone(), pods.clone()]), [0..1, 1..2]);
        assert_eq!(runs(&[pods.clone(), pods]), vec![Range { start: 0, end: 2 }]);
    }

    #[test]
    fn a_pod_whose_address_another_claims_is_not_made() {
        let shared = case(
            &[("a/x", "10.0.0.1"), ("a/y", "10.0.0.1"), ("a/z", "10.0.0.2")],
            &[("10.0.0.1", "10.0.0.2", 80), ("192.0.2.1", "10.0.0.2", 80)],
        );
        let sent: Vec<bool> = shared.probes.iter().map(|probe| can_be_sent(&shared, &probe.flow)).collect();
        assert_eq!(sent, [false, true]);
        assert_eq!(plan(&[shared])[0].1.addresses().len(), 2);
    }

    #[test]
    fn a_lab_that_is_full_is_followed_by_another() {
        let names: Vec<String> = (0..=SITES_MAX).map(|number| format!("a/p{number}")).collect();
        let one = |number: usize| case(&[(&names[number], &format!("10.0.0.{}", number + 1))], &[]);
        let cases: Vec<LiveCase> = (0..=SITES_MAX).map(one).collect();
        let runs: Vec<Range<usize>> = plan(&cases).into_iter().map(|(run, _)| run).collect();
        assert_eq!(runs, [0..SITES_MAX, SITES_MAX..SITES_MAX + 1]);
    }

    #[test]
    fn what_no_host_can_have_is_not_sent() {
        let wrong = [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.0.8",
            "169.254.1.1",
            "::",
            "::1",
            "ff02::1",
            "fe80::1",
            "fe80::2",
            "::ffff:10.0.0.1",
        ];
        for address in wrong {
            assert!(!is_host(address.parse().unwrap()), "{address}");
        }
        for address in ["1.0.0.1", "10.0.0.0", "223.255.255.255", "2001:db8::1", "fd00::1", "198.18.0.1"] {
            assert!(is_host(address.parse().unwrap()), "{address}");
        }
    }
}
