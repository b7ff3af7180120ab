//! Filter of packets and flows in requests.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::dataplane::{FlowFilter, PortRange};
use crate::net::flow::Protocol;
use crate::tables::PodName;

/// Filter of packets and flows: those that have every property that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PacketFilter {
    /// Source of a packet, or the end that has opened a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<EndFilter>,
    /// The other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<EndFilter>,
    /// Pod at one of the ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Prefix with the address of one of the ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<AddressPrefix>,
    /// Port of TCP, UDP or SCTP at one of the ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<PortRange>,
    /// Protocol above IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
}

impl PacketFilter {
    /// Names of the parameters in the query of a request.
    pub(crate) const PARAMETERS: [&str; 6] = ["from", "to", "pod", "address", "port", "protocol"];

    /// Filter for a pod at one of the ends.
    pub fn of_pod(pod: &PodName) -> PacketFilter {
        PacketFilter { pod: Some(pod.clone()), ..PacketFilter::default() }
    }

    /// Parameters of a request: names and values, not encoded.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let PacketFilter { from, to, pod, address, port, protocol } = self;
        let values = [
            from.as_ref().map(EndFilter::to_string),
            to.as_ref().map(EndFilter::to_string),
            pod.as_ref().map(PodName::to_string),
            address.map(|address| address.to_string()),
            port.map(|port| port.to_string()),
            protocol.map(|protocol| protocol.to_string()),
        ];
        let given = PacketFilter::PARAMETERS.into_iter().zip(values);
        given.filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Pods that are named.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &PodName> {
        let ends = [&self.from, &self.to].into_iter().flatten();
        let of_ends = ends.filter_map(|end| match end {
            EndFilter::Pod(pod) => Some(pod),
            EndFilter::Prefix(_) => None,
        });
        of_ends.chain(&self.pod)
    }

    /// The properties that name no pod.
    pub(crate) fn without_pods(&self) -> FlowFilter {
        let prefix = |end: &Option<EndFilter>| match end {
            Some(EndFilter::Prefix(prefix)) => Some(vec![prefix.0]),
            _ => None,
        };
        FlowFilter {
            ends: [prefix(&self.from), prefix(&self.to)],
            either: self.address.iter().map(|prefix| vec![prefix.0]).collect(),
            protocol: self.protocol,
            port: self.port,
        }
    }
}

/// End of a flow in a filter: `10.0.0.7`, `10.0.0.0/8` or `default/db`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum EndFilter {
    /// Pod.
    Pod(PodName),
    /// Addresses.
    Prefix(AddressPrefix),
}

impl FromStr for EndFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<EndFilter, String> {
        text.parse().map(EndFilter::Prefix).or_else(|_| text.parse().map(EndFilter::Pod))
    }
}

impl fmt::Display for EndFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndFilter::Pod(pod) => pod.fmt(f),
            EndFilter::Prefix(prefix) => prefix.fmt(f),
        }
    }
}

/// Prefix of addresses: `10.0.0.0/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct AddressPrefix(pub IpNet);

impl FromStr for AddressPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressPrefix, String> {
        let one = || text.parse::<IpAddr>().map(IpNet::from).ok();
        let prefix = text.parse::<IpNet>().ok().or_else(one);
        prefix.map(AddressPrefix).ok_or_else(|| {
            format!("{text:?} is no address and no prefix: give one like 10.0.0.7, 10.0.0.0/8 or fd00::/64")
        })
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! text_in_json {
    ($($name:ty),+) => {
        $(impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<$name, String> {
                text.parse()
            }
        })+
    };
}

text_in_json!(AddressPrefix, EndFilter);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_the_fields_under_their_names() {
        let filter = PacketFilter {
            from: Some("default/web".parse().unwrap()),
            to: Some("10.0.0.0/8".parse().unwrap()),
            pod: Some(PodName::new("default", "db")),
            address: Some("fd00::1".parse().unwrap()),
            port: Some("80-90".parse().unwrap()),
            protocol: Some(Protocol::TCP),
        };
        let json = serde_json::to_value(&filter).unwrap();
        let fields = json.as_object().unwrap();
        assert_eq!(fields.len(), PacketFilter::PARAMETERS.len());
        for (name, value) in filter.parameters() {
            assert_eq!(fields[name], value, "{name}");
        }
        assert_eq!(serde_json::from_value::<PacketFilter>(json).unwrap(), filter);
        assert_eq!(filter.pods().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["web", "db"]);
    }

    #[test]
    fn an_end_is_a_pod_an_address_or_a_prefix() {
        for text in ["default/db", "10.0.0.0/8", "fd00::1/128"] {
            assert_eq!(text.parse::<EndFilter>().unwrap().to_string(), text);
        }
        assert!("a/b/c".parse::<EndFilter>().is_err());
    }
}
