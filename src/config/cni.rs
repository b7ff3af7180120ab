//! Section `[cni]`: attachments of the CNI plugin.

use std::path::PathBuf;

use serde::Deserialize;

/// `[cni]`: containers that `palisade-cni` attaches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cni {
    /// Directory of the plugin's records: beside the control socket where absent, none where empty.
    pub directory: Option<PathBuf>,
}
