//! Groups under construction: rules are added once, and ports are attached.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use super::cluster::{Cluster, port_numbers};
use super::ids;
use super::model::{RuleMatch, SecurityGroup, SecurityGroupRule};
use super::spec::pod_set_key;
use crate::net::flow::Protocol;
use crate::policy::PodSet;
use crate::policy::objects::Pod;
use crate::render::output::RenderError;
use crate::render::plan::digest;
use crate::tables::PodName;

/// Most rules of a group.
const RULES_MAX: usize = 4_096;
/// Most characters of a description in Neutron.
const DESCRIPTION_MAX: usize = 255;

/// Groups by id, and the groups of each pod.
#[derive(Default)]
pub(super) struct Groups<'a> {
    by_id: BTreeMap<String, Group>,
    attached: Attached<'a>,
    members: HashMap<Members, Known<'a>>,
}

/// Groups of pods.
pub(super) type Attached<'a> = BTreeMap<&'a PodName, BTreeSet<String>>;

/// Group of peers that exists already: its id and its pods.
type Known<'a> = (String, Rc<[&'a Pod]>);

struct Group {
    /// Parts of which the id is the hash.
    key: Vec<String>,
    name: String,
    description: String,
    tags: Vec<String>,
    rules: BTreeMap<String, SecurityGroupRule>,
}

/// Pods whose group is the peer of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Members {
    /// Pods by selectors; `None` for all.
    pub(super) set: Option<PodSet>,
    /// Port by name, protocol and number that the pods have.
    pub(super) port: Option<(String, Protocol, u16)>,
}

impl Members {
    fn key(&self) -> [String; 2] {
        let port = self.port.as_ref().map(|(name, protocol, number)| format!("{name} {protocol} {number}"));
        [self.set.as_ref().map(pod_set_key).unwrap_or_default(), port.unwrap_or_default()]
    }

    fn description(&self) -> String {
        let set = self.set.as_ref().map_or_else(|| "all pods".to_owned(), ToString::to_string);
        match &self.port {
            None => format!("Members: {set}"),
            Some((name, protocol, number)) => {
                format!("Members: {set} whose port {name} is {protocol} {number}")
            }
        }
    }
}

impl<'a> Groups<'a> {
    /// Adds a group, unless it exists. Its id follows from the key.
    pub(super) fn add(
        &mut self,
        key: &[&str],
        name: String,
        description: &str,
        tags: Vec<String>,
    ) -> Result<String, RenderError> {
        let id = ids::uuid(key);
        match self.by_id.entry(id.clone()) {
            Entry::Occupied(known) if known.get().key != key => {
                return Err(RenderError::SameName {
                    first: known.get().key.join(" "),
                    second: key.join(" "),
                    name: id,
                });
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(vacant) => {
                let key = key.iter().map(|&part| part.to_owned()).collect();
                let description = description.chars().take(DESCRIPTION_MAX).collect();
                vacant.insert(Group { key, name, description, tags, rules: BTreeMap::new() });
            }
        }
        Ok(id)
    }

    /// Tests whether a group exists.
    pub(super) fn has(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// Adds a rule to a group, unless the group has it: Neutron refuses a second rule that matches the same.
    pub(super) fn add_rule(
        &mut self,
        id: &str,
        rule: &RuleMatch,
        description: &str,
    ) -> Result<SecurityGroupRule, RenderError> {
        let rule = rule.in_group(id, description);
        let group = self.by_id.get_mut(id).expect("a group precedes its rules");
        let known = group.rules.entry(rule.id.clone()).or_insert_with(|| rule.clone());
        if *known != rule {
            let names = [known, &rule].map(|rule| format!("{rule:?}"));
            let [first, second] = names;
            return Err(RenderError::SameName { first, second, name: rule.id });
        }
        let found = group.rules.len();
        if found > RULES_MAX {
            return Err(too_large(&group.name, found));
        }
        Ok(rule)
    }

    /// Adds the rules that a list expands to: all of them or, above the limit, their number.
    pub(super) fn add_rules(
        &mut self,
        id: &str,
        description: &str,
        expand: impl FnOnce(usize) -> Result<Vec<RuleMatch>, usize>,
    ) -> Result<(), RenderError> {
        let rules = expand(RULES_MAX).map_err(|found| too_large(&self.by_id[id].name, found))?;
        rules.iter().try_for_each(|rule| self.add_rule(id, rule, description).map(drop))
    }

    /// Attaches the port of a pod to a group.
    pub(super) fn attach(&mut self, pod: &'a PodName, id: &str) {
        self.attached.entry(pod).or_default().insert(id.to_owned());
    }

    /// Group of the pods that are peers, which has no rules.
    pub(super) fn members(
        &mut self,
        cluster: &Cluster<'a>,
        members: &Members,
    ) -> Result<Known<'a>, RenderError> {
        if let Some(known) = self.members.get(members) {
            return Ok(known.clone());
        }
        let mut pods: Rc<[&Pod]> = match &members.set {
            Some(set) => cluster.select(set),
            None => cluster.pods.values().copied().collect(),
        };
        if let Some((name, protocol, number)) = &members.port {
            let has = |pod: &&&Pod| port_numbers(pod, name, *protocol).contains(number);
            pods = pods.iter().filter(has).copied().collect();
        }
        let [set, port] = members.key();
        let key = ["members", &set, &port];
        let name = format!("sg-pods-{}", digest(&key.concat()));
        let id = self.add(&key, name, &members.description(), Vec::new())?;
        pods.iter().for_each(|pod| self.attach(&pod.name, &id));
        self.members.insert(members.clone(), (id.clone(), Rc::clone(&pods)));
        Ok((id, pods))
    }

    /// Groups in the order of their names, and the groups of each pod.
    pub(super) fn finish(self) -> Result<(Vec<SecurityGroup>, Attached<'a>), RenderError> {
        let mut rules_seen: HashMap<String, String> = HashMap::new();
        let mut groups = Vec::with_capacity(self.by_id.len());
        for (id, group) in self.by_id {
            let mut rules: Vec<SecurityGroupRule> = group.rules.into_values().collect();
            rules.sort_unstable();
            for rule in &rules {
                if let Some(other) = rules_seen.insert(rule.id.clone(), group.name.clone()) {
                    let (first, second) = (other, group.name);
                    return Err(RenderError::SameName { first, second, name: rule.id.clone() });
                }
            }
            let content: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
            let mut tags = group.tags;
            tags.push(format!("generation={}", digest(&content.concat())));
            groups.push(SecurityGroup { id, name: group.name, description: group.description, tags, rules });
        }
        groups.sort_unstable_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok((groups, self.attached))
    }
}

fn too_large(group: &str, found: usize) -> RenderError {
    RenderError::GroupTooLarge { group: group.to_owned(), found, max: RULES_MAX }
}
