//! Section `[tunnel]`: packets to pods of other nodes that share no network with this one.

use serde::Deserialize;

use super::values;
use crate::dataplane::TunnelMode;
use crate::net::vxlan;

/// `[tunnel]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tunnel {
    /// Nodes whose pods are reached by a tunnel.
    pub mode: Mode,
    /// UDP port of all nodes.
    #[serde(deserialize_with = "values::within::<_, _, 1, 65_535>")]
    pub port: u16,
    /// Network identifier of all nodes.
    #[serde(deserialize_with = "values::within::<_, _, 0, 16_777_215>")]
    pub vni: u32,
}

/// Nodes whose pods are reached by a tunnel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// None: all nodes share a network.
    #[default]
    Off,
    /// Those behind a router.
    Auto,
    /// All.
    Vxlan,
}

impl Default for Tunnel {
    fn default() -> Tunnel {
        Tunnel { mode: Mode::Off, port: vxlan::PORT, vni: 1 }
    }
}

impl Mode {
    /// Mode of the dataplane, if there are tunnels.
    pub(crate) fn tunnel_mode(self) -> Option<TunnelMode> {
        match self {
            Mode::Off => None,
            Mode::Auto => Some(TunnelMode::Auto),
            Mode::Vxlan => Some(TunnelMode::Always),
        }
    }
}
