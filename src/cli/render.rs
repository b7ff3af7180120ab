//! Command `palisade render`: prints manifests in the terms of other systems.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::manifests::ExcludeArguments;
use super::{CliError, manifests, output, terminal};
use crate::policy::objects::Object;
use crate::render::{self, ClusterState, Format, Part, RenderError, RenderOptions};
use crate::tables::{Direction, PodName, RuleTables};

const EXAMPLES: &str = "\
Examples:
  palisade render --to nftables policies/ | nft -f -                 enforce with the kernel's nftables
  palisade render --to nftables --since old/ new/                    only the change from one state to another
  palisade render --to iptables policies/ -o rules/                  one file for each program
  palisade render --to nftables --pod default/db policies/           rules of one pod
  palisade render --to vpp-acl --interfaces FILE policies/ -o rules/  lists of VPP, for vppctl exec
  palisade render --to security-groups policies/ > state.json        groups, rules and ports of OpenStack
  palisade render --to security-groups --reconcile state.json new/   what to create, attach and delete";

/// Print the same policy in the terms of another system
///
/// Compiles manifests once, as for the switch, and prints rules with which another system decides the same. The
/// output follows from the manifests alone. It needs no running switch and no privilege. A policy that a format cannot
/// express is refused by name, never weakened.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(super) struct RenderArguments {
    /// Files or directories of manifests; - is standard input
    #[arg(required = true, value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// System in whose terms to print
    #[arg(long, value_parser = FormatParser, value_name = "FORMAT")]
    to: &'static [Format],
    /// Only the rules of this pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
    /// Print the change from the state of these manifests
    #[arg(long, value_name = "FILE|DIR")]
    since: Vec<PathBuf>,
    /// Print the change from a recorded state: a former output of --to security-groups
    #[arg(long, value_name = "FILE", conflicts_with = "since")]
    reconcile: Option<PathBuf>,
    /// Only pods of this node (spec.nodeName); all pods by default
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// File of lines "NAMESPACE/NAME INTERFACE", the node's interfaces that lead to pods, "pods PREFIX" and "uplink INTERFACE"
    #[arg(long, value_name = "FILE")]
    interfaces: Option<PathBuf>,
    /// Direction into which contiv folds all rules, as the vswitch sees it: egress is to a pod
    #[arg(long, value_name = "DIRECTION", default_value = "egress", value_parser = ["ingress", "egress"])]
    direction: String,
    /// Write files into this directory rather than to standard output
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    exclude: ExcludeArguments,
}

/// Parses formats: one by its name, or all of them.
#[derive(Debug, Clone)]
struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = &'static [Format];

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let names = PossibleValuesParser::new(names().map(|(name, _)| name));
        let name = names.parse_ref(command, argument, value)?;
        let one = Format::ALL.iter().find(|format| format.describe().0 == name);
        Ok(one.map_or(&Format::ALL, std::slice::from_ref))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(names().map(|(name, _)| PossibleValue::new(name))))
    }
}

/// Names of formats on the command line, and their descriptions.
fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let formats = Format::ALL.iter().map(|format| format.describe());
    formats.chain([("all", "every format, each in files of its own")])
}

/// Help after the options: the formats and examples.
fn after_help() -> String {
    let lines: Vec<String> = names().map(|(name, text)| format!("  {name:<15} {text}\n")).collect();
    format!("Formats:\n{}\n{EXAMPLES}", lines.concat())
}

pub(super) fn render(arguments: &RenderArguments) -> Result<ExitCode, CliError> {
    let Interfaces { of_pods: interfaces, prefix: pod_interface_prefix, uplinks } =
        arguments.interfaces.as_deref().map(read_interfaces).transpose()?.unwrap_or_default();
    let options = RenderOptions {
        pod: arguments.pod.clone(),
        interfaces,
        pod_interface_prefix,
        uplinks,
        direction: if arguments.direction == "ingress" { Direction::Ingress } else { Direction::Egress },
        ..RenderOptions::default()
    };
    let compile = |paths: &[PathBuf]| -> Result<(RuleTables, Vec<Object>), CliError> {
        let (compiled, mut objects) =
            manifests::compile_with_objects(paths, &arguments.exclude.options(arguments.node.as_ref()))?;
        objects.retain(|object| !object.is_audited());
        Ok((compiled.tables, objects))
    };
    if arguments.reconcile.is_some() && *arguments.to != [Format::SecurityGroups] {
        return Err(CliError::Message("--reconcile needs --to security-groups".to_owned()));
    }
    let new = compile(&arguments.manifests)?;
    manifests::note_pods_without_address(&new.1);
    if let Some(path) = &arguments.reconcile {
        let failed = |problem: String| CliError::Message(format!("{}: {problem}", path.display()));
        let recorded = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let parts = render::reconcile(&recorded, state(&new), &options).map_err(|error| match error {
            RenderError::Recorded(_) => failed(error.to_string()),
            other => CliError::Message(other.to_string()),
        })?;
        return print(arguments.output.as_deref(), &parts);
    }
    let old = if arguments.since.is_empty() { None } else { Some(compile(&arguments.since)?) };
    let (mut parts, mut refused) = (Vec::new(), Vec::new());
    for &format in arguments.to {
        let rendered = match &old {
            None => render::render(format, state(&new), &options),
            Some(old) => render::difference(format, state(old), state(&new), &options),
        };
        match rendered {
            Ok(rendered) => parts.extend(rendered),
            Err(error) => refused.push((format.describe().0, error.to_string())),
        }
    }
    if let [(_, error), others @ ..] = refused.as_slice()
        && refused.len() == arguments.to.len()
        && others.iter().all(|(_, other)| other == error)
    {
        return Err(CliError::Message(error.clone()));
    }
    print(arguments.output.as_deref(), &parts)?;
    if refused.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    refused.iter().for_each(|(format, error)| terminal::note(&format!("palisade: {format}: {error}")));
    let (refused, all) = (refused.len(), arguments.to.len());
    Err(CliError::Message(format!("{refused} of {all} formats are left out, for the reasons above")))
}

/// Prints parts, or writes them into a directory.
fn print(directory: Option<&Path>, parts: &[Part]) -> Result<ExitCode, CliError> {
    match directory {
        Some(directory) => write_files(directory, parts)?,
        None => output::document(&listing(parts))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn state((tables, objects): &(RuleTables, Vec<Object>)) -> ClusterState<'_> {
    ClusterState { tables, objects }
}

/// The only part as it is, or all parts below the names of their files.
fn listing(parts: &[Part]) -> String {
    if let [only] = parts {
        return only.text.clone();
    }
    let text = |part: &Part| format!("### {}\n{}\n", part.file, part.text);
    parts.iter().map(text).collect::<Vec<String>>().concat()
}

fn write_files(directory: &Path, parts: &[Part]) -> Result<(), CliError> {
    let failed =
        |path: &Path, error| CliError::Message(format!("{} cannot be written: {error}", path.display()));
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    for part in parts {
        let path = directory.join(part.file);
        fs::write(&path, &part.text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Interfaces of pods, the beginning of their names, and uplinks.
#[derive(Default)]
struct Interfaces {
    of_pods: BTreeMap<PodName, String>,
    prefix: Option<String>,
    uplinks: Vec<String>,
}

/// Reads interfaces, one line each. Empty lines and lines that begin with # are left out.
fn read_interfaces(path: &Path) -> Result<Interfaces, CliError> {
    let text = fs::read_to_string(path)
        .map_err(|error| CliError::Message(format!("{} cannot be read: {error}", path.display())))?;
    let mut interfaces = Interfaces::default();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |problem: String| CliError::Message(format!("{}:{number}: {problem}", path.display()));
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["uplink", interface] => interfaces.uplinks.push(interface.to_owned()),
            ["pods", prefix] if interfaces.prefix.is_some() => {
                return Err(wrong(format!("a second beginning of names, {prefix:?}")));
            }
            ["pods", prefix] => interfaces.prefix = Some(prefix.trim_end_matches('+').to_owned()),
            [pod, interface] => {
                let pod: PodName = pod.parse().map_err(wrong)?;
                if interfaces.of_pods.insert(pod.clone(), interface.to_owned()).is_some() {
                    return Err(wrong(format!("pod {pod} has a second line")));
                }
            }
            _ => {
                let forms = "write NAMESPACE/NAME INTERFACE, pods PREFIX or uplink INTERFACE";
                return Err(wrong(forms.to_owned()));
            }
        }
    }
    Ok(interfaces)
}
