//! What receives generated traffic in the pods: a program at tc ingress that counts, measures and drops
//! (`bpf/receiver.bpf.c`).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use palisade::lab::{POD_INTERFACE, Pod};
use palisade::netlink::Interface;

use crate::bed::Bed;
use crate::bpf::{attach, load, map, refused};
use crate::tool::Trouble;

const SOURCE: &str = include_str!("bpf/receiver.bpf.c");
/// Latencies: so many classes for each power of two, as a power of two, and so many in all.
const CLASS_BITS: u32 = 5;
const CLASSES: usize = 1024;
/// Most probes. They go to the port that is changed.
pub(crate) const PROBES_MAX: usize = 1 << 20;
/// Nothing has come for so long: all has come that will.
const QUIET: Duration = Duration::from_millis(30);
/// And so long at most is waited.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// What a receiver does besides counting and dropping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Nothing: the cheapest there is.
    Count,
    /// It reads the clock: latencies by the frames' stamps, and arrivals of probes.
    Measure,
}

/// The programs in the pods: they go with the pods.
pub(crate) struct Receiver {
    counted: MapHandle,
    arrivals: MapHandle,
}

/// What has come at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    latencies: Vec<u64>,
}

impl Receiver {
    /// Puts it into these pods. What their own stacks should receive by IPv4, they no longer do.
    pub(crate) fn attach(bed: &Bed, pods: &[Pod], task: Task) -> Result<Receiver, Trouble> {
        let object = load(bed, "receiver", SOURCE)?;
        let name = if task == Task::Count { "count" } else { "measure" };
        let program = object.progs().find(|program| program.name() == name);
        let program = program.ok_or_else(|| Trouble::Other(format!("the object has no program {name}")))?;
        let program: OwnedFd = program.as_fd().try_clone_to_owned()?;
        for pod in pods {
            pod.run(|| {
                let interface =
                    Interface::find(POD_INTERFACE).map_err(|error| Trouble::Other(error.to_string()))?;
                attach(program.as_fd(), interface.index)
            })??;
        }
        Ok(Receiver { counted: map(&object, "counted")?, arrivals: map(&object, "arrivals")? })
    }

    /// What has come.
    pub(crate) fn counted(&self) -> Result<Counted, Trouble> {
        let by_cpu = self.counted.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(refused)?;
        let mut sum = Counted { packets: 0, bytes: 0, latencies: vec![0; CLASSES] };
        for value in by_cpu.iter().flatten() {
            let mut words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            sum.packets += words.next().unwrap_or(0);
            sum.bytes += words.next().unwrap_or(0);
            sum.latencies.iter_mut().zip(words).for_each(|(sum, frames)| *sum += frames);
        }
        Ok(sum)
    }

    /// What has come since `start`, when all has come that will.
    pub(crate) fn settled_since(&self, start: &Counted) -> Result<Counted, Trouble> {
        let begin = Instant::now();
        let (mut last, mut since) = (self.counted()?, begin);
        while since.elapsed() < QUIET && begin.elapsed() < SETTLE_MAX {
            std::thread::sleep(QUIET / 10);
            let now = self.counted()?;
            if now.packets != last.packets {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last.since(start))
    }

    /// When probe `number` came, nanoseconds of `CLOCK_MONOTONIC`; `None` where it has not.
    pub(crate) fn arrival(&self, number: u32) -> Result<Option<u64>, Trouble> {
        let value = self.arrivals.lookup(&number.to_ne_bytes(), MapFlags::ANY).map_err(refused)?;
        let ns = value.and_then(|value| Some(u64::from_ne_bytes(*value.first_chunk()?)));
        Ok(ns.filter(|ns| *ns > 0))
    }
}

impl Counted {
    fn since(&self, start: &Counted) -> Counted {
        let latencies = self.latencies.iter().zip(&start.latencies).map(|(now, then)| now - then);
        Counted {
            packets: self.packets - start.packets,
            bytes: self.bytes - start.bytes,
            latencies: latencies.collect(),
        }
    }

    /// The latency that this share of the frames did not exceed, microseconds; to about three in a hundred.
    pub(crate) fn latency_us(&self, share: f64) -> Option<f64> {
        let all: u64 = self.latencies.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let class = self.latencies.iter().position(|frames| {
            seen += frames;
            seen >= wanted
        })?;
        Some(highest_ns_of(class) as f64 / 1e3)
    }
}

/// The largest number of nanoseconds that falls into a class.
fn highest_ns_of(class: usize) -> u64 {
    let shift = (class >> CLASS_BITS).saturating_sub(1);
    let mantissa = (class - (shift << CLASS_BITS)) as u64;
    ((mantissa + 1) << shift) - 1
}
