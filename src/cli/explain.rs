//! Command `palisade explain`: explains the verdict on a connection.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::manifests::Manifests;
use super::{CliError, Output, SocketArguments, output, terminal};
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::explain::explain as explain_by_objects;
use crate::policy::testcase::Endpoint;
use crate::policy::testcase::{ProbeError, expand_probe};
use crate::tables::{PodName, Verdict};

/// Explain why a connection is allowed or denied
///
/// Evaluates the policies at both ends: the policies that select the pods, the rule that decides, and the
/// reason for which each other rule does not match. Reads manifests. Without any, it asks the running switch
/// about the whole path of the connection: port, anti-spoofing, route, MTU, neighbour and the loaded tables,
/// which know rules but no labels.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade explain --from web/frontend --to data/db --port 5432 policies/ pods.yaml
  palisade explain --from 192.0.2.7 --to data/db --port 53 --protocol udp policies/
  palisade explain --from web/frontend --to data/db --port 5432     the whole path through the running switch

Exit codes: 0 allowed, 1 denied, 2 usage error or failure.")]
pub(super) struct ExplainArguments {
    /// Source: a pod as NAMESPACE/NAME, or an address
    #[arg(long, value_name = "POD|IP", value_parser = Endpoint::from_str)]
    from: Endpoint,
    /// Destination: a pod as NAMESPACE/NAME, or an address
    #[arg(long, value_name = "POD|IP", value_parser = Endpoint::from_str)]
    to: Endpoint,
    /// Destination port; not for protocols without ports
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// TCP, UDP, SCTP, ICMP, ICMPv6 or a number
    #[arg(long, value_name = "P", default_value = "TCP")]
    protocol: Protocol,
    /// Files or directories of manifests; - is standard input; the running switch where absent
    #[arg(value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// Form of the explanation
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

pub(super) fn explain(arguments: &ExplainArguments) -> Result<ExitCode, CliError> {
    let denied =
        if arguments.manifests.is_empty() { by_switch(arguments)? } else { by_manifests(arguments)? };
    Ok(if denied { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn by_manifests(arguments: &ExplainArguments) -> Result<bool, CliError> {
    let mut manifests = Manifests::read(&arguments.manifests)?;
    let placeholders = Manifests::assign_placeholders(&mut [&mut manifests]);
    let evaluator = manifests.evaluator()?;
    let (reference, locations) = (ReferenceEvaluator::new(&manifests.objects), manifests.locations());
    let flows = flows(arguments, &manifests.pods())?;
    let ends = [&arguments.from, &arguments.to];
    let explanations: Vec<_> = flows
        .iter()
        .map(|flow| explain_by_objects(&reference, flow, ends, &evaluator.evaluate(flow), &locations))
        .collect();
    print(arguments, &explanations)?;
    for end in [&arguments.from, &arguments.to] {
        if let Endpoint::Pod(pod) = end
            && placeholders.contains(pod)
        {
            terminal::note(&format!("note: {pod} has no address in the manifests; a stand-in is used"));
        }
    }
    Ok(explanations.iter().any(|explanation| explanation.verdict == Verdict::Deny))
}

fn by_switch(arguments: &ExplainArguments) -> Result<bool, CliError> {
    let ends = [&arguments.from, &arguments.to];
    let reports = arguments.socket.client().explain(ends, arguments.protocol, arguments.port)?;
    print(arguments, &reports)?;
    Ok(reports.iter().any(|report| report.verdict == Verdict::Deny))
}

/// Flows of the connection, one for each address family that both ends have.
fn flows(
    arguments: &ExplainArguments,
    pods: &BTreeMap<PodName, Vec<IpAddr>>,
) -> Result<Vec<FlowKey>, CliError> {
    let (protocol, port) = (arguments.protocol, arguments.port);
    if protocol.has_ports() && port.is_none() {
        return Err(CliError::Message(format!("{protocol} needs a destination port: add --port N")));
    }
    expand_probe(pods, &arguments.from, &arguments.to, protocol, port.unwrap_or_default())
        .map_err(|error: ProbeError| CliError::Message(error.to_string()))
}

fn print<T: Serialize + std::fmt::Display>(
    arguments: &ExplainArguments,
    explanations: &[T],
) -> Result<(), CliError> {
    match arguments.output {
        Output::Json => output::json(&explanations)?,
        Output::Table => {
            let texts: Vec<String> = explanations.iter().map(T::to_string).collect();
            output::text(&texts.join("\n"))?;
        }
    }
    Ok(())
}
