//! Rules of VPP's session layer, for applications on its TCP and UDP: a local table for each application namespace,
//! and the global table.
//!
//! VPP looks a connection up in the local table of the namespace from which it is made, by the remote address and port.
//! So local tables have the rules of traffic from a pod, with those of the pods at the other end. The global
//! table is for connections that come in, by the pod's address and port and the remote address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::net::IpAddr;

use ipnet::IpNet;

use super::expansion::{Match, matches};
use super::prefix;
use crate::net::flow::Protocol;
use crate::render::contiv::allowed::AllowedSets;
use crate::render::contiv::cache::RULES_MAX;
use crate::render::contiv::fold::{Folded, Scope};
use crate::render::contiv::peers::{PeerMap, everyone};
use crate::render::contiv::refusal::inexpressible;
use crate::render::output::{Part, RenderError, RenderOptions};
use crate::render::plan::{Family, Plan, identifier};
use crate::render::rendering::{ClusterState, Rendering, plans};
use crate::tables::{Direction, PodName};

/// Name of the format.
const NAME: &str = "vpptcp";

/// Name of the file.
const FILE: &str = "palisade.vpptcp";

/// Actions (`SESSION_RULES_TABLE_ACTION_ALLOW` and `_DROP`), which the command reads as numbers.
const ALLOW: i32 = -3;
const DROP: i32 = -2;

/// Rules, and whether they allow.
pub(in crate::render) struct State {
    rules: BTreeMap<Key, bool>,
}

/// Match of a rule. Wider matches are less.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    table: Table,
    protocol: Protocol,
    /// Length of the remote prefix, and whether the rule names a port.
    width: (u8, bool),
    local: IpNet,
    remote: IpNet,
    /// Port of the pod in the global table, of the peer in a local table; 0 for all.
    port: u16,
}

/// Table of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Table {
    /// Local table of an application namespace, by its identifier.
    Local(String),
    /// Global table of the default namespace.
    Global,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote, port) = (prefix(&self.local), prefix(&self.remote), self.port);
        let protocol = if self.protocol == Protocol::TCP { "tcp" } else { "udp" };
        match &self.table {
            Table::Local(id) => {
                write!(f, "appns {id} scope local proto {protocol} {local} 0 {remote} {port}")
            }
            Table::Global => write!(f, "scope global proto {protocol} {local} {port} {remote} 0"),
        }
    }
}

impl Rendering for State {
    fn new(cluster: ClusterState, options: &RenderOptions) -> Result<State, RenderError> {
        let plans = plans(cluster.tables, options);
        let mut sets = AllowedSets::new();
        let mut state = State { rules: BTreeMap::new() };
        for (plan, family) in plans.iter().zip(Family::ALL) {
            let folded = Folded::new(plan, family, Direction::Egress, &mut sets);
            for (pod, scopes) in &folded.local {
                let peers = local_peers(plan, pod, scopes, &folded.pods[pod].addresses)?;
                let table = Table::Local(identifier(&pod.to_string()));
                state
                    .push(&table, everyone(family), &peers, &sets)
                    .map_err(|problem| problem.of(&plans, pod))?;
            }
            for scope in &folded.global {
                let own = scope.own.expect("a scope of the global table is for an address");
                let peers = with_own(plan, own, &scope.peers);
                let pod = &plan.endpoints[&own].pods[0];
                state
                    .push(&Table::Global, own.into(), &peers, &sets)
                    .map_err(|problem| problem.of(&plans, pod))?;
            }
        }
        Ok(state)
    }

    fn parts(&self) -> Vec<Part> {
        let mut text = "# Load with sh. For a VPP without session rules in these tables.\n".to_owned();
        // Writing to a string cannot fail.
        self.rules.keys().for_each(|key| _ = writeln!(text, "{}", self.added(key)));
        vec![Part { file: FILE, text }]
    }

    /// A rule is not found, and one that contains others is put below them, if the tree has a narrower rule with the
    /// same lowest address and port: such rules are removed first, and added again.
    fn parts_since(&self, old: &State) -> Vec<Part> {
        let has_changed = |(key, allows): &(&Key, &bool)| old.rules.get(*key) != Some(*allows);
        let mut added: BTreeSet<&Key> = self.rules.iter().filter(has_changed).map(|(key, _)| key).collect();
        let mut removed: BTreeSet<&Key> =
            old.rules.keys().filter(|key| !self.rules.contains_key(*key)).collect();
        let mut lowest: BTreeMap<_, Vec<&Key>> = BTreeMap::new();
        for key in old.rules.keys().filter(|key| self.rules.contains_key(*key)) {
            lowest.entry(key.lowest()).or_default().push(key);
        }
        for key in added.clone() {
            let same = lowest.get(&key.lowest()).into_iter().flatten();
            let narrower = same.filter(|other| other.width.0 > key.width.0);
            narrower.for_each(|other| {
                removed.insert(other);
                added.insert(other);
            });
        }
        let mut text = "# Load with sh. For a VPP that has the rules of the old state.\n".to_owned();
        removed.iter().rev().for_each(|key| _ = writeln!(text, "vppctl session rule del {key}"));
        added.iter().for_each(|key| _ = writeln!(text, "{}", self.added(key)));
        vec![Part { file: FILE, text }]
    }
}

impl State {
    /// Command that adds a rule.
    fn added(&self, key: &Key) -> String {
        let action = if self.rules[key] { ALLOW } else { DROP };
        format!("vppctl session rule add {key} action {action}")
    }

    /// Adds the rules of a table about one local prefix.
    fn push(
        &mut self,
        table: &Table,
        local: IpNet,
        peers: &PeerMap,
        sets: &AllowedSets,
    ) -> Result<(), Problem> {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            for Match { prefix: remote, port, permits } in
                matches(peers, sets, protocol).map_err(Problem::Obstacle)?
            {
                let width = (remote.prefix_len(), port != 0);
                let key = Key { table: table.clone(), protocol, width, local, remote, port };
                self.rules.insert(key, permits);
            }
        }
        if self.rules.len() > RULES_MAX { Err(Problem::TooMany) } else { Ok(()) }
    }
}

impl Key {
    /// All of a match but the length of its prefix.
    fn lowest(&self) -> (&Table, Protocol, IpNet, IpAddr, u16) {
        (&self.table, self.protocol, self.local, self.remote.network(), self.port)
    }
}

/// Reason for which there are no rules.
enum Problem {
    Obstacle(crate::render::contiv::rule::Obstacle),
    TooMany,
}

impl Problem {
    /// Error for a pod.
    fn of(self, plans: &[Plan; 2], pod: &PodName) -> RenderError {
        match self {
            Problem::Obstacle(obstacle) => inexpressible(plans, NAME, pod, obstacle),
            Problem::TooMany => RenderError::TooManyRules { system: NAME, max: RULES_MAX },
        }
    }
}

/// Services of the peers of a pod, if they are the same for all its addresses: a local table does not see from
/// which a connection is made.
fn local_peers(
    plan: &Plan,
    pod: &PodName,
    scopes: &[Scope],
    addresses: &[IpAddr],
) -> Result<PeerMap, RenderError> {
    let peers: Vec<PeerMap> =
        scopes.iter().zip(addresses).map(|(scope, own)| with_own(plan, *own, &scope.peers)).collect();
    let differing = peers.iter().zip(addresses).find(|(peers_of, _)| **peers_of != peers[0]);
    match differing {
        None => Ok(peers.into_iter().next().expect("a pod has an address")),
        Some((_, address)) => Err(RenderError::Inexpressible {
            pod: pod.clone(),
            rule: format!("its rules for {} and for {address}", addresses[0]),
            problem: format!("{NAME} has one local table for both, and they differ"),
        }),
    }
}

/// Services with everything for the pod's own addresses: it reaches itself.
fn with_own(plan: &Plan, address: IpAddr, peers: &PeerMap) -> PeerMap {
    let own = plan.endpoints[&address].own.iter();
    peers.with_hosts(&own.map(|&address| (address, AllowedSets::EVERYTHING)).collect())
}
