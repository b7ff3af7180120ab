//! Rule tables from a seed, with many prefix lengths, port ranges and classes, and the addresses of their
//! pods.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use palisade::ids::{AclId, ClassId, RowId, RuleId};
use palisade::net::flow::Protocol;
use palisade::tables::{Acl, Classifier, Decision, Direction, PodName, PodPolicy, PolicyKind, PolicyRef};
use palisade::tables::{PortSpan, PrefixTable, Row, RuleOrigin, RuleTables};

use super::random::Random;

/// Pods of each node of the cluster.
pub(crate) const PODS_PER_NODE: u32 = 250;

/// Address family. Addresses are the upper bits of 128.
pub(crate) trait Family: poptrie::Address + Eq {
    const NUMBER: u32;
    const WIDTH: u32;
    fn from_top(bits: u128) -> Self;
    fn ip(self) -> IpAddr;
    fn pod(pod: u32) -> u128;
    fn route(random: &mut Random) -> (u128, u8);
    fn look_up(table: &PrefixTable, addresses: &[Self], found: &mut [u32]);
    fn classes(classifier: &Classifier, addresses: &[Self], found: &mut [u32]);
}

impl Family for u32 {
    const NUMBER: u32 = 4;
    const WIDTH: u32 = 32;

    fn from_top(bits: u128) -> u32 {
        (bits >> 96) as u32
    }

    fn ip(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(self))
    }

    fn pod(pod: u32) -> u128 {
        u128::from(0x0a00_0000 | (pod / PODS_PER_NODE) << 8 | (pod % PODS_PER_NODE + 2)) << 96
    }

    /// Lengths as in BGP tables: three in five are /24.
    fn route(random: &mut Random) -> (u128, u8) {
        let len = match random.below(100) {
            0..60 => 24,
            60..80 => 22 + random.below(2),
            80..98 => 16 + random.below(6),
            98 => 8 + random.below(8),
            _ => 32,
        };
        (random.bits(), len as u8)
    }

    fn look_up(table: &PrefixTable, addresses: &[u32], found: &mut [u32]) {
        table.lookup_batch_v4(addresses, found);
    }

    fn classes(classifier: &Classifier, addresses: &[u32], found: &mut [u32]) {
        classifier.classes_v4(addresses, found);
    }
}

impl Family for u128 {
    const NUMBER: u32 = 6;
    const WIDTH: u32 = 128;

    fn from_top(bits: u128) -> u128 {
        bits
    }

    fn ip(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from_bits(self))
    }

    fn pod(pod: u32) -> u128 {
        let (node, pod) = (pod / PODS_PER_NODE, pod % PODS_PER_NODE + 2);
        0xfd00_0010_0244 << 80 | u128::from(node) << 64 | u128::from(pod)
    }

    /// Lengths as in BGP tables: nearly half are /48.
    fn route(random: &mut Random) -> (u128, u8) {
        let len = match random.below(100) {
            0..46 => 48,
            46..62 => 32,
            62..88 => 33 + random.below(15),
            88..97 => 20 + random.below(12),
            97..99 => 64,
            _ => 128,
        };
        // Global unicast addresses are in 2000::/3 (RFC 4291, section 2.4).
        (random.bits() >> 3 | 1 << 125, len as u8)
    }

    fn look_up(table: &PrefixTable, addresses: &[u128], found: &mut [u32]) {
        table.lookup_batch_v6(addresses, found);
    }

    fn classes(classifier: &Classifier, addresses: &[u128], found: &mut [u32]) {
        classifier.classes_v6(addresses, found);
    }
}

pub(crate) fn net(address: IpAddr, len: u8) -> IpNet {
    IpNet::new(address, len).expect("the length fits the family")
}

pub(crate) fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

/// Makes the tables of a node with 250 pods in a cluster of 10,000, with `count` rules of many shapes. With
/// `everyone`, rule 0 allows all peers on these TCP and UDP ports in both directions.
pub(crate) fn rule_tables(
    count: usize,
    everyone: Option<&RangeInclusive<u16>>,
    random: &mut Random,
) -> RuleTables {
    let common: Vec<PortRule> = everyone.into_iter().flat_map(PortRule::everyone).collect();
    let pod_classes = (count / 4).clamp(4, 5_000) as u64;
    let mut tables = RuleTables::default();
    for pod in 0..10_000 {
        // Pods of one class are on all nodes.
        let class = ClassId(1 + random.below(pod_classes) as u32);
        tables.prefixes.insert(net(u32::from_top(<u32 as Family>::pod(pod)).ip(), 32), class);
        tables.prefixes.insert(net(u128::from_top(<u128 as Family>::pod(pod)).ip(), 128), class);
    }
    for block in 0..(count / 2).clamp(2, 15_000) as u32 {
        let class = ClassId(1 + pod_classes as u32 + block);
        let (bits, len) = <u32 as Family>::route(random);
        tables.prefixes.insert(net(u32::from_top(bits & mask(len)).ip(), len), class);
        let (bits, len) = <u128 as Family>::route(random);
        tables.prefixes.insert(net(u128::from_top(bits & mask(len)).ip(), len), class);
    }
    let classes = 1 + u64::from(tables.prefixes.values().max().map_or(0, |class| class.0));

    let acls = (count / 5).clamp(2, 500) as u32;
    let mut cells: BTreeMap<(AclId, ClassId), Vec<PortRule>> = BTreeMap::new();
    for rule in 0..count as u32 {
        tables.rules.insert(RuleId(rule), origin(rule));
        if rule == 0 && !common.is_empty() {
            continue;
        }
        let rules = PortRule::any(RuleId(rule), random);
        // A selector stands for a run of classes and one anywhere.
        let first = random.below(classes);
        let peers = (first..first + random.below(8)).map(|class| class % classes);
        let peers: Vec<u64> = peers.chain([random.below(classes)]).collect();
        for class in peers {
            let cell = (AclId(rule % acls), ClassId(class as u32));
            cells.entry(cell).or_default().extend(&rules);
        }
    }
    let mut rows = BTreeMap::new();
    let mut row_id = |row: Row| {
        let next = RowId(rows.len() as u32);
        *rows.entry(row).or_insert(next)
    };
    for acl in (0..acls).map(AclId) {
        let deny = Decision::deny(RuleId(acl.0 % count as u32));
        let of_acl = cells.range((acl, ClassId(0))..=(acl, ClassId(u32::MAX)));
        let with_common = |rules: &[PortRule]| row(&[&common, rules].concat(), deny);
        let rows = of_acl.map(|(&(_, class), rules)| (class, row_id(with_common(rules)))).collect();
        tables.acls.insert(acl, Acl { rows, default: row_id(with_common(&[])) });
    }
    tables.rows = rows.into_iter().map(|(row, id)| (id, row)).collect();
    let pods = (0..250).map(|pod| {
        let v4 = u32::from_top(<u32 as Family>::pod(pod)).ip();
        let v6 = u128::from_top(<u128 as Family>::pod(pod)).ip();
        let [ingress, egress] = [2 * pod, 2 * pod + 1].map(|acl| AclId(acl % acls));
        let name = PodName::new("default", format!("pod{pod}"));
        (name, PodPolicy { addresses: vec![v4, v6], ingress, egress })
    });
    tables.pods = pods.collect();
    tables
}

pub(crate) fn origin(rule: u32) -> RuleOrigin {
    let policy = PolicyRef {
        kind: PolicyKind::NetworkPolicy,
        namespace: format!("namespace{}", rule / 50),
        name: format!("policy{}", rule / 5),
    };
    RuleOrigin::Rule { policy, direction: Direction::Ingress, index: rule % 5, name: None }
}

/// Protocol and port range of a rule.
#[derive(Clone, Copy)]
pub(crate) struct PortRule {
    protocol: Option<Protocol>,
    first: u16,
    last: u16,
    rule: RuleId,
}

impl PortRule {
    /// Rule 0 for all peers.
    fn everyone(ports: &RangeInclusive<u16>) -> [PortRule; 2] {
        [Protocol::TCP, Protocol::UDP].map(|protocol| PortRule {
            protocol: Some(protocol),
            first: *ports.start(),
            last: *ports.end(),
            rule: RuleId(0),
        })
    }

    /// Draws one port, a range, or all; one rule in five hundred has a thousand ports.
    fn any(rule: RuleId, random: &mut Random) -> Vec<PortRule> {
        let protocol = Some([Protocol::TCP, Protocol::TCP, Protocol::UDP][random.below(3) as usize]);
        let first = random.bits() as u16;
        let range = |first, last| PortRule { protocol, first, last, rule };
        match random.below(500) {
            0 => (0..1_000).map(|i| range(i * 65, i * 65 + 20)).collect(),
            1..300 => vec![range(first, first)],
            300..450 => vec![range(first, first.saturating_add(random.below(10_000) as u16))],
            _ => vec![PortRule { protocol: None, first: 0, last: u16::MAX, rule }],
        }
    }
}

/// Compiles the rules of one class in their order.
pub(crate) fn row(rules: &[PortRule], default: Decision) -> Row {
    let all = rules.iter().find(|rule| rule.protocol.is_none());
    let other = all.map_or(default, |rule| Decision::allow(rule.rule));
    let spans = |protocol| {
        let mut spans: Vec<PortSpan> = Vec::new();
        let rules = rules.iter().filter(|rule| rule.protocol.is_none_or(|of| of == protocol));
        let mut rules: Vec<&PortRule> = rules.collect();
        rules.sort_by_key(|rule| rule.first);
        let mut next = 0;
        for rule in rules.into_iter().filter(|rule| rule.protocol.is_some()) {
            let (first, decision) = (next.max(u32::from(rule.first)), Decision::allow(rule.rule));
            if first > u32::from(rule.last) || decision == other {
                continue;
            }
            match spans.last_mut() {
                Some(before) if u32::from(before.last) + 1 == first && before.decision == decision => {
                    before.last = rule.last;
                }
                _ => spans.push(PortSpan { first: first as u16, last: rule.last, decision }),
            }
            next = u32::from(rule.last) + 1;
        }
        spans
    };
    Row { tcp: spans(Protocol::TCP), udp: spans(Protocol::UDP), sctp: Vec::new(), other }
}

/// Draws addresses in prefixes drawn at random.
pub(crate) fn addresses_in<A: Family>(prefixes: &[(u128, u8)], count: usize, random: &mut Random) -> Vec<A> {
    let mut hit = || {
        let (bits, len) = prefixes[random.below(prefixes.len() as u64) as usize];
        A::from_top(bits | random.bits() & !mask(len))
    };
    (0..count).map(|_| hit()).collect()
}
