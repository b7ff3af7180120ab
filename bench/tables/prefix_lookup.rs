//! Longest-prefix match: the compiled prefix table beside `poptrie` and `prefix-trie`.

use std::collections::BTreeSet;

use palisade::tables::PrefixTable;
use poptrie::Poptrie;
use prefix_trie::PrefixMap;
use serde::Serialize;

use crate::common::random::{Random, SEED};
use crate::common::rule_tables::{Family, addresses_in, mask, net};
use crate::comparison::{BATCH, Run, System};

/// Prefixes of a table.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Addresses of pods, 250 a node, and a few networks around them.
    Pods,
    /// Prefixes of the lengths that BGP tables have, anywhere.
    Routes,
}

/// Parameters of a case, as they stand in its lines.
#[derive(Serialize)]
struct Parameters<'a> {
    case: &'a str,
    family: u32,
    prefixes: usize,
    order: &'static str,
    /// Memory of the prefix table.
    bytes: usize,
}

/// Compares the prefix table with two crates on the same prefixes, in one address family.
pub(crate) fn measure<A: Family>(run: &Run, case: &str, shape: Shape, count: usize)
where
    (A, u8): prefix_trie::Prefix,
{
    let mut random = Random(SEED);
    let prefixes = prefixes::<A>(shape, count, &mut random);
    let queries: Vec<A> = addresses_in(&prefixes, run.queries, &mut random);
    let keyed = || prefixes.iter().map(|&(bits, len)| (A::from_top(bits), len)).zip(0_u32..);

    let palisade = PrefixTable::build(keyed().map(|((address, len), value)| (net(address.ip(), len), value)));
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
    let parameters =
        Parameters { case, family: A::NUMBER, prefixes: count, order: "random", bytes: palisade.bytes() };
    run.compare(&parameters, systems);
}

fn sum<A: Copy>(queries: &[A], mut look_up: impl FnMut(A) -> Option<u32>) -> u64 {
    queries.iter().map(|&address| u64::from(look_up(address).unwrap_or(PrefixTable::NO_MATCH))).sum()
}

/// Draws the prefixes of a table: bits at the top of 128, and length.
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
