//! Policy as lists of rules, evaluated one by one, for the reference model; and the same policy as rule
//! tables for the switch, made by evaluating every address and every port that a rule names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::ids::{AclId, ClassId, RowId, RuleId};
use palisade::net::flow::Protocol;
use palisade::tables::{
    Acl, Decision, Direction, PodName, PodPolicy, PolicyKind, PolicyRef, PortSpan, Row, RuleOrigin,
    RuleTables, Verdict,
};

/// Policy rule. The first match decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Peer addresses; every address if absent.
    pub(crate) peers: Option<Vec<IpAddr>>,
    /// Protocol with first and last destination port; everything if absent.
    pub(crate) ports: Option<(Protocol, u16, u16)>,
    pub(crate) verdict: Verdict,
}

impl Rule {
    /// Allows everything with every peer.
    pub(crate) const ALL: Rule = Rule { peers: None, ports: None, verdict: Verdict::Allow };

    /// Allows one destination port of a protocol with every peer.
    pub(crate) fn port(protocol: Protocol, port: u16) -> Rule {
        Rule { ports: Some((protocol, port, port)), ..Rule::ALL }
    }

    fn matches(&self, peer: IpAddr, protocol: Protocol, dst_port: u16) -> bool {
        let peer_fits = self.peers.as_ref().is_none_or(|peers| peers.contains(&peer));
        let port_fits = self
            .ports
            .is_none_or(|(wanted, first, last)| wanted == protocol && (first..=last).contains(&dst_port));
        peer_fits && port_fits
    }
}

/// Rules of one direction of a pod; `None` if no policy isolates it.
pub(crate) type Rules = Option<Vec<Rule>>;

/// Rules of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PodRules {
    pub(crate) ingress: Rules,
    pub(crate) egress: Rules,
}

impl PodRules {
    fn of(&self, direction: Direction) -> &Rules {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Evaluates a flow with this peer, rule by rule: verdict and reason.
    pub(crate) fn decide(
        &self,
        pod: &PodName,
        direction: Direction,
        peer: IpAddr,
        protocol: Protocol,
        dst_port: u16,
    ) -> (Verdict, RuleOrigin) {
        let policy = PolicyRef {
            kind: PolicyKind::NetworkPolicy,
            namespace: pod.namespace.clone(),
            name: format!("for-{}", pod.name),
        };
        let Some(rules) = self.of(direction) else {
            return (Verdict::Allow, RuleOrigin::NotIsolated { direction });
        };
        match rules.iter().position(|rule| rule.matches(peer, protocol, dst_port)) {
            Some(index) => {
                let origin = RuleOrigin::Rule { policy, direction, index: index as u32, name: None };
                (rules[index].verdict, origin)
            }
            None => (Verdict::Deny, RuleOrigin::DefaultDeny { direction, policies: vec![policy] }),
        }
    }
}

/// Builds equivalent rule tables, for peers at `addresses` and for all other addresses.
pub(crate) fn tables(pods: &BTreeMap<PodName, (Vec<IpAddr>, PodRules)>, addresses: &[IpAddr]) -> RuleTables {
    let mut tables = RuleTables::default();
    let mut rules = BTreeMap::new();
    for (number, address) in addresses.iter().enumerate() {
        tables.prefixes.insert(IpNet::from(*address), ClassId(number as u32 + 1));
    }
    // An address that no rule names represents all other addresses.
    let outside: IpAddr = "203.0.113.113".parse().unwrap();
    for (number, (pod, (pod_addresses, pod_rules))) in pods.iter().enumerate() {
        let acl_of = |direction| AclId(number as u32 * 2 + u32::from(direction == Direction::Egress));
        for direction in [Direction::Ingress, Direction::Egress] {
            let mut row_of = |class: usize, peer: IpAddr| {
                let row = row(pod, pod_rules, direction, peer, &mut rules);
                let id = RowId((acl_of(direction).0 << 8) + class as u32);
                tables.rows.insert(id, row);
                id
            };
            let default = row_of(0, outside);
            let rows = addresses
                .iter()
                .enumerate()
                .map(|(number, peer)| (ClassId(number as u32 + 1), row_of(number + 1, *peer)));
            let acl = Acl { rows: rows.collect(), default };
            tables.acls.insert(acl_of(direction), acl);
        }
        let policy = PodPolicy {
            addresses: pod_addresses.clone(),
            ingress: acl_of(Direction::Ingress),
            egress: acl_of(Direction::Egress),
        };
        tables.pods.insert(pod.clone(), policy);
    }
    tables.rules = rules.into_iter().map(|(origin, id)| (id, origin)).collect();
    tables.check().expect("the tables are whole");
    tables
}

fn row(
    pod: &PodName,
    rules: &PodRules,
    direction: Direction,
    peer: IpAddr,
    ids: &mut BTreeMap<RuleOrigin, RuleId>,
) -> Row {
    let mut decide = |protocol: Protocol, port: u16| {
        let (verdict, origin) = rules.decide(pod, direction, peer, protocol, port);
        let next = RuleId(ids.len() as u32);
        Decision::new(verdict, *ids.entry(origin).or_insert(next))
    };
    let other = decide(Protocol(47), 0);
    let mut spans = |protocol: Protocol| {
        let all = rules.of(direction).iter().flatten().filter_map(|rule| rule.ports);
        let named = all.filter(|(of, ..)| *of == protocol);
        let mut starts: BTreeSet<u32> =
            named.flat_map(|(_, first, last)| [u32::from(first), u32::from(last) + 1]).collect();
        starts.extend([0, 1 << 16]);
        let starts: Vec<u32> = starts.into_iter().collect();
        let mut spans: Vec<PortSpan> = Vec::new();
        for pair in starts.windows(2) {
            let (first, last) = (pair[0] as u16, (pair[1] - 1) as u16);
            let decision = decide(protocol, first);
            match spans.last_mut() {
                Some(before) if before.decision == decision => before.last = last,
                _ => spans.push(PortSpan { first, last, decision }),
            }
        }
        spans.retain(|span| span.decision != other);
        spans
    };
    Row { tcp: spans(Protocol::TCP), udp: spans(Protocol::UDP), sctp: spans(Protocol::SCTP), other }
}
