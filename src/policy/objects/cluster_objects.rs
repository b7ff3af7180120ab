//! Pods, namespaces and nodes: the fields that policy depends on.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::net::flow::Protocol;
use crate::tables::PodName;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Name.
    pub name: PodName,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `status.podIPs`, or `status.podIP`; empty until the pod has an address.
    pub addresses: Vec<IpAddr>,
    /// Marks `addresses` as placeholders. Only a block of all addresses of the family contains them.
    pub placeholder: bool,
    /// `spec.nodeName`.
    pub node: Option<String>,
    /// `status.hostIPs`, or `status.hostIP`: addresses of its node, sorted.
    pub host_ips: Vec<IpAddr>,
    /// `spec.hostNetwork`. No policy selects such a pod, neither as subject nor as peer.
    pub host_network: bool,
    /// `status.phase` is `Succeeded` or `Failed`. Another pod may already have the addresses.
    pub finished: bool,
    /// State as a backend of Services.
    pub readiness: Readiness,
    /// Ports of all containers, restartable init containers (sidecars) included.
    pub ports: Vec<ContainerPort>,
}

impl Pod {
    /// A running pod without addresses and ports, whose node is not known.
    pub fn new(name: PodName, labels: Labels) -> Pod {
        Pod {
            name,
            labels,
            addresses: Vec::new(),
            placeholder: false,
            node: None,
            host_ips: Vec::new(),
            host_network: false,
            finished: false,
            readiness: Readiness::default(),
            ports: Vec::new(),
        }
    }
}

/// State of a pod as a backend of Services. Policy does not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Condition `Ready` of `status.conditions` is present and not `True`.
    pub unready: bool,
    /// `metadata.deletionTimestamp` is present.
    pub terminating: bool,
}

/// Port of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerPort {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`, TCP if absent.
    pub protocol: Protocol,
    /// `containerPort`.
    pub port: u16,
}

/// Label that every namespace has, with its name (`corev1.LabelMetadataName`).
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Name.
    pub name: String,
    /// `metadata.labels`, always with [`NAMESPACE_NAME_LABEL`].
    pub labels: Labels,
}

/// Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// `metadata.labels`.
    pub labels: Labels,
    /// Addresses of `status.addresses`, without host names.
    pub addresses: Vec<IpAddr>,
}
