//! Section `[services]`: what the switch does for Services besides the packets of pods.

use serde::Deserialize;

/// `[services]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Services {
    /// Whether no kube-proxy serves the node's own processes, and clients outside with backends elsewhere.
    pub replace_kube_proxy: bool,
}
