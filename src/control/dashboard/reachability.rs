//! Reachability of the pods by the tables in force, for a heat map.
//!
//! Its cost is bounded: tables beyond [`DASHBOARD_ENTRIES_MAX`] are refused, one computation runs at a time, and none
//! begins before the last one has been over for ten times its duration. A request never waits for it.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use ipnet::IpNet;
use serde::Serialize;

use crate::control::Switch;
use crate::ids::Generation;
use crate::limits::DASHBOARD_ENTRIES_MAX;
use crate::net::flow::Protocol;
use crate::policy::connectivity::matrix::{Cell, Matrix, MatrixGroup, MatrixRequest, matrix};
use crate::policy::connectivity::{GroupNames, Grouping};
use crate::policy::evaluate::TableEvaluator;
use crate::printable::cut;
use crate::tables::RuleTables;

/// Pods that have a line each. More of them share lines, by policy.
const SINGLE_PODS_MAX: usize = 40;
/// Lines of the heat map.
const LINES_MAX: usize = 60;
/// Members of a line that are named.
const MEMBERS_MAX: usize = 20;
/// Characters of the name of a line or of a member.
const NAME_CHARS_MAX: usize = 120;
/// Time between two computations, in durations of the last one.
const REST: u32 = 10;

/// Report that may be of an earlier policy.
pub(in crate::control) enum Report {
    /// The report of the policy in force.
    Current(Bytes),
    /// A thread computes the report. An earlier one, or an empty object.
    Pending(Bytes),
}

/// Reachability of the tables of one generation, computed on request.
#[derive(Default)]
pub(super) struct Reachability(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    last: Option<(Generation, Bytes)>,
    is_running: bool,
    not_before: Option<Instant>,
}

impl Reachability {
    /// Reports on the tables in force. Starts a computation by `spawn` if there is no report on them and none is
    /// under way.
    pub(super) fn report(
        self: &Arc<Reachability>,
        switch: &Switch,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Report {
        let (tables, generation) = {
            let state = switch.state.load();
            (state.tables.clone(), state.tables_since)
        };
        let Some(tables) = tables else { return Report::Current(json(&Heat::default())) };
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, bytes)) = &slot.last
            && *of == generation
        {
            return Report::Current(bytes.clone());
        }
        let earlier = slot.last.as_ref().map_or(Bytes::from_static(b"{}"), |(_, bytes)| bytes.clone());
        if !slot.is_running && slot.not_before.is_none_or(|time| Instant::now() >= time) {
            slot.is_running = true;
            drop(slot);
            let this = self.clone();
            spawn(Box::new(move || this.compute(tables, generation)));
        }
        Report::Pending(earlier)
    }

    fn compute(&self, tables: Arc<RuleTables>, generation: Generation) {
        let start = Instant::now();
        // The tables may be unloaded meanwhile, and are freed with the last reference.
        let heat = catch_unwind(AssertUnwindSafe(|| heat(&tables, generation)));
        drop(tables);
        let heat = heat.unwrap_or_else(|_| {
            let error = "the computation has failed: the log of the switch says more".to_owned();
            Heat { generation, error: Some(error), ..Heat::default() }
        });
        let (bytes, took) = (json(&heat), start.elapsed());
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let not_before = Instant::now() + (took * REST).min(Duration::from_mins(1));
        *slot = Slot { last: Some((generation, bytes)), is_running: false, not_before: Some(not_before) };
    }
}

/// Heat map: lines of sources and columns of destinations.
#[derive(Default, Serialize)]
struct Heat {
    /// Generation in which the tables came into force.
    generation: Generation,
    /// Reason for which there is no heat map.
    error: Option<String>,
    /// Pods with tables.
    pods: usize,
    /// Whether pods that no policy tells apart share a line.
    is_grouped: bool,
    groups: Vec<Group>,
    /// Groups that found no line, and pods in them.
    groups_left_out: usize,
    pods_left_out: usize,
    /// Distinct sets of traffic.
    traffic: Vec<TrafficKind>,
    /// Source, destination, and index of the traffic. Pairs without traffic of a pod have no cell.
    cells: Vec<[usize; 3]>,
}

/// Line of the heat map.
#[derive(Serialize)]
struct Group {
    name: String,
    /// Number of pods; 0 for addresses outside.
    pods: usize,
    members: Vec<String>,
    members_left_out: usize,
    /// Ends for an explanation: the first two pods, or an address of each family.
    ends: Vec<String>,
}

/// Traffic that passes.
#[derive(PartialEq, Serialize)]
struct TrafficKind {
    text: String,
    /// Share of all ports and protocols, from 0 to 1.
    share: f64,
    /// Connection for an explanation: one that passes, if one does.
    protocol: Protocol,
    port: u16,
}

/// Number of entries that a computation walks.
fn entries(tables: &RuleTables) -> usize {
    let of_acls: usize = tables.acls.values().map(|acl| acl.rows.len()).sum();
    tables.pods.len() + tables.prefixes.len() + tables.rows.len() + of_acls
}

fn heat(tables: &RuleTables, generation: Generation) -> Heat {
    let (pods, size) = (tables.pods.len(), entries(tables));
    let refused = |error: String| Heat { generation, pods, error: Some(error), ..Heat::default() };
    if size > DASHBOARD_ENTRIES_MAX {
        return refused(format!(
            "the tables have {size} entries, and the heat map takes {DASHBOARD_ENTRIES_MAX}: `palisade matrix --pod NAME` shows a \
             part of them"
        ));
    }
    let is_grouped = pods > SINGLE_PODS_MAX;
    let evaluator = match TableEvaluator::new(tables.clone()) {
        Ok(evaluator) => evaluator,
        Err(error) => return refused(error.to_string()),
    };
    let request = MatrixRequest {
        grouping: if is_grouped { Grouping::ByPolicy } else { Grouping::ByPod },
        pairs_max: LINES_MAX * LINES_MAX,
        groups_max: LINES_MAX,
        pods: &[],
    };
    let Matrix { groups, cells, omitted } = matrix(&evaluator, &GroupNames::default(), &request);
    let (cells, traffic) = distinct(&cells);
    Heat {
        generation,
        error: None,
        pods,
        is_grouped,
        groups: groups.iter().map(|group| described(group, tables)).collect(),
        groups_left_out: omitted.groups,
        pods_left_out: omitted.pods,
        traffic,
        cells,
    }
}

/// Numbers the distinct sets of traffic.
fn distinct(cells: &[Cell]) -> (Vec<[usize; 3]>, Vec<TrafficKind>) {
    let mut kinds: Vec<(&Cell, TrafficKind)> = Vec::new();
    let mut numbered = Vec::new();
    for cell in cells {
        let is_same = |kind: &Cell| kind.traffic == cell.traffic && kind.ipv6 == cell.ipv6;
        let known = kinds.iter().position(|(kind, _)| is_same(kind));
        let number = known.unwrap_or_else(|| {
            kinds.push((cell, traffic(cell)));
            kinds.len() - 1
        });
        numbered.push([cell.from, cell.to, number]);
    }
    (numbered, kinds.into_iter().map(|(_, kind)| kind).collect())
}

fn traffic(cell: &Cell) -> TrafficKind {
    let either = [Some(&cell.traffic), cell.ipv6.as_ref()].into_iter().flatten();
    let share = either.clone().map(|traffic| traffic.share()).fold(0.0, f64::max);
    let first = either.clone().find_map(|traffic| {
        if traffic.contains(Protocol::TCP, 80) {
            return Some((Protocol::TCP, 80));
        }
        let with_spans =
            traffic.spans().find_map(|(protocol, spans)| Some((protocol, spans.first()?.0.max(1))));
        with_spans.or_else(|| traffic.has_other().then_some((Protocol::ICMP, 0)))
    });
    let (protocol, port) = first.unwrap_or((Protocol::TCP, 80));
    TrafficKind { text: cell.brief(), share, protocol, port }
}

fn described(group: &MatrixGroup, tables: &RuleTables) -> Group {
    let names: Vec<String> = group.pods.iter().take(MEMBERS_MAX).map(ToString::to_string).collect();
    let ends = match names.as_slice() {
        [] => addresses(&group.addresses, tables).iter().map(IpAddr::to_string).collect(),
        names => names.iter().take(2).cloned().collect(),
    };
    let named = names.iter().chain(group.addresses.iter().take(MEMBERS_MAX));
    let members: Vec<String> = named.map(|name| cut(name, NAME_CHARS_MAX).into_owned()).collect();
    Group {
        name: cut(&group.name, NAME_CHARS_MAX).into_owned(),
        pods: group.pods.len(),
        members_left_out: (group.pods.len() + group.addresses.len()).saturating_sub(members.len()),
        members,
        ends,
    }
}

/// One address of each family among prefixes as `10.0.0.0/8 except 10.1.0.0/16, …`, which no pod has.
fn addresses(texts: &[String], tables: &RuleTables) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for text in texts {
        let (prefix, except) = text.split_once(" except ").unwrap_or((text, ""));
        let Ok(prefix) = prefix.parse::<IpNet>() else { continue };
        if found.iter().any(|address| address.is_ipv4() == prefix.addr().is_ipv4()) {
            continue;
        }
        let except: Vec<IpNet> = except.split(", ").filter_map(|prefix| prefix.parse().ok()).collect();
        let is_of_pod = |address: IpAddr| tables.pods.values().any(|pod| pod.addresses.contains(&address));
        let is_in_group = |address: &IpAddr| {
            prefix.contains(address)
                && !except.iter().any(|net| net.contains(address))
                && !is_of_pod(*address)
        };
        found.extend(candidates(prefix).into_iter().find(is_in_group));
    }
    found
}

/// Addresses of documentation (RFC 5737, RFC 3849), a public one, and those at the ends of a prefix.
fn candidates(prefix: IpNet) -> [IpAddr; 8] {
    let documented = [[192, 0, 2, 1], [198, 51, 100, 1], [203, 0, 113, 1], [1, 1, 1, 1]].map(IpAddr::from);
    let [a, b, c, d] = documented;
    let v6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
    let second = prefix.hosts().nth(1).unwrap_or(prefix.addr());
    [a, b, c, d, v6, second, prefix.addr(), prefix.broadcast()]
}

/// Writes a report as JSON.
pub(super) fn json(value: &impl serde::Serialize) -> Bytes {
    // Reports have no key that is not a string, which alone would fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}
