//! Conntrack table beside a `dashmap` with the same keys.
//!
//! Each look-up does the work for a packet of a known flow: it finds the entry, adds to its counters and
//! notes the time. The keys are of packets of both directions, in batches and in random order.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use dashmap::DashMap;
use palisade::dataplane::FlowTable;
use palisade::net::flow::{FlowKey, Protocol};

use crate::common::random::Random;
use crate::common::statistics::median;
use crate::report::Report;

const BATCH: usize = 256;
const QUERIES: usize = 1 << 16;

/// Value of a flow in `dashmap`: the least for the same work.
#[derive(Default)]
struct Counts {
    packets: [u64; 2],
    bytes: [u64; 2],
    seen_ms: u32,
}

/// Compares the table with `dashmap`, with the standard library's hash and with a fast one, in turn.
pub(crate) fn compare(flows: usize, rounds: usize, report: &Report) {
    let mut random = Random(7);
    let keys: Vec<FlowKey> = (0..flows as u32).map(key).collect();
    let mut table = FlowTable::new(flows * 3 / 2);
    table.insert(&keys);
    let std_map = map(&keys, std::hash::RandomState::new());
    let fold_map = map(&keys, foldhash::fast::RandomState::default());
    let mut any = || {
        let key = keys[random.below(flows as u64) as usize];
        if random.below(2) == 0 { key } else { key.reversed() }
    };
    let queries: Vec<FlowKey> = (0..QUERIES).map(|_| any()).collect();
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..=rounds {
        times[0].push(time(|| {
            let found: usize = queries.chunks(BATCH).map(|batch| table.count(batch, 64)).sum();
            assert_eq!(black_box(found), QUERIES);
        }));
        times[1].push(time(|| look_up(&std_map, &queries)));
        times[2].push(time(|| look_up(&fold_map, &queries)));
    }
    for (system, times) in ["palisade", "dashmap", "dashmap+foldhash"].into_iter().zip(&mut times) {
        times.remove(0);
        report.comparison("conntrack", flows, system, median(times));
    }
}

fn key(i: u32) -> FlowKey {
    let v4 = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
    FlowKey {
        src: v4(0x0a00_0002 + i % 250),
        dst: v4(0x0a00_0102 + i / 250 % 250),
        protocol: Protocol::UDP,
        src_port: (1024 + i / 62_500) as u16,
        dst_port: 53,
    }
}

/// Orders a key, so that both directions have the same one, and returns the direction.
fn ordered(key: &FlowKey) -> (FlowKey, usize) {
    let is_lower = (key.src, key.src_port) <= (key.dst, key.dst_port);
    if is_lower { (*key, 0) } else { (key.reversed(), 1) }
}

fn map<S: BuildHasher + Clone>(keys: &[FlowKey], hasher: S) -> DashMap<FlowKey, Counts, S> {
    let map = DashMap::with_capacity_and_hasher(keys.len(), hasher);
    keys.iter().for_each(|key| _ = map.insert(ordered(key).0, Counts::default()));
    map
}

fn look_up<S: BuildHasher + Clone>(map: &DashMap<FlowKey, Counts, S>, queries: &[FlowKey]) {
    let mut found = 0;
    for query in queries {
        let (key, side) = ordered(query);
        if let Some(mut counts) = map.get_mut(&key) {
            counts.packets[side] += 1;
            counts.bytes[side] += 64;
            counts.seen_ms += 1;
            found += 1;
        }
    }
    assert_eq!(black_box(found), QUERIES);
}

/// Measures nanoseconds a query.
fn time(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / QUERIES as f64
}
