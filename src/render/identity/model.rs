//! Identity table, address-to-identity cache, policy maps and endpoints, as data.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use crate::tables::{Direction, PodName, Verdict};

/// State of all nodes, or of the chosen pods.
#[derive(Debug, PartialEq)]
pub(in crate::render) struct State {
    /// Labels by identity.
    pub(super) identities: BTreeMap<u32, Vec<String>>,
    /// Identities by prefix: the longest prefix of an address decides.
    pub(super) ipcache: BTreeMap<IpNet, u32>,
    /// Policy maps by name.
    pub(super) policies: BTreeMap<String, Policy>,
    /// Endpoints.
    pub(super) endpoints: BTreeMap<PodName, Endpoint>,
}

/// Endpoint: a pod with policy.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Endpoint {
    /// Identity of its first address.
    pub(super) identity: u32,
    /// Addresses, sorted.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses of its node that have the identity of the host there.
    pub(super) host: Vec<IpAddr>,
    /// Name of its policy map.
    pub(super) policy: String,
}

/// Policy map: entries of ingress, then of egress. Maps share the entries of a direction.
#[derive(Debug, PartialEq)]
pub(super) struct Policy(pub(super) [Rc<Entries>; 2]);

/// Entries of a direction, sorted.
pub(super) type Entries = Vec<(Key, Value)>;

/// Key of a policy map (`struct policy_key` of Cilium's `bpf/lib/policy.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    /// Direction.
    pub(super) direction: Direction,
    /// Identity of the peer; 0 is any.
    pub(super) identity: u32,
    /// Protocol and port.
    pub(super) service: Service,
}

/// Protocol and port with a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Service {
    /// Protocol; `None` is any, and then all ports.
    pub(super) protocol: Option<u8>,
    /// First port.
    pub(super) port: u16,
    /// Leading bits of the port that count.
    pub(super) bits: u8,
}

impl Service {
    /// All traffic.
    pub(super) const ANY: Service = Service { protocol: None, port: 0, bits: 0 };
}

/// Value of a policy map.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Value {
    /// Verdict.
    pub(super) verdict: Verdict,
    /// Rule in words, as JSON.
    pub(super) derived_from: Rc<str>,
}

impl Policy {
    /// Entries of both directions.
    pub(super) fn entries(&self) -> impl Iterator<Item = &(Key, Value)> {
        self.0.iter().flat_map(|half| half.iter())
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|half| half.len()).sum()
    }
}
