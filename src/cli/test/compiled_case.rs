//! Policy test case, compiled into rule tables.

use crate::cli::{CliError, manifests};
use crate::net::flow::FlowKey;
use crate::policy::evaluate::{ReferenceEvaluator, TableEvaluator};
use crate::policy::explain::{Explanation, PolicyLocations, explain};
use crate::policy::parse::Location;
use crate::policy::testcase::{Case, Destination, Endpoint, PlaceholderRange, Probe, ProbeExpansion};
use crate::policy::{Compiler, Options, policy_of};
use crate::tables::Verdict;

use super::report::{CaseResult, Failed};

/// Most invalid probes of a case to report.
const WRONG_PROBES_SHOWN: usize = 20;

/// Compiled case.
pub(super) struct CompiledCase<'c> {
    pub(super) case: &'c Case,
    pub(super) expansion: ProbeExpansion,
    pub(super) evaluator: TableEvaluator,
    /// Flows of each probe.
    pub(super) flows: Vec<Vec<FlowKey>>,
}

impl CompiledCase<'_> {
    /// Compiles a case. An invalid probe (of a missing pod, for example) makes the case invalid and not the
    /// policy.
    pub(super) fn new(
        case: &Case,
        placeholders: PlaceholderRange,
    ) -> Result<Result<CompiledCase<'_>, CaseResult>, CliError> {
        let expansion = ProbeExpansion::with(case, placeholders);
        let compiler = Compiler::from_objects(expansion.objects().iter().cloned(), Options::default());
        let evaluator = manifests::evaluator(compiler.into_tables())?;
        let (mut flows, mut errors) = (Vec::new(), Vec::new());
        for probe in &case.probes {
            match expansion.flows(probe) {
                Ok(of_probe) => flows.push(of_probe),
                Err(error) => errors.push(format!("{}: {error}", probe.location)),
            }
            if errors.len() == WRONG_PROBES_SHOWN {
                errors.push("the probes after this one are not looked at".to_owned());
                break;
            }
        }
        if errors.is_empty() {
            Ok(Ok(CompiledCase { case, expansion, evaluator, flows }))
        } else {
            Ok(Err(CaseResult { errors, ..CaseResult::new(case) }))
        }
    }

    /// Verdict on one of the flows of a probe.
    pub(super) fn verdict(&self, probe: &Probe, flow: &FlowKey) -> Verdict {
        match &probe.to {
            Destination::Endpoint(_) => self.evaluator.verdict(flow),
            Destination::Service(_) => self.evaluator.evaluate_by_service(flow).verdict(),
        }
    }

    /// Describes the failed probe of this number on one of its flows; on none if a Service has no backend.
    pub(super) fn failed(&self, number: usize, flow: Option<&FlowKey>, got: Option<Verdict>) -> Failed {
        let probe = &self.case.probes[number];
        let explanation = flow.map(|flow| self.explain(probe, flow));
        let text = match (&probe.to, flow, &explanation) {
            (Destination::Service(_), Some(flow), Some(explanation)) => {
                let backend = std::net::SocketAddr::new(flow.dst, flow.dst_port);
                format!("{} may pick backend {backend}:\n{explanation}", probe.to)
            }
            (_, _, Some(explanation)) => explanation.to_string(),
            (_, _, None) => format!("{} has no backend for this client: connections are refused\n", probe.to),
        };
        Failed {
            number,
            place: probe.location.to_string(),
            from: probe.from.to_string(),
            to: probe.to.to_string(),
            protocol: probe.protocol,
            port: probe.port,
            expected: probe.expect,
            got,
            seen: None,
            text,
            explanation,
        }
    }

    fn explain(&self, probe: &Probe, flow: &FlowKey) -> Explanation {
        let reference = ReferenceEvaluator::new(self.expansion.objects());
        let backend = Endpoint::Ip(flow.dst);
        let (to, verdict) = match &probe.to {
            Destination::Endpoint(to) => (to, self.evaluator.evaluate(flow)),
            Destination::Service(_) => (&backend, self.evaluator.evaluate_by_service(flow)),
        };
        explain(&reference, flow, [&probe.from, to], &verdict, &locations(self.case))
    }
}

fn locations(case: &Case) -> PolicyLocations {
    let of = |location: &Location| location.to_string();
    case.objects.iter().filter_map(|(object, location)| Some((policy_of(object)?, of(location)))).collect()
}
