//! Section `[services]`: what the switch does for Services besides the packets of pods.

use std::path::PathBuf;

use serde::Deserialize;

/// `[services]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Services {
    /// Whether no kube-proxy serves the node's own processes, and clients outside with backends elsewhere.
    pub replace_kube_proxy: bool,
    /// Directory of the cgroup2 hierarchy with the node's processes.
    pub cgroup: PathBuf,
}

impl Default for Services {
    fn default() -> Services {
        Services { replace_kube_proxy: false, cgroup: "/sys/fs/cgroup".into() }
    }
}
