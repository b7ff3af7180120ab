//! Rule sets: everything that judges one direction of a pod, in the order in which it is asked.

use std::sync::Arc;

use crate::net::flow::Protocol;
use crate::policy::store::GroupId;
use crate::tables::RuleOrigin;

use super::PortName;

/// Stages of rules. In a stage the first rule that matches decides, or passes on to the next stage; the last
/// stage decides everything.
#[derive(Debug, Default)]
pub(crate) struct RuleSet {
    /// Admin tier; then `NetworkPolicy` where one isolates the pod, else the baseline tier; then what holds
    /// where nothing was said.
    pub(crate) stages: Vec<Vec<Rule>>,
    /// What the rules are called, by [`Rule::origin`]. An earlier one was asked earlier.
    pub(crate) origins: Vec<Arc<RuleOrigin>>,
}

/// One rule over groups.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Whose flows: `None` is everyone's; nobody's where there is none in the list.
    pub(crate) peers: Option<Vec<GroupId>>,
    /// To which ports: `None` is everything, whatever the protocol.
    pub(crate) ports: Option<Vec<PortTerm>>,
    /// What happens.
    pub(crate) action: Action,
    /// Its name, in [`RuleSet::origins`].
    pub(crate) origin: u32,
}

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Let pass.
    Allow,
    /// Drop.
    Deny,
    /// Leave to the next stage.
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
    of_groups: Vec<(GroupId, Place)>,
    of_everyone: Vec<Place>,
}

/// Where a rule stands: its stage, and its place in the stage.
type Place = (u32, u32);

impl RuleIndex {
    /// The index of a set that stays as it is.
    pub(crate) fn of(rules: &RuleSet) -> RuleIndex {
        let mut index = RuleIndex { of_groups: Vec::new(), of_everyone: Vec::new() };
        for (stage, rules) in (0..).zip(&rules.stages) {
            for (at, rule) in (0..).zip(rules) {
                match &rule.peers {
                    None => index.of_everyone.push((stage, at)),
                    Some(peers) => index.of_groups.extend(peers.iter().map(|&peer| (peer, (stage, at)))),
                }
            }
        }
        index.of_groups.sort_unstable();
        index
    }

    /// The rules that are about addresses in these groups, in the order in which they are asked.
    pub(crate) fn concerning(&self, groups: &[GroupId]) -> Vec<Place> {
        let mut places = self.of_everyone.clone();
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

impl RuleSet {
    /// Every group that a rule names, sorted.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        let peers = self.rules().filter_map(|rule| rule.peers.as_ref());
        let mut groups: Vec<GroupId> = peers.flatten().copied().collect();
        groups.sort_unstable();
        groups.dedup();
        groups
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
        self.stages.iter().flatten()
    }
}
