//! Classification of new flows: both addresses to classes, and both ACL tables to decisions; and small
//! updates of the compiled tables.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use ipnet::IpNet;
use palisade::ids::{AclId, ClassId, RuleId};
use palisade::tables::{Classifier, Decision, Row, RuleTables, TablesDiff};
use serde::Serialize;

use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::random::{Random, SEED};
use crate::common::rule_tables::{Family, rule_tables};
use crate::common::statistics::rounded;
use crate::comparison::{BATCH, Run};
use crate::flows::{Columns, Flow, Peers, Scratch, select};

/// Sizes of the tables, and times to compile and to canonicalize them.
#[derive(Serialize)]
struct TableSizes {
    rules: usize,
    prefixes: usize,
    classes: u32,
    rows: usize,
    acls: usize,
    compiled_ms: f64,
    canonical_ms: f64,
}

/// Parameters of a case of classification, as they stand in its lines.
#[derive(Serialize)]
struct Parameters<'a> {
    case: &'static str,
    family: u32,
    order: &'static str,
    flows: usize,
    #[serde(flatten)]
    sizes: &'a TableSizes,
}

/// Line of one kind of update: quantiles of its time.
#[derive(Serialize)]
struct UpdateLine<'a> {
    bench: &'static str,
    case: &'static str,
    #[serde(flatten)]
    sizes: &'a TableSizes,
    system: &'static str,
    us_p50: f64,
    us_p99: f64,
}

/// Measures the classification of new flows, and updates of the classifier, with this many rules.
pub(crate) fn measure(run: &Run, rules: usize) {
    let mut random = Random(SEED);
    let tables = rule_tables(rules, None, &mut random);
    let start = Instant::now();
    let classifier = Classifier::new(&tables).expect("the tables are whole");
    let compiled_ms = start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    black_box(tables.canonical());
    let canonical_ms = start.elapsed().as_secs_f64() * 1e3;
    let parameters = TableSizes {
        rules,
        prefixes: tables.prefixes.len(),
        classes: tables.prefixes.values().max().map_or(1, |class| class.0 + 1),
        rows: tables.rows.len(),
        acls: tables.acls.len(),
        compiled_ms: rounded(compiled_ms, 2),
        canonical_ms: rounded(canonical_ms, 2),
    };
    update(run, "update", &parameters, &classifier, &tables, change_pod);
    update(run, "update-row", &parameters, &classifier, &tables, change_row);
    for flows in [run.queries / 16, run.queries] {
        classify::<u32>(run, &parameters, &classifier, &tables, flows, &mut random);
        classify::<u128>(run, &parameters, &classifier, &tables, flows, &mut random);
    }
}

/// Measures the update of a classifier by small changes.
fn update(
    run: &Run,
    case: &'static str,
    sizes: &TableSizes,
    classifier: &Classifier,
    tables: &RuleTables,
    change: impl Fn(&RuleTables, u32) -> TablesDiff,
) {
    let mut latencies = Latencies::default();
    let mut current = classifier.clone();
    for number in 0..100 * run.rounds as u32 {
        let change = change(tables, number);
        let start = Instant::now();
        let next = current.update(&change, tables);
        latencies.record(start.elapsed());
        current = next;
    }
    json_lines::print(&UpdateLine {
        bench: "tables",
        case,
        sizes,
        system: "palisade",
        us_p50: rounded(latencies.us(0.5), 1),
        us_p99: rounded(latencies.us(0.99), 1),
    });
}

/// Measures the whole classification and its two parts, in one address family.
fn classify<A: Family>(
    run: &Run,
    sizes: &TableSizes,
    classifier: &Classifier,
    tables: &RuleTables,
    count: usize,
    random: &mut Random,
) {
    let distinct: Vec<Flow> = (0..count).map(|_| Flow::random(tables, random)).collect();
    let peers = Peers::<A>::new(tables);
    let mut peer = |acl| peers.random(&tables.acls[&acl], random);
    let sources: Vec<A> = distinct.iter().map(|flow| peer(flow.ingress)).collect();
    let destinations: Vec<A> = distinct.iter().map(|flow| peer(flow.egress)).collect();
    // In random order, so that a branch predictor finds no pattern.
    let order: Vec<usize> = (0..run.queries).map(|_| random.below(count as u64) as usize).collect();
    let (sources, destinations) = (select(&order, &sources), select(&order, &destinations));
    let columns = Columns {
        egress: order.iter().map(|&i| distinct[i].egress).collect(),
        ingress: order.iter().map(|&i| distinct[i].ingress).collect(),
        ports: order.iter().map(|&i| (distinct[i].protocol, distinct[i].dst_port)).collect(),
    };
    let parameters = |case| Parameters { case, family: A::NUMBER, order: "random", flows: count, sizes };
    let batches =
        |part: Range<usize>| part.clone().step_by(BATCH).map(move |first| first..part.end.min(first + BATCH));
    let mut scratch = Scratch::default();
    let whole = |part: Range<usize>| {
        batches(part)
            .map(|batch| {
                scratch.classes(classifier, &sources[batch.clone()], &destinations[batch.clone()])
                    + scratch.decide(classifier, &columns, batch)
            })
            .sum()
    };
    run.compare(&parameters("classify"), vec![("palisade", Box::new(whole))]);
    // Its two parts: addresses to classes, and classes to decisions.
    let mut scratch = Scratch::default();
    let classes = |part| {
        batches(part)
            .map(|batch| scratch.classes(classifier, &sources[batch.clone()], &destinations[batch]))
            .sum()
    };
    run.compare(&parameters("classes"), vec![("palisade", Box::new(classes))]);
    let mut scratch = Scratch::default();
    let known: Vec<([u32; BATCH], [u32; BATCH])> = batches(0..run.queries)
        .map(|batch| {
            scratch.classes(classifier, &sources[batch.clone()], &destinations[batch]);
            (scratch.from, scratch.to)
        })
        .collect();
    let decide = |part: Range<usize>| {
        batches(part)
            .map(|batch| {
                (scratch.from, scratch.to) = known[batch.start / BATCH];
                scratch.decide(classifier, &columns, batch)
            })
            .sum()
    };
    run.compare(&parameters("decide"), vec![("palisade", Box::new(decide))]);
}

/// Changes a pod: its class in both families, and its ACL table.
fn change_pod(tables: &RuleTables, number: u32) -> TablesDiff {
    let class = ClassId(1 + number % 4);
    let pod = number * 7 % 10_000;
    let addresses = [u32::from_top(u32::pod(pod)).ip(), u128::from_top(u128::pod(pod)).ip()];
    let acl = AclId(number % tables.acls.len() as u32);
    TablesDiff {
        prefixes: addresses.map(|address| (IpNet::from(address), Some(class))).into(),
        acls: [(acl, Some(tables.acls[&acl].clone()))].into(),
        ..TablesDiff::default()
    }
}

/// Changes the default row of a table: another rule denies.
fn change_row(tables: &RuleTables, number: u32) -> TablesDiff {
    let acl = AclId(number % tables.acls.len() as u32);
    let row = Row::uniform(Decision::deny(RuleId(number % tables.rules.len() as u32)));
    TablesDiff { rows: [(tables.acls[&acl].default, Some(row))].into(), ..TablesDiff::default() }
}
