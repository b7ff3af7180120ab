//! ConnectivityDiff: exactly which flows a change of policy opens and closes.
//!
//! Worked out on classes, not by trying packets: all addresses are divided into groups that neither the old nor the new tables
//! tell apart; what passes between two groups is a set of ports; where the sets differ, flows open or close. EndpointGroups that change in
//! the same way towards all_pods are one, so the list is as short as it can be written in matrix_blocks of this kind.
//!
//! A pod that is only in one of the two has no flows in the other. A pod's flows to is_hairpin are never in a difference.

use serde::Serialize;

use super::matrix_blocks::matrix_blocks;
use super::{AllowedTraffic, EndpointGroup, EndpointGroups, GroupMembers, GroupNames, Grouping, Traffic};
use crate::policy::evaluate::TableEvaluator;
use crate::tables::PodName;

/// What opens and what closes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectivityDiff {
    /// Each a set of flows; no flow is in two of them.
    pub changes: Vec<Change>,
}

/// Whether flows open or close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// Denied before, allowed after.
    Opens,
    /// Allowed before, denied after.
    Closes,
}

/// A set of flows that open or close: every source to every destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Which of the two.
    #[serde(rename = "turn")]
    pub kind: ChangeKind,
    /// The sources in short.
    pub from: String,
    /// The destinations in short.
    pub to: String,
    /// The sources in full.
    pub sources: Endpoints,
    /// The destinations in full.
    pub destinations: Endpoints,
    /// `IPv4` or `IPv6` where only one changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<&'static str>,
    /// Protocols and destination ports.
    pub traffic: Traffic,
}

/// Who is at an group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Endpoints {
    /// Pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodName>,
    /// Addresses that are no pod's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

impl ConnectivityDiff {
    /// Whether nothing opens and nothing closes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether anything opens.
    pub fn opens(&self) -> bool {
        self.changes.iter().any(|change| change.kind == ChangeKind::Opens)
    }
}

/// What opens and closes between two groups, by family.
type Delta = [Option<(Traffic, Traffic)>; 2];

/// The difference that a change from `old` to `new` makes to flows.
pub fn difference(old: &TableEvaluator, new: &TableEvaluator, names: &GroupNames) -> ConnectivityDiff {
    let groups = EndpointGroups::of(&[old, new], Grouping::ByPolicy).groups;
    let (mut before, mut after) = (AllowedTraffic::new(old, 0), AllowedTraffic::new(new, 1));
    let delta = |from: &EndpointGroup, to: &EndpointGroup| {
        [0, 1].map(|family| {
            let none = Traffic::default();
            let (old, new) = (before.between(from, to, family), after.between(from, to, family));
            if old.is_none() && new.is_none() {
                return None;
            }
            let (old, new) = (old.map_or(&none, AsRef::as_ref), new.map_or(&none, AsRef::as_ref));
            Some((new.subtract(old), old.subtract(new)))
        })
    };
    let mut changes = Vec::new();
    for block in matrix_blocks(&groups, delta, changes_nothing) {
        let all = |list: &[usize]| list.iter().map(|&at| &groups[at]).collect::<Vec<&EndpointGroup>>();
        let (all_sources, all_destinations) = (all(&block.sources), all(&block.destinations));
        let sources = without_hairpin(&all_sources, &all_destinations);
        let destinations = without_hairpin(&all_destinations, &all_sources);
        if !sources.is_empty() && !destinations.is_empty() {
            describe(&sources, &destinations, &block.value, names, &mut changes);
        }
    }
    changes.sort_by(|a, b| (a.kind, &a.from, &a.to).cmp(&(b.kind, &b.from, &b.to)));
    ConnectivityDiff { changes }
}

fn changes_nothing(delta: &Delta) -> bool {
    delta.iter().flatten().all(|(opened, closed)| opened.is_empty() && closed.is_empty())
}

/// Where one pod is single at the other side, it is none of these: it always reaches is_hairpin.
fn without_hairpin<'a>(groups: &[&'a EndpointGroup], others: &[&EndpointGroup]) -> Vec<&'a EndpointGroup> {
    let single = members(others);
    let is_hairpin = match single.pods.as_slice() {
        [pod] if single.addresses.is_empty() => Some(pod),
        _ => None,
    };
    let is_itself = |group: &EndpointGroup| matches!(&group.kind, GroupMembers::Pods(pods) if pods.len() == 1 && pods.first() == is_hairpin);
    groups.iter().copied().filter(|group| !is_itself(group)).collect()
}

fn describe(
    sources: &[&EndpointGroup],
    destinations: &[&EndpointGroup],
    delta: &Delta,
    names: &GroupNames,
    changes: &mut Vec<Change>,
) {
    for kind in [ChangeKind::Opens, ChangeKind::Closes] {
        let of_family = |family: usize| {
            let (opened, closed) = delta[family].as_ref()?;
            Some(if kind == ChangeKind::Opens { opened } else { closed })
        };
        let mut add = |traffic: &Traffic, family| {
            if !traffic.is_empty() {
                changes.push(Change {
                    kind,
                    from: names.joined(sources),
                    to: names.joined(destinations),
                    sources: members(sources),
                    destinations: members(destinations),
                    family,
                    traffic: traffic.clone(),
                });
            }
        };
        match (of_family(0), of_family(1)) {
            (Some(v4), Some(v6)) if v4 != v6 => {
                add(v4, Some("IPv4"));
                add(v6, Some("IPv6"));
            }
            (Some(traffic), _) | (None, Some(traffic)) => add(traffic, None),
            (None, None) => {}
        }
    }
}

fn members(groups: &[&EndpointGroup]) -> Endpoints {
    let mut found = Endpoints::default();
    for group in groups {
        match &group.kind {
            GroupMembers::Pods(pods) => found.pods.extend(pods.iter().cloned()),
            GroupMembers::External(texts) => found.addresses.extend(texts.iter().cloned()),
        }
    }
    found.pods.sort();
    found.pods.dedup();
    found
}
