//! Section `[offload]`: established flows that the kernel forwards.

use std::time::Duration;

use serde::Deserialize;

use super::values;
use crate::dataplane::OffloadSettings;

/// `[offload]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Offload {
    /// Forwarder of established flows between pods on veth pairs, and between these and uplinks.
    pub mode: Mode,
    /// Time for which the kernel goes on forwarding them without the switch, seconds.
    #[serde(deserialize_with = "values::within::<_, _, 1, 3600>")]
    pub lease_s: u32,
}

/// Forwarder of established flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The workers forward every packet.
    #[default]
    Off,
    /// The kernel, by programs at the interfaces of pods and uplinks.
    Kernel,
}

impl Default for Offload {
    fn default() -> Offload {
        Offload { mode: Mode::Off, lease_s: 10 }
    }
}

impl Offload {
    /// Whether flows are offloaded.
    pub(crate) fn is_on(&self) -> bool {
        self.mode == Mode::Kernel
    }

    /// Settings of the dataplane, if flows are offloaded.
    pub(crate) fn settings(&self) -> Option<OffloadSettings> {
        let lease = Duration::from_secs(self.lease_s.into());
        self.is_on().then_some(OffloadSettings { lease })
    }
}
