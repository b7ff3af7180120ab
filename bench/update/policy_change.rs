//! One policy that comes and goes beside another one of many rules: the time of each step from the object to
//! the published tables, on one thread and in memory. The end-to-end scenario `update` takes the same steps
//! on two busy cores.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::control::protocol::TablesPatch;
use palisade::dataplane::{Bandwidth, DesiredState, PortKind, Settings, Simulation};
use palisade::ids::{AttachmentId, Generation};
use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_sources};
use palisade::policy::{Change, Compiler, ObjectName, Options};
use palisade::tables::{PodName, ReferenceCounts, RuleTables};
use serde::Serialize;
use serde_json::json;

use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::policy::PolicySpec;
use crate::common::statistics::rounded;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Pods. The policies select all but the first two.
const PODS: u8 = 3;
/// Timed steps, in their order.
const STEPS: [&str; 5] = ["compile", "write", "read", "check", "publish"];

/// Way in which a rule comes and goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    /// With a policy of its own.
    Policy,
    /// As the last rule of the large policy.
    Rule,
}

/// Line of one way. Each step adds its quantiles, `STEP_us_p50` and `STEP_us_p99`.
#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    how: String,
    rules: usize,
    changes: usize,
    entries: usize,
    bytes: usize,
    #[serde(flatten)]
    steps: BTreeMap<String, f64>,
}

/// Adds and removes a rule `changes` times beside `rules` rules.
pub(crate) fn measure(how: How, rules: usize, changes: usize) {
    let shape = PolicySpec { rules, pods: usize::from(PODS), seed: 1 };
    let manifests = format!("{}---\n{}", pods(), shape.network_policy(CLIENT));
    let mut compiler = Compiler::from_objects(objects(&manifests), Options::default());
    let [less, more] = ways(how, &shape);
    let mut switch = Switch::new(compiler.tables());
    let mut took: [Latencies; STEPS.len()] = Default::default();
    let (mut bytes, mut entries) = (0, 0);
    for number in 0..changes {
        let change = if number % 2 == 0 { more.clone() } else { less.clone() };
        let mut clock = Clock::default();
        let diff = compiler.apply(change);
        clock.done();
        entries = entries.max(diff.len());
        let patch = TablesPatch { base: Generation(0), diff };
        clock.start = Instant::now();
        let body = serde_json::to_vec(&patch).expect("a patch can be written");
        clock.done();
        bytes = bytes.max(body.len());
        drop(patch);
        switch.follow(&body, &mut clock);
        assert_eq!(&*switch.document, compiler.tables(), "the switch has the compiler's tables");
        took.iter_mut().zip(clock.laps).for_each(|(took, lap)| took.record(lap));
    }
    let quantile = |step, name, us| (format!("{step}_us_{name}"), rounded(us, 1));
    let quantiles = STEPS
        .into_iter()
        .zip(&took)
        .flat_map(|(step, took)| [quantile(step, "p50", took.us(0.5)), quantile(step, "p99", took.us(0.99))]);
    json_lines::print(&Line {
        bench: "update",
        case: "policy",
        how: format!("{how:?}"),
        rules,
        changes,
        entries,
        bytes,
        steps: quantiles.collect(),
    });
}

/// Changes that remove the rule and that add it, in this order.
fn ways(how: How, shape: &PolicySpec) -> [Change; 2] {
    let small = objects(&PolicySpec::changed_policy(CLIENT)).remove(0);
    let large = objects(&shape.network_policy(CLIENT)).remove(0);
    match (how, &small, large) {
        (How::Rule, Object::NetworkPolicy(small), Object::NetworkPolicy(large)) => {
            let mut more = large.clone();
            let rules = more.ingress.as_mut().expect("it has rules for ingress");
            rules.extend(small.ingress.clone().expect("it has a rule for ingress"));
            [large, more].map(|policy| Change::Upsert(Object::NetworkPolicy(policy)))
        }
        _ => [Change::Remove(ObjectName::of(&small)), Change::Upsert(small)],
    }
}

/// Times of consecutive steps.
struct Clock {
    start: Instant,
    laps: Vec<Duration>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { start: Instant::now(), laps: Vec::new() }
    }
}

impl Clock {
    fn done(&mut self) {
        self.laps.push(self.start.elapsed());
        self.start = Instant::now();
    }
}

/// The switch's side of a request.
struct Switch {
    simulation: Simulation,
    desired: DesiredState,
    document: Arc<RuleTables>,
    references: ReferenceCounts,
}

impl Switch {
    fn new(tables: &RuleTables) -> Switch {
        let settings = Settings { cores: vec![0], ..Settings::default() };
        let mut simulation = Simulation::new(&settings).expect("memory for the switch");
        let document = Arc::new(tables.clone());
        let pods = (0..PODS).map(|pod| palisade::dataplane::PodAttachment {
            id: AttachmentId(1 + u32::from(pod)),
            pod: PodName::new("default", format!("pod{pod}")),
            port: simulation.open_port(PortKind::Pod, None, 1500).expect("a port").id,
            addresses: vec![[10, 0, 0, 1 + pod].into()],
            mac: None,
            bandwidth: Bandwidth::default(),
        });
        let desired =
            DesiredState { pods: pods.collect(), tables: Some(document.clone()), ..DesiredState::default() };
        simulation.publish(desired.clone());
        simulation.step();
        Switch { simulation, desired, references: ReferenceCounts::of(&document), document }
    }

    fn follow(&mut self, body: &[u8], clock: &mut Clock) {
        clock.start = Instant::now();
        let patch: TablesPatch = serde_json::from_slice(body).expect("the patch can be read again");
        clock.done();
        let mut next = RuleTables::clone(&self.document);
        next.apply(&patch.diff);
        self.references.check_and_apply(&self.document, &patch.diff, &next).expect("the tables stay whole");
        clock.done();
        self.document = Arc::new(next);
        self.desired.tables = Some(self.document.clone());
        self.simulation.publish(self.desired.clone());
        clock.done();
        self.simulation.step();
    }
}

/// Manifests of the pods: the client, an outsider and the receivers.
pub(crate) fn pods() -> String {
    let pods = (0..PODS).map(|pod| {
        let address = format!("10.0.0.{}", 1 + pod);
        let role = if pod < 2 { "other" } else { "receiver" };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("pod{pod}"), "namespace": "default", "labels": {"role": role}},
            "spec": {"containers": [{"name": "one", "image": "one"}]},
            "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
        })
    });
    pods.map(|pod| format!("{pod}\n")).collect::<Vec<_>>().join("---\n")
}

fn objects(manifests: &str) -> Vec<Object> {
    let parsed = parse_sources(&[Source::new("manifests", manifests)]);
    parsed.expect("the manifests are right").objects.into_iter().map(|(object, _)| object).collect()
}
