//! Command `palisade apply`: loads rule tables into the running switch.

mod services;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use self::services::ServiceChanges;
use super::manifests::ExcludeArguments;
use super::{CliError, Output, SocketArguments, diff, manifests, output, terminal};
use crate::control::Client;
use crate::control::protocol::{AuditTables, PodInfo};
use crate::ids::Generation;
use crate::policy::connectivity::GroupNames;
use crate::policy::connectivity::diff::ConnectivityDiff;
use crate::source::Audited;
use crate::source::load::Compiled;
use crate::tables::ServiceTable;

/// Load policies into the running switch
///
/// Compiles manifests as `palisade compile` does, and replaces the switch's rule tables atomically and
/// without packet loss; then it replaces its Services by those of the manifests. Established connections that the
/// policies still allow continue. Manifests that do not compile change nothing. Tables that know none of the attached
/// pods change nothing either, unless --allow-empty is given. A switch that watches a policy directory loads that
/// directory again when it changes. Policies in audit mode (palisade.dev/mode: audit) are not enforced: `palisade audit
/// report` says what they would deny. With --dry-run, exit code 0 means that no connection would open or close and no
/// Service would change, and 1 that one would.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade apply policies/          load the policies of a directory
  palisade apply --dry-run policies/   show which connections that would open and close, and change nothing
  palisade apply tables.json        load what `palisade compile` wrote
  palisade apply --shadow policies/ rehearse them: nothing changes, see `palisade shadow --help`
  palisade apply --delete           unload everything: pods are closed until the next apply")]
pub(super) struct ApplyArguments {
    /// Files or directories of manifests, or one file of compiled tables; - is standard input
    #[arg(required_unless_present = "delete", conflicts_with = "delete", value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// Only pods of this node (spec.nodeName) get tables; all pods by default
    #[arg(long, value_name = "NAME", conflicts_with = "delete")]
    node: Option<String>,
    /// Load tables even if they know none of the attached pods, whose traffic is dropped then
    #[arg(long, conflicts_with = "delete")]
    allow_empty: bool,
    /// Load the policies as a candidate, which is not enforced: `palisade shadow report` says what it would change.
    /// Services stay those of the switch: flows are judged at the backends that they have
    #[arg(long, conflicts_with = "delete")]
    shadow: bool,
    /// Unload the tables: traffic of pods is dropped (or passes, with fail = "open")
    #[arg(long)]
    delete: bool,
    /// Change nothing: check that the switch would accept the tables, and show which connections open and close, and
    /// which Services change
    #[arg(long, conflicts_with = "delete")]
    dry_run: bool,
    /// Form of the difference
    #[arg(short, long, value_enum, default_value_t, requires = "dry_run")]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
    #[command(flatten)]
    exclude: ExcludeArguments,
}

pub(super) fn apply(arguments: &ApplyArguments) -> Result<ExitCode, CliError> {
    let client = arguments.socket.client();
    if arguments.dry_run {
        return dry_run(&client, arguments);
    }
    let said = if arguments.shadow {
        let Compiled { tables, services, .. } =
            manifests::compile(&arguments.manifests, &arguments.exclude.options(arguments.node.as_ref()))?;
        let report = client.put_shadow(&tables, arguments.allow_empty)?;
        if !service_changes(&client, services.as_ref())?.is_empty() {
            terminal::note(
                "note: Services are not rehearsed: `palisade apply --dry-run` shows those that would change",
            );
        }
        format!(
            "candidate loaded, not enforced: {} pods, {} rules; {} of {} flows would change their verdict (`palisade shadow \
             report`)\n",
            report.pods,
            report.rules,
            report.disagreements.iter().map(|found| found.running).sum::<u64>(),
            report.flows
        )
    } else if arguments.delete {
        let loaded = client.delete_tables()?;
        end_audit(&client)?;
        let services = put_services(&client, &ServiceTable::default())?;
        format!("rule tables unloaded, generation {}\n{services}", loaded.generation)
    } else {
        let Compiled { tables, services, audited, .. } =
            manifests::compile(&arguments.manifests, &arguments.exclude.options(arguments.node.as_ref()))?;
        let loaded = if arguments.allow_empty {
            client.put_tables_allow_empty(&tables)?
        } else {
            client.put_tables(&tables)?
        };
        warn_of_unknown_pods(&client.pods()?, |pod| pod.known);
        let (pods, rules) = (tables.pods.len(), tables.rules.len());
        let services =
            services.map(|services| put_services(&client, &services)).transpose()?.unwrap_or_default();
        let said = format!(
            "rule tables loaded: {pods} pods, {rules} rules, generation {}\n{services}",
            loaded.generation
        );
        output::text(&said)?;
        if let Some(audited) = audited {
            load_audit(&client, loaded.generation, audited)?
        } else {
            end_audit(&client)?;
            String::new()
        }
    };
    output::text(&said)?;
    Ok(ExitCode::SUCCESS)
}

/// Loads policies in audit mode beside the tables of a generation. They come after the tables in force, and their failure
/// changes nothing about these.
fn load_audit(client: &Client, base: Generation, audited: Audited) -> Result<String, CliError> {
    let policies = audited.policies().to_vec();
    let count = policies.len();
    let counted = if count == 1 { "1 policy".to_owned() } else { format!("{count} policies") };
    let failed = |reason: String| {
        CliError::Message(format!(
            "the tables are in force, but no flow is judged by {counted} in audit mode: {reason}"
        ))
    };
    let tables = audited.compile().map_err(failed)?;
    let audit = AuditTables { base, policies, tables };
    client.put_audit(&audit).map_err(|error| failed(error.to_string()))?;
    Ok(format!("audit loaded, not enforced: {counted} (`palisade audit report`)\n"))
}

/// Ends an audit: no policy is audited.
fn end_audit(client: &Client) -> Result<(), CliError> {
    match client.delete_audit() {
        // A switch of an earlier version has none.
        Err(error) if error.status() == Some(404) => Ok(()),
        done => Ok(done?),
    }
}

/// Loads Services, unless neither the switch nor the manifests have any. Returns a line about it.
fn put_services(client: &Client, services: &ServiceTable) -> Result<String, CliError> {
    let running = client.services()?;
    if services.ports.is_empty() && running.ports.is_empty() {
        return Ok(String::new());
    }
    let loaded = client.put_services(services)?;
    Ok(match services.ports.len() {
        0 => format!("Services unloaded, generation {}\n", loaded.generation),
        count => format!("Services loaded: {count} ports, generation {}\n", loaded.generation),
    })
}

/// Changes of the switch's Services, of which compiled tables say nothing.
fn service_changes(client: &Client, services: Option<&ServiceTable>) -> Result<ServiceChanges, CliError> {
    let Some(new) = services else { return Ok(ServiceChanges::default()) };
    Ok(ServiceChanges::between(&client.services()?, new))
}

/// Connections that open and close, and Services that change.
#[derive(Debug, Serialize)]
struct DryRun {
    #[serde(flatten)]
    connections: ConnectivityDiff,
    services: ServiceChanges,
}

fn dry_run(client: &Client, arguments: &ApplyArguments) -> Result<ExitCode, CliError> {
    let (compiled, objects) = manifests::compile_with_objects(
        &arguments.manifests,
        &arguments.exclude.options(arguments.node.as_ref()),
    )?;
    manifests::check_services(&compiled)?;
    let Compiled { tables, services, .. } = compiled;
    client.check_tables(&tables, arguments.allow_empty)?;
    let pods = client.pods()?;
    warn_of_unknown_pods(&pods, |pod| tables.pods.contains_key(&pod.pod));
    let connections = diff::from_running(client, tables, GroupNames::of(objects.iter()))?;
    let found = DryRun { connections, services: service_changes(client, services.as_ref())? };
    match arguments.output {
        Output::Json => output::json(&found)?,
        Output::Table | Output::Wide => {
            output::text(&format!("{}{}", diff::text(&found.connections), found.services.text()))?;
        }
    }
    let is_same = found.connections.is_empty() && found.services.is_empty();
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Warns of attached pods that the tables do not know.
fn warn_of_unknown_pods(pods: &[PodInfo], is_known: impl Fn(&PodInfo) -> bool) {
    let unknown: Vec<String> =
        pods.iter().filter(|pod| !is_known(pod)).map(|pod| pod.pod.to_string()).collect();
    if let [first, ..] = unknown.as_slice() {
        let (count, all) = (unknown.len(), pods.len());
        terminal::note(&format!(
            "warning: the tables do not know {count} of {all} attached pods, such as {first}"
        ));
    }
}
