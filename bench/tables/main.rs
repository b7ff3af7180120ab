//! The compiled tables, measured alone: prefix look-ups beside other crates, and the classification of new flows.
//!
//! Prints one JSON object per line. The systems of a case run in turn, again and again, and the median is given.
//! `tsc_cycles` is time in ticks of the time-stamp counter, which runs at a constant rate, not at that of the core.
//! `--smoke` takes about a second; a word such as `routes` or `classify1000` runs only the cases that contain it.

#[path = "../common/mod.rs"]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use palisade::ids::{AclId, ClassId, RuleId};
use palisade::net::flow::Protocol;
use palisade::pktgen::median;
use palisade::tables::{Acl, Classifier, Decision, PrefixTable, Row, RuleTables, Service, TablesDiff};
use poptrie::Poptrie;
use prefix_trie::PrefixMap;

use common::rule_tables::{Family, mask, net, rule_tables};
use common::{Random, tsc_ghz};

const BATCH: usize = 256;
/// Queries between two looks at the clock.
const SAMPLE: usize = 16 * BATCH;
const SEED: u64 = 0x9a11_5ade;

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |case: &str| only.as_deref().is_none_or(|only| case.contains(only));
    let (queries, rounds, largest) = if smoke { (1 << 12, 3, 1_000) } else { (1 << 16, 15, usize::MAX) };
    let run = Run { tsc_ghz: tsc_ghz(), queries, rounds };
    for prefixes in [10, 1_000, 100_000, 1_000_000].into_iter().filter(|&prefixes| prefixes <= largest) {
        for (case, shape) in [("pods", Shape::Pods), ("routes", Shape::Routes)] {
            if wanted(&format!("{case}{prefixes}")) {
                run.prefixes::<u32>(case, shape, prefixes);
                run.prefixes::<u128>(case, shape, prefixes);
            }
        }
    }
    for rules in [10, 1_000, 10_000, 100_000].into_iter().filter(|&rules| rules <= largest) {
        if wanted(&format!("classify{rules}")) {
            run.classification(rules);
        }
    }
}

/// Which prefixes a table holds.
#[derive(Clone, Copy)]
enum Shape {
    /// Addresses of pods, 250 a node, and a few networks around them.
    Pods,
    /// Prefixes of the lengths that routing tables have, anywhere.
    Routes,
}

/// How long and how often to measure.
struct Run {
    tsc_ghz: f64,
    queries: usize,
    rounds: usize,
}

/// A system, and what answers some of the queries.
type System<'a> = (&'a str, Box<dyn FnMut(Range<usize>) -> u64 + 'a>);

impl Run {
    fn prefixes<A: Family>(&self, case: &str, shape: Shape, count: usize)
    where
        (A, u8): prefix_trie::Prefix,
    {
        let mut random = Random(SEED);
        let prefixes = prefixes::<A>(shape, count, &mut random);
        let queries: Vec<A> = hits(&prefixes, self.queries, &mut random);
        let keyed = || prefixes.iter().map(|&(bits, len)| (A::from_top(bits), len)).zip(0_u32..);

        let palisade =
            PrefixTable::build(keyed().map(|((address, len), value)| (net(address.ip(), len), value)));
        let poptrie: Poptrie<(A, u8), u32> = keyed().collect();
        let prefix_trie: PrefixMap<(A, u8), u32> = keyed().collect();
        let mut found = [0; BATCH];
        let systems: Vec<System> = vec![
            (
                "palisade",
                Box::new(|part| {
                    let batches = queries[part].chunks(BATCH);
                    let sums = batches.map(|batch| {
                        A::look_up(&palisade, batch, &mut found[..batch.len()]);
                        found[..batch.len()].iter().map(|&value| u64::from(value)).sum::<u64>()
                    });
                    sums.sum()
                }),
            ),
            ("poptrie", Box::new(|part| sum(&queries[part], |address| poptrie.lookup(address).copied()))),
            (
                "prefix-trie",
                Box::new(|part| {
                    sum(&queries[part], |address| {
                        prefix_trie.get_lpm(&(address, A::WIDTH as u8)).map(|(_, &value)| value)
                    })
                }),
            ),
        ];
        let facts = format!(
            r#""case":"{case}","family":{},"prefixes":{count},"order":"random","bytes":{}"#,
            A::NUMBER,
            palisade.bytes()
        );
        self.report(&facts, systems);
    }

    /// Both addresses to classes, both tables to decisions: all that classification does for a new flow.
    fn classification(&self, rules: usize) {
        let mut random = Random(SEED);
        let tables = rule_tables(rules, None, &mut random);
        let start = Instant::now();
        let classifier = Classifier::new(&tables).expect("the tables are whole");
        let compiled_ms = start.elapsed().as_secs_f64() * 1e3;
        let start = Instant::now();
        black_box(tables.canonical());
        let canonical_ms = start.elapsed().as_secs_f64() * 1e3;
        let facts = format!(
            r#""rules":{rules},"prefixes":{},"classes":{},"rows":{},"acls":{},"compiled_ms":{compiled_ms:.2},"canonical_ms":{canonical_ms:.2}"#,
            tables.prefixes.len(),
            tables.prefixes.values().max().map_or(1, |class| class.0 + 1),
            tables.rows.len(),
            tables.acls.len(),
        );
        self.update(&format!(r#""case":"update",{facts}"#), &classifier, &tables, change_pod);
        self.update(&format!(r#""case":"update-row",{facts}"#), &classifier, &tables, change_row);
        for flows in [self.queries / 16, self.queries] {
            self.classify::<u32>(&facts, &classifier, &tables, flows, &mut random);
            self.classify::<u128>(&facts, &classifier, &tables, flows, &mut random);
        }
    }

    /// The next classifier of a change.
    fn update(
        &self,
        facts: &str,
        classifier: &Classifier,
        tables: &RuleTables,
        change: impl Fn(&RuleTables, u32) -> TablesDiff,
    ) {
        let mut samples = Vec::new();
        let mut current = classifier.clone();
        for number in 0..100 * self.rounds as u32 {
            let change = change(tables, number);
            let start = Instant::now();
            let next = current.update(&change, tables);
            samples.push(start.elapsed());
            current = next;
        }
        samples.sort_unstable();
        let us = |per_cent: usize| samples[samples.len() * per_cent / 100].as_secs_f64() * 1e6;
        let (p50, p99) = (us(50), us(99));
        println!(r#"{{"bench":"tables",{facts},"system":"palisade","us_p50":{p50:.1},"us_p99":{p99:.1}}}"#);
    }

    fn classify<A: Family>(
        &self,
        facts: &str,
        classifier: &Classifier,
        tables: &RuleTables,
        count: usize,
        random: &mut Random,
    ) {
        let distinct: Vec<Flow> = (0..count).map(|_| Flow::any(tables, random)).collect();
        let peers = Peers::<A>::new(tables);
        let mut peer = |acl| peers.any(&tables.acls[&acl], random);
        let sources: Vec<A> = distinct.iter().map(|flow| peer(flow.ingress)).collect();
        let destinations: Vec<A> = distinct.iter().map(|flow| peer(flow.egress)).collect();
        // Random order, so that there is no pattern for a branch predictor to learn.
        let order: Vec<usize> = (0..self.queries).map(|_| random.below(count as u64) as usize).collect();
        let (sources, destinations) = (of(&order, &sources), of(&order, &destinations));
        let columns = Columns {
            egress: order.iter().map(|&i| distinct[i].egress).collect(),
            ingress: order.iter().map(|&i| distinct[i].ingress).collect(),
            ports: order.iter().map(|&i| (distinct[i].protocol, distinct[i].dst_port)).collect(),
        };
        let facts = format!(r#""family":{},"order":"random","flows":{count},{facts}"#, A::NUMBER);
        let batches = |part: Range<usize>| {
            part.clone().step_by(BATCH).map(move |first| first..part.end.min(first + BATCH))
        };
        let mut scratch = Scratch::default();
        let whole = |part: Range<usize>| {
            batches(part)
                .map(|batch| {
                    scratch.classes(classifier, &sources[batch.clone()], &destinations[batch.clone()])
                        + scratch.decide(classifier, &columns, batch)
                })
                .sum()
        };
        self.report(&format!(r#""case":"classify",{facts}"#), vec![("palisade", Box::new(whole))]);
        // The two parts of it.
        let mut scratch = Scratch::default();
        let classes = |part| {
            batches(part)
                .map(|batch| scratch.classes(classifier, &sources[batch.clone()], &destinations[batch]))
                .sum()
        };
        self.report(&format!(r#""case":"classes",{facts}"#), vec![("palisade", Box::new(classes))]);
        let mut scratch = Scratch::default();
        let known: Vec<([u32; BATCH], [u32; BATCH])> = batches(0..self.queries)
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
        self.report(&format!(r#""case":"decide",{facts}"#), vec![("palisade", Box::new(decide))]);
    }

    /// Runs the systems in turn and prints the median of each, and the tenth percentile: what a quiet machine
    /// would give. A clock is read every few batches, so that what else
    /// the machine does spoils few of the samples.
    fn report(&self, facts: &str, mut systems: Vec<System>) {
        let mut samples = vec![Vec::new(); systems.len()];
        let mut sums = BTreeSet::new();
        for round in 0..=self.rounds {
            for ((_, system), samples) in systems.iter_mut().zip(&mut samples) {
                let mut sum = 0;
                for first in (0..self.queries).step_by(SAMPLE) {
                    let start = Instant::now();
                    sum += black_box(system(first..first + SAMPLE));
                    // The first round warms the caches.
                    samples.extend((round > 0).then(|| start.elapsed()));
                }
                sums.insert(sum);
            }
        }
        assert_eq!(sums.len(), 1, "the systems disagree");
        for ((name, _), samples) in systems.iter().zip(&samples) {
            let per_query = |sample: &Duration| sample.as_secs_f64() * 1e9 / SAMPLE as f64;
            let mut samples: Vec<f64> = samples.iter().map(per_query).collect();
            let (ns, ns_p10) = (median(&mut samples), samples[samples.len() / 10]);
            let (cycles, cycles_p10) = (ns * self.tsc_ghz, ns_p10 * self.tsc_ghz);
            println!(
                r#"{{"bench":"tables",{facts},"system":"{name}","ns_per_lookup":{ns:.2},"tsc_cycles":{cycles:.1},"tsc_cycles_p10":{cycles_p10:.1}}}"#
            );
        }
    }
}

/// A pod changes: its class in both families, and its ACL table.
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

/// The default row of a table denies by another rule.
fn change_row(tables: &RuleTables, number: u32) -> TablesDiff {
    let acl = AclId(number % tables.acls.len() as u32);
    let row = Row::uniform(Decision::deny(RuleId(number % tables.rules.len() as u32)));
    TablesDiff { rows: [(tables.acls[&acl].default, Some(row))].into(), ..TablesDiff::default() }
}

/// What a flow brings besides its addresses.
#[derive(Clone, Copy)]
struct Flow {
    egress: AclId,
    ingress: AclId,
    protocol: Protocol,
    dst_port: u16,
}

impl Flow {
    fn any(tables: &RuleTables, random: &mut Random) -> Flow {
        let acl = |random: &mut Random| AclId(random.below(tables.acls.len() as u64) as u32);
        let protocol =
            [Protocol::TCP, Protocol::TCP, Protocol::UDP, Protocol::ICMP][random.below(4) as usize];
        Flow { egress: acl(random), ingress: acl(random), protocol, dst_port: random.bits() as u16 }
    }
}

/// What flows in the order of their packets bring besides their addresses.
struct Columns {
    egress: Vec<AclId>,
    ingress: Vec<AclId>,
    ports: Vec<(Protocol, u16)>,
}

/// Addresses at the other end of flows.
struct Peers<A> {
    by_class: BTreeMap<ClassId, Vec<(u128, u8)>>,
    all: Vec<(u128, u8)>,
    family: std::marker::PhantomData<A>,
}

impl<A: Family> Peers<A> {
    fn new(tables: &RuleTables) -> Peers<A> {
        let mut by_class: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut all = Vec::new();
        for (prefix, &class) in &tables.prefixes {
            if let Some(prefix) = of_family::<A>(prefix) {
                by_class.entry(class).or_default().push(prefix);
                all.push(prefix);
            }
        }
        Peers { by_class, all, family: std::marker::PhantomData }
    }

    /// Every second address is of a class that the table names; the others may be of any.
    fn any(&self, acl: &Acl, random: &mut Random) -> A {
        let named = random.below(2 * acl.rows.len() as u64 + 1) as usize;
        let named = acl.rows.keys().nth(named).and_then(|class| self.by_class.get(class));
        hits(named.unwrap_or(&self.all), 1, random)[0]
    }
}

/// Arrays of a worker.
struct Scratch {
    from: [u32; BATCH],
    to: [u32; BATCH],
    services: [Service; BATCH],
    decisions: [Decision; BATCH],
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            from: [0; BATCH],
            to: [0; BATCH],
            services: [Service::OTHER; BATCH],
            decisions: [Decision::deny(RuleId(0)); BATCH],
        }
    }
}

impl Scratch {
    fn classes<A: Family>(&mut self, classifier: &Classifier, from: &[A], to: &[A]) -> u64 {
        A::classes(classifier, from, &mut self.from[..from.len()]);
        A::classes(classifier, to, &mut self.to[..to.len()]);
        let sum = |sum: u32, &class: &u32| sum.wrapping_add(class);
        let from = self.from[..from.len()].iter().fold(0, sum);
        u64::from(self.to[..to.len()].iter().fold(from, sum))
    }

    /// Decides on a batch whose classes are known.
    fn decide(&mut self, classifier: &Classifier, flows: &Columns, batch: Range<usize>) -> u64 {
        let len = batch.len();
        for (&(protocol, port), service) in flows.ports[batch.clone()].iter().zip(&mut self.services) {
            *service = Service::new(protocol, port);
        }
        let sides = [(&flows.egress, &self.to), (&flows.ingress, &self.from)];
        let (services, decisions) = (&self.services[..len], &mut self.decisions[..len]);
        let mut sum: u32 = 0;
        for (acls, classes) in sides {
            classifier.decide_batch(&acls[batch.clone()], &classes[..len], services, decisions);
            sum = decisions.iter().fold(sum, |sum, decision| sum.wrapping_add(decision.to_bits()));
        }
        u64::from(sum)
    }
}

fn of<T: Copy>(order: &[usize], distinct: &[T]) -> Vec<T> {
    order.iter().map(|&i| distinct[i]).collect()
}

fn sum<A: Copy>(queries: &[A], mut look_up: impl FnMut(A) -> Option<u32>) -> u64 {
    queries.iter().map(|&address| u64::from(look_up(address).unwrap_or(PrefixTable::NO_MATCH))).sum()
}

/// The prefixes of a table, on top of 128 bits.
fn prefixes<A: Family>(shape: Shape, count: usize, random: &mut Random) -> Vec<(u128, u8)> {
    let mut prefixes = BTreeSet::new();
    if matches!(shape, Shape::Pods) {
        prefixes.extend([0, 7, 9].map(|len| (A::pod(0) & mask(len), len)));
    }
    for i in 0_u32.. {
        if prefixes.len() >= count {
            break;
        }
        let (bits, len) = match shape {
            Shape::Pods => (A::pod(i), A::WIDTH as u8),
            Shape::Routes => A::route(random),
        };
        prefixes.insert((bits & mask(len), len));
    }
    prefixes.into_iter().collect()
}

/// Addresses in prefixes drawn at random.
fn hits<A: Family>(prefixes: &[(u128, u8)], count: usize, random: &mut Random) -> Vec<A> {
    let mut hit = || {
        let (bits, len) = prefixes[random.below(prefixes.len() as u64) as usize];
        A::from_top(bits | random.bits() & !mask(len))
    };
    (0..count).map(|_| hit()).collect()
}

fn of_family<A: Family>(prefix: &IpNet) -> Option<(u128, u8)> {
    let bits = match prefix.network() {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    (u32::from(prefix.max_prefix_len()) == A::WIDTH).then_some((bits, prefix.prefix_len()))
}
