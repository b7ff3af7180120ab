//! Command `palisade config`: prints the documented default configuration.

use std::process::ExitCode;

use clap::Args;

use super::{CliError, output};

/// The file that documents every key with its default.
const DOCUMENTED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.toml"));

/// Print the default configuration, with every key documented
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade config > palisade.toml                a file to start from
  palisade run --check --config palisade.toml    is it right after an edit?")]
pub(super) struct ConfigArguments {}

pub(super) fn config() -> Result<ExitCode, CliError> {
    output::text(DOCUMENTED)?;
    Ok(ExitCode::SUCCESS)
}
