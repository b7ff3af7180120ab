//! Chains of groups of policies, and of policies.

use std::collections::BTreeMap;

use super::dispatch::Side;
use super::{ACCEPT, Chains, State};
use crate::net::flow::Protocol;
use crate::render::output::RenderError;
use crate::render::plan::{AclPlan, Family, Peers, Plan, PlanRule, Span, comment};
use crate::tables::{Direction, Verdict};

/// Most ports of one match, in which a range counts twice (`XT_MULTI_PORTS` of `xt_multiport.h`).
const MULTIPORT_MAX: usize = 15;

impl State {
    /// Adds a chain for each rule list, and for each policy of it. Lists share equal chains of a policy.
    pub(super) fn add_lists(
        &mut self,
        plan: &Plan,
        family: Family,
        chains: &mut Chains,
    ) -> Result<(), RenderError> {
        // Distinct chains of each policy, in the order of the lists.
        let mut variants: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
        for (name, list) in &plan.acls {
            let side = match list.direction {
                Direction::Ingress => Side::To,
                Direction::Egress => Side::From,
            };
            let mut group = vec![format!("-j MARK --set-xmark 0x0/{}", &ACCEPT[..7])];
            for (policy, rules) in by_policy(list) {
                let policy = format!("{}{policy}", side.policy_prefix());
                let mut content = Vec::new();
                for rule in rules {
                    self.push_rules(rule, side, family, &mut content)?;
                }
                let known = variants.entry(policy.clone()).or_default();
                let place = known.iter().position(|other| *other == content).unwrap_or(known.len());
                let chain = self.short_name(side.policy_prefix(), &format!("{policy}/{place}"))?;
                group.push(format!("-j {chain}"));
                group.push(format!("-m mark --mark {ACCEPT} -j RETURN"));
                if place == known.len() {
                    known.push(content.clone());
                    chains.filter.insert(chain, content);
                }
            }
            if list.last == Verdict::Deny {
                group.push(format!("-m comment --comment \"{}\" -j DROP", comment(&list.title)));
            }
            chains.filter.insert(self.short_name(side.group_prefix(), name)?, group);
        }
        Ok(())
    }

    fn push_rules(
        &mut self,
        rule: &PlanRule,
        side: Side,
        family: Family,
        rules: &mut Vec<String>,
    ) -> Result<(), RenderError> {
        let word = side.peer_word();
        let peers = match &rule.peers {
            Peers::Anyone => vec![String::new()],
            Peers::In(set) => vec![format!("-m set --match-set {} {word} ", self.set_name(family, set)?)],
            Peers::NotIn(set) => {
                vec![format!("-m set ! --match-set {} {word} ", self.set_name(family, set)?)]
            }
            Peers::Hosts(hosts) => hosts.iter().map(|host| format!("{} {host} ", side.peer_flag())).collect(),
        };
        let title = format!("-m comment --comment \"{}\"", comment(&rule.title));
        for service in services(rule) {
            for peer in &peers {
                match rule.verdict {
                    Verdict::Deny => rules.push(format!("{service}{peer}{title} -j DROP")),
                    Verdict::Allow => {
                        rules.push(format!("{service}{peer}{title} -j MARK --set-xmark {ACCEPT}"));
                        rules.push(format!("-m mark --mark {ACCEPT} -j RETURN"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Rules by policy. Order between policies is free where all rules have one verdict; otherwise rules for ports
/// precede those for all traffic, and a policy may have chains of both.
fn by_policy(list: &AclPlan) -> Vec<(String, Vec<&PlanRule>)> {
    let is_mixed = list.rules.iter().any(|rule| rule.verdict == list.last);
    let step = |rule: &PlanRule| is_mixed && rule.services.is_none();
    let mut groups: BTreeMap<(bool, &str), Vec<&PlanRule>> = BTreeMap::new();
    for rule in &list.rules {
        groups.entry((step(rule), rule.policy.as_str())).or_default().push(rule);
    }
    let name =
        |is_whole: bool, policy: &str| format!("{policy}{}", if is_whole { "/all-traffic" } else { "" });
    groups.into_iter().map(|((is_whole, policy), rules)| (name(is_whole, policy), rules)).collect()
}

/// Matches on the services of a rule, each of which is one rule of iptables.
fn services(rule: &PlanRule) -> Vec<String> {
    let Some(services) = &rule.services else { return vec![String::new()] };
    let mut matches = Vec::new();
    for (protocol, name) in [(Protocol::TCP, "tcp"), (Protocol::UDP, "udp"), (Protocol::SCTP, "sctp")] {
        let spans: Vec<&Span> = services.iter().filter(|span| span.0 == protocol).collect();
        if let [(_, 0, u16::MAX)] = spans[..] {
            matches.push(format!("-p {name} "));
            continue;
        }
        let (mut ports, mut count) = (Vec::new(), 0);
        for &&(_, first, last) in &spans {
            let weight = if first == last { 1 } else { 2 };
            if count + weight > MULTIPORT_MAX {
                matches.push(multiport(name, &ports));
                (ports, count) = (Vec::new(), 0);
            }
            ports.push(if first == last { first.to_string() } else { format!("{first}:{last}") });
            count += weight;
        }
        if !ports.is_empty() {
            matches.push(multiport(name, &ports));
        }
    }
    matches
}

fn multiport(protocol: &str, ports: &[String]) -> String {
    format!("-p {protocol} -m multiport --destination-ports {} ", ports.join(","))
}
