//! Command line, with one file for each command.
//!
//! Exit codes: 0 is yes, 1 is no (a test failed, a difference exists), 2 is a usage error or a failure.

// clap shows the doc comments of arguments as help: plain text, without Markdown.
#![allow(clippy::doc_markdown)]

mod apply;
mod compile;
mod demo;
mod diff;
mod error;
mod explain;
mod lab;
mod lint;
mod manifests;
mod matrix;
mod output;
mod pktgen;
mod run;
mod show;
mod signals;
mod socket;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::printable;

pub use error::CliError;
pub use output::Output;
use output::terminal;
pub use socket::SocketArguments;

/// A virtual switch for one Linux node that enforces Kubernetes NetworkPolicy.
///
/// Ports attach pods to the switch. Kubernetes NetworkPolicy objects in YAML files define the traffic that
/// may pass between them.
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

/// Version and build, one line each.
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

/// Runs the command of this process.
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

/// Prints a usage error, or the requested help.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let safe = printable::block(&text);
    // Text without control characters keeps its colours.
    if safe == text {
        error.exit();
    }
    terminal::report(&safe);
    ExitCode::from(2)
}
