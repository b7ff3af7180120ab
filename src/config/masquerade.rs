//! Section `[masquerade]`: what pods send outside leaves with an address of the node.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::dataplane::MasqueradeSettings;
use crate::limits::EXCEPT_MAX;

/// Fewest external ports.
const PORTS_MIN: u16 = 512;

/// `[masquerade]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Masquerade {
    /// Addresses of the node that flows get, at most one of each family. No flow is masqueraded without.
    #[serde(deserialize_with = "addresses")]
    pub addresses: Vec<IpAddr>,
    /// External ports.
    #[serde(deserialize_with = "ports")]
    pub ports: RangeInclusive<u16>,
    /// Destinations to which pods keep their addresses, besides pods and nodes of the cluster.
    #[serde(deserialize_with = "except")]
    pub except: Vec<IpNet>,
}

impl Default for Masquerade {
    fn default() -> Masquerade {
        // Behind the ports that Linux gives to sockets by default (net.ipv4.ip_local_port_range).
        Masquerade { addresses: Vec::new(), ports: 61_000..=u16::MAX, except: Vec::new() }
    }
}

impl Masquerade {
    /// External ends of flows, if any are masqueraded.
    pub(crate) fn settings(&self) -> Option<MasqueradeSettings> {
        let settings = MasqueradeSettings { addresses: self.addresses.clone(), ports: self.ports.clone() };
        (!self.addresses.is_empty()).then_some(settings)
    }
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    let addresses: Vec<IpAddr> = Vec::deserialize(deserializer)?;
    let of_family = |v4: bool| addresses.iter().filter(|address| address.is_ipv4() == v4).count();
    if of_family(true) > 1 || of_family(false) > 1 {
        return Err(D::Error::custom("flows of a family get one address: name one of each family"));
    }
    let is_wrong =
        |address: &&IpAddr| address.is_unspecified() || address.is_loopback() || address.is_multicast();
    match addresses.iter().find(is_wrong) {
        Some(wrong) => Err(D::Error::custom(format!("{wrong} is no address that a peer outside can answer"))),
        None => Ok(addresses),
    }
}

fn except<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let prefixes: Vec<IpNet> = Vec::deserialize(deserializer)?;
    if prefixes.len() > EXCEPT_MAX {
        return Err(D::Error::custom(format!("there are at most {EXCEPT_MAX} destinations")));
    }
    Ok(prefixes)
}

fn ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RangeInclusive<u16>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let range = text.split_once('-').and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    let range = range.filter(|range: &RangeInclusive<u16>| {
        *range.start() >= 1024
            && range.end().checked_sub(*range.start()).is_some_and(|more| more >= PORTS_MIN - 1)
    });
    range.ok_or_else(|| {
        let example = format!("{text:?} is no range of at least {PORTS_MIN} ports from 1024 on, such as");
        D::Error::custom(format!("{example} \"61000-65535\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ports_is_two_numbers_and_large_enough() {
        let read =
            |text: &str| toml::from_str::<Masquerade>(&format!("ports = {text:?}")).map(|read| read.ports);
        assert_eq!(read("1024-1535").unwrap(), 1024..=1535);
        for wrong in ["1024-1534", "1023-9000", "9000-1024", "9000", "a-b", "61000-65536", "61000-"] {
            assert!(read(wrong).unwrap_err().to_string().contains("at least 512 ports"), "{wrong}");
        }
    }

    #[test]
    fn a_family_has_one_address_that_peers_can_answer() {
        let read = |text: &str| toml::from_str::<Masquerade>(&format!("addresses = [{text}]"));
        assert_eq!(read("\"192.0.2.1\", \"2001:db8::1\"").unwrap().settings().unwrap().addresses.len(), 2);
        assert_eq!(read("").unwrap().settings(), None);
        for wrong in ["\"192.0.2.1\", \"192.0.2.2\"", "\"127.0.0.1\"", "\"::\"", "\"ff02::1\""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
