//! Command `palisade compile`: compiles manifests into rule tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::manifests::ExcludeArguments;
use super::{CliError, manifests, output};
use crate::source::load::Compiled;

/// Compile manifests into rule tables, as JSON
///
/// Reads Kubernetes objects (NetworkPolicy, Pod, Namespace) from YAML or JSON files and writes the rule
/// tables that `palisade apply` loads into a switch. Needs no running switch and no privilege, so it also
/// serves to validate manifests. Policies in audit mode are not in the tables.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade compile policies/                         all manifests of a directory
  palisade compile pods.yaml policy.yaml -o t.json   two files; tables into t.json
  kubectl get networkpolicy,pod,namespace -A -o yaml | palisade compile -")]
pub(super) struct CompileArguments {
    /// Files or directories of manifests; - is standard input
    #[arg(required = true, value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// Only pods of this node (spec.nodeName) get tables; all pods by default
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Write to this file rather than to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    exclude: ExcludeArguments,
}

pub(super) fn compile(arguments: &CompileArguments) -> Result<ExitCode, CliError> {
    let (compiled, objects) = manifests::compile_with_objects(
        &arguments.manifests,
        &arguments.exclude.options(arguments.node.as_ref()),
    )?;
    manifests::check_services(&compiled)?;
    manifests::note_pods_without_address(&objects);
    let Compiled { tables, .. } = compiled;
    match &arguments.output {
        None => output::json(&tables)?,
        Some(path) => {
            let mut json = serde_json::to_vec_pretty(&tables)
                .map_err(|error| CliError::Message(format!("the tables cannot be written: {error}")))?;
            json.push(b'\n');
            write_whole(path, &json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    fs::write(path, bytes)
        .map_err(|error| CliError::Message(format!("{} cannot be written: {error}", path.display())))
}
