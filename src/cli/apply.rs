//! Command `palisade apply`: loads rule tables into the running switch.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{CliError, SocketArguments, manifests, output, terminal};
use crate::control::Client;

/// Load policies into the running switch
///
/// Compiles manifests as `palisade compile` does, and replaces the switch's rule tables atomically and
/// without packet loss. Established connections that the policies still allow continue. Manifests that do not
/// compile change nothing. Tables that know none of the attached pods change nothing either, unless
/// --allow-empty is given. A switch that watches a policy directory loads that directory again when it
/// changes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade apply policies/          load the policies of a directory
  palisade apply tables.json        load what `palisade compile` wrote
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
    /// Unload the tables: traffic of pods is dropped (or passes, with fail = "open")
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

pub(super) fn apply(arguments: &ApplyArguments) -> Result<ExitCode, CliError> {
    let client = arguments.socket.client();
    let said = if arguments.delete {
        let loaded = client.delete_tables()?;
        format!("rule tables unloaded, generation {}\n", loaded.generation)
    } else {
        let tables = manifests::compile(&arguments.manifests, arguments.node.as_ref())?;
        let loaded = if arguments.allow_empty {
            client.put_tables_allow_empty(&tables)?
        } else {
            client.put_tables(&tables)?
        };
        warn_of_unknown_pods(&client)?;
        let (pods, rules) = (tables.pods.len(), tables.rules.len());
        format!("rule tables loaded: {pods} pods, {rules} rules, generation {}\n", loaded.generation)
    };
    output::text(&said)?;
    Ok(ExitCode::SUCCESS)
}

/// Warns of attached pods that the loaded tables do not know.
fn warn_of_unknown_pods(client: &Client) -> Result<(), CliError> {
    let pods = client.pods()?;
    let unknown: Vec<String> = pods.iter().filter(|pod| !pod.known).map(|pod| pod.pod.to_string()).collect();
    if let [first, ..] = unknown.as_slice() {
        let (count, all) = (unknown.len(), pods.len());
        terminal::note(&format!(
            "warning: the tables do not know {count} of {all} attached pods, such as {first}"
        ));
    }
    Ok(())
}
