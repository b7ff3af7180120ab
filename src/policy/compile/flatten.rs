//! Flattening: rules in order of evaluation become one row, in which each rule decides the ports that no
//! earlier one has decided.

use crate::ids::RuleId;
use crate::net::flow::Protocol;
use crate::policy::objects::ContainerPort;
use crate::policy::resolve::{Action, PortTerm, Rule, RuleIndex, RuleList};
use crate::policy::store::GroupId;
use crate::tables::{Decision, PortSpan, Row};

/// Computes the row of addresses in these groups whose pod, if any, has these ports.
///
/// Decisions name rules by their index in [`RuleList::origins`].
pub(crate) fn flatten(
    rules: &RuleList,
    index: &RuleIndex,
    groups: &[GroupId],
    ports: &[ContainerPort],
) -> Row {
    let mut builder = RowBuilder::default();
    let matching = index.matching(groups);
    let mut of_tiers = matching.chunk_by(|a, b| a.0 == b.0).peekable();
    for (number, tier) in (0..).zip(&rules.tiers) {
        let of_tier = of_tiers.next_if(|places| places[0].0 == number);
        for &(_, at) in of_tier.into_iter().flatten() {
            builder.flatten(&tier[at as usize], ports);
            if builder.full {
                break;
            }
        }
        builder.end_stage();
    }
    builder.into_row()
}

/// Intersection of two rows: it allows the traffic that both allow. If both agree, it names the rule that was
/// evaluated first.
pub(crate) fn intersect(a: &Row, b: &Row) -> Row {
    let both = |a: Decision, b: Decision| match (a.is_allow(), b.is_allow()) {
        (true, false) => b,
        (false, true) => a,
        _ => a.min(b),
    };
    let other = both(a.other, b.other);
    let spans = |protocol| {
        let (mut starts, mut found) = (vec![0_u32], Vec::new());
        for span in a.spans(protocol).iter().chain(b.spans(protocol)) {
            starts.extend([u32::from(span.first), u32::from(span.last) + 1]);
        }
        starts.push(PORTS);
        starts.sort_unstable();
        starts.dedup();
        for pair in starts.windows(2) {
            let (first, last) = (pair[0] as u16, (pair[1] - 1) as u16);
            let decision = both(a.decide(protocol, first), b.decide(protocol, first));
            append(&mut found, PortSpan { first, last, decision }, other);
        }
        found
    };
    Row { tcp: spans(Protocol::TCP), udp: spans(Protocol::UDP), sctp: spans(Protocol::SCTP), other }
}

const PORTS: u32 = 1 << 16;
const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

/// Decision of a span; `None` if a rule passes to the next tier.
type Outcome = Option<Decision>;

#[derive(Default)]
struct RowBuilder {
    protocols: [Vec<Span>; 3],
    other: Option<Outcome>,
    /// Indicates that a rule without ports has matched: this tier decides nothing else.
    full: bool,
}

struct Span {
    first: u16,
    last: u16,
    outcome: Outcome,
}

impl RowBuilder {
    fn flatten(&mut self, rule: &Rule, ports: &[ContainerPort]) {
        let origin = RuleId(rule.origin);
        let outcome = match rule.action {
            Action::Allow => Some(Decision::allow(origin)),
            Action::Deny => Some(Decision::deny(origin)),
            Action::Pass => None,
        };
        let Some(terms) = &rule.ports else {
            for spans in &mut self.protocols {
                fill(spans, 0, u16::MAX, outcome);
            }
            self.other.get_or_insert(outcome);
            self.full = true;
            return;
        };
        for term in terms {
            match term {
                PortTerm::Range { protocol, first, last } => self.fill(*protocol, *first, *last, outcome),
                PortTerm::Named(name) => {
                    for port in ports.iter().filter(|port| name.is_of(port)) {
                        self.fill(port.protocol, port.port, port.port, outcome);
                    }
                }
            }
        }
    }

    fn fill(&mut self, protocol: Protocol, first: u16, last: u16, outcome: Outcome) {
        if let Some(at) = PROTOCOLS.iter().position(|&known| known == protocol) {
            fill(&mut self.protocols[at], first, last, outcome);
        }
    }

    /// Ends a tier. Spans that passed are undecided in the next one.
    fn end_stage(&mut self) {
        for spans in &mut self.protocols {
            spans.retain(|span| span.outcome.is_some());
        }
        self.other = self.other.filter(Option::is_some);
        self.full = false;
    }

    fn into_row(self) -> Row {
        let other = self.other.flatten().expect("the last tier decides everything");
        let [tcp, udp, sctp] = self.protocols.map(|spans| {
            let mut found = Vec::new();
            for span in spans {
                let decision = span.outcome.expect("the last tier decides everything");
                append(&mut found, PortSpan { first: span.first, last: span.last, decision }, other);
            }
            found
        });
        Row { tcp, udp, sctp, other }
    }
}

/// Decides the undecided ports of a range.
fn fill(spans: &mut Vec<Span>, first: u16, last: u16, outcome: Outcome) {
    let (mut next, end) = (u32::from(first), u32::from(last) + 1);
    let mut at = spans.partition_point(|span| span.last < first);
    while next < end {
        let taken = spans.get(at).map(|span| (u32::from(span.first), u32::from(span.last) + 1));
        match taken {
            Some((from, until)) if from <= next => next = until,
            _ => {
                let until = taken.map_or(end, |(from, _)| from.min(end));
                spans.insert(at, Span { first: next as u16, last: (until - 1) as u16, outcome });
                next = until;
            }
        }
        at += 1;
    }
}

/// Appends a span. Joins it to the last one if they touch and agree; omits it if `other` decides alike.
fn append(spans: &mut Vec<PortSpan>, span: PortSpan, other: Decision) {
    if span.decision == other {
        return;
    }
    match spans.last_mut() {
        Some(before)
            if u32::from(before.last) + 1 == u32::from(span.first) && before.decision == span.decision =>
        {
            before.last = span.last;
        }
        _ => spans.push(span),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::store::Slot;
    use crate::tables::RuleOrigin;

    fn rule(origin: u32, action: Action, ports: Option<Vec<(u16, u16)>>, peers: Option<Vec<u32>>) -> Rule {
        let range = |(first, last)| PortTerm::Range { protocol: Protocol::TCP, first, last };
        Rule {
            peers: peers.map(|peers| peers.into_iter().map(GroupId::at).collect()),
            ports: ports.map(|ports| ports.into_iter().map(range).collect()),
            action,
            origin,
        }
    }

    fn rule_set<const STAGES: usize>(tiers: [Vec<Rule>; STAGES]) -> RuleList {
        let mut rules = RuleList::default();
        for tier in tiers {
            rules.begin_tier();
            let name = |rule| (rule, RuleOrigin::OwnNode.into());
            rules.append(None, tier.into_iter().map(name).collect());
        }
        rules
    }

    /// Naive counterpart: evaluates the rules one by one.
    fn evaluate_in_order(rules: &RuleList, groups: &[GroupId], protocol: Protocol, port: u16) -> Decision {
        for tier in &rules.tiers {
            let matching = tier.iter().find(|rule| {
                let in_range = |term: &PortTerm| match term {
                    PortTerm::Range { protocol: wanted, first, last } => {
                        *wanted == protocol && (*first..=*last).contains(&port)
                    }
                    PortTerm::Named(_) => false,
                };
                let concerns =
                    rule.peers.as_ref().is_none_or(|peers| peers.iter().any(|peer| groups.contains(peer)));
                concerns && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(in_range))
            });
            match matching.map(|rule| (rule.action, RuleId(rule.origin))) {
                Some((Action::Allow, origin)) => return Decision::allow(origin),
                Some((Action::Deny, origin)) => return Decision::deny(origin),
                Some((Action::Pass, _)) | None => {}
            }
        }
        unreachable!("the last tier decides everything")
    }

    fn arbitrary_rules() -> impl Strategy<Value = RuleList> {
        let port = prop_oneof![0..12_u16, 65_530..=u16::MAX];
        let range = (port.clone(), port).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let ports = prop::option::weighted(0.8, prop::collection::vec(range, 1..4));
        let peers = prop::option::of(prop::collection::vec(0..3_u32, 0..3));
        let action = prop_oneof![Just(Action::Allow), Just(Action::Deny), Just(Action::Pass)];
        let tier = prop::collection::vec((action, ports, peers), 0..6);
        (tier.clone(), tier).prop_map(|tiers| {
            let mut origin = 0;
            let mut next = |(action, ports, peers)| {
                origin += 1;
                rule(origin, action, ports, peers)
            };
            let first = tiers.0.into_iter().map(&mut next).collect();
            let second = tiers.1.into_iter().map(&mut next).collect();
            let last = vec![next((Action::Deny, None, None))];
            rule_set([first, second, last])
        })
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn a_row_decides_as_the_rules_asked_one_by_one(rules in arbitrary_rules(), groups in prop::collection::vec(0..3_u32, 0..3)) {
            let groups: Vec<GroupId> = groups.into_iter().map(GroupId::at).collect();
            let row = flatten(&rules, &RuleIndex::of(&rules), &groups, &[]);
            prop_assert!(row.is_canonical());
            for port in (0..20).chain(65_520..=u16::MAX) {
                for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
                    prop_assert_eq!(row.decide(protocol, port), evaluate_in_order(&rules, &groups, protocol, port));
                }
            }
        }

        #[test]
        fn the_meet_of_rows_allows_what_both_allow(rules in arbitrary_rules()) {
            let index = RuleIndex::of(&rules);
            let [a, b] = [0, 1].map(|group| flatten(&rules, &index, &[GroupId::at(group)], &[]));
            let row = intersect(&a, &b);
            prop_assert!(row.is_canonical());
            prop_assert_eq!(&row, &intersect(&b, &a));
            for port in (0..20).chain(65_520..=u16::MAX) {
                for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
                    let both = a.decide(protocol, port).is_allow() && b.decide(protocol, port).is_allow();
                    prop_assert_eq!(row.decide(protocol, port).is_allow(), both);
                }
            }
        }
    }

    #[test]
    fn all_ports_of_a_protocol_are_one_span() {
        let everything = || rule(1, Action::Deny, None, None);
        let range = rule(0, Action::Allow, Some(vec![(1, 65_535)]), None);
        let rules = rule_set([vec![range, everything()]]);
        let decision = Decision::allow(RuleId(0));
        assert_eq!(
            flatten(&rules, &RuleIndex::of(&rules), &[], &[]).tcp,
            [PortSpan { first: 1, last: 65_535, decision }]
        );
    }
}
