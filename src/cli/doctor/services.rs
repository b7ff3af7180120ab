//! Checks of a switch that replaces kube-proxy.

use super::check::Check;
use crate::config::Config;
use crate::connect::cgroup_at;

/// Checks that the node's processes and clients outside can get their backends. Empty beside a kube-proxy.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    if !config.services.replace_kube_proxy {
        return Vec::new();
    }
    let cgroup = match cgroup_at(&config.services.cgroup) {
        Ok(path) => {
            Check::ok("services", format!("processes of the node get backends by {}", path.display()))
        }
        Err(error) => Check::finding(
            "services",
            format!("processes of the node get no backends: {error}"),
            format!(
                "mkdir -p {0} && mount -t cgroup2 cgroup2 {0}",
                config.services.cgroup.join("unified").display()
            ),
        ),
    };
    let outside = match config.masquerade.addresses.as_slice() {
        [] => Check::finding(
            "services",
            "clients outside reach backends of this node alone",
            "name the node's addresses on its uplinks in masquerade.addresses",
        ),
        _ => Check::ok("services", "clients outside reach backends of all nodes"),
    };
    vec![cgroup, outside]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::check::State;

    fn states(text: &str) -> Vec<State> {
        let config: Config = toml::from_str(text).unwrap();
        checks(&config).iter().map(|check| check.state).collect()
    }

    #[test]
    fn a_switch_without_cgroup2_and_addresses_serves_neither_the_node_nor_the_outside() {
        assert_eq!(states(""), []);
        let services = "[services]\nreplace_kube_proxy = true\ncgroup = \"/proc\"\n";
        assert_eq!(states(services), [State::Finding, State::Finding]);
        let masquerade = format!("{services}[masquerade]\naddresses = [\"192.0.2.1\"]\n");
        assert_eq!(states(&masquerade), [State::Finding, State::Ok]);
    }
}
