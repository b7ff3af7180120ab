//! Messages about the configuration of the running switch.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A reload of the configuration that has been asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadRequested {
    /// Number of reloads before it, as [`ConfigurationReport::reloads`] counts them.
    pub reloads: u64,
}

/// A reload of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationReport {
    /// The file.
    pub file: PathBuf,
    /// Number of reloads since the start, this one included.
    pub reloads: u64,
    /// Time of the reload, seconds since 1970.
    pub read_unix_s: u64,
    /// Reasons for which it was rejected. Then the running configuration stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<String>,
    /// Parts that were accepted, and failed. The next reload tries again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// Keys whose changes wait for a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart: Vec<String>,
}
