//! Plan: rule tables as lists of rules over named address sets, for one address family. Every format prints a plan.
//!
//! A plan follows from the content of the tables alone. Names stay the same while members of sets change, so that
//! a difference of two plans is small.

mod acl;
mod draft;
mod names;
mod prefix_tree;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::tables::{Direction, PodName, RuleTables, Verdict};

pub(crate) use acl::Span;
pub(crate) use names::{comment, digest};
pub(crate) use prefix_tree::AddressSet;

use draft::{Drafts, PodDrafts};

/// Address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, in the order of printing.
    pub(crate) const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Tests whether an address is of the family.
    pub(crate) fn holds(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Family::V4)
    }
}

/// Plan of one address family.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Addresses of pods.
    pub(crate) endpoints: BTreeMap<IpAddr, Endpoint>,
    /// Rule lists by name.
    pub(crate) acls: BTreeMap<String, AclPlan>,
    /// Address sets by name.
    pub(crate) sets: BTreeMap<String, SetPlan>,
}

/// Address of one pod, or of several.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Pods that claim the address, by name.
    pub(crate) pods: Vec<PodName>,
    /// Addresses that are certainly of the same pod, with this one.
    pub(crate) own: Vec<IpAddr>,
    /// Addresses of the pod's node, from which all traffic passes.
    pub(crate) nodes: Vec<IpAddr>,
    /// Rule lists of flows to the address. Each may deny; without one the flow passes.
    pub(crate) ingress: Vec<String>,
    /// Rule lists of flows from the address.
    pub(crate) egress: Vec<String>,
}

/// Rule list of pods in one direction. The first rule that matches decides.
#[derive(Debug)]
pub(crate) struct AclPlan {
    /// Direction: the peer is the source of ingress, the destination of egress.
    pub(crate) direction: Direction,
    /// Rules.
    pub(crate) rules: Vec<PlanRule>,
    /// Verdict if no rule matches.
    pub(crate) last: Verdict,
    /// Origin of the last verdict, in words.
    pub(crate) title: String,
}

/// Rule of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanRule {
    /// Peers.
    pub(crate) peers: Peers,
    /// Services, sorted; `None` for all traffic.
    pub(crate) services: Option<Vec<Span>>,
    /// Verdict.
    pub(crate) verdict: Verdict,
    /// Origin in words.
    pub(crate) title: String,
    /// Name of the policy, or of another origin.
    pub(crate) policy: String,
}

/// Peers of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Every address.
    Anyone,
    /// Members of a set.
    In(String),
    /// Other addresses than the members of a set.
    NotIn(String),
    /// Addresses of the pod's node.
    Hosts(Vec<IpAddr>),
}

/// Named address set.
#[derive(Debug)]
pub(crate) struct SetPlan {
    /// Addresses.
    pub(crate) addresses: AddressSet,
    /// Rule that gives the set its name, in words.
    pub(crate) title: String,
}

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
        Plan { endpoints: endpoints.collect(), acls, sets }
    }
}
