//! The one list of problems: status, probes, metrics, dashboard, `top` and `doctor` have it from here.

use std::time::{Duration, SystemTime};

use super::Switch;
use crate::control::protocol::{PortState, SourceStatus};
use crate::control::state::{State, unix_seconds};
use crate::dataplane::Workers;
use crate::limits::UPLINK_SERVICE_PORTS_MAX;
use crate::tables::PodName;
use crate::threads;

/// Longest time between two reports of an agent that runs.
const AGENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Most names of pods in one sentence.
const NAMES_MAX: usize = 3;

impl Switch {
    /// Lists problems for the operator, one sentence each, those first that cut pods off.
    pub(in crate::control) fn problems(&self, state: &State) -> Vec<String> {
        let mut problems = self.policy_problems(state);
        problems.extend(port_problems(state));
        problems.extend(self.dataplane.problems());
        problems.extend(state.served.problems.iter().cloned());
        problems.extend(self.source_problems());
        problems.extend(self.reload_problems());
        problems.extend(self.node_problems.iter().filter_map(|problem| problem.load().as_deref().cloned()));
        problems.extend(draining(state));
        problems.extend(self.worker_problems());
        problems.extend(self.limits(state));
        problems
    }

    /// Attached pods that have no policy in force, or another one than their manifests say.
    fn policy_problems(&self, state: &State) -> Vec<String> {
        let fate = if self.settings.fail_open { "pass unchecked (fail = \"open\")" } else { "are cut off" };
        let all = state.pods.len();
        let Some(tables) = &state.tables else {
            let problem = format!("no rule tables are loaded: {} {fate}", attached(all));
            return (all > 0).then_some(problem).into_iter().collect();
        };
        let mut unknown = Vec::new();
        let mut elsewhere = Vec::new();
        for (name, pod) in &state.pods {
            match tables.pods.get(name) {
                None => unknown.push(name),
                Some(policy) if !pod.has_addresses(&policy.addresses) => elsewhere.push(name),
                Some(_) => {}
            }
        }
        let unknown = (!unknown.is_empty())
            .then(|| format!("the tables do not know {}: these {fate}", some_of(&unknown, all)));
        let elsewhere = (!elsewhere.is_empty()).then(|| {
            format!(
                "the tables have other addresses for {}: rules that select these pods do not match their traffic",
                some_of(&elsewhere, all)
            )
        });
        unknown.into_iter().chain(elsewhere).collect()
    }

    /// Conditions of the agent that let the tables in force grow old, or keep them from being loaded.
    fn source_problems(&self) -> Vec<String> {
        let Some(SourceStatus { report, age_s }) = self.source() else { return Vec::new() };
        let silent = (age_s > AGENT_TIMEOUT.as_secs())
            .then(|| format!("the agent has not reported for {age_s} s: policies stay as they were"));
        let refused = report.refused.iter().map(|reason| {
            format!("the switch does not take the tables of the agent, and keeps those before: {reason}")
        });
        let away = report.away.iter().map(|away| {
            let since = seconds_since(away.since_unix_s);
            format!("{} has not been followed for {since} s, and stays as it was: {}", away.kind, away.reason)
        });
        let unlisted = report
            .unlisted
            .iter()
            .map(|kind| format!("{kind} has not been listed yet: no tables are loaded"));
        silent.into_iter().chain(refused).chain(unlisted).chain(away).collect()
    }

    /// Reloads that were rejected, and changes that wait for a restart.
    fn reload_problems(&self) -> Vec<String> {
        let directory = self.rejected_reload.load();
        let directory = directory.as_deref().map(|rejected| {
            let (path, since) = (rejected.path.display(), seconds_since(rejected.at_unix_s));
            let errors = counted(rejected.errors.len() + rejected.left_out, "error");
            format!("the reload of directory {path} was rejected {since} s ago: what was in force stays; `palisade show policies` has the {errors}")
        });
        let report = self.configuration.load();
        let report = report.as_deref();
        let rejected = report.filter(|report| !report.rejected.is_empty()).map(|report| {
            let (file, since) = (report.file.display(), seconds_since(report.read_unix_s));
            format!(
                "the reload of {file} was rejected {since} s ago: the running configuration stays, and a restart would fail: {}",
                report.rejected.join("; ")
            )
        });
        let failed = report
            .filter(|report| !report.failed.is_empty())
            .map(|report| format!("parts of {} failed: {}", report.file.display(), report.failed.join("; ")));
        let waiting = report.filter(|report| !report.restart.is_empty()).map(|report| {
            format!("changes of {} wait for a restart: {}", report.file.display(), report.restart.join(", "))
        });
        [directory, rejected, failed, waiting].into_iter().flatten().collect()
    }

    fn worker_problems(&self) -> Vec<String> {
        let stuck = self.stuck_workers().into_iter().map(|stuck| {
            format!(
                "worker {} (core {}) has not come to the end of a batch for {} s: changes do not reach it; restart the switch",
                stuck.worker,
                stuck.core,
                stuck.since.as_secs()
            )
        });
        let panics = match threads::panics() {
            0 => None,
            count => Some(format!("{count} panics have been contained since the start: the log says where")),
        };
        stuck.chain(panics).collect()
    }

    /// Parts of what the operator asked for that the node, or the switch, does not do.
    fn limits(&self, state: &State) -> Vec<String> {
        let workers = self.dataplane.workers();
        let links = workers.and_then(Workers::without_links).map(|why| {
            format!(
                "XDP programs are attached without BPF links, and `ip link set dev NAME xdp off` takes them off; the links come \
                 with a restart of the switch that finds a BPF file system: {why}"
            )
        });
        let without_xdp = workers.and_then(Workers::without_xdp).map(|reason| {
            format!("only tap ports open, because the switch has started without AF_XDP: {reason}")
        });
        let ipfix = self.ipfix_report().and_then(|report| {
            let (error, collector) = (report.error?, report.collector);
            Some(format!("flows do not reach the collector {collector}: {error}"))
        });
        let services = match workers.map_or(0, Workers::services_left_out) {
            0 => None,
            count => Some(format!(
                "{count} ports of Services stay with the kernel: an uplink takes {UPLINK_SERVICE_PORTS_MAX} of them"
            )),
        };
        let waits = self.settings.masquerade.as_ref().is_some_and(|masquerade| masquerade.waits);
        let masquerade = (waits && !state.has_node_routes).then(|| {
            "pods open no flows to the outside: masquerading waits for the agent's routes to other nodes"
                .to_owned()
        });
        let all = [masquerade, links, without_xdp, ipfix, services, self.audit_problem(state)];
        all.into_iter().flatten().collect()
    }

    fn audit_problem(&self, state: &State) -> Option<String> {
        let (audited, reason) = self.audit.policies(state);
        let is_unseen = self.dataplane.workers().is_none() && !audited.is_empty();
        let reason = reason
            .or_else(|| is_unseen.then(|| "the kernel forwards, and the switch sees no flow".to_owned()))?;
        let audited = match audited.len() {
            1 => "1 policy is in audit mode".to_owned(),
            count => format!("{count} policies are in audit mode"),
        };
        Some(format!("{audited}, and no flow is judged: {reason}"))
    }
}

fn port_problems(state: &State) -> impl Iterator<Item = String> {
    state.ports.iter().filter_map(|(name, port)| {
        let reason = port.reason.as_ref()?;
        Some(match port.state {
            PortState::Up => format!("port {name}: {reason}"),
            PortState::Down => format!("port {name} is down: {reason}"),
            PortState::Unguarded => format!("port {name} is UNGUARDED: {reason}"),
        })
    })
}

fn draining(state: &State) -> impl Iterator<Item = String> {
    state.pods.iter().filter(|(_, pod)| pod.draining).map(|(name, pod)| {
        let port = &pod.request.port;
        format!(
            "port {port} is draining: no flow from or to pod {name} begins, until `palisade port drain {port} --undo`"
        )
    })
}

/// Names some pods out of `all` attached ones.
fn some_of(pods: &[&PodName], all: usize) -> String {
    let names: Vec<String> = pods.iter().take(NAMES_MAX).map(ToString::to_string).collect();
    let more = if pods.len() > NAMES_MAX { ", …" } else { "" };
    format!("{} of {} ({}{more})", pods.len(), attached(all), names.join(", "))
}

fn attached(pods: usize) -> String {
    counted(pods, "attached pod")
}

/// A number of things, in the plural where there is not one.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

fn seconds_since(unix_s: u64) -> u64 {
    unix_seconds(SystemTime::now()).saturating_sub(unix_s)
}
