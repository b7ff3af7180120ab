//! Nodes: addresses with the identity of the host, and the identities of remote nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::classes::Classes;
use super::owners::Owners;
use crate::ids::{AclId, ClassId, RowId};
use crate::tables::{PodName, PodPolicy, RuleTables};

/// Addresses of nodes, and those that have the identity of the host for each chosen pod.
pub(super) struct Hosts<'a> {
    nodes: Vec<(IpAddr, ClassId)>,
    by_pod: BTreeMap<&'a PodName, Vec<IpAddr>>,
}

/// Addresses of remote nodes that no table of the chosen pods tells apart, with their classes.
pub(super) type NodeGroup = Vec<(IpAddr, ClassId)>;

impl<'a> Hosts<'a> {
    pub(super) fn new(
        tables: &RuleTables,
        owners: &Owners<'a>,
        chosen: &[(&'a PodName, &PodPolicy)],
    ) -> Hosts<'a> {
        let classes = Classes::new(tables);
        let of_pod = |&(name, pod): &(&'a PodName, &PodPolicy)| {
            let addresses = owners.hosts.get(name).into_iter().flatten();
            (name, alike(tables, &classes, pod, addresses.copied()))
        };
        let by_pod = chosen.iter().map(of_pod).collect();
        let nodes = owners.nodes.iter().map(|&address| (address, classes.of(address))).collect();
        Hosts { nodes, by_pod }
    }

    /// Addresses that have the identity of the host for a chosen pod.
    pub(super) fn of(&self, pod: &PodName) -> &[IpAddr] {
        self.by_pod.get(pod).map_or(&[], Vec::as_slice)
    }

    /// Groups of nodes. A table does not tell apart what all of its pods know as their host.
    pub(super) fn groups(&self, tables: &RuleTables, chosen: &[(&PodName, &PodPolicy)]) -> Vec<NodeGroup> {
        let mut hosts: BTreeMap<AclId, BTreeSet<IpAddr>> = BTreeMap::new();
        for &(name, pod) in chosen {
            let own: BTreeSet<IpAddr> = self.of(name).iter().copied().collect();
            for acl in [pod.ingress, pod.egress] {
                let common = hosts.entry(acl).or_insert_with(|| own.clone());
                common.retain(|address| own.contains(address));
            }
        }
        let mut groups: Vec<(NodeGroup, Vec<Option<RowId>>)> = Vec::new();
        for &(address, class) in &self.nodes {
            let row = |(acl, hosts): (&AclId, &BTreeSet<IpAddr>)| {
                (!hosts.contains(&address)).then(|| tables.acls[acl].row(class))
            };
            let rows: Vec<Option<RowId>> = hosts.iter().map(row).collect();
            match groups.iter_mut().find(|(_, known)| is_compatible(known, &rows)) {
                Some((group, known)) => {
                    group.push((address, class));
                    known.iter_mut().zip(rows).for_each(|(known, row)| *known = known.or(row));
                }
                None => groups.push((vec![(address, class)], rows)),
            }
        }
        groups.into_iter().map(|(group, _)| group).collect()
    }
}

fn is_compatible(known: &[Option<RowId>], rows: &[Option<RowId>]) -> bool {
    known.iter().zip(rows).all(|(known, row)| known.is_none() || row.is_none() || known == row)
}

/// Addresses that the tables of a pod do not tell from the first one.
fn alike(
    tables: &RuleTables,
    classes: &Classes,
    pod: &PodPolicy,
    addresses: impl Iterator<Item = IpAddr>,
) -> Vec<IpAddr> {
    let rows = |address: IpAddr| {
        let class = classes.of(address);
        [pod.ingress, pod.egress].map(|acl| tables.acls[&acl].row(class))
    };
    let mut first = None;
    addresses.filter(|&address| *first.get_or_insert_with(|| rows(address)) == rows(address)).collect()
}
