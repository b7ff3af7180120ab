//! Classes of peers: addresses that the same sets hold.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use crate::render::plan::{AddressSet, Peers, Plan};
use crate::tables::Direction;

/// Classes of the peers of one direction. Class 0 is of addresses that no set holds.
pub(super) struct Classes {
    /// Prefixes whose class is not that of the prefix above, with it.
    pub(super) prefixes: Vec<(IpNet, usize)>,
    /// Names of the sets that hold a class.
    pub(super) names: Vec<Vec<String>>,
    /// Classes that a set holds, by its name.
    of_set: BTreeMap<String, Vec<usize>>,
}

impl Classes {
    pub(super) fn of(plan: &Plan, direction: Direction) -> Classes {
        let lists = plan.acls.values().filter(|list| list.direction == direction);
        let mut sets: BTreeMap<String, AddressSet> = BTreeMap::new();
        for rule in lists.flat_map(|list| &list.rules) {
            let Some(name) = set_name(&rule.peers) else { continue };
            sets.entry(name).or_insert_with_key(|name| match &rule.peers {
                Peers::Hosts(hosts) => hosts.iter().map(|&host| (IpNet::from(host), true)).collect(),
                _ => plan.sets[name].addresses.clone(),
            });
        }
        // Sets by prefix, and whether each holds it.
        let mut changes: BTreeMap<IpNet, Vec<(usize, bool)>> = BTreeMap::new();
        for (set, addresses) in sets.values().enumerate() {
            addresses
                .iter()
                .for_each(|&(prefix, is_in)| changes.entry(prefix).or_default().push((set, is_in)));
        }
        let mut signatures: Vec<Vec<usize>> = vec![Vec::new()];
        let mut indices: HashMap<Vec<usize>, usize, foldhash::fast::RandomState> = HashMap::default();
        indices.insert(Vec::new(), 0);
        let mut prefixes = Vec::new();
        // A prefix follows the prefixes that contain it.
        let mut above: Vec<(IpNet, usize)> = Vec::new();
        for (prefix, changes) in changes {
            while above.last().is_some_and(|(last, _)| !last.contains(&prefix)) {
                above.pop();
            }
            let parent = above.last().map_or(0, |&(_, class)| class);
            let mut signature = signatures[parent].clone();
            signature.retain(|set| !changes.contains(&(*set, false)));
            signature.extend(changes.iter().filter(|(_, is_in)| *is_in).map(|&(set, _)| set));
            signature.sort_unstable();
            signature.dedup();
            let class = *indices.entry(signature).or_insert_with_key(|signature| {
                signatures.push(signature.clone());
                signatures.len() - 1
            });
            if class != parent {
                prefixes.push((prefix, class));
            }
            above.push((prefix, class));
        }
        let names: Vec<&String> = sets.keys().collect();
        let mut of_set: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (class, signature) in signatures.iter().enumerate() {
            signature.iter().for_each(|&set| of_set.entry(names[set].clone()).or_default().push(class));
        }
        let names = signatures.iter().map(|sets| sets.iter().map(|&set| names[set].clone()).collect());
        Classes { prefixes, names: names.collect(), of_set }
    }

    /// Classes that the set of these peers holds, whether the peers are in it or not.
    pub(super) fn of_set(&self, peers: &Peers) -> &[usize] {
        set_name(peers).and_then(|name| self.of_set.get(&name)).map_or(&[], Vec::as_slice)
    }
}

/// Name of the set of these peers; hosts have a set of their own.
fn set_name(peers: &Peers) -> Option<String> {
    match peers {
        Peers::Anyone => None,
        Peers::In(set) | Peers::NotIn(set) => Some(set.clone()),
        Peers::Hosts(hosts) => {
            let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
            Some(format!("hosts {}", hosts.join(" ")))
        }
    }
}
