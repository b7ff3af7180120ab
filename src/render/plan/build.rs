//! Plan of rule tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::draft::{Drafts, PodDrafts};
use super::types::{Endpoint, Family, Plan, PodLists};
use crate::tables::{PodName, RuleTables};

impl Plan {
    /// Plan for all pods of the tables, or for one. The tables have passed their check.
    pub(crate) fn new(tables: &RuleTables, family: Family, only: Option<&PodName>) -> Plan {
        let pods = tables.pods.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        let mut claims: BTreeMap<IpAddr, Vec<&PodName>> = BTreeMap::new();
        for (name, pod) in pods {
            let addresses = pod.addresses.iter().filter(|address| family.holds(**address));
            addresses.for_each(|&address| claims.entry(address).or_default().push(name));
        }
        let is_shared = |address: &IpAddr| claims.get(address).is_some_and(|pods| pods.len() > 1);
        let mut drafts = Drafts::new(tables, family);
        let claimants: BTreeSet<&PodName> = claims.values().flatten().copied().collect();
        let of_pods: BTreeMap<&PodName, PodDrafts> = claimants
            .into_iter()
            .map(|name| {
                let pod = &tables.pods[name];
                // Each pod of a shared address has a node of its own.
                (name, drafts.of_pod(pod, !pod.addresses.iter().any(is_shared)))
            })
            .collect();
        let (acls, sets, names) = drafts.finish();
        let endpoints = claims.iter().map(|(&address, claimants)| {
            let own = if is_shared(&address) {
                vec![address]
            } else {
                let addresses = tables.pods[claimants[0]].addresses.iter();
                addresses.filter(|other| family.holds(**other) && !is_shared(other)).copied().collect()
            };
            let lists = |draft: fn(&PodDrafts) -> usize| {
                let lists: BTreeSet<&String> =
                    claimants.iter().filter_map(|pod| names[draft(&of_pods[pod])].as_ref()).collect();
                lists.into_iter().cloned().collect()
            };
            let endpoint = Endpoint {
                pods: claimants.iter().map(|pod| (*pod).clone()).collect(),
                own,
                nodes: of_pods[claimants[0]].nodes.clone(),
                ingress: lists(|drafts| drafts.ingress),
                egress: lists(|drafts| drafts.egress),
            };
            (address, endpoint)
        });
        let endpoints = endpoints.collect();
        let of_pod = |(name, drafts): (&PodName, PodDrafts)| {
            let list = |draft: usize| names[draft].clone();
            let lists =
                PodLists { ingress: list(drafts.ingress), egress: list(drafts.egress), nodes: drafts.nodes };
            (name.clone(), lists)
        };
        let pods = of_pods.into_iter().map(of_pod).collect();
        Plan { endpoints, pods, acls, sets }
    }
}
