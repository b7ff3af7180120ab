//! Reader of the configuration file. Its errors name file, line and key.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::keys::explain;
use super::{Config, PortConfig};
use crate::control::{ApiError, validate_pod, validate_port, validate_route};
use crate::limits::POD_PREFIXES_MAX;
use crate::nearest::{hint, nearest};

/// Reason for which a configuration is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {path} cannot be read: {source}", path = path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file is not TOML, or a key or value is invalid.
    #[error("{path}:{line}: {what}", path = path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Name of the key, and the mistake.
        what: String,
    },
}

impl Config {
    /// Reads and checks the file at `path`. Relative paths in it start at its directory.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let mut config = Config::parse(&text, path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        config.xdp.pin_directory = base.join(&config.xdp.pin_directory);
        config.control.socket = base.join(&config.control.socket);
        config.control.read_only_socket = config.control.read_only_socket.map(|path| base.join(path));
        config.http.token_file = config.http.token_file.map(|file| base.join(file));
        config.conntrack.directory =
            config.conntrack.directory.map(|directory| match directory.as_os_str() {
                none if none.is_empty() => directory,
                _ => base.join(directory),
            });
        config.cni.directory = config.cni.directory.map(|directory| match directory.as_os_str() {
            none if none.is_empty() => directory,
            _ => base.join(directory),
        });
        let readable = std::mem::take(&mut config.hardening.readable);
        config.hardening.readable = readable.into_iter().map(|path| base.join(path)).collect();
        config.policy.directory = config.policy.directory.map(|directory| base.join(directory));
        config.policy.kubeconfig = config.policy.kubeconfig.map(|file| base.join(file));
        Ok(config)
    }

    /// Reads and checks the text of the file `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let wrong = |line, what| ConfigError::Wrong { path: path.to_owned(), line, what };
        let config: Config = toml::de::Deserializer::parse(text)
            .map_err(|error| (None, error))
            .and_then(|deserializer| {
                serde_path_to_error::deserialize(deserializer)
                    .map_err(|error| (Some(error.path().to_string()), error.into_inner()))
            })
            .map_err(|(key, error)| {
                wrong(error.span().map_or(1, |span| line_at(text, span.start)), explain(key, error.message()))
            })?;
        config.check().map_err(|(list, index, what)| {
            wrong(line_of_entry(text, list, index), format!("{list}[{index}]{what}"))
        })?;
        Ok(config)
    }

    /// Checks relations between keys. An error is the list, the index in it, and the rest of the message.
    fn check(&self) -> Result<(), (&'static str, usize, String)> {
        if self.pod_prefixes.len() > POD_PREFIXES_MAX {
            let what = format!(": there are at most {POD_PREFIXES_MAX} prefixes of pods");
            return Err(("pod_prefixes", POD_PREFIXES_MAX, what));
        }
        for (i, port) in self.ports.iter().enumerate() {
            if self.ports[..i].iter().any(|other| other.name == port.name) {
                return Err(("ports", i, format!(".name: another port is named {:?} too", port.name)));
            }
            port.check(self).map_err(|what| ("ports", i, what))?;
        }
        for (i, route) in self.routes.iter().enumerate() {
            if !self.ports.iter().any(|port| port.name == route.port) {
                let names = self.ports.iter().map(|port| format!("{:?}", port.name));
                let hint = hint(nearest(&format!("{:?}", route.port), names).as_ref());
                return Err(("routes", i, format!(".port: there is no port named {:?}{hint}", route.port)));
            }
            match validate_route(route) {
                Err(ApiError::Field { field, reason }) => {
                    return Err(("routes", i, format!(".{field}: {reason}")));
                }
                Err(other) => return Err(("routes", i, format!(": {other}"))),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

impl PortConfig {
    fn check(&self, config: &Config) -> Result<(), String> {
        let key = |field| match field {
            "addresses" => "pod_addresses",
            "mac" => "pod_mac",
            "bandwidth" => "pod_bandwidth",
            "port_mappings" => "pod_port_mappings",
            other => other,
        };
        let say = |field: &str, reason: &dyn std::fmt::Display| format!(".{field}: {reason}");
        match validate_port(&self.name, &self.port_request()) {
            Err(ApiError::Field { field, reason }) => return Err(say(field, &reason)),
            Err(other) => return Err(format!(": {other}")),
            Ok(_) => {}
        }
        match self.pod_request() {
            Some((pod, request)) => match validate_pod(&pod, &request, config.gateway.mac) {
                Err(ApiError::Field { field, reason }) => Err(say(key(field), &reason)),
                Err(other) => Err(format!(": {other}")),
                Ok(()) => Ok(()),
            },
            None if !self.pod_addresses.is_empty()
                || self.pod_mac.is_some()
                || !self.pod_bandwidth.is_unlimited()
                || !self.pod_port_mappings.is_empty() =>
            {
                Err(": has keys of a pod (pod_addresses, pod_mac and others), and no pod: add pod = \"NAMESPACE/NAME\""
                    .to_owned())
            }
            None => Ok(()),
        }
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

/// Finds the line at which entry `index` of `[[list]]` starts.
fn line_of_entry(text: &str, list: &str, index: usize) -> usize {
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default)]
        pod_prefixes: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        ports: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        routes: Vec<Spanned<IgnoredAny>>,
    }
    let entries = toml::from_str::<Entries>(text).ok();
    let entries = entries.map(|all| match list {
        "ports" => all.ports,
        "routes" => all.routes,
        _ => all.pod_prefixes,
    });
    entries.and_then(|entries| Some(line_at(text, entries.get(index)?.span().start))).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::keys::unknown_field;
    use super::*;
    use crate::dataplane::{ConntrackSettings, FlowMemory};

    const DOCUMENTED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.toml"));

    fn error(text: &str) -> String {
        Config::parse(text, Path::new("palisade.toml")).unwrap_err().to_string()
    }

    /// Uncomments the examples in the documented file.
    fn with_examples() -> String {
        let uncommented = |line: &str| match line.strip_prefix('#') {
            Some(example) if example.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
                example.to_owned()
            }
            _ => line.to_owned(),
        };
        DOCUMENTED.lines().map(|line| uncommented(line) + "\n").collect()
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        assert_eq!(Config::parse(DOCUMENTED, Path::new("palisade.toml")).unwrap(), Config::default());
    }

    #[test]
    fn the_documented_examples_are_accepted() {
        let config = Config::parse(&with_examples(), Path::new("palisade.toml")).unwrap();
        assert_eq!(config.ports.len(), 4);
        assert_eq!(config.ports[0].pod_request().unwrap().1.addresses.len(), 2);
        assert_eq!(config.routes[0].port, "uplink");
        assert!(config.policy.directory.is_some());
    }

    #[test]
    fn every_key_is_documented() {
        let examples = with_examples();
        let mut documented = BTreeSet::new();
        for line in examples.lines().filter(|line| !line.starts_with('#')) {
            let key = line.split('=').next().unwrap_or_default();
            documented.extend(key.trim_matches(|c: char| "[] ".contains(c)).split('.').map(str::to_owned));
        }
        let sections = [
            "workers",
            "control",
            "http",
            "ipfix",
            "log",
            "hardening",
            "gateway",
            "conntrack",
            "conntrack.timeouts",
            "policy",
        ];
        let probes = sections.iter().map(|section| format!("[{section}]\nxyzzy = 1"));
        let lists = ["ports", "routes"].iter().map(|list| format!("[[{list}]]\nxyzzy = 1"));
        for probe in probes.chain(lists).chain(["xyzzy = 1".to_owned()]) {
            let error = toml::from_str::<Config>(&probe).unwrap_err();
            let (_, known) = unknown_field(error.message()).unwrap();
            assert!(known.len() > 1, "{probe}: {error}");
            for key in known {
                assert!(documented.contains(key), "config/palisade.toml lacks {key}");
            }
        }
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_line_and_the_nearest_one() {
        let said = error("[workers]\n\nspin_uss = 3\n");
        assert!(
            said.starts_with("palisade.toml:3: unknown key \"spin_uss\", the nearest is \"spin_us\";"),
            "{said}"
        );
        let said = error("\nworker = 1\n");
        assert!(
            said.starts_with("palisade.toml:2: unknown key \"worker\", the nearest is \"workers\";"),
            "{said}"
        );
        let said = error("[[ports]]\nname = \"a\"\nkind = \"pod\"\nadresses = []\n");
        assert!(
            said.contains(":4: unknown key \"adresses\", the nearest is \"addresses\"; the keys of ports[0]")
        );
    }

    #[test]
    fn an_invalid_value_is_reported_with_line_key_and_the_allowed_values() {
        for (text, expected) in [
            (
                "[workers]\nspin_us = \"x\"",
                ":2: workers.spin_us: invalid type: string \"x\", expected a whole number from 0 to 1000000",
            ),
            (
                "[conntrack]\n\npod_quota_percent = 101",
                ":3: conntrack.pod_quota_percent: invalid value: integer `101`, expected a whole number from 1 to 100",
            ),
            (
                "[conntrack.timeouts]\nother_s = 0",
                ":2: conntrack.timeouts.other_s: invalid value: integer `0`, expected a whole number from 1 to 864000",
            ),
            (
                "[workers]\ncores = \"all\"",
                "workers.cores: invalid value: string \"all\", expected \"auto\" or",
            ),
            ("[workers]\ncores = []", "workers.cores: the list has 0 cores"),
            ("on_stop = \"open\"", ":1: on_stop: unknown variant `open`, expected `closed` or `detach`"),
            ("[policy]\nfail = true", ":2: policy.fail: "),
            (
                "[control]\nmode = \"0999\"",
                "control.mode: invalid value: string \"0999\", expected octal permissions",
            ),
            ("[gateway]\nmac = \"02:00\"", ":2: gateway.mac: \"02:00\" is not an Ethernet address"),
            (
                "\n[control]\nread_only_socket = \"/run/palisade/control.sock\"",
                ":2: control: read_only_socket: is the control socket too",
            ),
            (
                "[control]\nread_only_group = \"x\"",
                ":1: control: read_only_group: there is no read_only_socket",
            ),
            (
                "[http]\nlisten = \"9640\"",
                ":2: http.listen: invalid value: string \"9640\", expected an IP address",
            ),
            (
                "\n[http]\nlisten = \"0.0.0.0:9640\"",
                ":2: http: listen: other machines may reach 0.0.0.0:9640, and no token_file is configured",
            ),
            ("[[routes]]\nprefix = \"10.0.0.0/33\"\nport = \"up\"", ":2: routes[0].prefix: "),
            ("[ipfix]\ncollector = \"[::1]:0\"", ":1: ipfix: collector: has port 0"),
            ("a = = b", ":1: "),
        ] {
            let said = error(text);
            assert!(said.contains(expected), "{text:?} gives {said:?}, not {expected:?}");
        }
    }

    #[test]
    fn a_contradiction_is_reported_with_the_line_of_its_entry() {
        let port = "[[ports]]\nname = \"a\"\nkind = \"pod\"\n";
        let route = "[[routes]]\nprefix = \"10.0.0.0/8\"\n";
        for (text, expected) in [
            (format!("{port}{port}"), ":4: ports[1].name: another port is named \"a\" too".to_owned()),
            (
                format!("{port}pod = \"x/y\""),
                ":1: ports[0].pod_addresses: a pod has 1 to 8 addresses".to_owned(),
            ),
            (format!("{port}pod_addresses = [\"10.0.0.1\"]"), ":1: ports[0]: has keys of a pod".to_owned()),
            (
                format!("{port}addresses = [\"10.0.0.1\"]"),
                ":1: ports[0].addresses: only a host port".to_owned(),
            ),
            (
                format!("\npod_prefixes = [{}]", vec!["\"10.0.0.0/24\""; 65].join(",")),
                ":2: pod_prefixes[64]: there are at most 64".to_owned(),
            ),
            (format!("{port}vlan = 4095"), ":1: ports[0].vlan: is 4095".to_owned()),
            (
                format!("{port}{route}port = \"b\""),
                ":4: routes[0].port: there is no port named \"b\", the nearest is \"a\"".to_owned(),
            ),
            (format!("{port}{route}port = \"a\"\nnext_hop = \"::1\""), ":4: routes[0].next_hop: ".to_owned()),
        ] {
            let said = error(&text);
            assert!(said.contains(&expected), "{text:?} gives {said:?}, not {expected:?}");
        }
    }

    #[test]
    fn settings_follow_the_file() {
        let text = "on_stop = \"detach\"\npod_prefixes = [\"10.244.1.7/24\"]\n[workers]\ncores = [0]\npolling = \"busy\"\n[policy]\nfail = \"open\"\n\
                    [conntrack.timeouts]\nother_s = 7";
        let config = Config::parse(text, Path::new("palisade.toml")).unwrap();
        let settings = config.dataplane_settings().unwrap();
        assert_eq!(settings.polling, crate::dataplane::Polling::Busy);
        assert_eq!(settings.conntrack.timeouts.other, std::time::Duration::from_secs(7));
        let switch = config.switch_settings(settings.cores);
        assert!(switch.fail_open && switch.detach);
        assert_eq!(switch.pod_prefixes, ["10.244.1.0/24".parse().unwrap()]);
        let memory = FlowMemory::beside(Path::new("/run/palisade/control.sock"));
        let conntrack = Config::default().dataplane_settings().unwrap().conntrack;
        assert_eq!(conntrack, ConntrackSettings { memory, ..ConntrackSettings::default() });
    }
}
