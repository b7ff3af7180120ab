//! Identities, address-to-identity cache and policy maps, as Cilium keeps them.
//!
//! A packet is decided by two lookups in the map of an endpoint: with the identity of the peer, and with the wildcard
//! identity 0. Each finds the longest prefix of protocol and port. A denial of either wins, then an allowance of
//! either; without any the packet is dropped. The entries of the wildcard identity decide as the tables do for
//! addresses that no rule names, those of an identity where its verdict differs.

mod changes;
mod classes;
mod model;
mod nodes;
mod numbers;
mod owners;
mod peers;
mod policy;
mod ports;
mod print;
mod template;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

pub(super) use model::State;

use model::{Endpoint, Policy};
use nodes::Hosts;
use owners::Owners;
use peers::Peers;
use policy::Halves;

use super::output::{Part, RenderError, RenderOptions};
use super::rendering::{ClusterState, Rendering};
use crate::tables::{Direction, PodName, PodPolicy};

/// Most entries of the policy map of an endpoint: `PolicyMapMax` of Cilium's `pkg/option`.
const POLICY_MAX: usize = 1 << 16;
/// Most entries of all policy maps.
const ENTRIES_MAX: usize = 1 << 22;

impl Rendering for State {
    fn new(state: ClusterState, options: &RenderOptions) -> Result<State, RenderError> {
        let tables = state.tables;
        let owners = Owners::new(state.objects);
        let chosen = tables.pods.iter().filter(|(name, pod)| {
            options.pod.as_ref().is_none_or(|only| only == *name) && !pod.addresses.is_empty()
        });
        let chosen: Vec<(&PodName, &PodPolicy)> = chosen.collect();
        let hosts = Hosts::new(tables, &owners, &chosen);
        let peers = Peers::new(tables, &owners, hosts.groups(tables, &chosen))?;
        let mut halves = Halves::new(tables, &peers);
        let mut drafts: BTreeMap<(u32, [usize; 2]), Vec<&PodName>> = BTreeMap::new();
        for &(name, pod) in &chosen {
            let of_pod = hosts.of(name);
            let ingress = halves.index_of(Direction::Ingress, pod.ingress, of_pod);
            let egress = halves.index_of(Direction::Egress, pod.egress, of_pod);
            drafts.entry((identity(&peers, pod), [ingress, egress])).or_default().push(name);
        }
        let names = policy_names(&drafts);
        let mut endpoints = BTreeMap::new();
        let mut policies = BTreeMap::new();
        let finished = halves.finish();
        for (&(_, parts), policy) in drafts.keys().zip(&names) {
            policies.insert(policy.clone(), Policy(parts.map(|part| Rc::clone(&finished[part]))));
        }
        for (((identity, _), pods), policy) in drafts.iter().zip(&names) {
            for &pod in pods {
                let addresses = sorted(&tables.pods[pod].addresses);
                let host = hosts.of(pod).to_vec();
                let endpoint = Endpoint { identity: *identity, addresses, host, policy: policy.clone() };
                endpoints.insert(pod.clone(), endpoint);
            }
        }
        let state = State { identities: peers.identities, ipcache: peers.ipcache, policies, endpoints };
        check_sizes(&state)?;
        Ok(state)
    }

    fn parts(&self) -> Vec<Part> {
        vec![Part { file: "palisade.identity.json", text: print::state(self) }]
    }

    fn parts_since(&self, old: &State) -> Vec<Part> {
        let text = print::changes(&changes::between(old, self));
        vec![Part { file: "palisade.identity-changes.json", text }]
    }
}

/// Identity of the first address of a pod.
fn identity(peers: &Peers, pod: &PodPolicy) -> u32 {
    peers.identity_at(sorted(&pod.addresses)[0])
}

/// Names of policy maps: the identity of their endpoints. If these need several maps, the first pod follows in the name
/// of all but the first.
fn policy_names(drafts: &BTreeMap<(u32, [usize; 2]), Vec<&PodName>>) -> Vec<String> {
    let mut first: HashMap<u32, &PodName> = HashMap::new();
    for ((identity, _), pods) in drafts {
        first.entry(*identity).and_modify(|first| *first = pods[0].min(first)).or_insert(pods[0]);
    }
    let name = |(&(identity, _), pods): (&(u32, [usize; 2]), &Vec<&PodName>)| {
        if first[&identity] == pods[0] { identity.to_string() } else { format!("{identity}/{}", pods[0]) }
    };
    drafts.iter().map(name).collect()
}

fn sorted(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses = addresses.to_vec();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Refuses policy maps that Cilium cannot hold.
fn check_sizes(state: &State) -> Result<(), RenderError> {
    let total: usize = state.policies.values().map(Policy::len).sum();
    if total > ENTRIES_MAX {
        return Err(RenderError::TooManyRules { system: "identity", max: ENTRIES_MAX });
    }
    let too_large = |endpoint: &Endpoint| state.policies[&endpoint.policy].len() > POLICY_MAX;
    let Some((pod, endpoint)) = state.endpoints.iter().find(|(_, endpoint)| too_large(endpoint)) else {
        return Ok(());
    };
    let policy = &state.policies[&endpoint.policy];
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    policy.entries().for_each(|(_, value)| *counts.entry(&value.derived_from).or_default() += 1);
    let most = counts.iter().max_by_key(|(_, count)| **count).map_or("", |(rule, _)| *rule);
    Err(RenderError::Inexpressible {
        pod: pod.clone(),
        rule: most.trim_matches('"').to_owned(),
        problem: format!("its policy map would have {} entries, and Cilium holds {POLICY_MAX}", policy.len()),
    })
}
