//! Tables of one node: rules of one direction are folded into the other, since the datapath has lists at one end of
//! a connection alone.
//!
//! A pod's local table allows a connection to a pod of the node if the rules of both ends do. The global table
//! has the rules of the other direction, for connections between pods of the node and all other addresses.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use super::allowed::{AllowedId, AllowedSets};
use super::peers::PeerMap;
use crate::render::plan::{Endpoint, Family, Plan};
use crate::tables::{Direction, PodName};

/// Services by peer, for traffic with one address of a pod at the other end.
#[derive(Debug, Clone)]
pub(in crate::render) struct Scope {
    /// Address of the pod; `None` if the pod has no other.
    pub(in crate::render) own: Option<IpAddr>,
    /// Services.
    pub(in crate::render) peers: Rc<PeerMap>,
}

/// Scopes of a pod: one for each of its addresses.
pub(in crate::render) type Scopes = Vec<Scope>;

/// Tables of one address family. Directions are those of policy: ingress is traffic to a pod.
#[derive(Debug)]
pub(in crate::render) struct Folded {
    /// Rules of the pods as policy has them, in both directions.
    pub(in crate::render) pods: BTreeMap<PodName, PodScopes>,
    /// Local tables that do not allow everything.
    pub(in crate::render) local: BTreeMap<PodName, Scopes>,
    /// Global table, by the address of the pod.
    pub(in crate::render) global: Scopes,
}

/// Rules of a pod.
#[derive(Debug, Default)]
pub(in crate::render) struct PodScopes {
    /// Addresses.
    pub(in crate::render) addresses: Vec<IpAddr>,
    /// Rules of traffic to the pod.
    pub(in crate::render) ingress: Scopes,
    /// Rules of traffic from the pod.
    pub(in crate::render) egress: Scopes,
}

impl Folded {
    /// Tables of a plan. `into` is the direction that the local tables have.
    pub(in crate::render) fn new(
        plan: &Plan,
        family: Family,
        into: Direction,
        sets: &mut AllowedSets,
    ) -> Folded {
        let mut maps = Maps { plan, family, sets, by_lists: HashMap::default(), all: Vec::new() };
        let addresses: Vec<IpAddr> = plan.endpoints.keys().copied().collect();
        let [ingress, egress] = [Direction::Ingress, Direction::Egress].map(|direction| {
            let numbers = plan.endpoints.values().map(|endpoint| maps.of(endpoint, direction));
            numbers.collect::<Vec<usize>>()
        });
        let (own, others) = match into {
            Direction::Ingress => (&ingress, &egress),
            Direction::Egress => (&egress, &ingress),
        };
        let local = fold(&addresses, own, others, &mut maps);
        let mut places: BTreeMap<&PodName, Vec<usize>> = BTreeMap::new();
        for (place, endpoint) in plan.endpoints.values().enumerate() {
            endpoint.pods.iter().for_each(|pod| places.entry(pod).or_default().push(place));
        }
        let all = &maps.all;
        let scopes = |places: &[usize], map: &dyn Fn(usize) -> Rc<PeerMap>| {
            let is_sole = places.len() == 1;
            let scope = |&place: &usize| Scope {
                own: Some(addresses[place]).filter(|_| !is_sole),
                peers: map(place),
            };
            let scopes: Scopes = places.iter().map(scope).collect();
            if scopes.iter().all(|scope| scope.peers.is_open()) { Vec::new() } else { scopes }
        };
        let of_pod = |places: &Vec<usize>| PodScopes {
            addresses: places.iter().map(|&place| addresses[place]).collect(),
            ingress: scopes(places, &|place| Rc::clone(&all[ingress[place]])),
            egress: scopes(places, &|place| Rc::clone(&all[egress[place]])),
        };
        let global = others.iter().zip(&addresses).filter(|(map, _)| !all[**map].is_open());
        Folded {
            pods: places.iter().map(|(pod, places)| ((*pod).clone(), of_pod(places))).collect(),
            local: places
                .iter()
                .map(|(pod, places)| ((*pod).clone(), scopes(places, &|place| Rc::clone(&local[place]))))
                .filter(|(_, scopes): &(PodName, Scopes)| !scopes.is_empty())
                .collect(),
            global: global
                .map(|(&map, &own)| Scope { own: Some(own), peers: Rc::clone(&all[map]) })
                .collect(),
        }
    }
}

/// Local table of each address: its own rules, and those of the pods at the other end.
fn fold(addresses: &[IpAddr], own: &[usize], others: &[usize], maps: &mut Maps) -> Vec<Rc<PeerMap>> {
    // Pods that have the same rules, unless these allow everything.
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, &map) in others.iter().enumerate().filter(|(_, map)| !maps.all[**map].is_open()) {
        groups.entry(map).or_default().push(place);
    }
    let mut bases: HashMap<usize, Vec<AllowedId>> = HashMap::new();
    let mut folded: HashMap<(usize, Vec<AllowedId>), Rc<PeerMap>> = HashMap::new();
    let of_address = |(&address, &base): (&IpAddr, &usize)| {
        let theirs: Vec<AllowedId> = groups.keys().map(|&map| maps.all[map].at(address)).collect();
        let key = (base, theirs);
        if let Some(known) = folded.get(&key) {
            return Rc::clone(known);
        }
        let ours = bases
            .entry(base)
            .or_insert_with(|| addresses.iter().map(|&peer| maps.all[base].at(peer)).collect());
        let mut hosts = BTreeMap::new();
        for (places, &allowed) in groups.values().zip(&key.1) {
            if allowed == AllowedSets::EVERYTHING {
                continue;
            }
            for &place in places {
                let both = maps.sets.intersection(ours[place], allowed);
                if both != ours[place] {
                    hosts.insert(addresses[place], both);
                }
            }
        }
        let table = if hosts.is_empty() {
            Rc::clone(&maps.all[base])
        } else {
            Rc::new(maps.all[base].with_hosts(&hosts))
        };
        folded.insert(key, Rc::clone(&table));
        table
    };
    addresses.iter().zip(own).map(of_address).collect()
}

/// Maps of rule lists, each of which several addresses may share.
struct Maps<'a> {
    plan: &'a Plan,
    family: Family,
    sets: &'a mut AllowedSets,
    by_lists: HashMap<(Vec<String>, Vec<IpAddr>), usize>,
    all: Vec<Rc<PeerMap>>,
}

impl Maps<'_> {
    /// Number of the map of an address in one direction. Each list may deny, except what comes from the pod's node.
    fn of(&mut self, endpoint: &Endpoint, direction: Direction) -> usize {
        let (lists, nodes) = match direction {
            Direction::Ingress => (&endpoint.ingress, endpoint.nodes.clone()),
            Direction::Egress => (&endpoint.egress, Vec::new()),
        };
        let key = (lists.clone(), if lists.is_empty() { Vec::new() } else { nodes });
        if let Some(&known) = self.by_lists.get(&key) {
            return known;
        }
        let of_lists: Vec<PeerMap> = lists
            .iter()
            .map(|list| PeerMap::of_list(self.plan, &self.plan.acls[list], self.family, self.sets))
            .collect();
        let map = match &of_lists[..] {
            [] => PeerMap::open(self.family),
            [only] => only.clone(),
            several => PeerMap::intersection(&several.iter().collect::<Vec<_>>(), self.family, self.sets),
        };
        let nodes = key.1.iter().map(|&node| (node, AllowedSets::EVERYTHING)).collect();
        self.all.push(Rc::new(map.with_hosts(&nodes)));
        self.by_lists.insert(key, self.all.len() - 1);
        self.all.len() - 1
    }
}
