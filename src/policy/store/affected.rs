//! Slots that changes affect.

use std::collections::BTreeSet;

use super::slots::{NamespaceSlot, NodeSlot, PodSlot};

/// What changes have affected.
#[derive(Debug, Default)]
pub(crate) struct Affected {
    /// Namespaces that came, went, or have other labels.
    pub(crate) namespaces: BTreeSet<NamespaceSlot>,
    /// Nodes that came, went, or changed.
    pub(crate) nodes: BTreeSet<NodeSlot>,
    /// Pods that came, went, or changed, or whose namespace has other labels.
    pub(crate) pods: BTreeSet<PodSlot>,
    /// Local pods that other policies may select than before.
    pub(crate) reselected_pods: BTreeSet<PodSlot>,
}
