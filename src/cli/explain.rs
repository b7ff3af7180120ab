//! Command `palisade explain`: explains the verdict on a connection.

mod service;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::manifests::{ExcludeArguments, Manifests};
use super::{CliError, Output, SocketArguments, output, terminal};
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::evaluate::{ReferenceEvaluator, TableEvaluator};
use crate::policy::explain::{
    Explanation, ServiceExplanation, ServiceVerdict, explain as explain_by_objects,
};
use crate::policy::testcase::{Destination, Endpoint, ProbeError, expand_probe, expand_service};
use crate::tables::Verdict;

/// Explain why a connection is allowed or denied
///
/// Evaluates the policies at both ends: the policies that select the pods, the rule that decides, and the
/// reason for which each other rule does not match. Reads manifests. Without any, it asks the running switch
/// about the whole path of the connection: port, anti-spoofing, route, MTU, neighbour and the loaded tables,
/// which know rules but no labels. A connection to a Service goes to one of its backends, and policy is asked
/// about that one: every backend is explained.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade explain --from web/frontend --to data/db --port 5432 policies/ pods.yaml
  palisade explain --from 192.0.2.7 --to data/db --port 53 --protocol udp policies/
  palisade explain --from web/frontend --to service/data/db --port 5432 policies/ pods.yaml
  palisade explain --from web/frontend --to data/db --port 5432     the whole path through the running switch

Exit codes: 0 allowed, 1 denied (to a backend of the Service, or there is none), 2 usage error or failure.")]
pub(super) struct ExplainArguments {
    /// Source: a pod as NAMESPACE/NAME, or an address
    #[arg(long, value_name = "POD|IP", value_parser = Endpoint::from_str)]
    from: Endpoint,
    /// Destination: a pod as NAMESPACE/NAME, an address, or a Service as service/NAMESPACE/NAME
    #[arg(long, value_name = "POD|IP|SERVICE", value_parser = Destination::from_str)]
    to: Destination,
    /// Destination port, that of the Service if it is one; not for protocols without ports
    #[arg(long, value_name = "N", value_parser = number)]
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
    #[command(flatten)]
    exclude: ExcludeArguments,
}

pub(super) fn explain(arguments: &ExplainArguments) -> Result<ExitCode, CliError> {
    let denied =
        if arguments.manifests.is_empty() { by_switch(arguments)? } else { by_manifests(arguments)? };
    Ok(if denied { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn by_manifests(arguments: &ExplainArguments) -> Result<bool, CliError> {
    let mut manifests = Manifests::read(&arguments.manifests, &arguments.exclude)?;
    let placeholders = Manifests::assign_placeholders(&mut [&mut manifests]);
    let evaluator = manifests.evaluator()?;
    let (reference, locations) = (ReferenceEvaluator::new(&manifests.objects), manifests.locations());
    let audit = manifests.audit_evaluator()?;
    let by_service = matches!(arguments.to, Destination::Service(_));
    let evaluate = |evaluator: &TableEvaluator, flow: &FlowKey| {
        if by_service { evaluator.evaluate_by_service(flow) } else { evaluator.evaluate(flow) }
    };
    let explain = |flow: &FlowKey, ends: [&Endpoint; 2]| {
        let verdict = evaluate(&evaluator, flow);
        let explanation = explain_by_objects(&reference, flow, ends, &verdict, &locations);
        let audit = audit.as_ref().filter(|_| explanation.verdict == Verdict::Allow);
        let audit = audit.and_then(|audit| evaluate(audit, flow).denial().cloned());
        Explanation { audit, ..explanation }
    };
    let denied = match &arguments.to {
        Destination::Endpoint(to) => {
            let flows = flows(arguments, to, &manifests)?;
            let explanations: Vec<_> =
                flows.iter().map(|flow| explain(flow, [&arguments.from, to])).collect();
            print(arguments, &explanations)?;
            explanations.iter().any(|explanation| explanation.verdict == Verdict::Deny)
        }
        Destination::Service(to) => {
            let (protocol, port) = (arguments.protocol, port(arguments)?);
            let (flows, backends) = expand_service(&manifests.objects, &arguments.from, to, protocol, port)
                .map_err(|error| message(&error))?;
            let flows = flows.iter().map(|flow| explain(flow, [&arguments.from, &Endpoint::Ip(flow.dst)]));
            let ends = [to.to_string(), arguments.from.to_string()];
            let explanation = ServiceExplanation::new(ends, protocol, port, backends, flows.collect());
            print(arguments, std::slice::from_ref(&explanation))?;
            explanation.verdict != ServiceVerdict::Allow
        }
    };
    let to = match &arguments.to {
        Destination::Endpoint(to) => Some(to),
        Destination::Service(_) => None,
    };
    for end in std::iter::once(&arguments.from).chain(to) {
        if let Endpoint::Pod(pod) = end
            && placeholders.contains(pod)
        {
            terminal::note(&format!("note: {pod} has no address in the manifests; a stand-in is used"));
        }
    }
    Ok(denied)
}

fn by_switch(arguments: &ExplainArguments) -> Result<bool, CliError> {
    let client = arguments.socket.client();
    let to = match &arguments.to {
        Destination::Endpoint(to) => to,
        Destination::Service(to) => {
            let (protocol, port) = (arguments.protocol, port(arguments)?);
            let paths = service::paths(&client, &arguments.from, to, protocol, port)?;
            print(arguments, std::slice::from_ref(&paths))?;
            return Ok(paths.verdict != ServiceVerdict::Allow);
        }
    };
    let reports = client.explain([&arguments.from, to], arguments.protocol, arguments.port, None)?;
    print(arguments, &reports)?;
    Ok(reports.iter().any(|report| report.verdict == Verdict::Deny))
}

/// Port of a connection that needs one.
/// Parses the number of a port. Names of ports differ between pods and Services, and none of them is in a packet.
fn number(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is no number of a port: names are those of a pod or a Service; give what they stand for, 0 to 65535")
    })
}

fn port(arguments: &ExplainArguments) -> Result<u16, CliError> {
    let protocol = arguments.protocol;
    match arguments.port {
        None if protocol.has_ports() => {
            Err(CliError::Message(format!("{protocol} needs a destination port: add --port N")))
        }
        port => Ok(port.unwrap_or_default()),
    }
}

fn message(error: &ProbeError) -> CliError {
    CliError::Message(error.to_string())
}

/// Flows of the connection, one for each address family that both ends have.
fn flows(
    arguments: &ExplainArguments,
    to: &Endpoint,
    manifests: &Manifests,
) -> Result<Vec<FlowKey>, CliError> {
    let flows = expand_probe(&manifests.pods(), &arguments.from, to, arguments.protocol, port(arguments)?);
    flows.map_err(|error| match &error {
        ProbeError::UnknownPod { pod, .. } => {
            match manifests.unread.iter().find(|workload| workload.may_have(pod)) {
                Some(workload) => CliError::Message(format!("there is no pod {pod}: {}", workload.advice())),
                None => message(&error),
            }
        }
        _ => message(&error),
    })
}

fn print<T: Serialize + std::fmt::Display>(
    arguments: &ExplainArguments,
    explanations: &[T],
) -> Result<(), CliError> {
    match arguments.output {
        Output::Json => output::json(&explanations)?,
        Output::Table | Output::Wide => {
            let texts: Vec<String> = explanations.iter().map(T::to_string).collect();
            output::text(&texts.join("\n"))?;
        }
    }
    Ok(())
}
