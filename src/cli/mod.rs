//! The command line: one file per command.
//!
//! Exit codes: 0 is yes, 1 is no (a test failed, a difference exists), 2 is a usage error or a failure.

// Doc comments of arguments are help texts: plain text, without Markdown.
#![allow(clippy::doc_markdown)]

mod apply;
mod compile;
mod demo;
mod diff;
mod explain;
mod failure;
mod lab;
mod lint;
mod matrix;
mod offline;
mod output;
mod pktgen;
mod run;
mod show;
mod terminal;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::control::{Client, DEFAULT_SOCKET};
use crate::printable;
use crate::source::load::{LoadOptions, load};
use crate::tables::RuleTables;

pub use failure::Failure;
pub use output::Output;

/// A virtual switch for one Linux node that enforces Kubernetes NetworkPolicy.
///
/// Pods are attached to the switch by ports. What may pass between them is written as Kubernetes NetworkPolicy
/// objects in YAML files.
#[derive(Debug, Parser)]
#[command(
    name = "palisade",
    version = env!("PALISADE_VERSION"),
    long_version = LONG_VERSION,
    propagate_version = true,
    after_help = EXAMPLES
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Version and build, for a report: a line each.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit:  ",
    env!("PALISADE_COMMIT"),
    "\ntarget:  ",
    env!("PALISADE_TARGET"),
    "\nprofile: ",
    env!("PALISADE_PROFILE")
);

const EXAMPLES: &str = "\
Examples:
  palisade run --config config/palisade.toml     start the switch
  palisade apply policies/                       load the policies of a directory into it
  palisade show counters                         what it forwards, what it drops, and why
  palisade test tests/                           policy tests: connections that must be allowed or denied
  palisade explain --from a --to b --port 80 .   why one connection is allowed or denied

Exit codes: 0 yes, 1 no, 2 usage error or failure.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArguments),
    Compile(compile::CompileArguments),
    Apply(apply::ApplyArguments),
    Show(show::ShowArguments),
    Test(test::TestArguments),
    Explain(explain::ExplainArguments),
    Matrix(matrix::MatrixArguments),
    Diff(diff::DiffArguments),
    Lint(lint::LintArguments),
    Demo(demo::DemoArguments),
    Lab(lab::LabArguments),
    Pktgen(Box<pktgen::PktgenArguments>),
}

/// Where the running switch is.
#[derive(Debug, Args)]
pub struct SocketArguments {
    /// Control socket of the switch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, global = true)]
    socket: PathBuf,
}

impl SocketArguments {
    /// The client of the switch.
    pub fn client(&self) -> Client {
        Client::new(&self.socket)
    }
}

/// Compiles what the command line names; warnings go to standard error.
fn load_manifests(paths: &[PathBuf], node: Option<&String>) -> Result<RuleTables, Failure> {
    let compiled = load(paths, &LoadOptions { node: node.cloned() })?;
    offline::warn(&compiled.warnings);
    Ok(compiled.tables)
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let done = match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Compile(arguments) => compile::compile(&arguments),
        Command::Apply(arguments) => apply::apply(&arguments),
        Command::Show(arguments) => show::show(&arguments),
        Command::Test(arguments) => test::test(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Matrix(arguments) => matrix::matrix(&arguments),
        Command::Diff(arguments) => diff::diff(&arguments),
        Command::Lint(arguments) => lint::lint(&arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Lab(arguments) => lab::lab(&arguments),
        Command::Pktgen(arguments) => pktgen::pktgen(&arguments),
    };
    done.unwrap_or_else(|failure| failure.report())
}

/// Prints what is wrong with the command line, or the help that it asks for.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let safe = printable::block(&text);
    // A text with nothing to spell out keeps its colours.
    if safe == text {
        error.exit();
    }
    terminal::report(&safe);
    ExitCode::from(2)
}
