//! The painter: rules in order, each colouring what none before it has coloured, become one row.

use crate::ids::RuleId;
use crate::net::flow::Protocol;
use crate::policy::objects::ContainerPort;
use crate::policy::resolve::{Action, PortTerm, Rule, RuleIndex, RuleList};
use crate::policy::store::GroupId;
use crate::tables::{Decision, PortSpan, Row};

/// The row of addresses that are in these groups and whose pod, if any, has these ports.
///
/// Its decisions name rules by their place in [`RuleList::origins`].
pub(crate) fn paint(rules: &RuleList, index: &RuleIndex, groups: &[GroupId], ports: &[ContainerPort]) -> Row {
    let mut canvas = RowBuilder::default();
    let concerning = index.concerning(groups);
    let mut of_stages = concerning.chunk_by(|a, b| a.0 == b.0).peekable();
    for (number, stage) in (0..).zip(&rules.stages) {
        let of_stage = of_stages.next_if(|places| places[0].0 == number);
        for &(_, at) in of_stage.into_iter().flatten() {
            canvas.paint(&stage[at as usize], ports);
            if canvas.full {
                break;
            }
        }
        canvas.end_stage();
    }
    canvas.into_row()
}

/// The row that lets pass what both rows let pass. Where both deny or both allow, the rule that was asked first
/// is named.
pub(crate) fn meet(a: &Row, b: &Row) -> Row {
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

/// What a span has come to: `None` where a rule has passed on to the next stage.
type Outcome = Option<Decision>;

#[derive(Default)]
struct RowBuilder {
    protocols: [Vec<Span>; 3],
    other: Option<Outcome>,
    /// Whether a rule without ports has been here: nothing is left to colour in this stage.
    full: bool,
}

struct Span {
    first: u16,
    last: u16,
    colour: Outcome,
}

impl RowBuilder {
    fn paint(&mut self, rule: &Rule, ports: &[ContainerPort]) {
        let origin = RuleId(rule.origin);
        let colour = match rule.action {
            Action::Allow => Some(Decision::allow(origin)),
            Action::Deny => Some(Decision::deny(origin)),
            Action::Pass => None,
        };
        let Some(terms) = &rule.ports else {
            for spans in &mut self.protocols {
                fill(spans, 0, u16::MAX, colour);
            }
            self.other.get_or_insert(colour);
            self.full = true;
            return;
        };
        for term in terms {
            match term {
                PortTerm::Range { protocol, first, last } => self.fill(*protocol, *first, *last, colour),
                PortTerm::Named(name) => {
                    for port in ports.iter().filter(|port| name.is_of(port)) {
                        self.fill(port.protocol, port.port, port.port, colour);
                    }
                }
            }
        }
    }

    fn fill(&mut self, protocol: Protocol, first: u16, last: u16, colour: Outcome) {
        if let Some(at) = PROTOCOLS.iter().position(|&known| known == protocol) {
            fill(&mut self.protocols[at], first, last, colour);
        }
    }

    /// What was passed on is free again.
    fn end_stage(&mut self) {
        for spans in &mut self.protocols {
            spans.retain(|span| span.colour.is_some());
        }
        self.other = self.other.filter(Option::is_some);
        self.full = false;
    }

    fn into_row(self) -> Row {
        let other = self.other.flatten().expect("the last stage decides everything");
        let [tcp, udp, sctp] = self.protocols.map(|spans| {
            let mut found = Vec::new();
            for span in spans {
                let decision = span.colour.expect("the last stage decides everything");
                append(&mut found, PortSpan { first: span.first, last: span.last, decision }, other);
            }
            found
        });
        Row { tcp, udp, sctp, other }
    }
}

/// Colours what is free between two ports.
fn fill(spans: &mut Vec<Span>, first: u16, last: u16, colour: Outcome) {
    let (mut next, end) = (u32::from(first), u32::from(last) + 1);
    let mut at = spans.partition_point(|span| span.last < first);
    while next < end {
        let taken = spans.get(at).map(|span| (u32::from(span.first), u32::from(span.last) + 1));
        match taken {
            Some((from, until)) if from <= next => next = until,
            _ => {
                let until = taken.map_or(end, |(from, _)| from.min(end));
                spans.insert(at, Span { first: next as u16, last: (until - 1) as u16, colour });
                next = until;
            }
        }
        at += 1;
    }
}

/// Appends a span, merged with the one before where they touch and agree; left out where `other` says it anyway.
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

    fn rule_set<const STAGES: usize>(stages: [Vec<Rule>; STAGES]) -> RuleList {
        let mut rules = RuleList::default();
        for stage in stages {
            rules.begin_stage();
            let name = |rule| (rule, RuleOrigin::OwnNode.into());
            rules.append(None, stage.into_iter().map(name).collect());
        }
        rules
    }

    /// The naive twin: asks the rules one by one.
    fn judge(rules: &RuleList, groups: &[GroupId], protocol: Protocol, port: u16) -> Decision {
        for stage in &rules.stages {
            let matching = stage.iter().find(|rule| {
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
        unreachable!("the last stage decides everything")
    }

    fn arbitrary_rules() -> impl Strategy<Value = RuleList> {
        let port = prop_oneof![0..12_u16, 65_530..=u16::MAX];
        let range = (port.clone(), port).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let ports = prop::option::weighted(0.8, prop::collection::vec(range, 1..4));
        let peers = prop::option::of(prop::collection::vec(0..3_u32, 0..3));
        let action = prop_oneof![Just(Action::Allow), Just(Action::Deny), Just(Action::Pass)];
        let stage = prop::collection::vec((action, ports, peers), 0..6);
        (stage.clone(), stage).prop_map(|stages| {
            let mut origin = 0;
            let mut next = |(action, ports, peers)| {
                origin += 1;
                rule(origin, action, ports, peers)
            };
            let first = stages.0.into_iter().map(&mut next).collect();
            let second = stages.1.into_iter().map(&mut next).collect();
            let last = vec![next((Action::Deny, None, None))];
            rule_set([first, second, last])
        })
    }

    proptest! {
        #[test]
        fn a_row_decides_as_the_rules_asked_one_by_one(rules in arbitrary_rules(), groups in prop::collection::vec(0..3_u32, 0..3)) {
            let groups: Vec<GroupId> = groups.into_iter().map(GroupId::at).collect();
            let row = paint(&rules, &RuleIndex::of(&rules), &groups, &[]);
            prop_assert!(row.is_canonical());
            for port in (0..20).chain(65_520..=u16::MAX) {
                for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
                    prop_assert_eq!(row.decide(protocol, port), judge(&rules, &groups, protocol, port));
                }
            }
        }

        #[test]
        fn the_meet_of_rows_allows_what_both_allow(rules in arbitrary_rules()) {
            let index = RuleIndex::of(&rules);
            let [a, b] = [0, 1].map(|group| paint(&rules, &index, &[GroupId::at(group)], &[]));
            let row = meet(&a, &b);
            prop_assert!(row.is_canonical());
            prop_assert_eq!(&row, &meet(&b, &a));
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
            paint(&rules, &RuleIndex::of(&rules), &[], &[]).tcp,
            [PortSpan { first: 1, last: 65_535, decision }]
        );
    }
}
