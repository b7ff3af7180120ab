//! Environment of a run: the machine, its kernel and the versions of all systems.

use std::fs;

use serde_json::{Map, Value, json};

use crate::common::json_lines::fields;
use crate::process::version;
use crate::system::System;

/// Returns the environment as fields of one line.
pub(crate) fn of(systems: &[Box<dyn System>], busy_threads: usize) -> Map<String, Value> {
    let versions: Map<String, Value> = systems
        .iter()
        .map(|system| (system.name().to_owned(), system.versions().join(", ").into()))
        .collect();
    fields(json!({
        "cpu": first_of("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first_of("/proc/meminfo", "MemTotal"),
        "kernel": version("uname", &["-sr"]),
        "os": first_of("/etc/os-release", "PRETTY_NAME"),
        "virtual": fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("hypervisor")),
        "busy_threads": busy_threads,
        "versions": versions.iter().map(|(name, version)| format!("{name}: {}", version.as_str().unwrap_or("")))
            .collect::<Vec<_>>().join("; "),
    }))
}

/// Reads a field of a file with `field: value` or `field=value` lines.
fn first_of(file: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let value = line.split_once([':', '='])?.1;
    Some(value.trim().trim_matches('"').to_owned())
}
