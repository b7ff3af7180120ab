//! Tables of one pod as entries that do not overlap, in the order of their rules.

use std::collections::{BTreeMap, BTreeSet};

use super::hits::Hits;
use super::members::{joined, members};
use crate::control::protocol::{AclDecision, AclDirection, AclEntry, Peers};
use crate::ids::{AclId, ClassId, RowId};
use crate::limits::REPORT_ENTRIES_MAX;
use crate::net::flow::Protocol;
use crate::policy::display;
use crate::tables::{Decision, PodPolicy, PolicyKind, PolicyRef, Row, RuleOrigin, RuleTables};

/// First and last port of a protocol; `None` for everything that no span of the row covers.
type Span = Option<(Protocol, u16, u16)>;

/// Class with a row of its own; `None` for all others.
type Peer = Option<ClassId>;

/// Ports with one decision, and whether the row has other decisions.
type Ports = (Vec<Span>, bool);

/// Ingress and egress table of a pod.
pub(super) fn directions(tables: &RuleTables, policy: &PodPolicy, hits: &Hits) -> [AclDirection; 2] {
    let parts = [policy.ingress, policy.egress].map(|id| Parts::of(tables, id));
    let wanted: BTreeSet<ClassId> =
        parts.iter().flat_map(|parts| parts.peers.iter().flatten()).copied().collect();
    let members = members(tables, &wanted);
    parts.map(|parts| parts.report(tables, &members, hits))
}

/// Decisions of one table with their ports, and the peers of each.
struct Parts<'a> {
    /// All peers with a row.
    peers: BTreeSet<Peer>,
    entries: BTreeMap<(Decision, Ports), BTreeSet<Peer>>,
    /// Rows of the table.
    rows: BTreeSet<RowId>,
    default: &'a Row,
}

impl<'a> Parts<'a> {
    fn of(tables: &'a RuleTables, id: AclId) -> Parts<'a> {
        // The check of the tables has found every entry that another one names.
        let acl = &tables.acls[&id];
        let mut by_row: BTreeMap<RowId, Vec<Peer>> = BTreeMap::from([(acl.default, vec![None])]);
        acl.rows.iter().for_each(|(class, row)| by_row.entry(*row).or_default().push(Some(*class)));
        let default = &tables.rows[&acl.default];
        let mut entries: BTreeMap<(Decision, Ports), BTreeSet<Peer>> = BTreeMap::new();
        for (row, peers) in &by_row {
            let row = &tables.rows[row];
            for (decision, ports) in ports_by_decision(row) {
                // The default covers these.
                if decision == default.other && ports == [None] {
                    continue;
                }
                let is_all = row.tcp.is_empty() && row.udp.is_empty() && row.sctp.is_empty();
                entries.entry((decision, (ports, is_all))).or_default().extend(peers);
            }
        }
        let peers = by_row.values().flatten().copied().collect();
        Parts { peers, entries, rows: by_row.into_keys().collect(), default }
    }

    fn report(&self, tables: &RuleTables, members: &BTreeMap<ClassId, Peers>, hits: &Hits) -> AclDirection {
        let decision = |decision: Decision| {
            let (verdict, origin) = (decision.verdict(), tables.rules[&decision.rule()].clone());
            let hits = hits.get(&(origin.clone(), verdict)).copied().unwrap_or(0);
            AclDecision { verdict, reason: origin.to_string(), decided_by: origin, hits }
        };
        let mut sorted: Vec<_> = self.entries.iter().collect();
        sorted.sort_by_key(|((decision, ports), _)| (rank(&tables.rules[&decision.rule()]), ports));
        let left_out = sorted.len().saturating_sub(REPORT_ENTRIES_MAX);
        let entries = sorted.into_iter().take(REPORT_ENTRIES_MAX).map(|((decided, ports), peers)| {
            let (peers, except) = self.named(peers, members);
            AclEntry { ports: texts(ports), peers, except, decision: decision(*decided) }
        });
        let (isolated, isolated_by) = self.isolation(tables);
        AclDirection {
            isolated,
            isolated_by,
            entries: entries.collect(),
            left_out,
            default: decision(self.default.other),
        }
    }

    /// Peers by name, and those that are not among them if nearly all are.
    fn named(&self, peers: &BTreeSet<Peer>, members: &BTreeMap<ClassId, Peers>) -> (Peers, Peers) {
        let join = |peers: &mut dyn Iterator<Item = &Peer>| {
            joined(peers.flatten().filter_map(|class| members.get(class)))
        };
        if peers.contains(&None) {
            let except = join(&mut self.peers.difference(peers));
            return (Peers { any: true, ..Peers::default() }, except);
        }
        (join(&mut peers.iter()), Peers::default())
    }

    /// Whether policies isolate the pod, and which do.
    fn isolation(&self, tables: &RuleTables) -> (Option<bool>, Vec<PolicyRef>) {
        let decisions = self.rows.iter().flat_map(|row| tables.rows[row].decisions());
        let rules: BTreeSet<_> = decisions.map(Decision::rule).collect();
        for origin in rules.iter().map(|rule| &tables.rules[rule]) {
            match origin {
                RuleOrigin::NotIsolated { .. } => return (Some(false), Vec::new()),
                RuleOrigin::DefaultDeny { policies, .. } => return (Some(true), policies.clone()),
                RuleOrigin::Rule { .. } | RuleOrigin::OwnNode => {}
            }
        }
        (None, Vec::new())
    }
}

/// Ports of each decision of a row.
fn ports_by_decision(row: &Row) -> BTreeMap<Decision, Vec<Span>> {
    let mut ports: BTreeMap<Decision, Vec<Span>> = BTreeMap::new();
    for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
        for span in row.spans(protocol) {
            ports.entry(span.decision).or_default().push(Some((protocol, span.first, span.last)));
        }
    }
    ports.entry(row.other).or_default().push(None);
    ports
}

/// Order of an origin: tiers first.
fn rank(origin: &RuleOrigin) -> (u8, &RuleOrigin) {
    let tier = match origin {
        RuleOrigin::Rule { policy, .. } => match policy.kind {
            PolicyKind::AdminNetworkPolicy => 0,
            PolicyKind::ClusterNetworkPolicy => 1,
            PolicyKind::NetworkPolicy => 2,
            PolicyKind::BaselineAdminNetworkPolicy => 4,
        },
        RuleOrigin::DefaultDeny { .. } => 3,
        RuleOrigin::NotIsolated { .. } | RuleOrigin::OwnNode => 5,
    };
    (tier, origin)
}

fn texts((spans, is_all): &Ports) -> Vec<String> {
    let rest = if *is_all { "everything" } else { "everything else" };
    let text = |span: &Span| {
        span.map_or_else(|| rest.to_owned(), |(protocol, first, last)| display::ports(protocol, first, last))
    };
    spans.iter().map(text).collect()
}
