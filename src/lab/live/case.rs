//! Cases of policy tests.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::net::flow::FlowKey;
use crate::tables::{PodName, RuleTables, ServiceTable, Verdict};

/// A case of a policy test.
#[derive(Debug, Clone)]
pub struct LiveCase {
    /// Name.
    pub name: String,
    /// Pods with their addresses. Pods without addresses of their own are left out.
    pub pods: BTreeMap<PodName, Vec<IpAddr>>,
    /// Rule tables.
    pub tables: RuleTables,
    /// Services of the node.
    pub services: ServiceTable,
    /// Connections to be tried.
    pub probes: Vec<LiveProbe>,
}

/// A connection of a case.
#[derive(Debug, Clone, Copy)]
pub struct LiveProbe {
    /// Flow of the connection. The kernel chooses the source port.
    pub flow: FlowKey,
    /// Virtual address of a Service through which the flow is sent. Its backends get the verdict of the flow.
    pub through: Option<SocketAddr>,
    /// Expected verdict. The wait for silence is shorter than that for an answer.
    pub expect: Verdict,
}

impl LiveCase {
    /// Pods that share no address with another, so that a lab can have them.
    pub(super) fn pods_to_make(&self) -> impl Iterator<Item = (&PodName, &Vec<IpAddr>)> {
        self.pods.iter().filter(|(_, addresses)| addresses.iter().all(|address| self.claims(*address) == 1))
    }

    /// Counts the pods with an address.
    pub(super) fn claims(&self, address: IpAddr) -> usize {
        self.pods.values().filter(|addresses| addresses.contains(&address)).count()
    }
}
