//! Commands for packages: `palisade completions` and `palisade man`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};

use super::{CliError, output};
use crate::cni;

/// Print the completion script of a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade completions bash > /usr/share/bash-completion/completions/palisade
  palisade completions zsh > /usr/share/zsh/vendor-completions/_palisade
  palisade completions fish > /usr/share/fish/vendor_completions.d/palisade.fish
  source <(palisade completions bash)            for this shell only")]
pub(super) struct CompletionsArguments {
    /// Shell that reads the script
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Write the man pages of all commands to a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade man /usr/local/share/man/man1         then: man palisade-show
  palisade man /tmp/man && man /tmp/man/palisade-run.1")]
pub(super) struct ManArguments {
    /// Directory of the pages, which is created if it is missing
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Prints the script for the command line `command`.
pub(super) fn completions(
    arguments: &CompletionsArguments,
    mut command: Command,
) -> Result<ExitCode, CliError> {
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "palisade", &mut script);
    output::document(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `palisade.1`, a page for each command below it, and those of the CNI plugin.
pub(super) fn man(arguments: &ManArguments, command: Command) -> Result<ExitCode, CliError> {
    let directory = &arguments.directory;
    let generate = || {
        fs::create_dir_all(directory)?;
        clap_mangen::generate_to(command, directory)?;
        clap_mangen::generate_to(cni::command_line(), directory)
    };
    generate().map_err(|error| {
        CliError::Message(format!("man pages cannot be written to {}: {error}", directory.display()))
    })?;
    Ok(ExitCode::SUCCESS)
}
