//! Drafts: rule lists and address sets before they have names.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use super::acl::{ClassMatch, Region, Regions};
use super::names;
use super::prefix_tree::PrefixTree;
use super::types::{AclPlan, AddressSet, Family, Peers, PlanRule, SetPlan, Span};
use crate::ids::{AclId, ClassId, RuleId};
use crate::tables::{Decision, Direction, PodPolicy, RuleOrigin, RuleTables};

/// Rule lists in use, in the order of their first pods, and address sets.
pub(super) struct Drafts<'a> {
    tables: &'a RuleTables,
    tree: PrefixTree,
    lists: Interned<Draft>,
    /// Lists by ACL table, direction, and whether the node stands apart.
    by_acl: HashMap<(Direction, AclId, bool), DraftOfAcl, foldhash::fast::RandomState>,
    sets: Interned<AddressSet>,
    by_classes: HashMap<Vec<ClassId>, usize, foldhash::fast::RandomState>,
}

/// Draft of an ACL table, and the addresses of the node that stand apart.
type DraftOfAcl = (usize, Vec<IpAddr>);

/// Drafts of a pod.
#[derive(Debug, Clone)]
pub(super) struct PodDrafts {
    pub(super) ingress: usize,
    pub(super) egress: usize,
    /// Addresses of the pod's node, from which all traffic passes.
    pub(super) nodes: Vec<IpAddr>,
}

/// Finished rule lists and sets by name, and the name of each draft, unless it allows everything.
pub(super) type Finished = (BTreeMap<String, AclPlan>, BTreeMap<String, SetPlan>, Vec<Option<String>>);

/// Rule list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Draft {
    direction: Direction,
    rules: Vec<DraftRule>,
    last: Decision,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DraftRule {
    peers: DraftPeers,
    services: Option<Vec<Span>>,
    decision: Decision,
}

/// Peers, with the index of their set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum DraftPeers {
    Anyone,
    In(usize),
    NotIn(usize),
    Hosts(Vec<IpAddr>),
}

impl<'a> Drafts<'a> {
    pub(super) fn new(tables: &'a RuleTables, family: Family) -> Drafts<'a> {
        Drafts {
            tables,
            tree: PrefixTree::new(tables, family),
            lists: Interned::default(),
            by_acl: HashMap::default(),
            sets: Interned::default(),
            by_classes: HashMap::default(),
        }
    }

    /// Drafts of the ingress and the egress table of a pod. If `splits`, the addresses of its node that always
    /// reach it stand apart, so that pods of several nodes share a draft.
    pub(super) fn of_pod(&mut self, pod: &PodPolicy, splits: bool) -> PodDrafts {
        let (ingress, nodes) = self.of_acl(Direction::Ingress, pod.ingress, splits);
        let (egress, _) = self.of_acl(Direction::Egress, pod.egress, splits);
        PodDrafts { ingress, egress, nodes }
    }

    fn of_acl(&mut self, direction: Direction, acl: AclId, splits: bool) -> DraftOfAcl {
        let key = (direction, acl, splits);
        if let Some(known) = self.by_acl.get(&key) {
            return known.clone();
        }
        let (draft, nodes) = self.draft(direction, acl, splits);
        let drafted = (self.lists.index_of(draft), nodes);
        self.by_acl.insert(key, drafted.clone());
        drafted
    }

    fn origin(&self, rule: RuleId) -> &'a RuleOrigin {
        &self.tables.rules[&rule]
    }

    fn draft(&mut self, direction: Direction, acl: AclId, splits: bool) -> (Draft, Vec<IpAddr>) {
        let regions = Regions::of(self.tables, &self.tables.acls[&acl], self.tree.classes());
        let (mut rules, mut nodes) = (Vec::with_capacity(regions.list.len()), Vec::new());
        for Region { peers, services, decision, is_total } in regions.list {
            match self.peers(peers, self.origin(decision.rule())) {
                Some(DraftPeers::Hosts(hosts)) if splits && is_total && decision.is_allow() => {
                    nodes.extend(hosts);
                }
                Some(peers) => rules.push(DraftRule { peers, services, decision }),
                None => {}
            }
        }
        // Ids differ between two states, names do not.
        rules.sort_by_cached_key(|rule| {
            let origin = self.origin(rule.decision.rule()).clone();
            (rule.services.is_none(), origin, rule.decision.verdict(), rule.services.clone())
        });
        (Draft { direction, rules, last: regions.last }, nodes)
    }

    /// Peers of a region; `None` if no address is among them.
    fn peers(&mut self, peers: ClassMatch, origin: &RuleOrigin) -> Option<DraftPeers> {
        let (classes, is_negative) = match peers {
            ClassMatch::In(classes) => (classes, false),
            ClassMatch::NotIn(classes) => (classes, true),
        };
        let set = if let Some(&known) = self.by_classes.get(&classes) {
            known
        } else {
            let index = self.sets.index_of(self.tree.addresses_of(&classes));
            self.by_classes.insert(classes, index);
            index
        };
        let addresses = &self.sets.entries[set];
        let is_host =
            |&(prefix, is_in): &(ipnet::IpNet, bool)| is_in && prefix.prefix_len() == prefix.max_prefix_len();
        match (addresses.is_empty(), is_negative) {
            (true, true) => Some(DraftPeers::Anyone),
            (true, false) => None,
            (false, true) => Some(DraftPeers::NotIn(set)),
            (false, false) if *origin == RuleOrigin::OwnNode && addresses.iter().all(is_host) => {
                Some(DraftPeers::Hosts(addresses.iter().map(|(prefix, _)| prefix.addr()).collect()))
            }
            (false, false) => Some(DraftPeers::In(set)),
        }
    }

    /// Names lists and sets.
    pub(super) fn finish(self) -> Finished {
        let names = self.list_names();
        let sets = self.set_names(&names);
        let mut lists = BTreeMap::new();
        for (draft, name) in self.lists.entries.iter().zip(&names) {
            let Some(name) = name else { continue };
            let rule = |rule: &DraftRule| {
                let origin = self.origin(rule.decision.rule());
                PlanRule {
                    peers: match &rule.peers {
                        DraftPeers::Anyone => Peers::Anyone,
                        DraftPeers::In(set) => Peers::In(sets[*set].0.clone()),
                        DraftPeers::NotIn(set) => Peers::NotIn(sets[*set].0.clone()),
                        DraftPeers::Hosts(hosts) => Peers::Hosts(hosts.clone()),
                    },
                    services: rule.services.clone(),
                    verdict: rule.decision.verdict(),
                    title: origin.to_string(),
                    policy: match origin {
                        RuleOrigin::Rule { policy, .. } => names::policy(policy),
                        other => names::rule(other),
                    },
                    counter: names::counter(origin, rule.decision.verdict()),
                }
            };
            let list = AclPlan {
                direction: draft.direction,
                rules: draft.rules.iter().map(rule).collect(),
                last: draft.last.verdict(),
                title: self.origin(draft.last.rule()).to_string(),
                counter: names::counter(self.origin(draft.last.rule()), draft.last.verdict()),
            };
            lists.insert(name.clone(), list);
        }
        let used = sets.into_iter().zip(self.sets.entries).filter(|((name, _), _)| !name.is_empty());
        let sets = used.map(|((name, title), addresses)| (name, SetPlan { addresses, title }));
        (lists, sets.collect(), names)
    }

    /// Names of the lists: by the policies that isolate the pod. If that is not unique, by the rules too, and
    /// then by a number in the order of pods. A list that allows everything has no name.
    fn list_names(&self) -> Vec<Option<String>> {
        let is_open = |draft: &Draft| draft.rules.is_empty() && draft.last.is_allow();
        let lists = self.lists.entries.iter().enumerate().filter(|(_, draft)| !is_open(draft));
        let mut names = vec![None; self.lists.entries.len()];
        for (name, alike) in grouped(lists.map(|(index, draft)| (self.first_name(draft), (index, draft)))) {
            let is_only = alike.len() == 1;
            let longer = alike.into_iter().map(|(index, draft)| {
                let rules = if is_only { String::new() } else { self.rules_digest(draft) };
                (format!("{name}{rules}"), index)
            });
            for (name, alike) in grouped(longer) {
                for (place, index) in alike.into_iter().enumerate() {
                    names[index] = Some(names::identifier(&numbered(&name, place)));
                }
            }
        }
        names
    }

    fn first_name(&self, draft: &Draft) -> String {
        format!("{}/{}", names::short(draft.direction), names::rule(self.origin(draft.last.rule())))
    }

    fn rules_digest(&self, draft: &Draft) -> String {
        let rules = draft.rules.iter().map(|rule| {
            let name = names::rule(self.origin(rule.decision.rule()));
            format!("{name} {:?} {:?}", rule.services, rule.decision.verdict())
        });
        let rules: Vec<String> = rules.collect();
        format!("/{}", &names::digest(&rules.join("\n"))[..8])
    }

    /// Names and titles of the sets: the first rule that uses a set names it, with a number if that rule has
    /// several. An unused set has an empty name.
    fn set_names(&self, lists: &[Option<String>]) -> Vec<(String, String)> {
        let mut users: BTreeMap<usize, (String, &String, usize, &RuleOrigin)> = BTreeMap::new();
        for (draft, list) in self.lists.entries.iter().zip(lists) {
            let Some(list) = list else { continue };
            for (place, rule) in draft.rules.iter().enumerate() {
                let (DraftPeers::In(set) | DraftPeers::NotIn(set)) = rule.peers else { continue };
                let origin = self.origin(rule.decision.rule());
                let user = (names::rule(origin), list, place, origin);
                users.entry(set).and_modify(|first| *first = user.clone().min(first.clone())).or_insert(user);
            }
        }
        let mut names = vec![(String::new(), String::new()); self.sets.entries.len()];
        let by_rule = users
            .iter()
            .map(|(&set, (rule, list, place, origin))| (rule.clone(), ((*list, *place), (set, *origin))));
        for (rule, mut sets) in grouped(by_rule) {
            sets.sort_unstable_by_key(|&(user, _)| user);
            for (place, (_, (set, origin))) in sets.into_iter().enumerate() {
                names[set] = (names::identifier(&numbered(&rule, place)), origin.to_string());
            }
        }
        names
    }
}

/// Groups entries by name, in their order.
fn grouped<T>(entries: impl Iterator<Item = (String, T)>) -> BTreeMap<String, Vec<T>> {
    let mut groups: BTreeMap<String, Vec<T>> = BTreeMap::new();
    entries.for_each(|(name, entry)| groups.entry(name).or_default().push(entry));
    groups
}

/// Name of the entry at this place among those of one name.
fn numbered(name: &str, place: usize) -> String {
    if place == 0 { name.to_owned() } else { format!("{name}/{}", place + 1) }
}

/// Distinct entries with their indices.
struct Interned<T> {
    entries: Vec<T>,
    indices: HashMap<T, usize, foldhash::fast::RandomState>,
}

impl<T> Default for Interned<T> {
    fn default() -> Interned<T> {
        Interned { entries: Vec::new(), indices: HashMap::default() }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    fn index_of(&mut self, entry: T) -> usize {
        let next = self.entries.len();
        *self.indices.entry(entry).or_insert_with_key(|entry| {
            self.entries.push(entry.clone());
            next
        })
    }
}
