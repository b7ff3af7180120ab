//! Objects that changes affect.

use std::collections::BTreeSet;

use super::slots::{NamespaceSlot, NodeSlot, PodSlot};

/// Slots of objects that changes affect.
#[derive(Debug, Default)]
pub(crate) struct Affected {
    /// Namespaces that are added or removed, or have other labels.
    pub(crate) namespaces: BTreeSet<NamespaceSlot>,
    /// Nodes that are added, removed or changed.
    pub(crate) nodes: BTreeSet<NodeSlot>,
    /// Pods that are added, removed or changed, or whose namespace has other labels.
    pub(crate) pods: BTreeSet<PodSlot>,
    /// Local pods that other policies may select.
    pub(crate) reselected_pods: BTreeSet<PodSlot>,
}
