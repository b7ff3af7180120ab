//! Rule sets: everything that judges one direction of a pod, in the order in which it is asked.

use std::sync::Arc;

use foldhash::HashMap;

use crate::net::flow::Protocol;
use crate::policy::store::GroupId;
use crate::tables::RuleOrigin;

use super::PortName;

/// Stages of rules. In a tier the first rule that matches decides, or passes on to the next tier; the last
/// tier decides everything.
#[derive(Debug, Default)]
pub(crate) struct RuleList {
    /// Admin tier; then `NetworkPolicy` where one isolates the pod, else the baseline tier; then what holds
    /// where nothing was said.
    pub(crate) tiers: Vec<Vec<Rule>>,
    /// What the rules are called, by [`Rule::origin`]. An earlier one was asked earlier.
    pub(crate) origins: Vec<Arc<RuleOrigin>>,
    /// How many rules come from which policy, in the order in which they are asked.
    parts: Vec<(RuleSource, usize)>,
}

/// Where rules come from: a version of a policy, or, with `None`, what holds around policies.
pub(crate) type RuleSource = Option<u64>;

/// A rule and what it is called, not yet among others.
pub(crate) type NamedRule = (Rule, Arc<RuleOrigin>);

/// One rule over groups.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Whose flows: `None` is everyone's; nobody's where there is none in the list.
    pub(crate) peers: Option<Vec<GroupId>>,
    /// To which ports: `None` is everything, whatever the protocol.
    pub(crate) ports: Option<Vec<PortTerm>>,
    /// What happens.
    pub(crate) action: Action,
    /// Its name, in [`RuleList::origins`].
    pub(crate) origin: u32,
}

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Let pass.
    Allow,
    /// Drop.
    Deny,
    /// Leave to the next tier.
    Pass,
}

/// Destination ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortTerm {
    /// `first..=last` of a protocol.
    Range {
        /// The protocol.
        protocol: Protocol,
        /// First port.
        first: u16,
        /// Last port.
        last: u16,
    },
    /// Whatever the peer pod calls so.
    Named(PortName),
}

/// The rules of a set by whose flows they are about: for asking often.
#[derive(Debug)]
pub(crate) struct RuleIndex {
    /// Sorted.
    of_groups: Vec<(GroupId, RulePosition)>,
    of_any_peer: Vec<RulePosition>,
}

/// Where a rule stands: its tier, and its place in the tier.
type RulePosition = (u32, u32);

impl RuleIndex {
    /// The index of a set that stays as it is.
    pub(crate) fn of(rules: &RuleList) -> RuleIndex {
        let mut index = RuleIndex { of_groups: Vec::new(), of_any_peer: Vec::new() };
        for (tier, rules) in (0..).zip(&rules.tiers) {
            for (at, rule) in (0..).zip(rules) {
                match &rule.peers {
                    None => index.of_any_peer.push((tier, at)),
                    Some(peers) => index.of_groups.extend(peers.iter().map(|&peer| (peer, (tier, at)))),
                }
            }
        }
        index.of_groups.sort_unstable();
        index
    }

    /// Every group that a rule names, sorted.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.of_groups.iter().map(|&(group, _)| group).collect();
        groups.dedup();
        groups
    }

    /// The rules that are about addresses in these groups, in the order in which they are asked.
    pub(crate) fn matching(&self, groups: &[GroupId]) -> Vec<RulePosition> {
        let mut places = self.of_any_peer.clone();
        for &group in groups {
            let first = self.of_groups.partition_point(|(named, _)| *named < group);
            let named = self.of_groups[first..].iter().take_while(|(named, _)| *named == group);
            places.extend(named.map(|&(_, place)| place));
        }
        places.sort_unstable();
        places.dedup();
        places
    }
}

impl Rule {
    /// Whether another rule says the same of the same, whatever it is called.
    pub(crate) fn has_same_effect(&self, other: &Rule) -> bool {
        (&self.peers, &self.ports, self.action) == (&other.peers, &other.ports, other.action)
    }

    /// Whether it is about some addresses only, and about ports by number.
    pub(crate) fn is_static(&self) -> bool {
        let by_name = |term: &PortTerm| matches!(term, PortTerm::Named(_));
        self.peers.is_some() && !self.ports.iter().flatten().any(by_name)
    }
}

impl RuleList {
    /// Begins the next tier.
    pub(crate) fn begin_tier(&mut self) {
        self.tiers.push(Vec::new());
    }

    /// Appends rules to the last tier.
    pub(crate) fn append(&mut self, source: RuleSource, rules: Vec<NamedRule>) {
        self.parts.push((source, rules.len()));
        let tier = self.tiers.last_mut().expect("a tier has begun");
        for (rule, name) in rules {
            tier.push(Rule { origin: self.origins.len() as u32, ..rule });
            self.origins.push(name);
        }
    }

    /// The policies that rules come from, and whether all rules of each are plain.
    pub(crate) fn policies(&self) -> Vec<(u64, bool)> {
        let mut rules = self.rules();
        let mut policies = Vec::new();
        for &(source, len) in &self.parts {
            let others = rules.by_ref().take(len).filter(|rule| !rule.is_static()).count();
            policies.extend(source.map(|version| (version, others == 0)));
        }
        policies
    }

    /// The rules of each policy, for a further set.
    pub(crate) fn into_policies(self) -> HashMap<u64, Vec<NamedRule>> {
        let mut rules = self.tiers.into_iter().flatten().zip(self.origins);
        let mut policies = HashMap::default();
        for (source, len) in self.parts {
            let part: Vec<NamedRule> = rules.by_ref().take(len).collect();
            if let Some(version) = source {
                policies.insert(version, part);
            }
        }
        policies
    }

    /// What denies a pod that policies isolate what none of them allows.
    pub(crate) fn default_deny(&self) -> Option<&Arc<RuleOrigin>> {
        // The rule that add_rule before the last tier, which has one.
        let at = self.origins.len().checked_sub(2)?;
        self.origins.get(at).filter(|name| matches!(***name, RuleOrigin::DefaultDeny { .. }))
    }

    /// Every use of a port name, with the peers it is used for.
    pub(crate) fn port_uses(&self) -> Vec<(Option<GroupId>, PortName)> {
        let mut uses = Vec::new();
        for rule in self.rules() {
            for term in rule.ports.iter().flatten() {
                let PortTerm::Named(name) = term else { continue };
                match &rule.peers {
                    None => uses.push((None, name.clone())),
                    Some(peers) => uses.extend(peers.iter().map(|&peer| (Some(peer), name.clone()))),
                }
            }
        }
        uses.sort_unstable();
        uses.dedup();
        uses
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.tiers.iter().flatten()
    }
}
