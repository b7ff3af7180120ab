//! Checks of tunnels to other nodes.

use std::fs;

use super::check::Check;
use crate::config::Config;
use crate::dataplane::PortKind;

/// Sockets of the kernel, those of its own tunnels among them.
const SOCKETS: [&str; 2] = ["/proc/net/udp", "/proc/net/udp6"];

/// Checks that tunnels have ends, and that nothing else of the node has their port. Empty without tunnels.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    if config.tunnel.mode.tunnel_mode().is_none() {
        return Vec::new();
    }
    let mut hosts = config.ports.iter().filter(|port| port.kind == PortKind::Host);
    let has_end = hosts.any(|port| !port.addresses.is_empty());
    let end = Check::unless(
        !has_end,
        "tunnel",
        if has_end { "tunnels end at the addresses of the host port" } else { "tunnels have no end here" },
        "a port of kind \"host\" with the addresses of the node",
    );
    let text: String = SOCKETS.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    vec![end, port_check(config.tunnel.port, &text)]
}

/// Looks for a UDP port in the contents of `/proc/net/udp`.
fn port_check(port: u16, sockets: &str) -> Check {
    let wanted = format!(":{port:04X}");
    let has_port = |line: &str| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&wanted));
    let is_taken = sockets.lines().any(has_port);
    let what = if is_taken {
        format!(
            "UDP port {port} is that of another tunnel or program of the node, which gets nothing by the uplinks"
        )
    } else {
        format!("UDP port {port} is free")
    };
    Check::unless(
        is_taken,
        "tunnel",
        what,
        "another tunnel.port on all nodes, or end the other (`ip -d link show type vxlan`)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::check::State;

    #[test]
    fn a_port_that_another_tunnel_has_is_a_finding() {
        let sockets =
            "  sl  local_address rem_address   st\n  7: 00000000:12B5 00000000:0000 07 00000000:00000000\n";
        assert_eq!(port_check(4789, sockets).state, State::Finding);
        assert_eq!(port_check(4790, sockets).state, State::Ok);
    }

    #[test]
    fn tunnels_without_an_address_of_the_node_are_a_finding() {
        let states = |text: &str| -> Vec<State> {
            checks(&toml::from_str(text).unwrap()).iter().map(|check| check.state).collect()
        };
        assert_eq!(states(""), []);
        assert_eq!(states("[tunnel]\nmode = \"auto\"\nport = 1\n"), [State::Finding, State::Ok]);
        let port = "[[ports]]\nname = \"node\"\nkind = \"host\"\naddresses = [\"192.0.2.1\"]\n";
        assert_eq!(states(&format!("{port}[tunnel]\nmode = \"vxlan\"\nport = 1\n")), [State::Ok; 2]);
    }
}
