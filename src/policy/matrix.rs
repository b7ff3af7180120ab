//! The matrix: who reaches whom, on what.

use serde::Serialize;

use super::finding::Judge;
use super::reach::{End, EndKind, Ends, Grouping, Names, Passing, Traffic};
use crate::tables::PodName;

/// Who reaches whom.
#[derive(Debug, Clone, Serialize)]
pub struct Matrix {
    /// The ends; pods first.
    pub ends: Vec<MatrixEnd>,
    /// What passes between each two of them, at least one of which is a pod: by source, then destination.
    pub cells: Vec<Cell>,
}

/// Addresses that no policy tells apart.
#[derive(Debug, Clone, Serialize)]
pub struct MatrixEnd {
    /// In short.
    pub name: String,
    /// The pods, in full.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodName>,
    /// The addresses that are no pod's, in full.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// What passes from one end to another.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Index of the source.
    pub from: usize,
    /// Index of the destination.
    pub to: usize,
    /// What passes: over IPv4 where families differ.
    pub traffic: Traffic,
    /// What passes over IPv6, where that is something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Traffic>,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.ipv6 {
            Some(ipv6) => write!(f, "IPv4: {}, IPv6: {ipv6}", self.traffic),
            None => self.traffic.fmt(f),
        }
    }
}

/// The matrix of some tables.
pub fn matrix(judge: &Judge, names: &Names, grouping: Grouping) -> Matrix {
    let ends = Ends::of(&[judge], grouping).ends;
    let mut passing = Passing::new(judge, 0);
    let mut cells = Vec::new();
    for (from, source) in ends.iter().enumerate() {
        for (to, destination) in ends.iter().enumerate() {
            let itself = from == to && is_one_pod(source);
            let mut of_family = |family: usize| {
                let traffic = passing.between(source, destination, family)?;
                Some(if itself { Traffic::everything() } else { traffic.clone() })
            };
            let (traffic, ipv6) = match (of_family(0), of_family(1)) {
                (Some(v4), Some(v6)) if v4 != v6 => (v4, Some(v6)),
                (Some(traffic), _) | (None, Some(traffic)) => (traffic, None),
                (None, None) => continue,
            };
            cells.push(Cell { from, to, traffic, ipv6 });
        }
    }
    let described = |end: &End| {
        let name = names.short(end);
        match &end.kind {
            EndKind::Pods(pods) => MatrixEnd { name, pods: pods.clone(), addresses: Vec::new() },
            EndKind::Outside(texts) => MatrixEnd { name, pods: Vec::new(), addresses: texts.clone() },
        }
    };
    Matrix { ends: ends.iter().map(described).collect(), cells }
}

fn is_one_pod(end: &End) -> bool {
    matches!(&end.kind, EndKind::Pods(pods) if pods.len() == 1)
}
