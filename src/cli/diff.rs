//! Command `palisade diff`: lists the connections that a change of policy opens and closes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::manifests::Manifests;
use super::{CliError, Output, output};
use crate::policy::connectivity::GroupNames;
use crate::policy::connectivity::diff::{Change, ChangeKind, ConnectivityDiff, difference};

/// Show exactly which connections a change of policy opens and closes
///
/// Compares the effect of policies and not their text: a policy that is rewritten with the same meaning makes
/// no difference. The result is complete, because it covers all addresses and ports and not samples.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade diff policies/ policies-next/ --with pods.yaml    pods and namespaces are the same on both sides
  palisade diff main.yaml branch.yaml --assert-no-opening    fail only if the change allows something new

Exit codes: 0 no difference, 1 there is one (with --assert-no-opening: something opens), 2 usage error or failure.")]
pub(super) struct DiffArguments {
    /// File or directory of manifests before the change
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// File or directory of manifests after the change
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Manifests that are the same before and after: pods, namespaces, nodes
    #[arg(long, value_name = "FILE|DIR")]
    with: Vec<PathBuf>,
    /// Ignore closed connections: exit 1 only if something opens
    #[arg(long)]
    assert_no_opening: bool,
    /// Form of the difference
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn diff(arguments: &DiffArguments) -> Result<ExitCode, CliError> {
    let side =
        |path: &PathBuf| Manifests::read(&[arguments.with.as_slice(), std::slice::from_ref(path)].concat());
    let (mut old, mut new) = (side(&arguments.old)?, side(&arguments.new)?);
    Manifests::assign_placeholders(&mut [&mut old, &mut new]);
    // Labels of the new side win in the name of a pod whose labels change.
    let names = GroupNames::of(old.objects.iter().chain(&new.objects));
    let difference = difference(&old.evaluator()?, &new.evaluator()?, &names);
    match arguments.output {
        Output::Json => output::json(&difference)?,
        Output::Table => output::text(&text(&difference))?,
    }
    let no = if arguments.assert_no_opening { difference.opens() } else { !difference.is_empty() };
    Ok(if no { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn text(difference: &ConnectivityDiff) -> String {
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
