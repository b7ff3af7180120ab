//! Results: addresses, routes and interfaces, as plugins pass them on.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::error::{CniError, Code};
use super::version::Version;

/// Result of a plugin, in any of the supported versions. Fields that this plugin does not read stay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CniResult {
    /// Interfaces.
    #[serde(deserialize_with = "or_null")]
    pub interfaces: Vec<Interface>,
    /// Addresses.
    #[serde(deserialize_with = "or_null")]
    pub ips: Vec<Ip>,
    /// Routes inside the container.
    #[serde(deserialize_with = "or_null")]
    pub routes: Vec<Route>,
    /// Name servers, passed on as they are.
    #[serde(deserialize_with = "or_null")]
    pub dns: Map<String, Value>,
}

/// Interface of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Ethernet address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// MTU, bytes (since 1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Network namespace; absent on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Other fields.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Address of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ip {
    /// Address with the length of its subnet.
    pub address: IpNet,
    /// Gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Index among the interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

/// Route of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destinations.
    pub dst: IpNet,
    /// Gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// MTU of the route, bytes (since 1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Other fields.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Reads `null`, which programs in Go write for an empty list, as the empty value.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl CniResult {
    /// Reads a result that `from` has given.
    pub(super) fn parse(value: &Value, from: &str) -> Result<CniResult, CniError> {
        if !value.is_object() {
            return Err(CniError::new(Code::DECODE, format!("{from}: is not an object")));
        }
        serde_path_to_error::deserialize(value).map_err(|error| {
            CniError::new(Code::DECODE, format!("{from}: {}: {}", error.path(), error.inner()))
        })
    }

    /// Appends the interfaces, addresses and routes of `next`.
    #[must_use]
    pub fn followed_by(mut self, next: CniResult) -> CniResult {
        let before = self.interfaces.len();
        self.interfaces.extend(next.interfaces);
        self.ips.extend(
            next.ips.into_iter().map(|ip| Ip { interface: ip.interface.map(|index| index + before), ..ip }),
        );
        self.routes.extend(next.routes);
        if !next.dns.is_empty() {
            self.dns = next.dns;
        }
        self
    }

    /// The result in the format of a version.
    pub fn to_json(&self, version: Version) -> Value {
        let mut result = self.clone();
        if version < Version::V1_1 {
            for interface in &mut result.interfaces {
                interface.mtu = None;
                interface.others.clear();
            }
            for route in &mut result.routes {
                route.mtu = None;
                route.others.clear();
            }
        }
        let mut ips: Vec<Value> = result.ips.iter().map(|ip| json!(ip)).collect();
        if version < Version::V1_0 {
            for (value, ip) in ips.iter_mut().zip(&result.ips) {
                value["version"] = if ip.address.addr().is_ipv4() { "4" } else { "6" }.into();
            }
        }
        json!({
            "cniVersion": version.text(),
            "interfaces": result.interfaces,
            "ips": ips,
            "routes": result.routes,
            "dns": result.dns,
        })
    }
}
