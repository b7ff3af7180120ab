//! Changed keys of a configuration that a running switch does not take.

use super::Config;

/// Compares these keys of two configurations, and lists the names of those that differ.
macro_rules! changed_keys {
    ($before:ident, $after:ident: $($section:ident $(. $key:ident)*,)+) => {
        [$((concat!(stringify!($section) $(, ".", stringify!($key))*), $before.$section$(.$key)* != $after.$section$(.$key)*),)+]
    };
}

impl Config {
    /// Names of the keys in which `next` differs, and that a start reads only: all but those of ports and routes.
    pub fn restart_keys(&self, next: &Config) -> Vec<&'static str> {
        let keys = changed_keys!(self, next:
            backend,
            on_stop,
            pod_prefixes,
            workers.cores,
            workers.polling,
            workers.spin_us,
            workers.prefer_busy_poll,
            workers.scheduling,
            workers.frames,
            workers.huge_pages,
            xdp.pin_directory,
            control.socket,
            control.mode,
            control.group,
            control.read_only_socket,
            control.read_only_mode,
            control.read_only_group,
            http.listen,
            http.token_file,
            ipfix.collector,
            ipfix.observation_domain,
            ipfix.active_timeout_s,
            ipfix.template_interval_s,
            log.format,
            log.denied_interval_s,
            cni.directory,
            hardening.landlock,
            hardening.readable,
            gateway.mac,
            gateway.addresses,
            masquerade.addresses,
            masquerade.ports,
            masquerade.except,
            services.replace_kube_proxy,
            services.cgroup,
            tunnel.mode,
            tunnel.port,
            tunnel.vni,
            offload.mode,
            offload.lease_s,
            conntrack.flows,
            conntrack.pod_quota_percent,
            conntrack.tcp_pickup,
            conntrack.tcp_reset_unknown,
            conntrack.directory,
            conntrack.timeouts,
            policy.source,
            policy.kubeconfig,
            policy.directory,
            policy.node,
            policy.fail,
            policy.denied,
            policy.watch,
        );
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("palisade.toml")).unwrap()
    }

    #[test]
    fn every_changed_key_but_ports_and_routes_is_named() {
        let section = |name: &str, pairs: &[&str]| format!("[{name}]\n{}\n", pairs.join("\n"));
        let sections = [
            (
                "workers",
                &[
                    "cores = [0]",
                    "polling = \"busy\"",
                    "spin_us = 1",
                    "prefer_busy_poll = true",
                    "scheduling = \"real-time\"",
                    "frames = 4096",
                    "huge_pages = false",
                ][..],
            ),
            ("xdp", &["pin_directory = \"/x\""]),
            (
                "control",
                &[
                    "socket = \"/x\"",
                    "mode = \"0600\"",
                    "group = \"a\"",
                    "read_only_socket = \"/y\"",
                    "read_only_mode = \"0600\"",
                    "read_only_group = \"b\"",
                ],
            ),
            ("http", &["listen = \"127.0.0.1:1\"", "token_file = \"/x\""]),
            (
                "ipfix",
                &[
                    "collector = \"127.0.0.1:1\"",
                    "observation_domain = 2",
                    "active_timeout_s = 1",
                    "template_interval_s = 1",
                ],
            ),
            ("log", &["format = \"json\"", "denied_interval_s = 1"]),
            ("cni", &["directory = \"/x\""]),
            ("hardening", &["landlock = false", "readable = [\"/x\"]"]),
            ("gateway", &["mac = \"02:00:00:00:00:01\"", "addresses = [\"10.0.0.1\"]"]),
            (
                "masquerade",
                &["addresses = [\"192.0.2.1\"]", "ports = \"1024-2047\"", "except = [\"10.0.0.0/8\"]"],
            ),
            ("services", &["replace_kube_proxy = true", "cgroup = \"/x\""]),
            ("tunnel", &["mode = \"auto\"", "port = 8472", "vni = 2"]),
            ("offload", &["mode = \"kernel\"", "lease_s = 3"]),
            (
                "conntrack",
                &[
                    "flows = 1024",
                    "pod_quota_percent = 1",
                    "tcp_pickup = true",
                    "tcp_reset_unknown = true",
                    "directory = \"/x\"",
                ],
            ),
            (
                "policy",
                &[
                    "source = \"kubernetes\"",
                    "kubeconfig = \"/x\"",
                    "directory = \"/x\"",
                    "node = \"n\"",
                    "fail = \"open\"",
                    "denied = \"reject\"",
                    "watch = false",
                ],
            ),
        ];
        let mut expected = ["backend", "on_stop", "pod_prefixes"].map(str::to_owned).to_vec();
        let mut text =
            "backend = \"nftables\"\non_stop = \"detach\"\npod_prefixes = [\"10.0.0.0/24\"]\n".to_owned();
        for (name, pairs) in sections {
            text += &section(name, pairs);
            expected.extend(pairs.iter().map(|pair| format!("{name}.{}", pair.split(' ').next().unwrap())));
        }
        text += &section("conntrack.timeouts", &["other_s = 1"]);
        expected.push("conntrack.timeouts".to_owned());
        text +=
            "[[ports]]\nname = \"a\"\nkind = \"uplink\"\n[[routes]]\nprefix = \"10.0.0.0/8\"\nport = \"a\"\n";
        let mut named: Vec<_> =
            Config::default().restart_keys(&config(&text)).into_iter().map(str::to_owned).collect();
        named.sort();
        expected.sort();
        assert_eq!(named, expected);
        // The table above has every key of the documented configuration.
        let documented = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.toml"));
        let documented: toml::Table = documented.parse().unwrap();
        for (section, value) in &documented {
            let keys: Vec<String> = match value {
                toml::Value::Table(table) => table.keys().map(|key| format!("{section}.{key}")).collect(),
                _ => vec![section.clone()],
            };
            assert!(keys.iter().all(|key| named.contains(key)), "{keys:?}");
        }
        assert_eq!(Config::default().restart_keys(&Config::default()), [""; 0]);
    }
}
