//! Claims of virtual addresses and node ports. Of several Services with one claim the first has it: inside
//! addresses before outside ones, then by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::net::flow::Protocol;
use crate::tables::{ServicePort, ServicePortName};

/// Virtual address with its port, or a node port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    protocol: Protocol,
    /// `None` is a node port.
    address: Option<IpAddr>,
    port: u16,
}

impl Claim {
    /// Claim of a virtual address.
    pub(super) fn address(protocol: Protocol, address: SocketAddr) -> Claim {
        Claim { protocol, address: Some(address.ip()), port: address.port() }
    }

    /// Claim of a node port.
    pub(super) fn node_port(protocol: Protocol, port: u16) -> Claim {
        Claim { protocol, address: None, port }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{} {}", self.protocol, SocketAddr::new(address, self.port)),
            None => write!(f, "{} node port {}", self.protocol, self.port),
        }
    }
}

/// Rank of a claim: `clusterIPs` and node ports are assigned by the API server, the others by authors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Assigned,
    Chosen,
}

/// Claims with their claimants in order.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claimants: BTreeMap<Claim, BTreeSet<(Rank, ServicePortName)>>,
    /// Claims of several ports.
    contested: BTreeSet<Claim>,
}

impl Claims {
    /// Claims of one port.
    pub(super) fn of(name: &ServicePortName, port: &ServicePort) -> Vec<(Claim, Rank)> {
        let at = |address: &SocketAddr| Claim::address(name.protocol, *address);
        let node_port = port.node_port.map(|port| Claim::node_port(name.protocol, port));
        let assigned = port.cluster.iter().map(at).chain(node_port).map(|claim| (claim, Rank::Assigned));
        assigned.chain(port.external.iter().map(|address| (at(address), Rank::Chosen))).collect()
    }

    /// Adds a claim. Returns the port that loses it.
    pub(super) fn take(
        &mut self,
        claim: Claim,
        rank: Rank,
        name: &ServicePortName,
    ) -> Option<ServicePortName> {
        let claimants = self.claimants.entry(claim).or_default();
        let before = claimants.first().cloned();
        claimants.insert((rank, name.clone()));
        if claimants.len() > 1 {
            self.contested.insert(claim);
        }
        before.filter(|before| claimants.first() != Some(before)).map(|(_, name)| name)
    }

    /// Removes a claim. Returns the port that gets it.
    pub(super) fn release(
        &mut self,
        claim: Claim,
        rank: Rank,
        name: &ServicePortName,
    ) -> Option<ServicePortName> {
        let claimants = self.claimants.get_mut(&claim)?;
        let key = (rank, name.clone());
        let was_first = claimants.first() == Some(&key);
        claimants.remove(&key);
        let next = claimants.first().filter(|_| was_first).map(|(_, name)| name.clone());
        if claimants.len() < 2 {
            self.contested.remove(&claim);
        }
        if claimants.is_empty() {
            self.claimants.remove(&claim);
        }
        next
    }

    /// Tests whether a port has a claim.
    pub(super) fn has(&self, claim: &Claim, name: &ServicePortName) -> bool {
        self.claimants
            .get(claim)
            .and_then(|claimants| claimants.first())
            .is_some_and(|(_, first)| first == name)
    }

    /// Number of claims that ports do not get, because another port has them.
    pub(super) fn losers(&self) -> usize {
        self.contested.iter().map(|claim| self.claimants[claim].len() - 1).sum()
    }

    /// Warnings about claims of several ports, each with the port that does not get the claim.
    pub(super) fn warnings(&self) -> impl Iterator<Item = (&ServicePortName, String)> {
        self.contested.iter().flat_map(|claim| {
            let mut claimants = self.claimants[claim].iter().map(|(_, name)| name);
            let first = claimants.next();
            claimants.filter_map(move |other| {
                Some((other, format!("service {other} does not get {claim}: service {} has it", first?)))
            })
        })
    }
}
