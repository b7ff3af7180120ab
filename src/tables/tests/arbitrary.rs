//! Random rule tables for property tests: small, so that their parts interact.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::ids::{AclId, ClassId, RowId, RuleId};
use crate::net::flow::{FlowKey, Protocol};
use crate::tables::{Acl, Decision, Direction, PodName, PodPolicy, PolicyKind, PolicyRef};
use crate::tables::{PortSpan, Row, RuleOrigin, RuleTables, Verdict};

const RULES: u32 = 6;
const ROWS: u32 = 8;
const ACLS: u32 = 4;
const CLASSES: u32 = 6;

/// Generates tables that pass their check.
pub(crate) fn rule_tables() -> impl Strategy<Value = RuleTables> {
    let rows = vec(row(12), ROWS as usize);
    let acls = vec(acl(), ACLS as usize);
    let prefixes = btree_map(prefix(), (0..CLASSES).prop_map(class), 0..40);
    let pods = vec((vec(address(), 0..3), 0..ACLS, 0..ACLS), 0..8);
    (rows, acls, prefixes, pods).prop_map(|(rows, acls, prefixes, pods)| RuleTables {
        rules: (0..RULES).map(|i| (RuleId(i), origin(i))).collect(),
        prefixes: prefixes.into(),
        rows: (0..).map(RowId).zip(rows).collect(),
        acls: (0..).map(AclId).zip(acls).collect(),
        pods: (0..)
            .map(|i: u32| PodName::new("default", format!("pod{i}")))
            .zip(pods.into_iter().map(pod))
            .collect(),
        ..RuleTables::default()
    })
}

/// Generates a flow between addresses that the tables may contain.
pub(crate) fn flow() -> impl Strategy<Value = FlowKey> {
    (address(), address(), protocol(), port(), port()).prop_map(
        |(src, other, protocol, src_port, dst_port)| {
            let dst = match (src, other) {
                (IpAddr::V4(_), IpAddr::V6(other)) => IpAddr::V4(Ipv4Addr::from_bits(other.to_bits() as u32)),
                (IpAddr::V6(_), IpAddr::V4(other)) => IpAddr::V6(other.to_ipv6_mapped()),
                _ => other,
            };
            FlowKey { src, dst, protocol, src_port, dst_port }
        },
    )
}

/// Generates a protocol, mostly one with ports.
pub(in crate::tables) fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        Just(Protocol::TCP),
        Just(Protocol::UDP),
        Just(Protocol::SCTP),
        any::<u8>().prop_map(Protocol)
    ]
}

/// Generates a port: the first, the last, a few adjacent ones, or any.
pub(in crate::tables) fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(u16::MAX), 79..83_u16, any::<u16>()]
}

/// Generates a row with fewer than `spans_max` spans per protocol.
pub(in crate::tables) fn row(spans_max: usize) -> impl Strategy<Value = Row> {
    let spans = || prop_oneof![vec((port(), decision()), 0..4), vec((port(), decision()), 0..spans_max)];
    let long = (spans(), spans(), spans(), decision()).prop_map(|(tcp, udp, sctp, other)| {
        let [tcp, udp, sctp] = [tcp, udp, sctp].map(|cuts| spans_of(cuts, other));
        Row { tcp, udp, sctp, other }
    });
    prop_oneof![long, short_row()]
}

/// Generates a row with at most one span and few distinct decisions.
fn short_row() -> impl Strategy<Value = Row> {
    let decision = || {
        (0..2_u32)
            .prop_map(|rule| Decision::new([Verdict::Allow, Verdict::Deny][rule as usize], RuleId(rule)))
    };
    (protocol(), port(), port(), decision(), decision()).prop_map(|(protocol, a, b, decision, other)| {
        let mut row = Row::uniform(other);
        let spans = match protocol {
            Protocol::TCP => &mut row.tcp,
            Protocol::UDP => &mut row.udp,
            _ => &mut row.sctp,
        };
        if decision != other {
            spans.push(PortSpan { first: a.min(b), last: a.max(b), decision });
        }
        row
    })
}

/// Cuts all ports at the given ones. Each piece has the decision of the cut at its end.
fn spans_of(cuts: Vec<(u16, Decision)>, other: Decision) -> Vec<PortSpan> {
    let cuts: BTreeMap<u16, Decision> = cuts.into_iter().collect();
    let mut spans: Vec<PortSpan> = Vec::new();
    let mut next = Some(0);
    for (last, decision) in cuts {
        let Some(first) = next else { break };
        next = last.checked_add(1);
        match spans.last_mut() {
            _ if decision == other => {}
            Some(before) if before.decision == decision && before.last + 1 == first => before.last = last,
            _ => spans.push(PortSpan { first, last, decision }),
        }
    }
    spans
}

fn decision() -> impl Strategy<Value = Decision> {
    (any::<bool>(), 0..RULES).prop_map(|(allow, rule)| {
        Decision::new(if allow { Verdict::Allow } else { Verdict::Deny }, RuleId(rule))
    })
}

fn acl() -> impl Strategy<Value = Acl> {
    let rows = btree_map((0..CLASSES).prop_map(class), (0..ROWS).prop_map(RowId), 0..CLASSES as usize);
    (rows, 0..ROWS).prop_map(|(rows, default)| Acl { rows: rows.into(), default: RowId(default) })
}

fn pod((mut addresses, ingress, egress): (Vec<IpAddr>, u32, u32)) -> PodPolicy {
    addresses.sort_unstable();
    addresses.dedup();
    PodPolicy { addresses, ingress: AclId(ingress), egress: AclId(egress) }
}

/// Class with a large id.
fn class(i: u32) -> ClassId {
    ClassId(i * 200)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..4_u32, 0..6_u32)
            .prop_map(|(net, host)| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | net << 8 | host))),
        (0..4_u128, 0..6_u128)
            .prop_map(|(net, host)| IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | net << 64 | host))),
    ]
}

fn prefix() -> impl Strategy<Value = IpNet> {
    (address(), prop_oneof![Just(255_u8), 0..=128_u8]).prop_map(|(address, len)| {
        let max = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, len.min(max)).unwrap().trunc()
    })
}

/// Rule number `i`. The order of the rules differs from that of their numbers.
fn origin(i: u32) -> RuleOrigin {
    let policy = PolicyRef {
        kind: PolicyKind::NetworkPolicy,
        namespace: "default".into(),
        name: format!("policy{}", i * 5 % RULES),
    };
    match i % 3 {
        0 => RuleOrigin::DefaultDeny { direction: Direction::Ingress, policies: vec![policy] },
        _ => RuleOrigin::Rule { policy, direction: Direction::Egress, index: i, name: None },
    }
}

/// Other ids for the same tables: shuffled, with gaps.
#[derive(Debug, Clone)]
pub(in crate::tables) struct Numbering(Vec<u32>);

/// Generates a numbering.
pub(in crate::tables) fn numbering() -> impl Strategy<Value = Numbering> {
    Just((0..10).map(|i| 3 * i + 1).collect()).prop_shuffle().prop_map(Numbering)
}

impl Numbering {
    /// Tables with these ids.
    pub(in crate::tables) fn apply(&self, tables: &RuleTables) -> RuleTables {
        let row = |row: &Row| {
            let decision = |d: Decision| Decision::new(d.verdict(), RuleId(self.number(d.rule().0)));
            let span = |span: &PortSpan| PortSpan { decision: decision(span.decision), ..*span };
            let spans = |spans: &[PortSpan]| spans.iter().map(span).collect();
            Row {
                tcp: spans(&row.tcp),
                udp: spans(&row.udp),
                sctp: spans(&row.sctp),
                other: decision(row.other),
            }
        };
        let row_id = |id: &RowId| RowId(self.number(id.0));
        let acl_id = |id: &AclId| AclId(self.number(id.0));
        let acl = |acl: &Acl| Acl {
            rows: acl.rows.iter().map(|(id, row)| (self.class(*id), row_id(row))).collect(),
            default: row_id(&acl.default),
        };
        let pod = |pod: &PodPolicy| PodPolicy {
            addresses: pod.addresses.clone(),
            ingress: acl_id(&pod.ingress),
            egress: acl_id(&pod.egress),
        };
        RuleTables {
            format: tables.format,
            rules: tables.rules.iter().map(|(id, rule)| (RuleId(self.number(id.0)), rule.clone())).collect(),
            prefixes: tables.prefixes.iter().map(|(&prefix, &id)| (prefix, self.class(id))).collect(),
            rows: tables.rows.iter().map(|(id, content)| (row_id(id), row(content))).collect(),
            acls: tables.acls.iter().map(|(id, content)| (acl_id(id), acl(content))).collect(),
            pods: tables.pods.iter().map(|(name, content)| (name.clone(), pod(content))).collect(),
        }
    }

    fn class(&self, id: ClassId) -> ClassId {
        if id == ClassId::WORLD { id } else { class(self.number(id.0 / 200)) }
    }

    fn number(&self, id: u32) -> u32 {
        self.0[id as usize]
    }
}
