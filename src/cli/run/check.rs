//! Option `--check` of `palisade run`: the errors and warnings of a start, without one.

use std::fmt::Write;
use std::process::ExitCode;

use crate::cli::{CliError, output};
use crate::config::{Config, Fail, Policy, PollingMode, SchedulingPolicy, SourceKind};
use crate::daemon;
use crate::dataplane::{Backend, FlowMemory, Settings};
use crate::source::{PolicyDirectory, Ready};

/// Reports everything that a start would reject, or else prints what it would run.
pub(super) fn check(config: &Config) -> Result<ExitCode, CliError> {
    let policies = PolicyDirectory::of(&Policy { watch: false, ..config.policy.clone() });
    let loaded = policies.map(|mut policies| policies.load()).transpose();
    let mut errors = Vec::new();
    let ready = loaded.unwrap_or_else(|rejected| {
        errors.push(CliError::from(rejected));
        None
    });
    for warning in ready.iter().flat_map(|ready| &ready.warnings) {
        tracing::warn!("{warning}");
    }
    match daemon::check(config, ready.as_ref().map(|ready| ready.tables.clone())) {
        Ok(rejected) => errors.extend(rejected.into_iter().map(CliError::from)),
        Err(error) => errors.push(error.into()),
    }
    if errors.is_empty() {
        let settings = config.dataplane_settings().map_err(CliError::Message)?;
        output::text(&describe(config, &settings, ready.as_ref()))?;
        return Ok(ExitCode::SUCCESS);
    }
    errors.iter().for_each(|error| _ = error.report());
    Err(CliError::Reported)
}

/// Describes the switch that a start would run.
fn describe(config: &Config, settings: &Settings, ready: Option<&Ready>) -> String {
    let workers = &config.workers;
    let polling = match workers.polling {
        PollingMode::Adaptive => "adaptive",
        PollingMode::Busy => "busy",
    };
    let scheduling = match workers.scheduling {
        SchedulingPolicy::Fair => "",
        SchedulingPolicy::RealTime => ", real-time",
    };
    let mut text = match config.backend {
        Backend::AfXdp => format!(
            "workers:  {} on cores {:?}, {polling}{scheduling}, {} frames each\n",
            settings.cores.len(),
            settings.cores,
            workers.frames
        ),
        Backend::Nftables => "backend:  nftables: the kernel forwards\n".to_owned(),
    };
    let control = &config.control;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "control:  {}, mode {:04o}", control.socket.display(), control.mode);
    let place = match &settings.conntrack.memory {
        FlowMemory::Process => "in the process's memory".to_owned(),
        FlowMemory::Directory { path, .. } => format!("in {}", path.display()),
    };
    if config.backend == Backend::AfXdp {
        let _ = writeln!(text, "flows:    {}, {place}", config.conntrack.flows);
    }
    let policy = match (&config.policy.directory, ready) {
        (Some(path), Some(Ready { tables, .. })) => {
            let (pods, rules) = (tables.pods.len(), tables.rules.len());
            format!("directory {}: {pods} pods, {rules} rules", path.display())
        }
        _ if config.policy.source == SourceKind::Kubernetes => "from the Kubernetes API".to_owned(),
        _ => "none until `palisade apply`".to_owned(),
    };
    let fail = match config.policy.fail {
        Fail::Closed => "closed",
        Fail::Open => "open",
    };
    let _ = writeln!(text, "policy:   {policy}; fail {fail}");
    let _ = writeln!(text, "routes:   {}", config.routes.len());
    let _ = writeln!(text, "ports:    {}", config.ports.len());
    if !config.ports.is_empty() {
        text.push_str(&ports(config));
    }
    text
}

fn ports(config: &Config) -> String {
    let mut table = output::table(["port", "kind", "interface", "namespace", "pod", "addresses"]);
    for port in &config.ports {
        table.add_row([
            port.name.clone(),
            format!("{:?}", port.kind).to_lowercase(),
            port.interface.clone().unwrap_or_else(|| port.name.clone()),
            output::or_dash(port.namespace.as_ref()),
            output::or_dash(port.pod.as_ref()),
            output::list(port.addresses.iter().chain(&port.pod_addresses)),
        ]);
    }
    output::render(&table, "")
}
