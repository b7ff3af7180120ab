//! Flows of rule lists.
//!
//! Rules for ports precede those for all traffic. Those of one list whose peers are members of sets do not overlap, as
//! conjunctions must not. Those of all other addresses come after them, and have the ports of one row: members of
//! their sets are excepted by flows with the verdict on all other traffic.

use std::collections::{BTreeMap, BTreeSet};

use super::Flows;
use super::classes::Classes;
use super::tables::{self, Side};
use crate::net::flow::Protocol;
use crate::render::output::RenderError;
use crate::render::plan::{AclPlan, Endpoint, Family, Peers, Plan, PlanRule, Span};
use crate::tables::{Direction, Verdict};

/// Priorities of rules.
const MEMBERS: u16 = 30;
const EXCEPTIONS: u16 = 20;
const ANYONE: u16 = 15;
const ALL_TRAFFIC: u16 = 10;
const LAST: u16 = 1;
/// Most conjunctions of one flow: each takes 16 of the 65,535 bytes of a message.
const CONJUNCTIONS_MAX: usize = 4_000;
/// Number of bits of a port.
const PORT_BITS: u32 = 16;

/// Flows of one list.
struct ListFlows<'a> {
    flows: &'a mut Flows,
    side: Side,
    /// Family and name, for numbers.
    name: String,
    /// Match on the list.
    list: String,
    /// Numbers of classes.
    numbers: &'a [u32],
    /// Conjunctions by priority and match.
    parts: BTreeMap<(u16, String), Vec<String>>,
}

impl Flows {
    /// Adds the rule lists and the classes of their peers.
    pub(super) fn add_rules(&mut self, plan: &Plan, family: Family) -> Result<(), RenderError> {
        let word = tables::word(family);
        for (side, direction) in [(Side::From, Direction::Egress), (Side::To, Direction::Ingress)] {
            let classes = Classes::of(plan, direction);
            let mut numbers = vec![0];
            for sets in &classes.names[1..] {
                numbers.push(self.numbers.of(&format!(
                    "{family:?} {} class {}",
                    side.word(),
                    sets.join(" ")
                )));
            }
            let (table, field) = (side.class(), side.peer_field(family));
            for (prefix, class) in &classes.prefixes {
                let actions =
                    format!("set_field:{:#x}->reg3,{}", numbers[*class], tables::goto(side.rules()));
                let note = match &classes.names[*class][..] {
                    [] => "In no set".to_owned(),
                    [only] => format!("In {only}"),
                    [first, others @ ..] => format!("In {first} and {} more", others.len()),
                };
                let (matches, priority) = match prefix.prefix_len() {
                    0 => (word.to_owned(), 10),
                    length if length == prefix.max_prefix_len() => {
                        (format!("{word},{field}={}", prefix.addr()), 10 + u16::from(length))
                    }
                    length => (format!("{word},{field}={prefix}"), 10 + u16::from(length)),
                };
                self.add(table, priority, &matches, &actions, &note);
            }
            for (name, list) in plan.acls.iter().filter(|(_, list)| list.direction == direction) {
                refuse_ports_of_sctp(plan, name, list)?;
                let number = self.list_number(family, name);
                let mut flows = ListFlows {
                    side,
                    name: format!("{family:?} {name}"),
                    list: format!("{word},reg1={number:#x}"),
                    numbers: &numbers,
                    parts: BTreeMap::new(),
                    flows: self,
                };
                flows.add_list(list, &classes);
                flows.finish(list)?;
            }
        }
        Ok(())
    }
}

/// Refuses rules for ports of SCTP: connection tracking of Open vSwitch's userspace datapath knows none, and all associations between two
/// hosts are one connection to it.
fn refuse_ports_of_sctp(plan: &Plan, name: &str, list: &AclPlan) -> Result<(), RenderError> {
    let is_of_ports =
        |&(protocol, first, last): &Span| protocol == Protocol::SCTP && (first, last) != (0, u16::MAX);
    let has_ports = |rule: &&PlanRule| rule.services.iter().flatten().any(is_of_ports);
    let Some(rule) = list.rules.iter().find(has_ports) else { return Ok(()) };
    let has_list = |endpoint: &&Endpoint| {
        let lists = match list.direction {
            Direction::Egress => &endpoint.egress,
            Direction::Ingress => &endpoint.ingress,
        };
        lists.iter().any(|list| list == name)
    };
    let Some(pod) = plan.endpoints.values().find(has_list).and_then(|endpoint| endpoint.pods.first()) else {
        return Ok(());
    };
    Err(RenderError::Inexpressible {
        pod: pod.clone(),
        rule: rule.title.clone(),
        problem: "Open vSwitch's userspace datapath tracks no ports of SCTP".to_owned(),
    })
}

/// Classes of peers that share ports and a verdict, and the titles of their rules.
type Members<'a> = (BTreeSet<usize>, Vec<&'a str>);

impl ListFlows<'_> {
    fn add_list(&mut self, list: &AclPlan, classes: &Classes) {
        let all_traffic = AllTraffic::of(list, classes);
        for (&class, &(verdict, title)) in &all_traffic.by_class {
            self.verdict(ALL_TRAFFIC, &self.class(class), verdict, title);
        }
        self.verdict(LAST, "", all_traffic.last.0, all_traffic.last.1);
        let mut members: BTreeMap<(&Vec<Span>, bool), Members> = BTreeMap::new();
        for rule in &list.rules {
            let Some(services) = &rule.services else { continue };
            let held = classes.of_set(&rule.peers);
            if let Peers::In(_) | Peers::Hosts(_) = rule.peers {
                let (peers, titles) = members.entry((services, rule.verdict == Verdict::Allow)).or_default();
                peers.extend(held);
                titles.push(&rule.title);
                continue;
            }
            for service in matches_of(services) {
                self.verdict(ANYONE, &service, rule.verdict, &rule.title);
            }
            let excepted = |class: &usize| all_traffic.verdict(*class) != rule.verdict;
            let excepted: BTreeSet<usize> = held.iter().copied().filter(excepted).collect();
            self.pairs(EXCEPTIONS, &excepted, services, other(rule.verdict), &exception(rule));
        }
        for ((services, is_allow), (peers, titles)) in members {
            let verdict = if is_allow { Verdict::Allow } else { Verdict::Deny };
            let title = match &titles[..] {
                [first, _, ..] => format!("{first} and {} more", titles.len() - 1),
                _ => titles.concat(),
            };
            self.pairs(MEMBERS, &peers, services, verdict, &title);
        }
    }

    fn class(&self, class: usize) -> String {
        format!("reg3={:#x}", self.numbers[class])
    }

    /// Adds a flow with a verdict for this match in the list.
    fn verdict(&mut self, priority: u16, matches: &str, verdict: Verdict, title: &str) {
        let comma = if matches.is_empty() { "" } else { "," };
        let matches = format!("{}{comma}{matches}", self.list);
        self.flows.add(self.side.rules(), priority, &matches, &self.side.actions(verdict), title);
    }

    /// Adds flows for the services of these classes: a conjunction, or single flows where there is one class, or one
    /// service.
    fn pairs(
        &mut self,
        priority: u16,
        classes: &BTreeSet<usize>,
        services: &[Span],
        verdict: Verdict,
        title: &str,
    ) {
        let matches = matches_of(services);
        if classes.len() <= 1 || matches.len() == 1 {
            for class in classes {
                for service in &matches {
                    self.verdict(priority, &format!("{},{service}", self.class(*class)), verdict, title);
                }
            }
            return;
        }
        let number = self.flows.numbers.of(&format!("{} {priority} {verdict:?} {services:?}", self.name));
        self.verdict(priority, &format!("conj_id={number}"), verdict, title);
        let classes: Vec<String> = classes.iter().map(|&class| self.class(class)).collect();
        for (place, values) in [(1, classes), (2, matches)] {
            for value in values {
                let key = (priority, format!("{},{value}", self.list));
                self.parts.entry(key).or_default().push(format!("conjunction({number},{place}/2)"));
            }
        }
    }

    /// Adds the flows that take part in conjunctions: one flow for each match, with all of its conjunctions.
    fn finish(self, list: &AclPlan) -> Result<(), RenderError> {
        for ((priority, matches), mut conjunctions) in self.parts {
            if conjunctions.len() > CONJUNCTIONS_MAX {
                let (rule, found, max) = (list.title.clone(), conjunctions.len(), CONJUNCTIONS_MAX);
                return Err(RenderError::TooManyConjunctions { rule, found, max });
            }
            conjunctions.sort_unstable();
            self.flows.add(self.side.rules(), priority, &matches, &conjunctions.join(","), "");
        }
        Ok(())
    }
}

/// Verdicts of a list on traffic that no rule for ports decides, with their titles.
struct AllTraffic<'a> {
    /// Classes whose verdict is not the last.
    by_class: BTreeMap<usize, (Verdict, &'a str)>,
    last: (Verdict, &'a str),
}

impl<'a> AllTraffic<'a> {
    fn of(list: &'a AclPlan, classes: &Classes) -> AllTraffic<'a> {
        let rules: Vec<&PlanRule> = list.rules.iter().filter(|rule| rule.services.is_none()).collect();
        let decide = |class: usize| {
            let first = rules.iter().find(|rule| {
                let is_member = classes.of_set(&rule.peers).binary_search(&class).is_ok();
                match rule.peers {
                    Peers::In(_) | Peers::Hosts(_) => is_member,
                    Peers::NotIn(_) | Peers::Anyone => !is_member,
                }
            });
            first.map_or((list.last, list.title.as_str()), |rule| (rule.verdict, rule.title.as_str()))
        };
        // No set holds class 0, and these rules decide all classes beside their sets alike.
        let last = decide(0);
        let held: BTreeSet<usize> =
            rules.iter().flat_map(|rule| classes.of_set(&rule.peers)).copied().collect();
        let verdicts = held.into_iter().map(|class| (class, decide(class)));
        AllTraffic { by_class: verdicts.filter(|(_, (verdict, _))| *verdict != last.0).collect(), last }
    }

    fn verdict(&self, class: usize) -> Verdict {
        self.by_class.get(&class).map_or(self.last.0, |&(verdict, _)| verdict)
    }
}

fn other(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Allow => Verdict::Deny,
        Verdict::Deny => Verdict::Allow,
    }
}

fn exception(rule: &PlanRule) -> String {
    format!("Exception of {}", rule.title)
}

/// Matches on services. Ports are those of the tracked connection: a fragment has none of its own.
fn matches_of(services: &[Span]) -> Vec<String> {
    let mut matches = Vec::new();
    for &(protocol, first, last) in services {
        let number = match protocol {
            Protocol::TCP => 6,
            Protocol::UDP => 17,
            _ => 132,
        };
        if (first, last) == (0, u16::MAX) {
            matches.push(format!("nw_proto={number}"));
            continue;
        }
        for (value, mask) in masked_ports(first, last) {
            let port = if mask == u16::MAX { value.to_string() } else { format!("{value:#x}/{mask:#x}") };
            matches.push(format!("ct_state=+trk-inv,ct_nw_proto={number},ct_tp_dst={port}"));
        }
    }
    matches
}

/// Ports as values and masks, in order.
fn masked_ports(first: u16, last: u16) -> Vec<(u16, u16)> {
    let (mut next, end) = (u32::from(first), u32::from(last) + 1);
    let mut masked = Vec::new();
    while next < end {
        // Largest block that begins here and does not pass the end.
        let bits = next.trailing_zeros().min((end - next).ilog2()).min(PORT_BITS);
        masked.push((next as u16, (0xffff_u32 << bits) as u16));
        next += 1 << bits;
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_ports_are_those_of_the_range() {
        assert_eq!(masked_ports(80, 80), [(80, 0xffff)]);
        assert_eq!(masked_ports(7000, 7010), [(7000, 0xfff8), (7008, 0xfffe), (7010, 0xffff)]);
        for (first, last) in
            [(0, u16::MAX), (1, u16::MAX), (0, 0), (9100, 9199), (u16::MAX, u16::MAX), (1, 65534)]
        {
            let masked = masked_ports(first, last);
            assert!(masked.len() <= 30);
            for port in 0..=u16::MAX {
                let count = masked.iter().filter(|(value, mask)| port & mask == *value).count();
                assert_eq!(count, usize::from((first..=last).contains(&port)), "{port} of {first}-{last}");
            }
        }
    }
}
