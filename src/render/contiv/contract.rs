//! The order of a pod's rules that renderers of Contiv rely on: rules that permit, and behind them one that denies the rest.
//!
//! The rules of policy have denials of parts before: `except`, and cluster-wide policies. They are subtracted from the prefixes of
//! the rules behind them.

use ipnet::IpNet;

use super::allowed::ALL_PORTS;
use super::peers::subtract;
use super::rule::{EXPANSION_MAX, Obstacle, Rule, permit_all};
use crate::render::plan::Family;

/// Rules with the verdicts of `rules`, for each family those that permit before one that denies the rest. A denial of a port or a
/// protocol of what another rule permits is an obstacle: without an order that takes tens of thousands of rules.
pub(super) fn permits_before_denial(rules: &[Rule]) -> Result<Vec<Rule>, Obstacle> {
    let mut result = Vec::new();
    let mut denials: Vec<&Rule> = Vec::new();
    for rule in rules {
        if !rule.permits {
            denials.push(rule);
            continue;
        }
        let mut pieces = vec![rule.clone()];
        for denial in &denials {
            let rest = pieces.iter().map(|piece| without(piece, denial)).collect::<Option<Vec<_>>>();
            pieces = rest.ok_or(Obstacle::DeniedPorts)?.concat();
            if pieces.len() > EXPANSION_MAX {
                return Err(Obstacle::Pieces(pieces.len()));
            }
        }
        result.extend(pieces);
    }
    for family in Family::ALL {
        let is_of_family = |rule: &&Rule| rule.source.addr().is_ipv4() == (family == Family::V4);
        if denials.iter().any(is_of_family) {
            result.push(Rule { permits: false, ..permit_all(family) });
        }
    }
    result.sort();
    result.dedup();
    Ok(result)
}

/// Parts of a rule's traffic without those that a denial before it matches; `None` if these are ports or protocols of it.
fn without(rule: &Rule, denial: &Rule) -> Option<Vec<Rule>> {
    let common = |a: &IpNet, b: &IpNet| match () {
        () if a.contains(b) => Some(*b),
        () if b.contains(a) => Some(*a),
        () => None,
    };
    let is_of_protocol =
        rule.protocol.is_none() || denial.protocol.is_none() || rule.protocol == denial.protocol;
    let has_ports = rule.ports.0 <= denial.ports.1 && denial.ports.0 <= rule.ports.1;
    let networks = (common(&rule.source, &denial.source), common(&rule.destination, &denial.destination));
    let (Some(source), Some(destination), true) = (networks.0, networks.1, is_of_protocol && has_ports)
    else {
        return Some(vec![rule.clone()]);
    };
    let covers = (denial.protocol.is_none() || denial.protocol == rule.protocol)
        && (denial.ports == ALL_PORTS || denial.ports.0 <= rule.ports.0 && denial.ports.1 >= rule.ports.1);
    if !covers {
        return None;
    }
    let mut pieces = Vec::new();
    let rest = |network: IpNet, hole: IpNet| {
        let mut rest = Vec::new();
        subtract(network, &[hole], &mut rest);
        rest
    };
    pieces.extend(rest(rule.source, source).into_iter().map(|source| Rule { source, ..rule.clone() }));
    let of_destinations = rest(rule.destination, destination).into_iter();
    pieces.extend(of_destinations.map(|destination| Rule { source, destination, ..rule.clone() }));
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::flow::Protocol;

    fn rule(permits: bool, source: &str, protocol: Option<Protocol>, port: u16) -> Rule {
        let ports = if port == 0 { ALL_PORTS } else { (port, port) };
        let source: IpNet = source.parse().unwrap();
        let destination = if source.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" }.parse().unwrap();
        Rule { source, destination, protocol, ports, permits }
    }

    fn printed(rules: &[Rule]) -> Result<Vec<String>, Obstacle> {
        permits_before_denial(rules).map(|rules| rules.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn exceptions_are_subtracted_from_their_blocks() {
        let tcp = Some(Protocol::TCP);
        let rules = [
            rule(false, "10.0.0.64/26", tcp, 0),
            rule(true, "10.0.0.0/24", tcp, 443),
            rule(false, "0.0.0.0/0", None, 0),
        ];
        let expected = [
            "PERMIT 10.0.0.0/26[TCP:ANY] -> 0.0.0.0/0[TCP:443]",
            "PERMIT 10.0.0.128/25[TCP:ANY] -> 0.0.0.0/0[TCP:443]",
            "DENY 0.0.0.0/0[ANY:ANY] -> 0.0.0.0/0[ANY:ANY]",
        ];
        assert_eq!(printed(&rules).unwrap(), expected);
    }

    #[test]
    fn an_open_rest_with_denials_before_it_is_closed_behind_its_pieces() {
        let rules = [
            rule(false, "128.0.0.0/1", None, 0),
            rule(true, "0.0.0.0/0", None, 0),
            rule(true, "::/0", None, 0),
        ];
        let expected = [
            "PERMIT 0.0.0.0/1[ANY:ANY] -> 0.0.0.0/0[ANY:ANY]",
            "DENY 0.0.0.0/0[ANY:ANY] -> 0.0.0.0/0[ANY:ANY]",
            "PERMIT ::/0[ANY:ANY] -> ::/0[ANY:ANY]",
        ];
        assert_eq!(printed(&rules).unwrap(), expected);
    }

    #[test]
    fn a_denied_port_or_protocol_of_what_is_permitted_has_no_such_form() {
        let tcp = Some(Protocol::TCP);
        let open = rule(true, "0.0.0.0/0", None, 0);
        for denial in [rule(false, "0.0.0.0/0", tcp, 80), rule(false, "10.0.0.0/8", tcp, 0)] {
            assert_eq!(printed(&[denial, open.clone()]), Err(Obstacle::DeniedPorts));
        }
        assert!(printed(&[rule(false, "0.0.0.0/0", tcp, 80), rule(true, "0.0.0.0/0", tcp, 81)]).is_ok());
    }
}
