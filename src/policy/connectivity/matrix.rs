//! Connectivity matrix: allowed traffic between endpoint groups.
//!
//! The matrix is bounded: groups with the same treatment share a line, and groups beyond a limit of pairs are
//! omitted and counted.

use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::allowed::AllowedTraffic;
use super::endpoint_groups::{EndpointGroup, EndpointGroups, GroupMembers, Grouping};
use super::group_names::GroupNames;
use super::matrix_groups::merge_groups;
use super::traffic::Traffic;
use crate::policy::evaluate::TableEvaluator;
use crate::tables::PodName;

/// Selection and bounds of a matrix.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRequest<'a> {
    /// Grouping of pods.
    pub grouping: Grouping,
    /// Maximum number of pairs.
    pub pairs_max: usize,
    /// Maximum number of groups.
    pub groups_max: usize,
    /// Pods of which each pair must contain one; empty for all pairs.
    pub pods: &'a [PodName],
}

/// Allowed traffic between endpoint groups.
#[derive(Debug, Clone, Serialize)]
pub struct Matrix {
    /// Groups, pods first.
    #[serde(rename = "ends")]
    pub groups: Vec<MatrixGroup>,
    /// Allowed traffic of each pair with at least one pod, by source, then destination.
    pub cells: Vec<Cell>,
    /// Groups that the bounds omit.
    #[serde(rename = "left_out", skip_serializing_if = "Omitted::is_nothing")]
    pub omitted: Omitted,
}

/// Number of omitted groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Omitted {
    /// Number of groups.
    #[serde(rename = "ends")]
    pub groups: usize,
    /// Number of pods in these groups.
    pub pods: usize,
}

/// Group of addresses that no policy tells apart.
#[derive(Debug, Clone, Serialize)]
pub struct MatrixGroup {
    /// Short name.
    pub name: String,
    /// Complete list of pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodName>,
    /// Complete list of external addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// Allowed traffic from one group to another.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Index of the source.
    pub from: usize,
    /// Index of the destination.
    pub to: usize,
    /// Allowed traffic, over IPv4 if the families differ.
    pub traffic: Arc<Traffic>,
    /// Allowed traffic over IPv6, if it differs.
    pub ipv6: Option<Arc<Traffic>>,
}

impl Serialize for Cell {
    /// Writes `{"from": 0, "to": 1, "traffic": {…}, "ipv6": {…}}`, the last key if the families differ.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("from", &self.from)?;
        map.serialize_entry("to", &self.to)?;
        map.serialize_entry("traffic", self.traffic.as_ref())?;
        if let Some(ipv6) = &self.ipv6 {
            map.serialize_entry("ipv6", ipv6.as_ref())?;
        }
        map.end()
    }
}

impl Cell {
    /// Summary of the traffic with the first ports of each protocol.
    pub fn brief(&self) -> String {
        match &self.ipv6 {
            Some(ipv6) => format!("IPv4: {}, IPv6: {}", self.traffic.brief(), ipv6.brief()),
            None => self.traffic.brief(),
        }
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.ipv6 {
            Some(ipv6) => write!(f, "IPv4: {}, IPv6: {ipv6}", self.traffic),
            None => self.traffic.fmt(f),
        }
    }
}

impl Omitted {
    /// Tests whether nothing is omitted.
    pub fn is_nothing(&self) -> bool {
        *self == Omitted::default()
    }
}

/// Computes the matrix of some tables.
pub fn matrix(evaluator: &TableEvaluator, names: &GroupNames, request: &MatrixRequest<'_>) -> Matrix {
    let groups = EndpointGroups::of(&[evaluator], request.grouping).groups;
    let groups = merge_groups(evaluator, groups, request.grouping);
    let (groups, chosen, omitted) = bound(groups, request);
    let mut allowed = AllowedTraffic::new(evaluator, 0);
    let everything = Arc::new(Traffic::everything());
    let mut cells = Vec::new();
    for (from, source) in groups.iter().enumerate() {
        for (to, destination) in groups.iter().enumerate() {
            if from >= chosen && to >= chosen {
                break;
            }
            let is_hairpin = is_one_pod(source) && source.kind == destination.kind;
            let mut of_family = |family: usize| {
                let traffic = allowed.between(source, destination, family)?;
                Some(if is_hairpin { everything.clone() } else { traffic.clone() })
            };
            let (traffic, ipv6) = match (of_family(0), of_family(1)) {
                (Some(v4), Some(v6)) if v4 != v6 => (v4, Some(v6)),
                (Some(traffic), _) | (None, Some(traffic)) => (traffic, None),
                (None, None) => continue,
            };
            cells.push(Cell { from, to, traffic, ipv6 });
        }
    }
    let named = |group: &EndpointGroup| {
        let name = names.short(group);
        match &group.kind {
            GroupMembers::Pods(pods) => MatrixGroup { name, pods: pods.clone(), addresses: Vec::new() },
            GroupMembers::External(texts) => MatrixGroup { name, pods: Vec::new(), addresses: texts.clone() },
        }
    };
    Matrix { groups: groups.iter().map(named).collect(), cells, omitted }
}

/// Selects groups within the bounds: requested ones first, then pods, then external addresses. Returns the
/// number of requested groups; each pair contains one of them.
fn bound(groups: Vec<EndpointGroup>, request: &MatrixRequest<'_>) -> (Vec<EndpointGroup>, usize, Omitted) {
    let is_chosen = |group: &EndpointGroup| match &group.kind {
        GroupMembers::Pods(_) if request.pods.is_empty() => true,
        GroupMembers::Pods(pods) => request.pods.iter().any(|pod| pods.binary_search(pod).is_ok()),
        GroupMembers::External(_) => false,
    };
    let (mut groups, others): (Vec<EndpointGroup>, Vec<EndpointGroup>) =
        groups.into_iter().partition(is_chosen);
    let chosen_max = request.pairs_max.isqrt().min(request.groups_max).max(1);
    let mut left = groups.split_off(groups.len().min(chosen_max));
    let chosen = groups.len();
    let others_max = request.pairs_max.saturating_sub(chosen * chosen) / (2 * chosen.max(1));
    let mut others = others.into_iter();
    groups.extend(others.by_ref().take(others_max.min(request.groups_max.saturating_sub(chosen))));
    left.extend(others);
    let pods_of = |group: &EndpointGroup| match &group.kind {
        GroupMembers::Pods(pods) => pods.len(),
        GroupMembers::External(_) => 0,
    };
    (groups, chosen, Omitted { groups: left.len(), pods: left.iter().map(pods_of).sum() })
}

fn is_one_pod(group: &EndpointGroup) -> bool {
    matches!(&group.kind, GroupMembers::Pods(pods) if pods.len() == 1)
}
