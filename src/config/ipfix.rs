//! Section `[ipfix]`: the export of flows to a collector.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::values;
use crate::control::IpfixSettings;

/// `[ipfix]`: the export of flows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ipfix {
    /// Address and port of the collector. None: no export.
    #[serde(deserialize_with = "values::address")]
    pub collector: Option<SocketAddr>,
    /// Observation domain of the messages.
    #[serde(deserialize_with = "values::within::<_, _, 0, 4_294_967_295>")]
    pub observation_domain: u32,
    /// Seconds after which a flow that goes on gets a record.
    #[serde(deserialize_with = "values::within::<_, _, 1, 3_600>")]
    pub active_timeout_s: u32,
    /// Seconds between two transmissions of the templates.
    #[serde(deserialize_with = "values::within::<_, _, 1, 86_400>")]
    pub template_interval_s: u32,
}

impl Default for Ipfix {
    fn default() -> Ipfix {
        Ipfix { collector: None, observation_domain: 1, active_timeout_s: 60, template_interval_s: 60 }
    }
}

impl Ipfix {
    /// Converts to settings of the control side.
    pub(super) fn settings(&self) -> Option<IpfixSettings> {
        Some(IpfixSettings {
            collector: self.collector?,
            observation_domain: self.observation_domain,
            active_timeout: Duration::from_secs(self.active_timeout_s.into()),
            template_interval: Duration::from_secs(self.template_interval_s.into()),
        })
    }
}

/// Deserializes the section, and rejects a collector without a port.
pub(super) fn section<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ipfix, D::Error> {
    let ipfix = Ipfix::deserialize(deserializer)?;
    match ipfix.collector {
        Some(collector) if collector.port() == 0 => Err(D::Error::custom(
            "collector: has port 0; collectors listen on 4739 unless configured otherwise",
        )),
        _ => Ok(ipfix),
    }
}
