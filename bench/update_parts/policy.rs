//! What one policy that comes and goes costs, step by step, on one thread and in memory: what the rig's scenario `update` pays for
//! on two cores that are busy.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use palisade::control::protocol::TablesPatch;
use palisade::dataplane::{DesiredState, PortKind, Settings, Simulation};
use palisade::ids::{AttachmentId, Generation};
use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, read_all};
use palisade::policy::{Change, Compiler, ObjectName, Options};
use palisade::tables::{PodName, ReferenceCounts, RuleTables};
use serde_json::json;

use crate::policy::PolicyShape;
use crate::spread;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Pods, of which all but the first two are selected by the policies.
const PODS: u8 = 3;
/// What is timed, in turn.
const STEPS: [&str; 5] = ["compile", "write", "read", "check", "publish"];

/// How a rule comes and goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    /// With a policy of its own.
    Policy,
    /// As the last rule of the large policy.
    Rule,
}

/// Lets a rule come and go `changes` times beside `rules` rules.
pub(crate) fn measure(how: How, rules: usize, changes: usize) {
    let shape = PolicyShape { rules, pods: usize::from(PODS), seed: 1 };
    let manifests = format!("{}---\n{}", pods(), shape.network_policy(CLIENT));
    let mut compiler = Compiler::from_objects(objects(&manifests), Options::default());
    let [less, more] = ways(how, &shape);
    let mut switch = Switch::new(compiler.tables());
    let mut took: [Vec<f64>; STEPS.len()] = Default::default();
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
        assert_eq!(&*switch.document, compiler.tables(), "the switch has what the compiler has");
        took.iter_mut().zip(clock.laps).for_each(|(took, lap)| took.push(lap));
    }
    let steps = STEPS.into_iter().zip(&mut took).map(|(step, took)| {
        let [median, most, _] = spread(took);
        format!(r#""{step}_us_p50":{median:.1},"{step}_us_p99":{most:.1}"#)
    });
    let steps: Vec<String> = steps.collect();
    println!(
        r#"{{"bench":"update","case":"policy","how":"{how:?}","rules":{rules},"changes":{changes},"entries":{entries},"bytes":{bytes},{}}}"#,
        steps.join(",")
    );
}

/// The changes that take the rule away and that bring it.
fn ways(how: How, shape: &PolicyShape) -> [Change; 2] {
    let small = objects(&PolicyShape::changed_policy(CLIENT)).remove(0);
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

/// Times of consecutive steps, in microseconds.
struct Clock {
    start: Instant,
    laps: Vec<f64>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { start: Instant::now(), laps: Vec::new() }
    }
}

impl Clock {
    fn done(&mut self) {
        self.laps.push(self.start.elapsed().as_nanos() as f64 / 1e3);
        self.start = Instant::now();
    }
}

/// The switch's side, as it serves a request.
struct Switch {
    simulation: Simulation,
    world: DesiredState,
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
        });
        let world =
            DesiredState { pods: pods.collect(), tables: Some(document.clone()), ..DesiredState::default() };
        simulation.publish(world.clone());
        simulation.step();
        Switch { simulation, world, references: ReferenceCounts::of(&document), document }
    }

    fn follow(&mut self, body: &[u8], clock: &mut Clock) {
        clock.start = Instant::now();
        let patch: TablesPatch = serde_json::from_slice(body).expect("what was written can be read");
        clock.done();
        let mut next = RuleTables::clone(&self.document);
        next.apply(&patch.diff);
        self.references.follow(&self.document, &patch.diff, &next).expect("the tables stay whole");
        clock.done();
        self.document = Arc::new(next);
        self.world.tables = Some(self.document.clone());
        self.simulation.publish(self.world.clone());
        clock.done();
        self.simulation.step();
    }
}

/// The client, a stranger and the receivers.
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
    let parsed = read_all(&[Source::new("manifests", manifests)]);
    parsed.expect("the manifests are right").objects.into_iter().map(|(object, _)| object).collect()
}
