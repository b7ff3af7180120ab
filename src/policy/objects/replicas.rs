//! Replicas: two pods that represent a workload with several pods.
//!
//! The first pod has the name of the workload. The name of the second contains a `#`, which no DNS subdomain
//! (RFC 1123) and therefore no object name contains.

use super::cluster_objects::Pod;
use crate::tables::PodName;

const SECOND: &str = "#2";

/// Creates the two pods of a workload. The first pod has the first address of each family, the second pod has
/// the others. A pod without an address awaits one.
pub(in crate::policy) fn replica_pair(first: Pod) -> [Pod; 2] {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for &address in &first.addresses {
        let is_taken = own.iter().any(|own: &std::net::IpAddr| own.is_ipv4() == address.is_ipv4());
        if is_taken { others.push(address) } else { own.push(address) }
    }
    let second = Pod { name: second_replica(&first.name), addresses: others, ..first.clone() };
    [Pod { addresses: own, ..first }, second]
}

/// Name of the second pod of a workload.
pub(in crate::policy) fn second_replica(workload: &PodName) -> PodName {
    PodName::new(workload.namespace.clone(), format!("{}{SECOND}", workload.name))
}

/// Workload of a second pod.
pub(in crate::policy) fn workload_of_second_replica(pod: &PodName) -> Option<PodName> {
    let workload = pod.name.strip_suffix(SECOND)?;
    Some(PodName::new(pod.namespace.clone(), workload))
}
