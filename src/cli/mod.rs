//! Command line, with one file for each command.
//!
//! Exit codes: 0 is yes, 1 is no (a test failed, a difference exists), 2 is a usage error or a failure.

// clap shows the doc comments of arguments as help: plain text, without Markdown.
#![allow(clippy::doc_markdown)]

mod apply;
mod capture;
mod compile;
mod config;
mod demo;
mod diff;
mod doctor;
mod error;
mod explain;
mod filter;
mod flows;
mod lab;
mod lint;
mod manifests;
mod matrix;
mod output;
mod packaging;
mod pktgen;
mod rehearse;
mod render;
mod run;
mod show;
mod signals;
mod socket;
mod steer;
mod test;
mod top;

use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

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
  palisade status                                the node on one page, problems first
  palisade show counters                         what it forwards, what it drops, and why
  palisade test tests/                           policy tests: connections that must be allowed or denied
  palisade explain --from a --to b --port 80 .   why one connection is allowed or denied

Exit codes: 0 yes, 1 no, 2 usage error or failure.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArguments),
    #[cfg(feature = "kubernetes")]
    Agent(run::agent::AgentArguments),
    Config(config::ConfigArguments),
    Doctor(doctor::DoctorArguments),
    Compile(compile::CompileArguments),
    Apply(apply::ApplyArguments),
    Shadow(rehearse::shadow::ShadowArguments),
    Audit(rehearse::audit::AuditArguments),
    Status(show::node::StatusArguments),
    Show(show::ShowArguments),
    Top(top::TopArguments),
    Flows(flows::FlowsArguments),
    Reload(steer::reload::ReloadArguments),
    Port(steer::port::PortArguments),
    Pod(steer::pod::PodArguments),
    Route(steer::route::RouteArguments),
    Trace(capture::TraceArguments),
    Capture(capture::CaptureArguments),
    Test(test::TestArguments),
    Explain(explain::ExplainArguments),
    Matrix(matrix::MatrixArguments),
    Diff(diff::DiffArguments),
    Render(render::RenderArguments),
    Lint(lint::LintArguments),
    Demo(demo::DemoArguments),
    Lab(lab::LabArguments),
    Pktgen(Box<pktgen::PktgenArguments>),
    Completions(packaging::CompletionsArguments),
    Man(packaging::ManArguments),
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let done = match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        #[cfg(feature = "kubernetes")]
        Command::Agent(arguments) => run::agent::agent(&arguments),
        Command::Config(arguments) => config::config(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Compile(arguments) => compile::compile(&arguments),
        Command::Apply(arguments) => apply::apply(&arguments),
        Command::Shadow(arguments) => rehearse::shadow::shadow(&arguments),
        Command::Audit(arguments) => rehearse::audit::audit(&arguments),
        Command::Status(arguments) => show::node::status(&arguments),
        Command::Show(arguments) => show::show(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Flows(arguments) => flows::flows(&arguments),
        Command::Reload(arguments) => steer::reload::reload(&arguments),
        Command::Port(arguments) => steer::port::port(&arguments),
        Command::Pod(arguments) => steer::pod::pod(&arguments),
        Command::Route(arguments) => steer::route::route(&arguments),
        Command::Trace(arguments) => capture::trace(&arguments),
        Command::Capture(arguments) => capture::capture(&arguments),
        Command::Test(arguments) => test::test(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Matrix(arguments) => matrix::matrix(&arguments),
        Command::Diff(arguments) => diff::diff(&arguments),
        Command::Render(arguments) => render::render(&arguments),
        Command::Lint(arguments) => lint::lint(&arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Lab(arguments) => lab::lab(&arguments),
        Command::Pktgen(arguments) => pktgen::pktgen(&arguments),
        Command::Completions(arguments) => packaging::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => packaging::man(&arguments, Arguments::command()),
    };
    done.unwrap_or_else(|failure| failure.report())
}

/// Parses the command line of this process.
///
/// clap's own rule gives a dumb terminal colours if `CI` is set, so that the environment is asked here.
fn parse() -> Result<Arguments, clap::Error> {
    let color = if terminal::forbids_colors() { ColorChoice::Never } else { ColorChoice::Auto };
    let matches = Arguments::command().color(color).try_get_matches()?;
    Arguments::from_arg_matches(&matches)
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

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::Arguments;

    /// Commands below `command` whose option `--output` has no short form.
    fn without_short_output(command: &Command) -> Vec<String> {
        let own = command
            .get_arguments()
            .any(|argument| argument.get_long() == Some("output") && argument.get_short() != Some('o'));
        let mut found: Vec<String> = command.get_subcommands().flat_map(without_short_output).collect();
        found.extend(own.then(|| command.get_name().to_string()));
        found
    }

    #[test]
    fn output_has_the_same_short_form_everywhere() {
        let mut command = Arguments::command();
        command.build();
        assert_eq!(without_short_output(&command), Vec::<String>::new());
        assert!(command.find_subcommand("show").is_some_and(|show| {
            show.get_arguments().any(|argument| argument.get_long() == Some("output"))
        }));
    }
}
