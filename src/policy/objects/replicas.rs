//! Replicas: the two pods that stand for a workload with several.
//!
//! The first has the workload's name. The second has a name that no object can have: a `#` is in no DNS subdomain.

use super::Pod;
use crate::tables::PodName;

const SECOND: &str = "#2";

/// Two pods of a workload. Of the addresses of each family the first pod has the first, the second pod has the others; a
/// pod without any waits for one.
pub(in crate::policy) fn replica_pair(first: Pod) -> [Pod; 2] {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for &address in &first.addresses {
        let is_taken = own.iter().any(|own: &std::net::IpAddr| own.is_ipv4() == address.is_ipv4());
        if is_taken { others.push(address) } else { own.push(address) }
    }
    let second = Pod { name: second_replica(&first.name), addresses: others, ..first.clone() };
    [Pod { addresses: own, ..first }, second]
}

/// The name of the second pod of a workload.
pub(in crate::policy) fn second_replica(workload: &PodName) -> PodName {
    PodName::new(workload.namespace.clone(), format!("{}{SECOND}", workload.name))
}

/// The workload whose second pod this is.
pub(in crate::policy) fn workload_of_second_replica(pod: &PodName) -> Option<PodName> {
    let workload = pod.name.strip_suffix(SECOND)?;
    Some(PodName::new(pod.namespace.clone(), workload))
}
