//! Filter of flows by the addresses and ports of their ends.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::net::flow::{FlowKey, Protocol};

/// Filter of flows. It selects those that have every property that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Prefixes of the source, and of the destination.
    pub ends: [Option<Vec<IpNet>>; 2],
    /// Prefixes of either end: one end has an address of each list.
    pub either: Vec<Vec<IpNet>>,
    /// Protocol above IP.
    pub protocol: Option<Protocol>,
    /// Port of TCP, UDP or SCTP at either end.
    pub port: Option<PortRange>,
}

impl FlowFilter {
    /// Whether all flows are selected, and packets without a flow.
    pub fn is_any(&self) -> bool {
        *self == FlowFilter::default()
    }

    /// Whether a flow has these properties, from its source to its destination.
    pub fn selects(&self, flow: &FlowKey) -> bool {
        let has = |prefixes: &[IpNet], end: &IpAddr| prefixes.iter().any(|prefix| prefix.contains(end));
        let [from, to] = &self.ends;
        let has_port = |range: PortRange| range.contains(flow.src_port) || range.contains(flow.dst_port);
        from.as_ref().is_none_or(|prefixes| has(prefixes, &flow.src))
            && to.as_ref().is_none_or(|prefixes| has(prefixes, &flow.dst))
            && self.either.iter().all(|prefixes| has(prefixes, &flow.src) || has(prefixes, &flow.dst))
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.port.is_none_or(|range| flow.protocol.has_ports() && has_port(range))
    }

    /// Whether a packet belongs to a flow with these properties, in either direction.
    pub fn selects_either_way(&self, flow: &FlowKey) -> bool {
        self.selects(flow) || self.selects(&flow.reversed())
    }
}

/// Range of ports: `80`, or `8000-8080`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// Whether the range has a port.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<PortRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(PortRange { first, last }),
            _ => Err(format!(
                "{text:?} is no port of TCP, UDP or SCTP and no range of them: give one like 443 or 8000-8080; \
                 --interface takes ports of the switch"
            )),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortRange { first, last } = self;
        if first == last { first.fmt(f) } else { write!(f, "{first}-{last}") }
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> String {
        range.to_string()
    }
}

impl TryFrom<String> for PortRange {
    type Error = String;

    fn try_from(text: String) -> Result<PortRange, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(text: &str) -> FlowKey {
        let [protocol, src, dst] = text.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let [src, dst]: [std::net::SocketAddr; 2] = [src, dst].map(|end| end.parse().unwrap());
        FlowKey {
            src: src.ip(),
            dst: dst.ip(),
            protocol: protocol.parse().unwrap(),
            src_port: src.port(),
            dst_port: dst.port(),
        }
    }

    fn prefixes(text: &str) -> Vec<IpNet> {
        text.split(' ').map(|prefix| prefix.parse().unwrap()).collect()
    }

    #[test]
    fn ends_have_a_direction_and_either_has_none() {
        let tcp = flow("TCP 10.0.0.1:4000 10.0.1.1:80");
        let (source, other) = (prefixes("10.0.9.0/24 10.0.0.0/24"), prefixes("10.0.2.0/24"));
        let from = FlowFilter { ends: [Some(source.clone()), None], ..FlowFilter::default() };
        let to = FlowFilter { ends: [None, Some(source.clone())], ..FlowFilter::default() };
        assert!(from.selects(&tcp) && !to.selects(&tcp));
        assert!(to.selects_either_way(&tcp));
        let both = FlowFilter { ends: [Some(source.clone()), Some(other.clone())], ..FlowFilter::default() };
        assert!(!both.selects_either_way(&tcp));
        let either = |lists: &[&Vec<IpNet>]| {
            let either = lists.iter().map(|list| (*list).clone()).collect();
            FlowFilter { either, ..FlowFilter::default() }
        };
        assert!(either(&[&source]).selects(&tcp) && either(&[&source]).selects(&tcp.reversed()));
        assert!(!either(&[&other]).selects(&tcp) && !either(&[&source, &other]).selects(&tcp));
        assert!(!either(&[&prefixes("::/0")]).selects(&tcp));
        assert!(
            !FlowFilter { either: vec![Vec::new()], ..FlowFilter::default() }.selects(&tcp),
            "no address"
        );
    }

    #[test]
    fn ports_are_of_protocols_that_have_some() {
        let port = |text: &str| FlowFilter { port: Some(text.parse().unwrap()), ..FlowFilter::default() };
        let tcp = flow("TCP 10.0.0.1:4000 10.0.1.1:80");
        assert!(port("80").selects(&tcp) && port("3000-4000").selects(&tcp));
        assert!(!port("81-3999").selects(&tcp));
        assert!(!port("7").selects(&flow("ICMP 10.0.0.1:7 10.0.1.1:7")), "an identifier is no port");
        let udp = FlowFilter { protocol: Some(Protocol::UDP), ..FlowFilter::default() };
        assert!(!udp.selects(&tcp) && !udp.is_any() && FlowFilter::default().is_any());
    }

    #[test]
    fn a_range_of_ports_is_parsed_as_it_is_printed() {
        for text in ["80", "0", "8000-8080", "65535"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
        }
        for text in ["", "80-79", "65536", "1-2-3", "veth-db"] {
            assert!(text.parse::<PortRange>().unwrap_err().contains("--interface"), "{text}");
        }
    }
}
