//! Ports of a node that lead to a pod (`hostPort` of Kubernetes, `portMappings` of CNI): Services with one backend.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ServicePort, ServicePortName};
use crate::net::flow::Protocol;
use crate::tables::PodName;

/// Port of the node that leads to a port of a pod. As text `[ADDRESS:]PORT:POD_PORT[/PROTOCOL]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortMapping {
    /// Address of the node; `None`: all of them.
    pub address: Option<IpAddr>,
    /// Port of the node.
    pub port: u16,
    /// Port of the pod.
    pub pod_port: u16,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
}

impl PortMapping {
    /// Whether packets to one port may be to the other one, too.
    pub fn overlaps(&self, other: &PortMapping) -> bool {
        let is_same_address = match (self.address, other.address) {
            (Some(own), Some(others)) => own == others,
            _ => true,
        };
        is_same_address && (self.port, self.protocol) == (other.port, other.protocol)
    }

    /// The Service that the port is for a pod with these addresses, on a node with those of its own.
    pub fn service(
        &self,
        pod: &PodName,
        addresses: &[IpAddr],
        node: &[IpAddr],
    ) -> (ServicePortName, ServicePort) {
        let name = ServicePortName {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            // No port of a Service has such a name.
            port: Some(self.to_string()),
            protocol: self.protocol,
        };
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let all = || node.iter().copied().chain(loopback).collect();
        let host = self.address.map_or_else(all, |address| vec![address]);
        let backends: Vec<SocketAddr> =
            addresses.iter().map(|address| SocketAddr::new(*address, self.pod_port)).collect();
        let has_family = |at: &IpAddr| backends.iter().any(|backend| backend.is_ipv4() == at.is_ipv4());
        let port = ServicePort {
            mapped: host.into_iter().filter(has_family).map(|at| SocketAddr::new(at, self.port)).collect(),
            internal_backends: backends.clone(),
            external_backends: backends.clone(),
            // Clients keep their addresses.
            short_circuit_backends: Some(backends),
            ..ServicePort::default()
        };
        (name, port)
    }
}

impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortMapping { address, port, pod_port, protocol } = self;
        match address {
            Some(address) => write!(f, "{}", SocketAddr::new(*address, *port))?,
            None => write!(f, "{port}")?,
        }
        write!(f, ":{pod_port}/{}", protocol.to_string().to_ascii_lowercase())
    }
}

impl FromStr for PortMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<PortMapping, String> {
        let wrong = || {
            format!(
                "{text:?} is no port of the node: [ADDRESS:]PORT:POD_PORT[/PROTOCOL], such as 8080:80/tcp"
            )
        };
        let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocols = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];
        let protocol = protocols.into_iter().find(|known| known.to_string().eq_ignore_ascii_case(protocol));
        let (node, pod_port) = ports.rsplit_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let (address, port) = match node.parse::<SocketAddr>() {
            Ok(at) => (Some(at.ip()).filter(|ip| !ip.is_unspecified()), number(&at.port().to_string())),
            Err(_) => (None, number(node)),
        };
        let (Some(port), Some(pod_port), Some(protocol)) = (port, number(pod_port), protocol) else {
            return Err(wrong());
        };
        Ok(PortMapping { address, port, pod_port, protocol })
    }
}

impl TryFrom<String> for PortMapping {
    type Error = String;

    fn try_from(text: String) -> Result<PortMapping, String> {
        text.parse()
    }
}

impl From<PortMapping> for String {
    fn from(port: PortMapping) -> String {
        port.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_the_node_is_written_as_it_is_read() {
        for (text, shown) in [
            ("8080:80", "8080:80/tcp"),
            ("53:5353/UDP", "53:5353/udp"),
            ("192.0.2.1:8080:80/sctp", "192.0.2.1:8080:80/sctp"),
            ("[2001:db8::1]:8080:80/tcp", "[2001:db8::1]:8080:80/tcp"),
            ("0.0.0.0:8080:80", "8080:80/tcp"),
        ] {
            let port: PortMapping = text.parse().unwrap();
            assert_eq!(port.to_string(), shown);
            assert_eq!(shown.parse(), Ok(port));
        }
        for text in ["", "80", "0:80", "80:0", "80:80/icmp", "80:80:80", "65536:80", "name:80", "1.2.3.4:80"]
        {
            assert!(text.parse::<PortMapping>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_at_one_address_overlaps_with_itself_and_that_of_all_addresses() {
        let port = |text: &str| text.parse::<PortMapping>().unwrap();
        for (one, other, expected) in [
            ("80:1", "80:2", true),
            ("80:1", "81:1", false),
            ("80:1/udp", "80:1", false),
            ("192.0.2.1:80:1", "80:1", true),
            ("192.0.2.1:80:1", "192.0.2.2:80:1", false),
            ("192.0.2.1:80:1", "192.0.2.1:80:1", true),
        ] {
            assert_eq!(port(one).overlaps(&port(other)), expected, "{one} {other}");
        }
    }
}
