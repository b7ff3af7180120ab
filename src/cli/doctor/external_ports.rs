//! Check that the node's sockets leave the external ports of masqueraded flows alone.

use std::ops::RangeInclusive;

use super::check::Check;
use crate::config::Config;
use crate::netlink::LocalPorts;

/// Compares the external ports with those that the kernel gives to sockets. `None` where no flow is masqueraded.
pub(super) fn check(config: &Config) -> Option<Check> {
    config.masquerade.settings().map(|settings| match LocalPorts::read() {
        Ok(local) => compare(&settings.ports, &local),
        Err(error) => Check::unseen("external ports", error.to_string(), "read net.ipv4.ip_local_port_range"),
    })
}

fn compare(ports: &RangeInclusive<u16>, local: &LocalPorts) -> Check {
    let subject = "external ports";
    let shown = format!("{}-{}", ports.start(), ports.end());
    match ports.clone().find(|port| local.gives(*port)) {
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
            let check = compare(&(61_000..=65_535), &LocalPorts::of(local, reserved));
            assert_eq!(check.state, expected, "{local} {reserved}");
        }
    }
}
