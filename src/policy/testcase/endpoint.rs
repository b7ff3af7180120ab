//! Endpoint of a probe.

use std::net::IpAddr;

use crate::tables::PodName;

/// Source or destination of a probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Endpoint {
    /// `{pod: namespace/name}`.
    Pod(PodName),
    /// `{ip: 192.0.2.7}`.
    Ip(IpAddr),
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    /// Parses an address or the name of a pod.
    fn from_str(text: &str) -> Result<Endpoint, String> {
        text.parse().map(Endpoint::Ip).or_else(|_| text.parse().map(Endpoint::Pod))
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Endpoint, String> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> String {
        endpoint.to_string()
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Pod(pod) => pod.fmt(f),
            Endpoint::Ip(address) => address.fmt(f),
        }
    }
}
