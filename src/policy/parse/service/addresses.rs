//! Addresses of Services and endpoints.

use std::net::IpAddr;

use crate::policy::parse::cluster_objects::address_of;
use crate::policy::parse::cursor::Cursor;

const HELP: &str = "write an address that hosts can have";

/// Address that a host can have. Reports another one.
pub(super) fn host_address(at: &Cursor<'_>) -> Option<IpAddr> {
    let address = address_of(at)?;
    match special(address) {
        Some(why) => {
            at.invalid(why, HELP);
            None
        }
        None => Some(address),
    }
}

/// Address that the cluster wrote to `status`. Another one than a host can have is left out, with a warning.
pub(super) fn status_address(at: &Cursor<'_>) -> Option<IpAddr> {
    let address = address_of(at)?;
    match special(address) {
        Some(why) => {
            at.warn(format!("{address} {why}: it is left out"), HELP);
            None
        }
        None => Some(address),
    }
}

/// Reason for which no host has an address (`ValidateNonSpecialIP`, and every multicast address).
fn special(address: IpAddr) -> Option<&'static str> {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.is_unspecified() {
        Some("may not be unspecified (0.0.0.0 or ::)")
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if is_link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10), nor 255.255.255.255")
    } else if address.is_multicast() {
        Some("may not be in a multicast range (224.0.0.0/4, ff00::/8)")
    } else {
        None
    }
}

/// Removes all but the first of equal addresses.
pub(super) fn distinct(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut seen = std::collections::BTreeSet::new();
    addresses.into_iter().filter(|address| seen.insert(*address)).collect()
}
