//! Routes to the pods of other nodes: their prefixes by their addresses, over the uplink.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::object::NodeNetwork;
use super::target::{Target, TargetError};
use crate::control::protocol::{RouteInfo, RouteRequest};
use crate::dataplane::RouteOrigin;

/// Least length of a prefix of pods, by family. A shorter one would take the traffic of a network.
const PREFIX_LENGTH_MIN: (u8, u8) = (8, 16);

/// Routes of the agent.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Configured uplink; the only one of the switch where absent.
    uplink: Option<String>,
    /// Prefixes of the routes that this agent, or one before it, has added.
    own: BTreeSet<IpNet>,
    recorded: Option<BTreeSet<IpNet>>,
    last_warning: Option<String>,
}

impl Routes {
    /// Routes over an uplink, after an earlier agent that has added routes to these prefixes.
    pub(super) fn new(uplink: Option<String>, earlier: impl IntoIterator<Item = IpNet>) -> Routes {
        Routes { uplink, own: earlier.into_iter().collect(), ..Routes::default() }
    }

    /// Makes the routes of the switch those to the pods of all nodes but `own`. Calls `record` with the prefixes that
    /// the switch will have before it has them. Returns whether all is done.
    pub(super) fn update(
        &mut self,
        nodes: &BTreeMap<String, NodeNetwork>,
        own: Option<&str>,
        target: &dyn Target,
        record: &mut dyn FnMut(&BTreeSet<IpNet>),
    ) -> bool {
        let outcome = self.try_update(nodes, own, target, record);
        let Outcome { warning, is_done } = outcome.unwrap_or_else(|error| Outcome {
            warning: Some(format!("routes to other nodes: {error}")),
            is_done: false,
        });
        if let Some(warning) = warning.as_ref().filter(|warning| self.last_warning.as_ref() != Some(*warning))
        {
            tracing::warn!("{warning}");
        }
        self.last_warning = warning;
        is_done
    }

    fn try_update(
        &mut self,
        nodes: &BTreeMap<String, NodeNetwork>,
        own: Option<&str>,
        target: &dyn Target,
        record: &mut dyn FnMut(&BTreeSet<IpNet>),
    ) -> Result<Outcome, TargetError> {
        let mut outcome = Outcome { warning: None, is_done: true };
        let uplinks = target.uplinks()?;
        let uplink = match (&self.uplink, uplinks.as_slice()) {
            (Some(name), _) => name.clone(),
            (None, [only]) => only.clone(),
            (None, []) => {
                // The port may come later. Its routes, if there are some, stay.
                outcome.is_done = nodes.is_empty();
                return Ok(outcome);
            }
            (None, several) => {
                let names = several.join(", ");
                outcome.failed(format!(
                    "no routes to other nodes: the uplinks are {names}; name one with --uplink"
                ));
                return Ok(outcome);
            }
        };
        // Without its own name a node would route its pods to itself.
        let (wanted, refused) = own.map(|own| wanted(nodes, own, &uplink)).unwrap_or_default();
        if let Some((prefix, name)) = refused {
            let name = crate::printable::line(&name).into_owned();
            outcome.warning = Some(format!(
                "no route to {prefix} of node {name}: it overlaps with a prefix of another node, or has a node's address"
            ));
        }
        let routes = target.routes()?;
        let present: BTreeMap<IpNet, &RouteInfo> = routes
            .iter()
            .filter(|route| route.origin == RouteOrigin::Configured)
            .map(|route| (route.prefix, route))
            .collect();
        let gone: Vec<IpNet> =
            self.own.iter().copied().filter(|prefix| !wanted.contains_key(prefix)).collect();
        for prefix in gone {
            match present.get(&prefix).map_or(Ok(()), |_| target.delete_route(prefix)) {
                Ok(()) => drop(self.own.remove(&prefix)),
                Err(error) => outcome.failed(format!("the route to {prefix} stays: {error}")),
            }
        }
        let mut to_put = Vec::new();
        for (prefix, route) in &wanted {
            match present.get(prefix) {
                Some(present) if is_equal(present, route) => {}
                Some(_) if !self.own.contains(prefix) => {
                    outcome.warning =
                        Some(format!("the route to {prefix} is configured already, and stays as it is"));
                }
                _ => to_put.push((*prefix, route.clone())),
            }
        }
        // A route is recorded before the switch has it, so that the next agent knows it whatever happens here.
        self.own.extend(to_put.iter().map(|(prefix, _)| *prefix));
        if self.recorded.as_ref() != Some(&self.own) {
            record(&self.own);
            self.recorded = Some(self.own.clone());
        }
        if !to_put.is_empty() {
            for (prefix, error) in target.put_routes(&to_put) {
                outcome.failed(format!("no route to {prefix}: {error}"));
            }
        }
        Ok(outcome)
    }
}

/// Result of an update.
struct Outcome {
    warning: Option<String>,
    /// Whether another update has nothing to do.
    is_done: bool,
}

impl Outcome {
    fn failed(&mut self, warning: String) {
        *self = Outcome { warning: Some(warning), is_done: false };
    }
}

/// Whether a route of the switch is one that is wanted.
fn is_equal(present: &RouteInfo, wanted: &RouteRequest) -> bool {
    (present.port.as_ref(), present.next_hop, present.node)
        == (Some(&wanted.port), wanted.next_hop, wanted.node)
}

/// Routes to the pods of all nodes but `own`, and a claim of a prefix that has none. A prefix that overlaps with one of
/// another node has none, unless both are the same: then the first node by name has it. So a node cannot take a part of
/// the pods of another, or more than them. Nor can it take nodes: a prefix that contains the address of one has no route.
fn wanted(
    nodes: &BTreeMap<String, NodeNetwork>,
    own: &str,
    uplink: &str,
) -> (BTreeMap<IpNet, RouteRequest>, Option<(IpNet, String)>) {
    let claims: BTreeSet<(IpNet, &str)> = nodes
        .iter()
        .flat_map(|(name, node)| node.prefixes.iter().map(|prefix| (*prefix, name.as_str())))
        .filter(|(prefix, name)| *name == own || prefix.prefix_len() >= least_length(*prefix))
        .collect();
    let claims: Vec<(IpNet, &str)> = claims.into_iter().collect();
    let addresses: BTreeSet<IpAddr> = nodes.values().flat_map(|node| &node.addresses).copied().collect();
    let has_node = |prefix: IpNet| addresses.range(prefix.network()..=prefix.broadcast()).next().is_some();
    // A prefix around those of several nodes is wrong, and they are right.
    let overlaps = overlaps(&claims, own);
    let narrow: Vec<(IpNet, &str)> =
        claims.iter().zip(overlaps).filter(|(_, count)| count.inner < 2).map(|(claim, _)| *claim).collect();
    let overlaps = self::overlaps(&narrow, own);
    let clear = narrow.iter().zip(overlaps).filter(|(_, count)| count.inner + count.outer == 0);
    let clear = clear.map(|(claim, _)| *claim).filter(|(prefix, _)| !has_node(*prefix));
    let clear: BTreeSet<(IpNet, &str)> = clear.collect();
    let mut routes = BTreeMap::new();
    for (prefix, name) in clear.iter().filter(|(_, name)| *name != own) {
        let same_family = |address: &&IpAddr| address.is_ipv4() == prefix.addr().is_ipv4();
        let Some(next_hop) = nodes.get(*name).and_then(|node| node.addresses.iter().find(same_family)) else {
            continue;
        };
        let request = RouteRequest { port: uplink.to_owned(), next_hop: Some(*next_hop), node: true };
        routes.entry(*prefix).or_insert(request);
    }
    let refused = claims.iter().find(|(prefix, name)| *name != own && !clear.contains(&(*prefix, *name)));
    (routes, refused.map(|(prefix, name)| (*prefix, (*name).to_owned())))
}

fn least_length(prefix: IpNet) -> u8 {
    if prefix.addr().is_ipv4() { PREFIX_LENGTH_MIN.0 } else { PREFIX_LENGTH_MIN.1 }
}

/// Number of claims of other nodes around a claim, and within it.
#[derive(Debug, Clone, Copy, Default)]
struct Overlaps {
    outer: usize,
    inner: usize,
}

/// Overlaps of each claim, which are in order. The same prefix of two nodes overlaps with one of `own` alone.
fn overlaps(claims: &[(IpNet, &str)], own: &str) -> Vec<Overlaps> {
    let mut overlaps = vec![Overlaps::default(); claims.len()];
    // Claims that contain the present one: a prefix comes before those that it contains.
    let mut around: Vec<usize> = Vec::new();
    for (at, (prefix, name)) in claims.iter().enumerate() {
        while around.last().is_some_and(|&outer| !claims[outer].0.contains(prefix)) {
            around.pop();
        }
        for &outer in &around {
            let (outer_prefix, outer_name) = claims[outer];
            let is_shared = outer_prefix == *prefix && outer_name != own && *name != own;
            if outer_name != *name && !is_shared {
                overlaps[outer].inner += 1;
                overlaps[at].outer += 1;
            }
        }
        around.push(at);
    }
    overlaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(prefixes: &[&str], addresses: &[&str]) -> NodeNetwork {
        NodeNetwork {
            prefixes: prefixes.iter().map(|text| text.parse().unwrap()).collect(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn shown(nodes: &BTreeMap<String, NodeNetwork>) -> Vec<String> {
        let (routes, _) = wanted(nodes, "a", "up");
        routes.iter().map(|(prefix, route)| format!("{prefix} {}", route.next_hop.unwrap())).collect()
    }

    #[test]
    fn other_nodes_are_reached_by_their_addresses_of_the_same_family() {
        let nodes = BTreeMap::from([
            ("a".to_owned(), node(&["10.1.0.0/24"], &["192.0.2.1"])),
            ("b".to_owned(), node(&["10.2.0.0/24", "fd00:2::/64"], &["192.0.2.2", "2001:db8::2"])),
            // Prefixes of the node itself, and of everything, are nobody else's.
            ("c".to_owned(), node(&["10.1.0.128/25", "0.0.0.0/0", "fd00:3::/64"], &["192.0.2.3"])),
        ]);
        assert_eq!(shown(&nodes), ["10.2.0.0/24 192.0.2.2", "fd00:2::/64 2001:db8::2"]);
    }

    #[test]
    fn a_node_takes_no_part_of_the_pods_of_another_and_not_more_than_them() {
        let mut nodes = BTreeMap::from([
            ("a".to_owned(), node(&["10.1.0.0/24"], &["192.0.2.1"])),
            ("b".to_owned(), node(&["10.2.0.0/24"], &["192.0.2.2"])),
            ("c".to_owned(), node(&["10.3.0.0/24", "10.3.0.0/25"], &["192.0.2.3"])),
            ("d".to_owned(), node(&["10.4.0.0/24"], &["192.0.2.4"])),
        ]);
        // A prefix of two nodes is the first one's; a node may have prefixes within its own.
        let all = [
            "10.2.0.0/24 192.0.2.2",
            "10.3.0.0/24 192.0.2.3",
            "10.3.0.0/25 192.0.2.3",
            "10.4.0.0/24 192.0.2.4",
        ];
        assert_eq!(shown(&nodes), all);
        nodes.insert("e".to_owned(), node(&["10.2.0.0/24"], &["192.0.2.5"]));
        assert_eq!(shown(&nodes), all);
        nodes.insert("e".to_owned(), node(&["10.2.0.7/32", "10.5.0.0/24"], &["192.0.2.5"]));
        assert_eq!(shown(&nodes), [all[1], all[2], all[3], "10.5.0.0/24 192.0.2.5"]);
        let (_, refused) = wanted(&nodes, "a", "up");
        assert_eq!(refused, Some(("10.2.0.0/24".parse().unwrap(), "b".to_owned())));
        // Networks and addresses of nodes are not those of pods.
        for prefix in ["10.0.0.0/8", "192.0.2.0/24", "192.0.2.1/32", "192.0.0.0/8"] {
            nodes.insert("e".to_owned(), node(&[prefix], &["192.0.2.5"]));
            assert_eq!(shown(&nodes), all, "{prefix}");
            let (_, refused) = wanted(&nodes, "a", "up");
            assert_eq!(refused.map(|(_, name)| name), Some("e".to_owned()));
        }
    }
}
