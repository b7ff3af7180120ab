//! Command `palisade diff`: lists the connections that a change of policy opens and closes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::manifests::{ExcludeArguments, Manifests, compile_with_names, evaluator, running};
use super::{CliError, Output, SocketArguments, output};
use crate::control::Client;
use crate::policy::connectivity::GroupNames;
use crate::policy::connectivity::diff::{Change, ChangeKind, ConnectivityDiff, difference};
use crate::tables::RuleTables;

/// Show exactly which connections a change of policy opens and closes
///
/// Compares the effect of policies and not their text: a policy that is rewritten with the same meaning makes
/// no difference. The result is complete, because it covers all addresses and ports and not samples. With
/// --running, the side before the change is that of the running switch.
#[derive(Debug, Args)]
#[command(
    override_usage = "palisade diff [OPTIONS] <OLD> <NEW>\n       palisade diff [OPTIONS] --running <NEW>"
)]
#[command(after_help = "\
Examples:
  palisade diff --running policies/                          what a change of the running switch's policies would do
  palisade diff policies/ policies-next/ --with pods.yaml    pods and namespaces are the same on both sides
  palisade diff main.yaml branch.yaml --assert-no-opening    fail only if the change allows something new

Exit codes: 0 no difference, 1 there is one (with --assert-no-opening: something opens), 2 usage error or failure.")]
pub(super) struct DiffArguments {
    /// Files or directories of manifests before and after the change; with --running only the latter, or compiled tables
    #[arg(value_name = "OLD> <NEW", required = true, num_args = 1..=2)]
    sides: Vec<PathBuf>,
    /// Compare with the tables of the running switch
    #[arg(long)]
    running: bool,
    /// Only pods of this node (spec.nodeName) get tables, as the running switch's
    #[arg(long, value_name = "NAME", requires = "running")]
    node: Option<String>,
    /// Manifests that are the same before and after: pods, namespaces, nodes
    #[arg(long, value_name = "FILE|DIR")]
    with: Vec<PathBuf>,
    /// Ignore closed connections: exit 1 only if something opens
    #[arg(long)]
    assert_no_opening: bool,
    /// Form of the difference
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
    #[command(flatten)]
    exclude: ExcludeArguments,
}

pub(super) fn diff(arguments: &DiffArguments) -> Result<ExitCode, CliError> {
    let difference = match (arguments.sides.as_slice(), arguments.running) {
        ([old, new], false) => of_manifests(old, new, arguments)?,
        ([new], true) => {
            let paths = [arguments.with.as_slice(), std::slice::from_ref(new)].concat();
            let (tables, names) =
                compile_with_names(&paths, &arguments.exclude.options(arguments.node.as_ref()))?;
            from_running(&arguments.socket.client(), tables, names)?
        }
        (_, true) => {
            return Err(CliError::Message(
                "with --running, give the manifests after the change alone".to_owned(),
            ));
        }
        (_, false) => {
            return Err(CliError::Message(
                "give the manifests before and after the change, or --running for the running switch"
                    .to_owned(),
            ));
        }
    };
    print(&difference, arguments.output)?;
    let no = if arguments.assert_no_opening { difference.opens() } else { !difference.is_empty() };
    Ok(if no { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn of_manifests(
    old: &PathBuf,
    new: &PathBuf,
    arguments: &DiffArguments,
) -> Result<ConnectivityDiff, CliError> {
    let side = |path: &PathBuf| {
        Manifests::read(&[arguments.with.as_slice(), std::slice::from_ref(path)].concat(), &arguments.exclude)
    };
    let (mut old, mut new) = (side(old)?, side(new)?);
    Manifests::assign_placeholders(&mut [&mut old, &mut new]);
    // Labels of the new side win in the name of a pod whose labels change.
    let names = GroupNames::of(old.objects.iter().chain(&new.objects));
    Ok(difference(&old.evaluator()?, &new.evaluator()?, &names))
}

/// Computes the difference from the tables of the running switch to others.
pub(super) fn from_running(
    client: &Client,
    tables: RuleTables,
    names: GroupNames,
) -> Result<ConnectivityDiff, CliError> {
    let running = running(client)?;
    // The comparison of connections takes longer.
    if running.tables().canonical() == tables.canonical() {
        return Ok(ConnectivityDiff { changes: Vec::new() });
    }
    let names = names.with_pods(running.tables().pods.keys());
    Ok(difference(&running, &evaluator(tables)?, &names))
}

fn print(difference: &ConnectivityDiff, output: Output) -> Result<(), CliError> {
    match output {
        Output::Json => output::json(difference)?,
        Output::Table | Output::Wide => output::text(&text(difference))?,
    }
    Ok(())
}

/// Lines on a difference.
pub(super) fn text(difference: &ConnectivityDiff) -> String {
    if difference.is_empty() {
        return "No connection opens or closes.\n".to_owned();
    }
    difference.changes.iter().map(line).collect()
}

fn line(change: &Change) -> String {
    let turn = match change.kind {
        ChangeKind::Opens => "+ opens ",
        ChangeKind::Closes => "- closes",
    };
    let family = change.family.map(|family| format!(" ({family})")).unwrap_or_default();
    format!("{turn} {}{family}\n    from {}\n    to   {}\n", change.traffic, change.from, change.to)
}
