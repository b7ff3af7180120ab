//! Updates of the rule tables beside traffic: the slowdown of the worker, and the latency of a change.
//!
//! One thread forwards between sixteen pods. Another one makes a small change of the tables, validates it as
//! the control socket validates a patch, and publishes it. A change is due after each millisecond of the
//! worker's own time; the generator is not in that time. Windows with and without changes alternate;
//! `slowdown_percent` compares the medians of their means.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use palisade::dataplane::{DesiredState, Publisher};
use palisade::ids::{AclId, ClassId, Generation, RowId, RuleId, WorkerId};
use palisade::limits::BATCH_FRAMES_MAX;
use palisade::tables::{Decision, ReferenceCounts, Row, RuleTables, TablesDiff};
use serde::Serialize;

use crate::common::compiled_rules::CompiledRules;
use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::random::Random;
use crate::common::simulated_node::{SimulatedNode, load_forwarded, slots_for};
use crate::common::statistics::{median, rounded};
use crate::common::traffic::{Case, Order, Traffic};

/// The worker's time between two changes: a thousand a second.
const INTERVAL: Duration = Duration::from_millis(1);
/// Longest wait for the worker to take a generation.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Totals of one kind of window.
#[derive(Default)]
struct Windows {
    packets: usize,
    lost: usize,
    worked: Duration,
    /// Nanoseconds a packet, by window.
    ns: Vec<f64>,
}

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    rules: usize,
    flows: usize,
    updates_per_s: f64,
    updates: usize,
    packets: usize,
    lost: usize,
    ns_per_packet: f64,
    ns_per_packet_without: f64,
    slowdown_percent: f64,
    check_us_p50: f64,
    check_us_p99: f64,
    publish_us_p50: f64,
    publish_us_p99: f64,
    first_packet_us_p50: f64,
    first_packet_us_p99: f64,
}

/// Forwards established flows in `windows` windows of each kind, and prints the result.
pub(crate) fn measure(rules: usize, flows: usize, windows: usize, window: Duration) {
    let case = Case { name: "established", family: 4, rules, flows, order: Order::Random, workers: 1 };
    let tables = CompiledRules::new(rules);
    let mut node = SimulatedNode::new(&tables, slots_for(flows));
    node.establish(&Traffic::established(&case, &tables));
    let mut traffic = Traffic::new(&case, &tables);
    let mut control = Control::new(&node.desired);
    let control = &mut control;
    let mut now = node.simulation.now;
    let ports = &node.ports;
    let (publisher, mut workers) = node.simulation.apart();
    let mut step = workers.next().expect("a worker");
    let [mut quiet, mut busy] = [Windows::default(), Windows::default()];
    let mut first_batches = Vec::new();
    let (due, dues) = channel();
    std::thread::scope(|scope| {
        let publisher = &publisher;
        let changes = scope.spawn(move || control.publish_all(publisher, dues));
        for number in 0..=2 * windows {
            let has_changes = number % 2 == 1;
            let seen = if has_changes { &mut busy } else { &mut quiet };
            let (packets, worked) = (seen.packets, seen.worked);
            let mut next_due = worked + INTERVAL;
            let mut observed_by = publisher.observed_by(WorkerId(0));
            while seen.worked < worked + window {
                load_forwarded(ports, &mut traffic);
                let start = Instant::now();
                step(now);
                let took = start.elapsed();
                (now, seen.worked) = (now + took, seen.worked + took);
                seen.packets += BATCH_FRAMES_MAX;
                let passed: usize = ports.iter().map(|port| port.peers[0].drain_with(|_| ())).sum();
                seen.lost += BATCH_FRAMES_MAX - passed;
                let generation = publisher.observed_by(WorkerId(0));
                if generation != observed_by {
                    observed_by = generation;
                    first_batches.push((generation, Instant::now()));
                }
                if has_changes && seen.worked >= next_due {
                    next_due += INTERVAL;
                    due.send(()).expect("the control side listens");
                }
            }
            let took = seen.worked.saturating_sub(worked);
            seen.ns.push(took.as_nanos() as f64 / (seen.packets - packets) as f64);
        }
        // The last changes wait for a worker that steps.
        drop(due);
        while !changes.is_finished() {
            step(now);
        }
        let changes = changes.join().expect("the control side publishes");
        report(rules, flows, (quiet, busy), &changes, &first_batches);
    });
}

/// One published change.
struct Published {
    generation: Generation,
    start: Instant,
    /// Time to validate it.
    check: Duration,
    /// Time until every worker has the generation.
    publish: Duration,
}

/// Control side: the tables as a document, and the reference counts that validate a change.
struct Control {
    desired: DesiredState,
    document: Arc<RuleTables>,
    references: ReferenceCounts,
    random: Random,
    /// Rule that the changes add and remove, and its row.
    guest: (RuleId, RowId),
    changes: u32,
}

impl Control {
    fn new(desired: &DesiredState) -> Control {
        let document = desired.tables.clone().expect("the published configuration has tables");
        let references = ReferenceCounts::of(&document);
        let rule = document.rules.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        let row = document.rows.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        let guest = (RuleId(rule), RowId(row));
        Control { desired: desired.clone(), document, references, random: Random(7), guest, changes: 0 }
    }

    /// Publishes a change for each message of `dues`.
    fn publish_all(&mut self, publisher: &Publisher<'_>, dues: Receiver<()>) -> Vec<Published> {
        dues.into_iter().map(|()| self.publish(publisher)).collect()
    }

    fn publish(&mut self, publisher: &Publisher<'_>) -> Published {
        let diff = self.change();
        let start = Instant::now();
        let mut next = RuleTables::clone(&self.document);
        next.apply(&diff);
        self.references
            .check_and_apply(&self.document, &diff, &next)
            .expect("the change leaves the tables whole");
        let check = start.elapsed();
        self.document = Arc::new(next);
        let desired = DesiredState { tables: Some(self.document.clone()), ..self.desired.clone() };
        let generation = publisher.publish(desired, TIMEOUT).expect("the worker comes to the end of a batch");
        Published { generation, start, check, publish: start.elapsed() }
    }

    /// Makes the next change of four: adds a rule with a row of its own for one class of a table, removes the
    /// rule, adds a pod of the cluster, removes the pod.
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
                diff.acl_rows.insert(acl, [(named.expect("the change before added the rule"), None)].into());
            }
            2 => _ = diff.prefixes.insert(remote_pod(turn), Some(ClassId(1 + turn % 200))),
            _ => _ = diff.prefixes.insert(remote_pod(turn - 1), None),
        }
        diff
    }
}

/// Address of a pod of another node.
fn remote_pod(number: u32) -> IpNet {
    IpNet::new(std::net::Ipv4Addr::from_bits(0x0aff_0000 | number & 0xffff).into(), 32)
        .expect("32 bits are within the address")
}

fn report(
    rules: usize,
    flows: usize,
    (mut quiet, mut busy): (Windows, Windows),
    changes: &[Published],
    first_batches: &[(Generation, Instant)],
) {
    // The first window warms the caches.
    quiet.ns.remove(0);
    let [slow, fast] = [median(&mut busy.ns), median(&mut quiet.ns)];
    let first_batch = |change: &Published| {
        let (_, at) = first_batches.iter().find(|(generation, _)| *generation >= change.generation)?;
        Some(at.saturating_duration_since(change.start))
    };
    let check: Latencies = changes.iter().map(|change| change.check).collect();
    let publish: Latencies = changes.iter().map(|change| change.publish).collect();
    let first_packet: Latencies = changes.iter().filter_map(first_batch).collect();
    json_lines::print(&Line {
        bench: "update",
        case: "updates",
        rules,
        flows,
        updates_per_s: rounded(changes.len() as f64 / busy.worked.as_secs_f64(), 0),
        updates: changes.len(),
        packets: busy.packets,
        lost: quiet.lost + busy.lost,
        ns_per_packet: rounded(slow, 2),
        ns_per_packet_without: rounded(fast, 2),
        slowdown_percent: rounded((slow / fast - 1.0) * 100.0, 1),
        check_us_p50: rounded(check.us(0.5), 1),
        check_us_p99: rounded(check.us(0.99), 1),
        publish_us_p50: rounded(publish.us(0.5), 1),
        publish_us_p99: rounded(publish.us(0.99), 1),
        first_packet_us_p50: rounded(first_packet.us(0.5), 1),
        first_packet_us_p99: rounded(first_packet.us(0.99), 1),
    });
}
