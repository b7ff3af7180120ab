//! Connectivity diff: the exact set of flows that a change of policy opens and closes.
//!
//! The diff is computed on classes, without sample packets. All addresses are divided into groups that
//! neither the old nor the new tables tell apart. The traffic between two groups is a set of ports; flows
//! open or close if the two sets differ. Groups with the same changes towards every group form one block
//! ([`matrix_blocks`]), which keeps the list short.
//!
//! A pod that exists on one side only has no flows on the other. A diff never contains flows of a pod to
//! itself.

use serde::Serialize;

use super::allowed::AllowedTraffic;
use super::endpoint_groups::{EndpointGroup, EndpointGroups, GroupMembers, Grouping};
use super::group_names::GroupNames;
use super::matrix_blocks::matrix_blocks;
use super::traffic::Traffic;
use crate::policy::evaluate::TableEvaluator;
use crate::tables::PodName;

/// Flows that open and flows that close.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectivityDiff {
    /// Sets of flows. No flow is in two of them.
    pub changes: Vec<Change>,
}

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// Denied by the old tables, allowed by the new ones.
    Opens,
    /// Allowed by the old tables, denied by the new ones.
    Closes,
}

/// Set of flows that open or close: every source to every destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Kind of the change.
    #[serde(rename = "turn")]
    pub kind: ChangeKind,
    /// Summary of the sources.
    pub from: String,
    /// Summary of the destinations.
    pub to: String,
    /// Complete list of sources.
    pub sources: Endpoints,
    /// Complete list of destinations.
    pub destinations: Endpoints,
    /// `IPv4` or `IPv6` if only that family changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<&'static str>,
    /// Protocols and destination ports.
    pub traffic: Traffic,
}

/// Pods and addresses on one side of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Endpoints {
    /// Pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodName>,
    /// External addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

impl ConnectivityDiff {
    /// Tests whether the diff has no change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Tests whether the diff opens flows.
    pub fn opens(&self) -> bool {
        self.changes.iter().any(|change| change.kind == ChangeKind::Opens)
    }
}

/// Opened and closed traffic between two groups, by family.
type Delta = [Option<(Traffic, Traffic)>; 2];

/// Computes the flows that a change from `old` to `new` opens and closes.
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

/// Removes a pod from its own peers: a pod always reaches itself.
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
