//! Rules in the form of Contiv/VPP: 6-tuples for each pod, and the tables that its renderer cache makes of them.
//!
//! Contiv's directions are those of the vswitch: its ingress is traffic from a pod, its egress is traffic to a pod.
//! This module prints these, and everything below it has the directions of policy.

pub(in crate::render) mod allowed;
pub(in crate::render) mod cache;
mod contract;
pub(in crate::render) mod fold;
pub(in crate::render) mod peers;
pub(in crate::render) mod refusal;
pub(in crate::render) mod rule;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::output::{Part, RenderError, RenderOptions};
use super::rendering::{ClusterState, Rendering, plans};
use crate::tables::{Direction, PodName};
use cache::Cache;
use rule::Language;

/// Rules of Contiv have single ports.
const LANGUAGE: Language = Language { name: "contiv", has_ranges: false };

/// Name of the file.
const FILE: &str = "palisade.contiv";

/// Statements, each of which replaces one that has the same subject.
pub(super) struct State {
    header: String,
    statements: BTreeMap<Subject, Vec<String>>,
}

/// Subject of a statement, in the order of printing.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// Addresses of a pod, and its rules.
    Pod(PodName),
    /// Rules of a local table.
    Table(String),
    /// Rules of the global table.
    Global,
    /// Table of a pod.
    Assign(PodName),
    /// Interface of a pod on which connections are reflected.
    Reflect(PodName),
    /// Reflection on the uplinks.
    ReflectUplinks,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Pod(pod) => write!(f, "pod {pod}"),
            Subject::Table(id) => write!(f, "table {id}"),
            Subject::Global => f.write_str("global"),
            Subject::Assign(pod) => write!(f, "assign {pod}"),
            Subject::Reflect(pod) => write!(f, "reflect {pod}"),
            Subject::ReflectUplinks => f.write_str("reflect uplinks"),
        }
    }
}

/// Direction of policy that has the other name from the vswitch's point of view.
fn of_vswitch(direction: Direction) -> Direction {
    cache::opposite(direction)
}

impl Rendering for State {
    fn new(cluster: ClusterState, options: &RenderOptions) -> Result<State, RenderError> {
        let into = of_vswitch(options.direction);
        let plans = plans(cluster.tables, options);
        let cache = Cache::new(&plans, into, LANGUAGE)?;
        let mut statements = BTreeMap::new();
        for (pod, rules) in &cache.pods {
            let addresses: Vec<String> = rules.addresses.iter().map(ToString::to_string).collect();
            let mut lines = vec![addresses.join(" ")];
            for (direction, list) in
                [(Direction::Egress, &rules.egress), (Direction::Ingress, &rules.ingress)]
            {
                let list = contract::permits_before_denial(list)
                    .map_err(|obstacle| refusal::inexpressible(&plans, LANGUAGE.name, pod, obstacle))?;
                lines.extend(list.iter().map(|rule| format!("{} {rule}", of_vswitch(direction))));
            }
            statements.insert(Subject::Pod(pod.clone()), lines);
        }
        let has_global = !cache.global.is_empty();
        for (id, rules) in &cache.tables {
            let mut lines = vec![String::new()];
            lines.extend(rules.iter().map(ToString::to_string));
            statements.insert(Subject::Table(id.clone()), lines);
        }
        if has_global {
            let mut lines = vec![String::new()];
            lines.extend(cache.global.iter().map(ToString::to_string));
            statements.insert(Subject::Global, lines);
        }
        for (pod, id) in cache.assigned {
            if options.direction == Direction::Egress {
                statements.insert(Subject::Reflect(pod.clone()), vec![String::new()]);
            }
            statements.insert(Subject::Assign(pod), vec![id]);
        }
        if has_global && options.direction == Direction::Egress {
            statements.insert(Subject::ReflectUplinks, vec![String::new()]);
        }
        let direction = options.direction;
        let header = format!(
            "# Rules of Contiv/VPP, folded into {direction}.\n\
             # Directions are those of the vswitch: ingress is traffic from a pod, egress is traffic to a pod.\n",
        );
        Ok(State { header, statements })
    }

    fn parts(&self) -> Vec<Part> {
        self.parts_since(&State { header: String::new(), statements: BTreeMap::new() })
    }

    fn parts_since(&self, old: &State) -> Vec<Part> {
        let mut text = self.header.clone();
        let changed =
            self.statements.iter().filter(|(subject, lines)| old.statements.get(subject) != Some(lines));
        for (subject, lines) in changed {
            text.push_str(format!("{subject} {}", lines[0]).trim_end());
            text.push('\n');
            // Writing to a string cannot fail.
            lines[1..].iter().for_each(|line| _ = writeln!(text, "  {line}"));
        }
        // Nothing names a subject that is removed, since assignments go before their tables.
        let removed = old.statements.keys().rev().filter(|subject| !self.statements.contains_key(subject));
        removed.for_each(|subject| _ = writeln!(text, "remove {subject}"));
        vec![Part { file: FILE, text }]
    }
}
