//! Flow key: the fields of a packet that policy and conntrack use.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IP protocol number (IANA "Assigned Internet Protocol Numbers").
///
/// In JSON and on the command line: `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, or the number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Protocol(pub u8);

impl Protocol {
    /// RFC 792.
    pub const ICMP: Protocol = Protocol(1);
    /// RFC 9293.
    pub const TCP: Protocol = Protocol(6);
    /// RFC 768.
    pub const UDP: Protocol = Protocol(17);
    /// RFC 4443.
    pub const ICMPV6: Protocol = Protocol(58);
    /// RFC 9260.
    pub const SCTP: Protocol = Protocol(132);

    const NAMED: [(Protocol, &'static str); 5] = [
        (Protocol::ICMP, "ICMP"),
        (Protocol::TCP, "TCP"),
        (Protocol::UDP, "UDP"),
        (Protocol::ICMPV6, "ICMPv6"),
        (Protocol::SCTP, "SCTP"),
    ];

    /// Whether the protocol has ports in the sense of `NetworkPolicy`: TCP, UDP and SCTP.
    #[inline]
    pub fn has_ports(self) -> bool {
        matches!(self, Protocol::TCP | Protocol::UDP | Protocol::SCTP)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Protocol::NAMED.iter().find(|(protocol, _)| protocol == self) {
            Some((_, name)) => f.pad(name),
            None => f.pad(&self.0.to_string()),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that names no IP protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol {0:?}: use TCP, UDP, SCTP, ICMP, ICMPv6 or a number from 0 to 255")]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Protocol, UnknownProtocol> {
        Protocol::NAMED
            .iter()
            .find(|(_, name)| name.eq_ignore_ascii_case(text))
            .map(|(protocol, _)| *protocol)
            .or_else(|| text.parse().ok().map(Protocol))
            .ok_or_else(|| UnknownProtocol(text.to_owned()))
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> String {
        protocol.to_string()
    }
}

impl TryFrom<String> for Protocol {
    type Error = UnknownProtocol;

    fn try_from(text: String) -> Result<Protocol, UnknownProtocol> {
        text.parse()
    }
}

/// One direction of a flow.
///
/// Both ports of an ICMP or `ICMPv6` echo are its identifier (RFC 5508 section 3.1). Protocols without ports
/// have zero in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// Protocol above IP, after any IPv6 extension headers.
    pub protocol: Protocol,
    /// Source port or echo identifier, host byte order.
    pub src_port: u16,
    /// Destination port or echo identifier, host byte order.
    pub dst_port: u16,
}

impl FlowKey {
    /// Returns the key of the reply direction.
    #[must_use]
    pub fn reversed(self) -> FlowKey {
        FlowKey { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port, ..self }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let src = std::net::SocketAddr::new(self.src, self.src_port);
        let dst = std::net::SocketAddr::new(self.dst, self.dst_port);
        write!(f, "{} {src} -> {dst}", self.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_names_and_numbers_parse_and_print_alike() {
        for number in 0..=255 {
            let protocol = Protocol(number);
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
        }
        assert_eq!("tcp".parse(), Ok(Protocol::TCP));
        assert!("256".parse::<Protocol>().is_err());
        assert!("".parse::<Protocol>().is_err());
    }
}
