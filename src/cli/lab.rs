//! Command `palisade lab`: pods as network namespaces.

use std::process::{Command, ExitCode, ExitStatus};

use clap::{Args, Subcommand};

use super::output::terminal::spinner;
use super::signals::interruption;
use super::{CliError, Output, output};
use crate::dataplane::Backend;
use crate::lab::{Journal, Lab, LabError, LabSpec, Pod, PodPorts, Switch, SwitchSpec, clean, manifests};

/// Pods as network namespaces on this machine, to play and to test with
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo palisade lab up --pods 3 --switch       three pods with a switch between them
  sudo palisade lab exec pod1 -- ping -c1 10.77.0.3
  sudo palisade lab clean                      remove it")]
pub(super) struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Make pods; they stay until `palisade lab clean`
    Up(UpArguments),
    /// Show the labs and their pods
    List(ListArguments),
    /// Run a command inside a pod
    Exec(ExecArguments),
    /// Remove labs: those made to stay, and those whose process died
    ///
    /// Labs of running processes stay, and so does everything that no lab made. Programs that still run inside a
    /// lab's pods are ended. Exit code 1 when something that belongs to a lab could not be removed.
    Clean(CleanArguments),
}

#[derive(Debug, Args)]
struct UpArguments {
    /// Number of pods: pod1, pod2, …
    #[arg(long, value_name = "N", default_value_t = 2)]
    pods: usize,
    /// Interfaces of the pods: one end of a veth pair, or a tap device of the switch
    #[arg(long, value_enum, default_value_t)]
    ports: PodPorts,
    /// Queues of every pod: as many as the switch has workers
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: u16,
    /// MTU of every pod, bytes: by default the largest that the switch carries
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// MTU of the pods' routes to destinations other than pods, if smaller: by default 1500
    #[arg(long, value_name = "BYTES")]
    outside_mtu: Option<u32>,
    /// Connect the pods by the kernel's bridge
    #[arg(long, conflicts_with = "switch", conflicts_with = "ports")]
    bridge: bool,
    /// Connect the pods by a switch that runs in the background; no policy isolates any of them
    #[arg(long)]
    switch: bool,
    /// Program that forwards the packets of that switch
    #[arg(long, value_enum, default_value_t, requires = "switch")]
    backend: Backend,
    /// Form of the list of pods
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Args)]
struct ListArguments {
    /// Form of the list of labs
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Args)]
struct ExecArguments {
    /// The lab, if several have such a pod
    #[arg(long, value_name = "ID")]
    lab: Option<String>,
    /// The pod: its name, or namespace/name
    pod: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct CleanArguments {
    /// Only these labs
    #[arg(value_name = "ID")]
    labs: Vec<String>,
    /// Form of the report
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn lab(arguments: &LabArguments) -> Result<ExitCode, CliError> {
    match &arguments.command {
        LabCommand::Up(arguments) => up(arguments),
        LabCommand::List(arguments) => list(arguments),
        LabCommand::Exec(arguments) => exec(arguments),
        LabCommand::Clean(arguments) => remove(arguments),
    }
}

fn up(arguments: &UpArguments) -> Result<ExitCode, CliError> {
    let interrupted = interruption()?;
    let names: Vec<String> = (1..=arguments.pods).map(|number| format!("pod{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let UpArguments { ports, workers, .. } = *arguments;
    let default = LabSpec::of(&names)?;
    let mtu = arguments.mtu.unwrap_or(default.mtu);
    let outside_mtu = arguments.outside_mtu.unwrap_or(default.outside_mtu);
    let spec = LabSpec { ports, workers, mtu, outside_mtu, ..default };
    let spinner = spinner();
    let mut lab = Lab::up_with(&spec, &mut |pod| spinner.set_message(format!("made {}", pod.pod)))?;
    if arguments.bridge {
        lab.bridge()?.keep();
    }
    if arguments.switch {
        spinner.set_message("starting the switch");
        let program = std::env::current_exe()
            .map_err(|error| CliError::Message(format!("the program cannot find itself: {error}")))?;
        let spec = SwitchSpec { backend: arguments.backend, small: false, ..SwitchSpec::of(program) };
        let switch = Switch::start(&mut lab, &spec)?;
        switch.attach_all(&lab)?;
        switch.apply(&manifests(&lab, |_| vec![]))?;
        switch.keep();
    }
    spinner.finish_and_clear();
    if interrupted.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(LabError::Interrupted.into());
    }
    let journal = lab.keep()?;
    print(&[journal], arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

fn list(arguments: &ListArguments) -> Result<ExitCode, CliError> {
    let (journals, errors) = Journal::all()?;
    print(&journals, arguments.output)?;
    match errors.into_iter().next() {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => Err(error.into()),
    }
}

fn print(journals: &[Journal], form: Output) -> Result<(), CliError> {
    if form == Output::Json {
        return Ok(output::json(&journals)?);
    }
    output::set_form(form);
    let mut table = output::table(["lab", "pod", "addresses", "interface", "namespace", "process", "socket"])
        .left_out_first(&["process", "socket", "namespace"]);
    for journal in journals {
        let process = journal.owner.filter(|_| journal.is_owned()).map(|owner| owner.pid);
        let socket = journal.directory().join("control.sock");
        let socket = socket.exists().then(|| socket.display().to_string());
        for pod in &journal.pods {
            table.add_row([
                journal.id.clone(),
                pod.pod.to_string(),
                output::list(&pod.addresses),
                pod.host_interface.clone(),
                pod.netns.clone(),
                output::or_dash(process),
                output::or_dash(socket.as_ref()),
            ]);
        }
    }
    Ok(output::text(&output::render(&table, "no labs"))?)
}

fn exec(arguments: &ExecArguments) -> Result<ExitCode, CliError> {
    let pod = find(arguments)?;
    let status = pod.status(Command::new(&arguments.command[0]).args(&arguments.command[1..]))?;
    Ok(ExitCode::from(exit_code(status)))
}

fn find(arguments: &ExecArguments) -> Result<Pod, CliError> {
    let journals = match &arguments.lab {
        Some(id) => vec![Journal::of(id)?],
        None => Journal::all()?.0,
    };
    let mut found =
        journals.iter().filter_map(|journal| Pod::of(journal, &arguments.pod).ok().map(|pod| (journal, pod)));
    match (found.next(), found.next()) {
        (Some((_, pod)), None) => Ok(pod),
        (None, _) => Err(CliError::Message(format!(
            "no lab has a pod {}: `palisade lab list` shows them",
            arguments.pod
        ))),
        (Some((a, _)), Some((b, _))) => Err(CliError::Message(format!(
            "labs {} and {} have a pod {}: say which one with --lab",
            a.id, b.id, arguments.pod
        ))),
    }
}

/// Exit code in the convention of shells: 128 plus the number of the signal that ended the command.
fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).map_or(1, |code| code as u8)
}

fn remove(arguments: &CleanArguments) -> Result<ExitCode, CliError> {
    let teardown = clean(&arguments.labs)?;
    match arguments.output {
        Output::Json => output::json(&teardown)?,
        Output::Table | Output::Wide => {
            let line = |what: &str, things: &[String]| {
                if things.is_empty() { String::new() } else { format!("{what}: {}\n", things.join(", ")) }
            };
            let text = line("removed", &teardown.removed)
                + &line("in use, left alone", &teardown.in_use)
                + &line("not a lab's, left alone", &teardown.spared)
                + &line("failed", &teardown.errors);
            output::text(if text.is_empty() { "no labs\n" } else { &text })?;
        }
    }
    Ok(if teardown.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
