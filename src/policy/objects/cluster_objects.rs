//! Pods, namespaces and nodes, as far as policy cares.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::net::flow::Protocol;
use crate::tables::PodName;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: PodName,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `status.podIPs`, or `status.podIP`; empty while the pod waits for one.
    pub addresses: Vec<IpAddr>,
    /// Whether `addresses` stand in for those that the pod will have: no block holds them but one that holds every address
    /// of the family.
    pub placeholder: bool,
    /// `spec.nodeName`.
    pub node: Option<String>,
    /// `status.hostIPs`, or `status.hostIP`: addresses of its node, sorted.
    pub host_ips: Vec<IpAddr>,
    /// `spec.hostNetwork`: not selected by any policy, neither as subject nor as peer.
    pub host_network: bool,
    /// `status.phase` is `Succeeded` or `Failed`: its addresses may already be another pod's.
    pub finished: bool,
    /// Ports of all containers, restartable init containers (sidecars) included.
    pub ports: Vec<ContainerPort>,
}

/// A port of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerPort {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`, TCP where absent.
    pub protocol: Protocol,
    /// `containerPort`.
    pub port: u16,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// `metadata.labels`, always with `kubernetes.io/metadata.name`.
    pub labels: Labels,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `status.addresses` that are addresses (host names are left out).
    pub addresses: Vec<IpAddr>,
}
