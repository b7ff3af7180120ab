//! Check that the node's sockets leave the external ports of masqueraded flows alone.

use std::fs;
use std::ops::RangeInclusive;

use super::check::Check;
use crate::config::Config;

/// Directory of the kernel's settings of the ports that sockets get.
const SETTINGS: &str = "/proc/sys/net/ipv4";

/// Compares the external ports with those that the kernel gives to sockets. `None` where no flow is masqueraded.
pub(super) fn check(config: &Config) -> Option<Check> {
    let read = |name: &str| fs::read_to_string(format!("{SETTINGS}/{name}"));
    config.masquerade.settings().map(|settings| {
        match (read("ip_local_port_range"), read("ip_local_reserved_ports")) {
            (Ok(local), Ok(reserved)) => compare(&settings.ports, &local, &reserved),
            (Err(error), _) | (_, Err(error)) => {
                Check::unseen("external ports", error.to_string(), "read net.ipv4.ip_local_port_range")
            }
        }
    })
}

/// Compares external ports with the contents of `ip_local_port_range` and `ip_local_reserved_ports`.
fn compare(ports: &RangeInclusive<u16>, local: &str, reserved: &str) -> Check {
    let subject = "external ports";
    let mut local = local.split_whitespace().filter_map(|number| number.parse().ok());
    let (first, last): (u16, u16) = (local.next().unwrap_or(1), local.next().unwrap_or(u16::MAX));
    let reserved: Vec<RangeInclusive<u16>> = reserved.trim().split(',').filter_map(range).collect();
    let is_given =
        |port: &u16| (first..=last).contains(port) && !reserved.iter().any(|range| range.contains(port));
    let shown = format!("{}-{}", ports.start(), ports.end());
    match ports.clone().find(is_given) {
        None => Check::ok(subject, format!("{shown}: the kernel gives none of them to a socket")),
        Some(port) => Check::finding(
            subject,
            format!(
                "{shown}: the kernel gives port {port} to sockets of the node too, which get no answers then"
            ),
            format!("sysctl net.ipv4.ip_local_reserved_ports={shown}, with the ranges that it has"),
        ),
    }
}

/// Range of `ip_local_reserved_ports`: `8080` or `9000-9010`.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::check::State;

    #[test]
    fn ports_that_sockets_may_get_are_a_finding_unless_they_are_reserved() {
        for (local, reserved, expected) in [
            ("32768\t60999\n", "\n", State::Ok),
            ("32768\t61000\n", "\n", State::Finding),
            ("1024\t65535\n", "8080,61000-65535\n", State::Ok),
            ("1024\t65535\n", "8080,61001-65535\n", State::Finding),
            ("1024\t65535\n", "61000,61001-65535\n", State::Ok),
        ] {
            let check = compare(&(61_000..=65_535), local, reserved);
            assert_eq!(check.state, expected, "{local} {reserved}");
        }
    }
}
