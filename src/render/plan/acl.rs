//! ACL tables as lists of rules.
//!
//! Rows of a table are total, so their regions of classes and services are disjoint. The list has the regions that
//! differ from the decision on everything else, in two steps: ports first, then whole classes of addresses, whose
//! ports with another verdict the first step has decided. Order matters between the steps only.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::types::Span;
use crate::ids::{ClassId, RowId, RuleId};
use crate::net::flow::Protocol;
use crate::tables::{Acl, Decision, Row, RuleTables, Verdict};

/// Peers of a rule, in classes. Lists are sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ClassMatch {
    /// Addresses of these classes.
    In(Vec<ClassId>),
    /// Addresses of any other class.
    NotIn(Vec<ClassId>),
}

/// Region of an ACL table.
#[derive(Debug)]
pub(super) struct Region {
    /// Peers.
    pub(super) peers: ClassMatch,
    /// Services, sorted; `None` for all traffic.
    pub(super) services: Option<Vec<Span>>,
    /// Decision.
    pub(super) decision: Decision,
    /// Whether the decision is that on all traffic of the peers.
    pub(super) is_total: bool,
}

/// Regions of an ACL table, and the decision on everything else.
#[derive(Debug)]
pub(super) struct Regions {
    /// Regions: first those of ports, then those of whole classes.
    pub(super) list: Vec<Region>,
    /// Decision on everything else.
    pub(super) last: Decision,
}

impl Regions {
    /// Regions of a table. `known` yields the classes that have a prefix.
    pub(super) fn of(tables: &RuleTables, acl: &Acl, known: impl Iterator<Item = ClassId>) -> Regions {
        let (named, default) = rows_by_class(acl, known);
        let last = tables.rows[&default].other;
        // Rows that decide a region, `None` for the default.
        let mut ports: HashMap<(RuleId, Verdict, Span), BTreeSet<Option<RowId>>> = HashMap::new();
        let mut whole: BTreeMap<Decision, BTreeSet<Option<RowId>>> = BTreeMap::new();
        let rows = named.keys().map(|&row| (row, Some(row))).chain([(default, None)]);
        for (id, name) in rows {
            let row = &tables.rows[&id];
            for (span, decision) in contrary_spans(row) {
                ports.entry((decision.rule(), decision.verdict(), span)).or_default().insert(name);
            }
            if row.other.verdict() != last.verdict() {
                whole.entry(row.other).or_default().insert(name);
            }
        }
        // A region of all other addresses takes in rows that decide alike, and needs no exception for them.
        for ((_, verdict, span), deciding) in &mut ports {
            if deciding.contains(&None) {
                let alike = named.keys().filter(|&row| decides_alike(&tables.rows[row], *span, *verdict));
                deciding.extend(alike.map(|&row| Some(row)));
            }
        }
        let mut joined: BTreeMap<(Decision, BTreeSet<Option<RowId>>), Vec<Span>> = BTreeMap::new();
        for ((rule, verdict, span), rows) in ports {
            joined.entry((Decision::new(verdict, rule), rows)).or_default().push(span);
        }
        let ports = joined.into_iter().map(|((decision, rows), mut spans)| {
            spans.sort_unstable();
            Region { peers: peers(&named, &rows), services: Some(spans), decision, is_total: false }
        });
        let has_ports = |row: &RowId| contrary_spans(&tables.rows[row]).next().is_some();
        let whole = whole.into_iter().map(|(decision, rows)| Region {
            peers: peers(&named, &rows),
            services: None,
            decision,
            is_total: !rows.iter().flatten().any(has_ports),
        });
        Regions { list: ports.chain(whole).collect(), last }
    }
}

/// Classes by row, without the row of addresses that have no class, and that row.
fn rows_by_class(acl: &Acl, known: impl Iterator<Item = ClassId>) -> (BTreeMap<RowId, Vec<ClassId>>, RowId) {
    let default = acl.row(ClassId::WORLD);
    let mut named: BTreeMap<RowId, Vec<ClassId>> = BTreeMap::new();
    let mut add = |class: ClassId, row: RowId| {
        if row != default {
            named.entry(row).or_default().push(class);
        }
    };
    acl.rows.iter().for_each(|(&class, &row)| add(class, row));
    if default != acl.default {
        known
            .filter(|class| !acl.rows.contains_key(class) && *class != ClassId::WORLD)
            .for_each(|class| add(class, acl.default));
    }
    named.values_mut().for_each(|classes| classes.sort_unstable());
    (named, default)
}

/// Spans whose verdict is not that of the row on everything else.
fn contrary_spans(row: &Row) -> impl Iterator<Item = (Span, Decision)> + '_ {
    [Protocol::TCP, Protocol::UDP, Protocol::SCTP].into_iter().flat_map(|protocol| {
        let spans = row.spans(protocol).iter();
        spans
            .filter(|span| span.decision.verdict() != row.other.verdict())
            .map(move |span| ((protocol, span.first, span.last), span.decision))
    })
}

/// Tests whether a row has this verdict on all services of a span.
fn decides_alike(row: &Row, (protocol, first, last): Span, verdict: Verdict) -> bool {
    let mut next = u32::from(first);
    for span in row.spans(protocol).iter().filter(|span| span.first <= last && span.last >= first) {
        let is_gap = next < u32::from(span.first);
        if span.decision.verdict() != verdict || is_gap && row.other.verdict() != verdict {
            return false;
        }
        next = u32::from(span.last) + 1;
    }
    next > u32::from(last) || row.other.verdict() == verdict
}

/// Classes of these rows.
fn peers(named: &BTreeMap<RowId, Vec<ClassId>>, rows: &BTreeSet<Option<RowId>>) -> ClassMatch {
    let is_negative = rows.contains(&None);
    let chosen = named.iter().filter(|&(&row, _)| rows.contains(&Some(row)) != is_negative);
    let mut classes: Vec<ClassId> = chosen.flat_map(|(_, classes)| classes).copied().collect();
    classes.sort_unstable();
    if is_negative { ClassMatch::NotIn(classes) } else { ClassMatch::In(classes) }
}
