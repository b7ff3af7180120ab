//! Demonstration: a database, a front end and two back ends, and a policy that lets only the back ends reach
//! the database. Real network stacks connect through the switch, which is a process of its own.
//!
//! 1. Without a policy every pod reaches every pod.
//! 2. With `policy.yaml` the back ends reach the database on its port, and no pod reaches it otherwise.
//! 3. Without the policy every pod reaches every pod again.

mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use report::{Denied, Matrix, Report, Step};

use super::manifests::manifests;
use super::switch::{Switch, SwitchSpec};
use super::traffic::{Outcome, Server, Services, latency, tcp_connect, throughput};
use super::{Journal, Lab, LabError, LabSpec, Pod, PodPlan, PodPorts};
use crate::control::protocol::CountersReport;
use crate::tables::{RuleOrigin, Verdict};

/// Policy of the second step.
pub const POLICY: &str = include_str!("policy.yaml");
/// Port of the database, which the policy names.
const PORT: u16 = 6379;
/// Port of the database that the policy does not name.
const OTHER_PORT: u16 = 8080;
/// Pods, and the values of their label `role`.
const PODS: [(&str, &str); 4] =
    [("db", "db"), ("frontend", "frontend"), ("backend1", "backend"), ("backend2", "backend")];
/// Longest wait for a connection that is not answered.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Duration of each measurement.
const MEASURED: Duration = Duration::from_secs(1);

/// Parameters of the demonstration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoSpec {
    /// The `palisade` program.
    pub program: PathBuf,
    /// Interfaces of the pods.
    pub ports: PodPorts,
    /// Workers of the switch.
    pub workers: u16,
    /// Whether lab and switch stay after the last step.
    pub keep: bool,
}

/// Result of the demonstration.
#[derive(Debug)]
pub struct Played {
    /// Report.
    pub report: Report,
    /// Journal of the lab, where it stays.
    pub kept: Option<Journal>,
}

/// Runs the demonstration. `tell` receives the name of each step. Once `interrupted` is set, everything is
/// removed soon.
pub fn play(
    spec: &DemoSpec,
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<Played, LabError> {
    let start = Instant::now();
    let mut now = |what: &str| {
        tell(what);
        if interrupted.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
    };
    now("making four pods")?;
    let DemoSpec { ports, workers, .. } = *spec;
    let mut lab = Lab::up(&LabSpec { ports, workers, ..LabSpec::of(&PODS.map(|(pod, _)| pod))? })?;
    let serve = |pod: Pod| Server::start(&pod, &[PORT, OTHER_PORT], Services::Tcp);
    let servers: Vec<Server> = lab.pods().map(serve).collect::<Result<_, _>>()?;
    now("starting the switch")?;
    let switch = Switch::start(&mut lab, &SwitchSpec::of(&spec.program))?;
    switch.attach_all(&lab)?;

    let steps = play_steps(&lab, &switch, &mut now)?;

    let (from, to) = (lab.pod("backend1")?, lab.pod("db")?.v4().into());
    now("measuring latency")?;
    let latency = latency(&from, to, PORT, MEASURED)?;
    now("measuring throughput")?;
    let throughput = throughput(&from, to, PORT, MEASURED)?;
    let counted = switch.client().counters()?.workers;
    now("removing everything")?;
    drop(servers);
    let kept = leave(lab, switch, spec.keep)?;
    let report = Report {
        mismatches: steps.iter().map(Step::mismatches).sum(),
        steps,
        workers,
        frames_by_worker: counted.into_iter().map(|(worker, of)| (worker, of.received)).collect(),
        latency,
        throughput,
        seconds: start.elapsed().as_secs_f64(),
    };
    Ok(Played { report, kept })
}

fn play_steps(
    lab: &Lab,
    switch: &Switch,
    now: &mut dyn FnMut(&str) -> Result<(), LabError>,
) -> Result<Vec<Step>, LabError> {
    let pods = manifests(lab, labels);
    let with_policy = format!("{pods}---\n{POLICY}");
    let steps = [
        ("no policy", &pods, false),
        ("role=backend may reach role=db on TCP 6379", &with_policy, true),
        ("policy removed", &pods, false),
    ];
    let play_one = |(name, manifests, isolated): (&str, &String, bool)| {
        now(&format!("connecting everyone with everyone: {name}"))?;
        switch.apply(manifests)?;
        play_step(name, lab, switch, isolated)
    };
    steps.into_iter().map(play_one).collect()
}

fn leave(lab: Lab, switch: Switch, keep: bool) -> Result<Option<Journal>, LabError> {
    if keep {
        switch.keep();
        return lab.keep().map(Some);
    }
    let status = switch.stop()?;
    if !status.success() {
        return Err(LabError::Switch(format!("the switch did not stop cleanly ({status})")));
    }
    let errors = lab.remove().errors;
    if errors.is_empty() { Ok(None) } else { Err(LabError::Plan(errors.join("; "))) }
}

fn role(pod: &str) -> &str {
    PODS.iter().find(|(name, _)| *name == pod).map_or("", |(_, role)| role)
}

fn labels(plan: &PodPlan) -> Vec<(String, String)> {
    vec![("role".to_owned(), role(&plan.pod.name).to_owned())]
}

/// Returns the destinations: the database on two ports, every other pod on one.
fn targets(lab: &Lab) -> Vec<(Pod, u16)> {
    let ports =
        |pod: &Pod| if role(&pod.plan().pod.name) == "db" { vec![PORT, OTHER_PORT] } else { vec![PORT] };
    lab.pods().flat_map(|pod| ports(&pod).into_iter().map(move |port| (pod.clone(), port))).collect()
}

/// Returns the expected outcome by the text of the scenario, without the compiler.
fn expected(from: &str, to: &str, port: u16, isolated: bool) -> Outcome {
    let closed = isolated && role(to) == "db";
    if !closed || (role(from) == "backend" && port == PORT) { Outcome::Allowed } else { Outcome::TimedOut }
}

fn play_step(name: &str, lab: &Lab, switch: &Switch, isolated: bool) -> Result<Step, LabError> {
    let before = denied(&switch.client().counters()?);
    let seen = connect_all(lab)?;
    let after = denied(&switch.client().counters()?);
    let grown = after.into_iter().map(|(origin, packets)| {
        let packets = packets - before.get(&origin).copied().unwrap_or(0);
        Denied { packets, by: origin.to_string(), origin }
    });
    let denied = grown.filter(|denied| denied.packets > 0).collect();
    Ok(Step { name: name.to_owned(), expected: expect_all(lab, isolated), seen, denied })
}

fn denied(counters: &CountersReport) -> BTreeMap<RuleOrigin, u64> {
    let denials = counters.decisions.iter().filter(|decision| decision.verdict == Verdict::Deny);
    let mut sums = BTreeMap::new();
    for denial in denials {
        *sums.entry(denial.origin.clone()).or_default() += denial.packets;
    }
    sums
}

/// Connects all pairs at the same time, since a denied connection takes until its time-out.
fn connect_all(lab: &Lab) -> Result<Matrix, LabError> {
    std::thread::scope(|scope| {
        let attempts = pairs(lab).into_iter().map(|(from, to, port)| {
            let names = (name(&from), target_name(&to, port));
            (names, scope.spawn(move || connect(&from, &to, port)))
        });
        let attempts: Vec<_> = attempts.collect();
        let mut seen = Matrix::new();
        for ((from, to), attempt) in attempts {
            let outcome = attempt.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            seen.entry(from).or_default().insert(to, outcome);
        }
        Ok(seen)
    })
}

/// Connects by IPv4 and by IPv6. The policy treats them alike, so different outcomes are a failure.
fn connect(from: &Pod, to: &Pod, port: u16) -> Result<Outcome, LabError> {
    let [v4, v6] = [to.v4().into(), to.v6().into()].map(|address| tcp_connect(from, address, port, TIMEOUT));
    let (v4, v6) = (v4?, v6?);
    Ok(if v4 == v6 { v4 } else { Outcome::Failed(format!("{v4} by IPv4, {v6} by IPv6")) })
}

fn expect_all(lab: &Lab, isolated: bool) -> Matrix {
    let mut matrix = Matrix::new();
    for (from, to, port) in pairs(lab) {
        let outcome = expected(&from.plan().pod.name, &to.plan().pod.name, port, isolated);
        matrix.entry(name(&from)).or_default().insert(target_name(&to, port), outcome);
    }
    matrix
}

/// Returns every pod with every destination but its own.
fn pairs(lab: &Lab) -> Vec<(Pod, Pod, u16)> {
    let targets = targets(lab);
    let from_each =
        lab.pods().flat_map(|from| targets.iter().map(move |(to, port)| (from.clone(), to.clone(), *port)));
    from_each.filter(|(from, to, _)| from != to).collect()
}

fn name(pod: &Pod) -> String {
    pod.plan().pod.to_string()
}

fn target_name(pod: &Pod, port: u16) -> String {
    format!("{}:{port}", pod.plan().pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_back_ends_on_the_named_port_reach_the_isolated_database() {
        let allowed = |from: &str, to: &str, port| expected(from, to, port, true) == Outcome::Allowed;
        assert!(allowed("backend1", "db", PORT) && allowed("backend2", "db", PORT));
        assert!(!allowed("frontend", "db", PORT) && !allowed("backend1", "db", OTHER_PORT));
        assert!(allowed("db", "frontend", PORT) && allowed("frontend", "backend1", PORT));
        assert_eq!(expected("frontend", "db", PORT, false), Outcome::Allowed);
    }

    #[test]
    fn a_missing_and_a_different_outcome_are_mismatches() {
        let row = |outcome| BTreeMap::from([("default/db:6379".to_owned(), outcome)]);
        let expected = Matrix::from([
            ("default/a".to_owned(), row(Outcome::Allowed)),
            ("default/b".to_owned(), row(Outcome::TimedOut)),
            ("default/c".to_owned(), row(Outcome::Allowed)),
        ]);
        let seen = Matrix::from([
            ("default/a".to_owned(), row(Outcome::Allowed)),
            ("default/b".to_owned(), row(Outcome::Allowed)),
        ]);
        let step = Step { name: String::new(), expected, seen, denied: vec![] };
        assert_eq!(step.mismatches(), 2);
    }
}
