//! Pods of the tables, by name and by address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::ids::AclId;

use super::document::{PersistentMap, PodName, PodPolicy, RuleTables};

/// ACL tables of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodAcls {
    /// Table of flows to the pod, by the class of the source.
    pub ingress: AclId,
    /// Table of flows from the pod, by the class of the destination.
    pub egress: AclId,
}

/// Pods by name and by address. A clone is cheap and shares unchanged chunks.
#[derive(Clone, Default)]
pub(super) struct PodIndex {
    by_name: PersistentMap<PodName, PodPolicy>,
    /// Pods by address. Pods that claim one address are adjacent, by name.
    by_address: PersistentMap<(IpAddr, PodName), ()>,
}

impl PodIndex {
    /// Index of the pods of `tables`.
    pub(super) fn new(tables: &RuleTables) -> PodIndex {
        let claims = |(name, pod): (&PodName, &PodPolicy)| {
            let name = name.clone();
            pod.addresses.clone().into_iter().map(move |address| ((address, name.clone()), ()))
        };
        PodIndex { by_name: tables.pods.clone(), by_address: tables.pods.iter().flat_map(claims).collect() }
    }

    /// ACL tables of a pod.
    pub(super) fn acls(&self, name: &PodName) -> Option<PodAcls> {
        let pod = self.by_name.get(name)?;
        Some(PodAcls { ingress: pod.ingress, egress: pod.egress })
    }

    /// Pods that claim an address, by name.
    pub(super) fn at(&self, address: IpAddr) -> impl Iterator<Item = &PodName> {
        let claims = self.by_address.iter_from(&(address, PodName::new("", "")));
        let claims = claims.map(|((claimed, name), ())| (*claimed, name));
        claims.take_while(move |(claimed, _)| *claimed == address).map(|(_, name)| name)
    }

    /// Applies changes: the next policy of each pod, `None` for a removed pod.
    pub(super) fn update(&mut self, changes: &BTreeMap<PodName, Option<PodPolicy>>) {
        for (name, pod) in changes {
            for address in self.by_name.remove(name).into_iter().flat_map(|before| before.addresses) {
                self.by_address.remove(&(address, name.clone()));
            }
            if let Some(pod) = pod {
                let claims = pod.addresses.iter().map(|&address| ((address, name.clone()), ()));
                self.by_address.extend(claims);
                self.by_name.insert(name.clone(), pod.clone());
            }
        }
    }
}
