//! Rule lists: the rules of one direction of a pod, in the order of evaluation.

use std::sync::Arc;

use foldhash::HashMap;

use crate::net::flow::Protocol;
use crate::policy::store::GroupId;
use crate::tables::RuleOrigin;

use super::group::PortName;

/// Tiers of rules. The first rule of a tier that matches decides or passes to the next tier. The last tier
/// decides everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleList {
    /// Admin tier; then `NetworkPolicy` if one isolates the pod, else the baseline tier; then the default.
    pub(crate) tiers: Vec<Vec<Rule>>,
    /// Origins of the rules, by [`Rule::origin`], in the order of evaluation.
    pub(crate) origins: Vec<Arc<RuleOrigin>>,
    /// Number of rules of each source, in the order of evaluation.
    parts: Vec<(RuleSource, usize)>,
}

/// Source of rules: version of a policy, or `None` for implicit rules.
pub(crate) type RuleSource = Option<u64>;

/// Rule and its origin, before insertion into a list.
pub(crate) type NamedRule = (Rule, Arc<RuleOrigin>);

/// Rule over address groups.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    /// Groups of the peers: `None` matches every peer, an empty list none.
    pub(crate) peers: Option<Vec<GroupId>>,
    /// Destination ports: `None` matches everything, whatever the protocol.
    pub(crate) ports: Option<Vec<PortTerm>>,
    /// Action.
    pub(crate) action: Action,
    /// Index in [`RuleList::origins`].
    pub(crate) origin: u32,
}

/// Action of a matching rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Allows the flow.
    Allow,
    /// Denies the flow.
    Deny,
    /// Passes to the next tier.
    Pass,
}

/// Destination ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortTerm {
    /// `first..=last` of a protocol.
    Range {
        /// Protocol.
        protocol: Protocol,
        /// First port.
        first: u16,
        /// Last port.
        last: u16,
    },
    /// Ports of the peer pod with this name.
    Named(PortName),
}

/// Index of the rules of a list by peer group.
#[derive(Debug, Clone)]
pub(crate) struct RuleIndex {
    /// Sorted.
    of_groups: Vec<(GroupId, RulePosition)>,
    of_any_peer: Vec<RulePosition>,
}

/// Position of a rule: its tier, and its index in the tier.
type RulePosition = (u32, u32);

impl RuleIndex {
    /// Index of a list. The list must not change afterwards.
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

    /// Groups that rules refer to, sorted.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.of_groups.iter().map(|&(group, _)| group).collect();
        groups.dedup();
        groups
    }

    /// Rules whose peers include one of these groups, in the order of evaluation.
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
    /// Tests whether two rules have equal peers, ports and action.
    pub(crate) fn has_same_effect(&self, other: &Rule) -> bool {
        (&self.peers, &self.ports, self.action) == (&other.peers, &other.ports, other.action)
    }

    /// Tests whether the rule is static: it refers to groups and to port numbers only.
    pub(crate) fn is_static(&self) -> bool {
        let by_name = |term: &PortTerm| matches!(term, PortTerm::Named(_));
        self.peers.is_some() && !self.ports.iter().flatten().any(by_name)
    }
}

impl RuleList {
    /// Starts the next tier.
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

    /// Policies of the list, and whether all rules of each are static.
    pub(crate) fn policies(&self) -> Vec<(u64, bool)> {
        let mut rules = self.rules();
        let mut policies = Vec::new();
        for &(source, len) in &self.parts {
            let others = rules.by_ref().take(len).filter(|rule| !rule.is_static()).count();
            policies.extend(source.map(|version| (version, others == 0)));
        }
        policies
    }

    /// Rules of each policy, for reuse in another list.
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

    /// Origin of the default deny of an isolated pod.
    pub(crate) fn default_deny(&self) -> Option<&Arc<RuleOrigin>> {
        // The default deny precedes the last tier, which has one rule.
        let at = self.origins.len().checked_sub(2)?;
        self.origins.get(at).filter(|name| matches!(***name, RuleOrigin::DefaultDeny { .. }))
    }

    /// Uses of named ports, with the peers that they apply to.
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
