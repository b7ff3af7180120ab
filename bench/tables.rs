//! The compiled tables, measured alone: prefix look-ups beside other crates, and the classification of new flows.
//!
//! Prints one JSON object per line. The systems of a case run in turn, again and again, and the median is given.
//! `tsc_cycles` is time in ticks of the time-stamp counter, which runs at a constant rate, not at that of the core.
//! `--smoke` takes about a second; a word runs only the cases that contain it.

mod common;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use palisade::ids::{AclId, ClassId, RuleId};
use palisade::net::flow::Protocol;
use palisade::tables::{Classifier, Decision, PrefixTable, Question, RuleTables};
use poptrie::Poptrie;
use prefix_trie::PrefixMap;

use common::rules::{Family, mask, net, rule_tables};
use common::{Random, tsc_ghz};

const BATCH: usize = 256;
const SEED: u64 = 0x9a11_5ade;

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |case: &str| only.as_deref().is_none_or(|only| case.contains(only));
    let (queries, rounds, largest) = if smoke { (1 << 12, 3, 1_000) } else { (1 << 16, 15, usize::MAX) };
    let run = Run { tsc_ghz: tsc_ghz(), queries, rounds };
    for prefixes in [10, 1_000, 100_000, 1_000_000].into_iter().filter(|&prefixes| prefixes <= largest) {
        for (case, shape) in [("pods", Shape::Pods), ("routes", Shape::Routes)] {
            if wanted(case) {
                run.prefixes::<u32>(case, shape, prefixes);
                run.prefixes::<u128>(case, shape, prefixes);
            }
        }
    }
    for rules in [10, 1_000, 10_000, 100_000].into_iter().filter(|&rules| rules <= largest) {
        if wanted("classify") {
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

/// A system, and what looks up all queries once.
type System<'a> = (&'a str, Box<dyn FnMut() -> u64 + 'a>);

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
                Box::new(|| {
                    let batches = queries.chunks(BATCH);
                    let sums = batches.map(|batch| {
                        A::look_up(&palisade, batch, &mut found[..batch.len()]);
                        found[..batch.len()].iter().map(|&value| u64::from(value)).sum::<u64>()
                    });
                    sums.sum()
                }),
            ),
            ("poptrie", Box::new(|| sum(&queries, |address| poptrie.lookup(address).copied()))),
            (
                "prefix-trie",
                Box::new(|| {
                    sum(&queries, |address| {
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

    /// Both addresses to classes, both rows to decisions: all that classification does for a new flow.
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
        self.classify::<u32>(&facts, &classifier, &tables, &mut random);
        self.classify::<u128>(&facts, &classifier, &tables, &mut random);
    }

    fn classify<A: Family>(
        &self,
        facts: &str,
        classifier: &Classifier,
        tables: &RuleTables,
        random: &mut Random,
    ) {
        let prefixes: Vec<(u128, u8)> = tables.prefixes.keys().filter_map(of_family::<A>).collect();
        let sources: Vec<A> = hits(&prefixes, self.queries, random);
        let destinations: Vec<A> = hits(&prefixes, self.queries, random);
        let flows: Vec<Flow> = (0..self.queries).map(|_| Flow::any(tables, random)).collect();
        let mut scratch = Scratch::default();
        let systems: Vec<System> = vec![(
            "palisade",
            Box::new(|| {
                let batches = sources.chunks(BATCH).zip(destinations.chunks(BATCH)).zip(flows.chunks(BATCH));
                batches.map(|((from, to), flows)| scratch.classify(classifier, from, to, flows)).sum()
            }),
        )];
        self.report(
            &format!(r#""case":"classify","family":{},"order":"random",{facts}"#, A::NUMBER),
            systems,
        );
    }

    /// Runs the systems in turn and prints the median of each.
    fn report(&self, facts: &str, mut systems: Vec<System>) {
        let mut times = vec![Vec::new(); systems.len()];
        let mut sums = BTreeSet::new();
        for _ in 0..=self.rounds {
            for ((_, system), times) in systems.iter_mut().zip(&mut times) {
                let start = Instant::now();
                sums.insert(black_box(system()));
                times.push(start.elapsed());
            }
        }
        assert_eq!(sums.len(), 1, "the systems disagree");
        for ((name, _), times) in systems.iter().zip(&mut times) {
            // The first round warms the caches.
            times.remove(0);
            times.sort_unstable();
            let ns = times[times.len() / 2].as_secs_f64() * 1e9 / self.queries as f64;
            let cycles = ns * self.tsc_ghz;
            println!(
                r#"{{"bench":"tables",{facts},"system":"{name}","ns_per_lookup":{ns:.2},"tsc_cycles":{cycles:.1}}}"#
            );
        }
    }
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

    fn question(self, acl: AclId, class: u32) -> Question {
        Question { acl, class: ClassId(class), dst_port: self.dst_port, protocol: self.protocol }
    }
}

/// Arrays of a worker.
struct Scratch {
    from: [u32; BATCH],
    to: [u32; BATCH],
    questions: Vec<Question>,
    decisions: [Decision; 2 * BATCH],
}

impl Default for Scratch {
    fn default() -> Scratch {
        let decisions = [Decision::deny(RuleId(0)); 2 * BATCH];
        Scratch { from: [0; BATCH], to: [0; BATCH], questions: Vec::with_capacity(2 * BATCH), decisions }
    }
}

impl Scratch {
    fn classify<A: Family>(&mut self, classifier: &Classifier, from: &[A], to: &[A], flows: &[Flow]) -> u64 {
        let count = flows.len();
        A::classes(classifier, from, &mut self.from[..count]);
        A::classes(classifier, to, &mut self.to[..count]);
        self.questions.clear();
        self.questions
            .extend(flows.iter().zip(&self.to).map(|(flow, &peer)| flow.question(flow.egress, peer)));
        self.questions
            .extend(flows.iter().zip(&self.from).map(|(flow, &peer)| flow.question(flow.ingress, peer)));
        classifier.decide_batch(&self.questions, &mut self.decisions[..2 * count]);
        self.decisions[..2 * count].iter().map(|decision| u64::from(decision.to_bits())).sum()
    }
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
