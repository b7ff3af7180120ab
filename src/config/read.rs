//! From text to [`Config`], with errors that name file, line and key.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::{Config, PortConfig};
use crate::control::{Refusal, check_pod, port_spec};

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {path} cannot be read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not TOML, or a key or value is wrong.
    #[error("{path}:{line}: {what}", path = path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, and what is wrong with it.
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
        config.control.socket = base.join(&config.control.socket);
        config.policy.directory = config.policy.directory.map(|directory| base.join(directory));
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

    /// What the types do not say. An error is the list, the index in it, and the rest of the sentence.
    fn check(&self) -> Result<(), (&'static str, usize, String)> {
        for (i, port) in self.ports.iter().enumerate() {
            if self.ports[..i].iter().any(|other| other.name == port.name) {
                return Err(("ports", i, format!(".name: another port is named {:?} too", port.name)));
            }
            port.check(self).map_err(|what| ("ports", i, what))?;
        }
        for (i, route) in self.routes.iter().enumerate() {
            if !self.ports.iter().any(|port| port.name == route.port) {
                let names: Vec<&str> = self.ports.iter().map(|port| port.name.as_str()).collect();
                let hint = nearest(&route.port, &names);
                return Err(("routes", i, format!(".port: there is no port named {:?}{hint}", route.port)));
            }
            if route.next_hop.is_some_and(|hop| hop.is_ipv4() != route.prefix.addr().is_ipv4()) {
                return Err(("routes", i, ".next_hop: is not of the prefix's address family".to_owned()));
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
            other => other,
        };
        let say = |field: &str, reason: &dyn std::fmt::Display| format!(".{field}: {reason}");
        match port_spec(&self.name, &self.port_request()) {
            Err(Refusal::Field { field, reason }) => return Err(say(field, &reason)),
            Err(other) => return Err(format!(": {other}")),
            Ok(_) => {}
        }
        match self.pod_request() {
            Some((pod, request)) => match check_pod(&pod, &request, config.gateway.mac) {
                Err(Refusal::Field { field, reason }) => Err(say(key(field), &reason)),
                Err(other) => Err(format!(": {other}")),
                Ok(()) => Ok(()),
            },
            None if !self.pod_addresses.is_empty() || self.pod_mac.is_some() => {
                Err(": has pod_addresses or pod_mac, and no pod: add pod = \"NAMESPACE/NAME\"".to_owned())
            }
            None => Ok(()),
        }
    }
}

/// The key and what is wrong with it; for an unknown key also the nearest one that there is.
fn explain(key: Option<String>, message: &str) -> String {
    let message = message.trim_end().replace('\n', ", ");
    let key = key.filter(|key| key != ".");
    let Some((unknown, known)) = unknown_field(&message) else {
        return key.map_or_else(|| message.clone(), |key| format!("{key}: {message}"));
    };
    let section = key.as_deref().map_or("", |key| key.trim_end_matches(unknown).trim_end_matches('.'));
    let place = if section.is_empty() { "here".to_owned() } else { format!("in [{section}]") };
    let hint = nearest(unknown, &known);
    format!("unknown key {unknown:?}{hint}; the keys {place} are {}", known.join(", "))
}

/// The names in serde's message for `deny_unknown_fields`: the unknown one, and those that there are.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

fn nearest(name: &str, known: &[&str]) -> String {
    let distance = |candidate: &&&str| strsim::damerau_levenshtein(name, candidate);
    known
        .iter()
        .min_by_key(distance)
        .map_or(String::new(), |candidate| format!(", the nearest is {candidate:?}"))
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

/// The line at which entry `index` of `[[list]]` starts.
fn line_of_entry(text: &str, list: &str, index: usize) -> usize {
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default)]
        ports: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        routes: Vec<Spanned<IgnoredAny>>,
    }
    let entries = toml::from_str::<Entries>(text).ok();
    let entries = entries.map(|all| if list == "ports" { all.ports } else { all.routes });
    entries.and_then(|entries| Some(line_at(text, entries.get(index)?.span().start))).unwrap_or(1)
}
