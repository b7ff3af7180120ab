//! Plan of a lab: pods, interfaces and addresses. Pure.
//!
//! A pod has one IPv4 and one IPv6 address, or the addresses of the specification, each alone in its prefix
//! (/32, /128), and default routes by way of link-local gateways. No two pods share a link, so every packet
//! between pods goes to the gateway, which is the switch.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::LabError;
use crate::control::protocol::{PodRequest, PortRequest};
use crate::dataplane::{Mac, PortKind};
use crate::limits::{MTU_MAX, PORTS_MAX, WORKERS_MAX};
use crate::tables::PodName;
use crate::xdp::mtu_of_this_kernel;

/// Name of the interface inside a pod.
pub const POD_INTERFACE: &str = "eth0";
/// MTU of the pods' routes to the outside, bytes: that of an Ethernet.
const OUTSIDE_MTU: u32 = 1500;
/// Longest interface name: `IFNAMSIZ` of `linux/if.h`, less its closing zero.
const INTERFACE_NAME_MAX: usize = 15;
/// Longest file name (`NAME_MAX` of `linux/limits.h`): a named namespace is a file.
const NAMESPACE_NAME_MAX: usize = 255;

/// Interfaces of the pods of a lab.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PodPorts {
    /// One end of a veth pair. A switch opens the other end, the host end.
    #[default]
    Veth,
    /// A tap device, which a switch opens inside the pod.
    Tap,
    /// One end of a veth pair, and the kernel forwards established flows (`[offload]` of the switch).
    Offload,
}

/// Specification of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabSpec {
    /// Pods.
    pub pods: Vec<PodName>,
    /// Interfaces of the pods.
    pub ports: PodPorts,
    /// Interfaces of single pods of namespace `default`, by name.
    pub ports_of: BTreeMap<String, PodPorts>,
    /// Queues of both ends of each veth pair, one per worker of the switch.
    pub workers: u16,
    /// MTU of both ends, bytes.
    pub mtu: u32,
    /// MTU of a pod's routes to destinations outside the two prefixes below, bytes.
    pub outside_mtu: u32,
    /// Prefix of the pods' IPv4 addresses, of which the first host stays unused.
    pub v4: Ipv4Net,
    /// Prefix of the pods' IPv6 addresses.
    pub v6: Ipv6Net,
    /// Pods with these addresses instead.
    pub given: BTreeMap<PodName, Vec<IpAddr>>,
}

impl LabSpec {
    /// Specifies a lab of these pods, in namespace `default` or as `namespace/name`, with one worker. Packets
    /// between pods are as large as the switch carries, others as large as an Ethernet carries.
    pub fn of(pods: &[&str]) -> Result<LabSpec, LabError> {
        let pods = pods.iter().map(|pod| pod.parse()).collect::<Result<Vec<PodName>, String>>();
        Ok(LabSpec {
            pods: pods.map_err(LabError::Plan)?,
            ports: PodPorts::Veth,
            ports_of: BTreeMap::new(),
            workers: 1,
            mtu: mtu_of_this_kernel(),
            outside_mtu: OUTSIDE_MTU,
            v4: Ipv4Net::new_assert(Ipv4Addr::new(10, 77, 0, 0), 16),
            v6: Ipv6Net::new_assert(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0), 64),
            given: BTreeMap::new(),
        })
    }
}

/// Plan of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPlan {
    /// Name of the pod.
    pub pod: PodName,
    /// Name of the network namespace.
    pub netns: String,
    /// Name of its port, and of the host end of its veth pair. The other end is [`POD_INTERFACE`].
    pub host_interface: String,
    /// Kind of [`POD_INTERFACE`].
    #[serde(default)]
    pub ports: PodPorts,
    /// Ethernet address of the pod's end.
    pub mac: Mac,
    /// Addresses, IPv4 first where the plan of the lab chose them.
    pub addresses: Vec<IpAddr>,
}

impl PodPlan {
    /// Request that adds the port of the pod, named as its host interface.
    pub fn port_request(&self) -> PortRequest {
        match self.ports {
            PodPorts::Veth | PodPorts::Offload => PortRequest::of(PortKind::Pod),
            PodPorts::Tap => PortRequest::tap(&self.netns, POD_INTERFACE),
        }
    }

    /// Whether the pod has a host end in the namespace of its lab.
    pub fn has_host_end(&self) -> bool {
        self.ports != PodPorts::Tap
    }

    /// Request that attaches the pod to the port on its host interface.
    pub fn pod_request(&self) -> PodRequest {
        PodRequest {
            port: self.host_interface.clone(),
            addresses: self.addresses.clone(),
            mac: Some(self.mac),
            ..PodRequest::default()
        }
    }

    /// First IPv4 address; the unspecified one without any.
    pub fn v4(&self) -> Ipv4Addr {
        let v4 = self.addresses.iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
        v4.unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// First IPv6 address; the unspecified one without any.
    pub fn v6(&self) -> Ipv6Addr {
        let v6 = self.addresses.iter().find_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        });
        v6.unwrap_or(Ipv6Addr::UNSPECIFIED)
    }
}

/// Plans the pods of `spec` in a lab with this id.
pub(super) fn plan(id: &str, spec: &LabSpec) -> Result<Vec<PodPlan>, LabError> {
    check(spec)?;
    spec.pods.iter().enumerate().map(|(number, pod)| plan_pod(id, spec, number, pod)).collect()
}

fn plan_pod(id: &str, spec: &LabSpec, number: usize, pod: &PodName) -> Result<PodPlan, LabError> {
    let netns = netns_name(id, &short_name(pod));
    let host_interface = format!("pal{id}p{number}");
    if netns.len() > NAMESPACE_NAME_MAX || host_interface.len() > INTERFACE_NAME_MAX {
        return Err(LabError::Plan(format!("the name of pod {pod} is too long for a namespace: shorten it")));
    }
    let [_, _, b2, b1] = (number as u32).to_be_bytes();
    Ok(PodPlan {
        pod: pod.clone(),
        netns,
        host_interface,
        ports: spec.ports_of.get(&pod.name).copied().unwrap_or(spec.ports),
        // Locally administered, unicast (IEEE 802c).
        mac: Mac([0x02, 0x70, 0x6f, 0x64, b2, b1]),
        addresses: match spec.given.get(pod) {
            Some(addresses) => addresses.clone(),
            None => planned_addresses(spec, number, pod)?,
        },
    })
}

fn planned_addresses(spec: &LabSpec, number: usize, pod: &PodName) -> Result<Vec<IpAddr>, LabError> {
    let full = |prefix: String| {
        LabError::Plan(format!("{prefix} has no address for pod {pod}: use a shorter prefix, or fewer pods"))
    };
    let v4 = spec.v4.hosts().nth(number + 1).ok_or_else(|| full(spec.v4.to_string()))?;
    let v6 = spec.v6.hosts().nth(number + 2).ok_or_else(|| full(spec.v6.to_string()))?;
    Ok(vec![v4.into(), v6.into()])
}

/// Name of a namespace of a lab.
pub(super) fn netns_name(id: &str, what: &str) -> String {
    format!("pal-{id}-{what}")
}

/// Short name of a pod within its lab. No Kubernetes name has a `_`, so no two pods share one.
fn short_name(pod: &PodName) -> String {
    if pod.namespace == "default" { pod.name.clone() } else { format!("{}_{}", pod.namespace, pod.name) }
}

fn check(spec: &LabSpec) -> Result<(), LabError> {
    let wrong = |text: String| Err(LabError::Plan(text));
    if spec.pods.is_empty() || spec.pods.len() > PORTS_MAX {
        return wrong(format!("a lab has 1 to {PORTS_MAX} pods, not {}", spec.pods.len()));
    }
    if spec.workers == 0 || usize::from(spec.workers) > WORKERS_MAX {
        return wrong(format!("a switch has 1 to {WORKERS_MAX} workers, not {}", spec.workers));
    }
    // "IPv6 requires that every link in the Internet have an MTU of 1280 octets or greater" (RFC 8200 section
    // 5).
    if spec.mtu < 1280 || spec.mtu as usize > MTU_MAX {
        return wrong(format!("the MTU of a lab is 1280 to {MTU_MAX}, not {}", spec.mtu));
    }
    if spec.outside_mtu < 1280 {
        return wrong(format!("the MTU to the outside is 1280 at least, not {}", spec.outside_mtu));
    }
    for (number, pod) in spec.pods.iter().enumerate() {
        if spec.pods[..number].contains(pod) {
            return wrong(format!("pod {pod} stands twice in the lab"));
        }
        if pod.to_string().contains(|c: char| !(c.is_ascii_alphanumeric() || "-./".contains(c))) {
            return wrong(format!("{pod}: a pod's name has letters, digits, - and . only"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_distinct_and_fit() {
        let spec = LabSpec::of(&["db", "other/db", "other/web"]).unwrap();
        let pods = plan("a1b2c3", &spec).unwrap();
        assert_eq!(pods[0].netns, "pal-a1b2c3-db");
        assert_eq!(pods[1].netns, "pal-a1b2c3-other_db");
        assert_eq!(pods[2].host_interface, "pala1b2c3p2");
        assert_eq!(pods[0].v4(), Ipv4Addr::new(10, 77, 0, 2));
        assert_eq!(pods[2].v6(), "fd77::4".parse::<Ipv6Addr>().unwrap());
        assert!(pods.iter().all(|pod| pod.host_interface.len() <= INTERFACE_NAME_MAX));
    }

    #[test]
    fn given_addresses_take_the_place_of_planned_ones() {
        let given = BTreeMap::from([("default/b".parse().unwrap(), vec!["192.0.2.7".parse().unwrap()])]);
        let pods = plan("a1b2c3", &LabSpec { given, ..LabSpec::of(&["a", "b"]).unwrap() }).unwrap();
        assert_eq!(pods[0].addresses.len(), 2);
        assert_eq!((pods[1].v4(), pods[1].v6()), (Ipv4Addr::new(192, 0, 2, 7), Ipv6Addr::UNSPECIFIED));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let good = LabSpec::of(&["a", "b"]).unwrap();
        let refused = |spec: LabSpec| plan("a1b2c3", &spec).unwrap_err().to_string();
        assert!(refused(LabSpec { workers: 0, ..good.clone() }).contains("workers"));
        assert!(refused(LabSpec { mtu: 65_535, ..good.clone() }).contains("MTU"));
        assert!(refused(LabSpec { outside_mtu: 500, ..good.clone() }).contains("outside"));
        assert!(
            refused(LabSpec { v4: "10.0.0.0/31".parse().unwrap(), ..good.clone() }).contains("no address")
        );
        assert!(refused(LabSpec { pods: vec![], ..good }).contains("pods"));
        assert!(refused(LabSpec::of(&["a", "default/a"]).unwrap()).contains("twice"));
        assert!(
            refused(LabSpec::of(&["../../etc"]).unwrap_or_else(|_| LabSpec::of(&["a b"]).unwrap()))
                .contains("letters")
        );
    }
}
