//! What goes on beside the forwarding of packets, measured in memory: tables that change a thousand times a second, and flows
//! that age.
//!
//! **Updates.** One thread forwards between sixteen pods, another one makes a small change of the tables, checks it as a patch on
//! the control socket is checked, and publishes it. A change is due after each millisecond that the worker has worked, however
//! long the generator takes between. Windows with and without changes alternate; `slowdown_percent` is of the medians of their
//! means.
//!
//! **Policy.** A policy comes and goes beside one of many rules: what each step from the object to the published tables takes.
//!
//! **Directory.** A file of the watched directory is replaced by a rename: how long until it is in force?
//!
//! **Ageing.** Flows that nobody uses any more are looked for while packets of others come: how long does a batch take?
//!
//! Prints one JSON object per line. `--smoke` takes about two seconds; `--policy` measures only what concerns a policy.

mod common;
mod pipeline_parts;
#[allow(dead_code)] // The end-to-end rig's, which uses all of it.
#[path = "e2e/policy.rs"]
mod policy;
mod update_parts;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::Random;
use ipnet::IpNet;
use palisade::dataplane::{DesiredState, Publisher, SimulatedPort};
use palisade::ids::{AclId, ClassId, Generation, RowId, RuleId, WorkerId};
use palisade::limits::BATCH_FRAMES_MAX;
use palisade::tables::{Decision, ReferenceCounts, Row, RuleTables, TablesDiff};
use pipeline_parts::report::median;
use pipeline_parts::rig::{Rig, Tables};
use pipeline_parts::traffic::{Case, Order, Traffic};
use update_parts::policy::How;

/// Time of the worker between two changes: a thousand a second.
const INTERVAL: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(10);

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let (rules, windows, window) =
        if smoke { (1_000, 4, Duration::from_millis(10)) } else { (10_000, 40, Duration::from_millis(100)) };
    for how in [How::Policy, How::Rule] {
        update_parts::policy::measure(how, 1_000, if smoke { 100 } else { 2_000 });
    }
    for files in [0, if smoke { 100 } else { 5_000 }] {
        update_parts::directory::measure(1_000, files, if smoke { 20 } else { 500 });
    }
    if std::env::args().any(|argument| argument == "--policy") {
        return;
    }
    for flows in [100, 10_000] {
        updates(rules, flows, windows, window);
    }
    ageing(if smoke { 20_000 } else { 1_000_000 });
}

/// What one kind of window saw.
#[derive(Default)]
struct Seen {
    packets: usize,
    lost: usize,
    worked: Duration,
    /// Nanoseconds per packet, by window.
    ns: Vec<f64>,
}

fn updates(rules: usize, flows: usize, windows: usize, window: Duration) {
    let case = Case { name: "established", family: 4, rules, flows, order: Order::Random, workers: 1 };
    let tables = Tables::new(rules);
    let mut rig = Rig::new(&tables, flows);
    rig.enter(&Traffic::established(&case, &tables));
    let mut traffic = Traffic::new(&case, &tables);
    let mut control = Control::new(&rig.world);
    let control = &mut control;
    let mut now = rig.simulation.now;
    let ports = &rig.ports;
    let (publisher, mut workers) = rig.simulation.apart();
    let mut step = workers.next().expect("a worker");
    let [mut quiet, mut busy] = [Seen::default(), Seen::default()];
    let mut firsts = Vec::new();
    let (due, dues) = channel();
    std::thread::scope(|scope| {
        let publisher = &publisher;
        let changes = scope.spawn(move || control.publish_all(publisher, dues));
        for number in 0..=2 * windows {
            let is_busy = number % 2 == 1;
            let seen = if is_busy { &mut busy } else { &mut quiet };
            let (packets, worked) = (seen.packets, seen.worked);
            let mut next_due = worked + INTERVAL;
            let mut judged_by = publisher.judged_by(WorkerId(0));
            while seen.worked < worked + window {
                load(ports, &mut traffic);
                let start = Instant::now();
                step(now);
                let took = start.elapsed();
                (now, seen.worked) = (now + took, seen.worked + took);
                seen.packets += BATCH_FRAMES_MAX;
                let passed: usize = ports.iter().map(|port| port.peers[0].drain_with(|_| ())).sum();
                seen.lost += BATCH_FRAMES_MAX - passed;
                let generation = publisher.judged_by(WorkerId(0));
                if generation != judged_by {
                    judged_by = generation;
                    firsts.push((generation, Instant::now()));
                }
                if is_busy && seen.worked >= next_due {
                    next_due += INTERVAL;
                    due.send(()).expect("the control side listens");
                }
            }
            let took = seen.worked.saturating_sub(worked);
            seen.ns.push(took.as_nanos() as f64 / (seen.packets - packets) as f64);
        }
        // The last changes wait for a worker that goes on.
        drop(due);
        while !changes.is_finished() {
            step(now);
        }
        let changes = changes.join().expect("the control side publishes");
        report(rules, flows, (quiet, busy), &changes, &firsts);
    });
}

fn load(ports: &[SimulatedPort], traffic: &mut Traffic) {
    for _ in 0..BATCH_FRAMES_MAX {
        let (packet, _) = traffic.next();
        let peer = &ports[usize::from(packet.sender())].peers[0];
        let took = peer.inject_with(traffic.frame_bytes, |frame| packet.write(traffic.family, frame));
        assert!(took, "a frame to receive into");
    }
}

/// A change: when its publication was asked for, how long it took to be checked and laid out, and until every worker had it.
struct Published {
    generation: Generation,
    asked: Instant,
    checked: Duration,
    done: Duration,
}

/// The control side: the document, and what checks its changes.
struct Control {
    world: DesiredState,
    document: Arc<RuleTables>,
    references: ReferenceCounts,
    random: Random,
    /// The rule that comes and goes, and its row.
    guest: (RuleId, RowId),
    changes: u32,
}

impl Control {
    fn new(world: &DesiredState) -> Control {
        let document = world.tables.clone().expect("the world has tables");
        let references = ReferenceCounts::of(&document);
        let rule = document.rules.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        let row = document.rows.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        let guest = (RuleId(rule), RowId(row));
        Control { world: world.clone(), document, references, random: Random(7), guest, changes: 0 }
    }

    /// Publishes a change each time that one is due.
    fn publish_all(&mut self, publisher: &Publisher<'_>, dues: Receiver<()>) -> Vec<Published> {
        dues.into_iter().map(|()| self.publish(publisher)).collect()
    }

    fn publish(&mut self, publisher: &Publisher<'_>) -> Published {
        let diff = self.change();
        let asked = Instant::now();
        let mut next = RuleTables::clone(&self.document);
        next.apply(&diff);
        self.references.follow(&self.document, &diff, &next).expect("the change leaves the tables whole");
        let checked = asked.elapsed();
        self.document = Arc::new(next);
        let world = DesiredState { tables: Some(self.document.clone()), ..self.world.clone() };
        let generation = publisher.publish(world, PATIENCE).expect("the worker comes to the end of a batch");
        Published { generation, asked, checked, done: asked.elapsed() }
    }

    /// In turn: a rule comes, for a class in a table, with a row of its own; the rule goes; a pod of the cluster comes, or goes.
    fn change(&mut self) -> TablesDiff {
        let (rule, row) = self.guest;
        let mut diff = TablesDiff::default();
        let turn = self.changes;
        self.changes += 1;
        let acl = AclId(turn / 4 % self.document.acls.len() as u32);
        match turn % 4 {
            0 => {
                let default = &self.document.rows[&self.document.acls[&acl].default];
                let allowed = Row { other: Decision::allow(rule), ..default.clone() };
                let origin = self.document.rules[&RuleId(1)].clone();
                let class = ClassId(self.random.below(300) as u32);
                diff.rules.insert(rule, Some(origin));
                diff.rows.insert(row, Some(allowed));
                diff.acl_rows.insert(acl, [(class, Some(row))].into());
            }
            1 => {
                let rows = &self.document.acls[&acl].rows;
                let named = rows.iter().find(|(_, of)| **of == row).map(|(class, _)| *class);
                diff.rules.insert(rule, None);
                diff.rows.insert(row, None);
                diff.acl_rows.insert(acl, [(named.expect("the rule came before"), None)].into());
            }
            2 => _ = diff.prefixes.insert(remote_pod(turn), Some(ClassId(1 + turn % 200))),
            _ => _ = diff.prefixes.insert(remote_pod(turn - 1), None),
        }
        diff
    }
}

/// The address of a pod of another node.
fn remote_pod(number: u32) -> IpNet {
    IpNet::new(std::net::Ipv4Addr::from_bits(0x0aff_0000 | number & 0xffff).into(), 32)
        .expect("a whole address")
}

fn report(
    rules: usize,
    flows: usize,
    (mut quiet, mut busy): (Seen, Seen),
    changes: &[Published],
    firsts: &[(Generation, Instant)],
) {
    // The first window warms the caches.
    quiet.ns.remove(0);
    let [slow, fast] = [median(&mut busy.ns), median(&mut quiet.ns)];
    let per_second = changes.len() as f64 / busy.worked.as_secs_f64();
    let micros = |duration: Duration| duration.as_nanos() as f64 / 1e3;
    let mut checked: Vec<f64> = changes.iter().map(|change| micros(change.checked)).collect();
    let mut done: Vec<f64> = changes.iter().map(|change| micros(change.done)).collect();
    let first = |change: &Published| {
        let first = firsts.iter().find(|(generation, _)| *generation >= change.generation)?;
        Some(micros(first.1.saturating_duration_since(change.asked)))
    };
    let mut first_packet: Vec<f64> = changes.iter().filter_map(first).collect();
    let [checked, done, first_packet] =
        [&mut checked, &mut done, &mut first_packet].map(|samples| spread(samples));
    println!(
        r#"{{"bench":"update","case":"updates","rules":{rules},"flows":{flows},"updates_per_s":{per_second:.0},"updates":{},"packets":{},"lost":{},"ns_per_packet":{slow:.2},"ns_per_packet_without":{fast:.2},"slowdown_percent":{:.1},"check_us_p50":{:.1},"check_us_p99":{:.1},"publish_us_p50":{:.1},"publish_us_p99":{:.1},"first_packet_us_p50":{:.1},"first_packet_us_p99":{:.1}}}"#,
        changes.len(),
        busy.packets,
        quiet.lost + busy.lost,
        (slow / fast - 1.0) * 100.0,
        checked[0],
        checked[1],
        done[0],
        done[1],
        first_packet[0],
        first_packet[1],
    );
}

/// Median, 99th percentile, greatest.
pub(crate) fn spread(samples: &mut [f64]) -> [f64; 3] {
    samples.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize];
    [at(0.5), at(0.99), at(1.0)]
}

/// Lets all flows run out of time, while a few packets come.
fn ageing(flows: usize) {
    let case = Case { name: "established", family: 4, rules: 1, flows, order: Order::Sequence, workers: 1 };
    let few = Case { flows: 16, ..case };
    let tables = Tables::new(case.rules);
    let mut rig = Rig::new(&tables, flows);
    rig.enter(&Traffic::established(&case, &tables));
    let mut traffic = Traffic::new(&few, &tables);
    rig.simulation.now += Duration::from_mins(5);
    let mut took = Vec::new();
    while rig.simulation.flows_len() > few.flows {
        for _ in 0..4_000 {
            load(&rig.ports[..], &mut traffic);
            let start = Instant::now();
            rig.simulation.step_worker(0);
            let time = start.elapsed();
            rig.simulation.now += time;
            took.push(time.as_nanos() as f64 / 1e3);
            rig.ports.iter().for_each(|port| _ = port.peers[0].drain_with(|_| ()));
        }
    }
    let [median, most, greatest] = spread(&mut took);
    println!(
        r#"{{"bench":"update","case":"ageing","flows":{flows},"batches":{},"batch_us_p50":{median:.1},"batch_us_p99":{most:.1},"batch_us_max":{greatest:.1}}}"#,
        took.len(),
    );
}
