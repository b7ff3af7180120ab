//! Policy tests with real packets: `palisade test --live`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;

use indicatif::ProgressBar;

use super::compiled_case::CompiledCase;
use super::report::{CaseResult, Failed, Seen};
use crate::cli::CliError;
use crate::cli::signals::interruption;
use crate::lab::PodPorts;
use crate::lab::live::{self, LiveCase, LiveProbe, LiveResult, LiveSpec};
use crate::lab::traffic::Outcome;
use crate::net::flow::FlowKey;
use crate::policy::services::{Services, ServicesOptions};
use crate::policy::testcase::{Case, Destination, Endpoint, PlaceholderRange, Probe};
use crate::printable;
use crate::tables::{ServicePortName, ServiceTable, Verdict};

/// Runs all cases.
pub(super) fn run(
    cases: &[Case],
    ports: PodPorts,
    workers: u16,
    bar: &ProgressBar,
) -> Result<Vec<CaseResult>, CliError> {
    let interrupted = interruption()?;
    let program = std::env::current_exe()
        .map_err(|error| CliError::Message(format!("the program cannot find itself: {error}")))?;
    let (mut compileds, mut refused) = (Vec::new(), Vec::new());
    for case in cases {
        match CompiledCase::new(case, PlaceholderRange::BENCHMARK)? {
            Ok(compiled) => compileds.push(compiled),
            Err(result) => refused.push(result),
        }
    }
    let live_cases: Vec<LiveCase> = compileds.iter().map(live_case).collect();
    let mut done = 0;
    let results = live::run(&LiveSpec { program, ports, workers }, &live_cases, &interrupted, &mut |case| {
        bar.set_message(printable::line(&case.name).into_owned());
        bar.inc(compileds[done].case.probes.len() as u64);
        done += 1;
    })?;
    let tried = compileds.iter().zip(&results).map(|(compiled, result)| case_result(compiled, result));
    Ok(tried.chain(refused).collect())
}

fn live_case(compiled: &CompiledCase<'_>) -> LiveCase {
    let probes = compiled.case.probes.iter().zip(&compiled.flows);
    let services = Services::from_objects(
        compiled.expansion.objects().iter().cloned(),
        ServicesOptions { node: None, derive_endpoints: true },
    );
    let services = services.table().clone();
    let flows = probes.flat_map(|(probe, flows)| {
        flows.iter().map(|&flow| {
            let through = virtual_address(compiled, &services, probe, flows, &flow);
            LiveProbe { flow, through, expect: probe.expect }
        })
    });
    LiveCase {
        name: compiled.case.name.clone(),
        pods: compiled.expansion.running_pods(),
        tables: compiled.evaluator.tables().clone(),
        probes: flows.collect(),
        services,
    }
}

/// Virtual address for a probe of a pod to a Service. The switch must have the backends that the pod's node
/// would have, and the tables must have one verdict on all of them: a connection goes to any.
fn virtual_address(
    compiled: &CompiledCase<'_>,
    services: &ServiceTable,
    probe: &Probe,
    flows: &[FlowKey],
    flow: &FlowKey,
) -> Option<SocketAddr> {
    let (Destination::Service(name), Endpoint::Pod(_)) = (&probe.to, &probe.from) else { return None };
    let of_service = |service: &ServicePortName| {
        (&service.namespace, &service.name, service.protocol) == (&name.namespace, &name.name, probe.protocol)
    };
    let is_wanted =
        |address: &&SocketAddr| address.port() == probe.port && address.is_ipv4() == flow.dst.is_ipv4();
    let mut found = services.ports.iter().filter(|(service, _)| of_service(service));
    let (address, port) = found.find_map(|(_, port)| Some((port.cluster.iter().find(is_wanted)?, port)))?;
    let backends: BTreeSet<SocketAddr> =
        flows.iter().map(|flow| SocketAddr::new(flow.dst, flow.dst_port)).collect();
    let has_same_backends = port.internal_backends.iter().copied().collect::<BTreeSet<_>>() == backends;
    let verdict = compiled.verdict(probe, flow);
    let agree = flows.iter().all(|other| compiled.verdict(probe, other) == verdict);
    (has_same_backends && agree).then_some(*address)
}

fn case_result(compiled: &CompiledCase<'_>, live: &LiveResult) -> CaseResult {
    let mut result = CaseResult::new(compiled.case);
    let mut outcomes = live.outcomes.iter();
    for (number, (probe, flows)) in compiled.case.probes.iter().zip(&compiled.flows).enumerate() {
        let tried: Vec<_> = flows
            .iter()
            .zip(outcomes.by_ref())
            .filter_map(|(flow, outcome)| Some((flow, outcome.as_ref()?)))
            .collect();
        if tried.is_empty() {
            result.not_sent.insert(number);
        }
        let wrong = tried.into_iter().find(|(_, outcome)| verdict(outcome) != Some(probe.expect));
        if let Some((flow, outcome)) = wrong {
            let failed = compiled.failed(number, Some(flow), verdict(outcome));
            result.failures.push(with_seen(failed, outcome, live));
        }
    }
    result
}

/// Verdict that an outcome implies; `None` for an error other than policy.
fn verdict(outcome: &Outcome) -> Option<Verdict> {
    match outcome {
        Outcome::Allowed | Outcome::Refused => Some(Verdict::Allow),
        Outcome::TimedOut => Some(Verdict::Deny),
        Outcome::Failed(_) => None,
    }
}

fn with_seen(mut failed: Failed, outcome: &Outcome, live: &LiveResult) -> Failed {
    let mut text = format!("the connection {}; the tables say:\n", words(outcome));
    for line in failed.text.lines() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {line}");
    }
    text.push_str("the switch counted, for all probes of the case:\n");
    for line in live.counted.to_string().lines() {
        let _ = writeln!(text, "  {line}");
    }
    failed.text = text;
    failed.seen = Some(Seen { outcome: outcome.clone(), counted: live.counted.clone() });
    failed
}

fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Allowed => "was answered".to_owned(),
        Outcome::Refused => "was refused by the other side".to_owned(),
        Outcome::TimedOut => "was not answered".to_owned(),
        Outcome::Failed(why) => format!("failed ({why})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse::Source;
    use crate::policy::testcase::parse_cases;

    const CASE: &str = "
name: dual stack, and one address that no host can have
resources:
- {apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}, spec: {containers: [{name: c}]},
   status: {podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: x}, spec: {containers: [{name: c}]},
   status: {podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: done, namespace: x}, spec: {containers: [{name: c}]},
   status: {podIP: 10.0.0.3, phase: Succeeded}}
probes:
- {from: {pod: x/a}, to: {pod: x/b}, port: 80, expect: allow}
- {from: {ip: 255.255.255.255}, to: {pod: x/b}, port: 80, expect: allow}
- {from: {ip: 192.0.2.1}, to: {pod: x/b}, port: 80, expect: deny}
";

    #[test]
    fn a_probe_holds_where_it_holds_for_both_families_and_is_not_sent_where_none_can_be() {
        let cases = parse_cases(&Source::new("case.yaml", CASE)).cases;
        let compiled = CompiledCase::new(&cases[0], PlaceholderRange::BENCHMARK);
        let compiled = compiled.ok().and_then(Result::ok).expect("a case");
        let case = live_case(&compiled);
        assert_eq!((case.pods.len(), case.probes.len()), (2, 4));
        let result = |outcomes| {
            let live = LiveResult { outcomes, counted: live::CounterDelta::default() };
            let result = case_result(&compiled, &live);
            let got: Vec<_> = result.failures.iter().map(|failed| (failed.expected, failed.got)).collect();
            (result.not_sent.into_iter().collect::<Vec<_>>(), got)
        };
        let (yes, no) = (Some(Outcome::Allowed), Some(Outcome::TimedOut));
        assert_eq!(result(vec![yes.clone(), yes.clone(), None, no.clone()]), (vec![1], vec![]));
        let failures = vec![(Verdict::Allow, Some(Verdict::Deny)), (Verdict::Deny, None)];
        let error = Some(Outcome::Failed("no".to_owned()));
        assert_eq!(result(vec![yes, no, None, error]), (vec![1], failures));
    }
}
