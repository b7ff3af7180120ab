//! Receiver of generated traffic: a program at tc ingress in the pods that counts, measures and drops
//! (`bpf/receiver.bpf.c`).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use palisade::lab::{POD_INTERFACE, Pod};
use palisade::netlink::Interface;

use crate::bpf_loader::{attach, bpf_error, load, map};
use crate::common::latency::Latencies;
use crate::error::BenchError;
use crate::rig::Rig;

const SOURCE: &str = include_str!("bpf/receiver.bpf.c");
/// Classes of latency for each power of two, as a power of two. It must agree with the program.
const CLASS_BITS: u32 = 5;
const CLASSES: usize = 1024;
/// Largest number of probes. They go to `CHANGED_PORT`.
pub(crate) const PROBES_MAX: usize = 1 << 20;
/// Time without a packet after which no more are in flight.
const QUIET: Duration = Duration::from_millis(30);
/// Longest wait for that time.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// Work of a receiver besides counting and dropping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiverMode {
    /// None: the cheapest receiver.
    Count,
    /// Read the clock for latencies by the frames' stamps, and for arrivals of probes.
    Measure,
}

/// Programs in the pods. The kernel removes them with the pods' interfaces.
pub(crate) struct Receiver {
    counted: MapHandle,
    arrivals: MapHandle,
}

/// Totals of received traffic at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    latencies: Vec<u64>,
}

impl Receiver {
    /// Attaches the program in these pods. Their own stacks receive no IPv4 any more.
    pub(crate) fn attach(rig: &Rig, pods: &[Pod], task: ReceiverMode) -> Result<Receiver, BenchError> {
        let object = load(rig, "receiver", SOURCE)?;
        let name = if task == ReceiverMode::Count { "count" } else { "measure" };
        let program = object.progs().find(|program| program.name() == name);
        let program =
            program.ok_or_else(|| BenchError::Other(format!("the object has no program {name}")))?;
        let program: OwnedFd = program.as_fd().try_clone_to_owned()?;
        for pod in pods {
            pod.run(|| {
                let interface =
                    Interface::find(POD_INTERFACE).map_err(|error| BenchError::Other(error.to_string()))?;
                attach(program.as_fd(), interface.index)
            })??;
        }
        Ok(Receiver { counted: map(&object, "counted")?, arrivals: map(&object, "arrivals")? })
    }

    /// Reads the totals.
    pub(crate) fn counted(&self) -> Result<Counted, BenchError> {
        let by_cpu = self.counted.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(bpf_error)?;
        let mut sum = Counted { packets: 0, bytes: 0, latencies: vec![0; CLASSES] };
        for value in by_cpu.iter().flatten() {
            let mut words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            sum.packets += words.next().unwrap_or(0);
            sum.bytes += words.next().unwrap_or(0);
            sum.latencies.iter_mut().zip(words).for_each(|(sum, frames)| *sum += frames);
        }
        Ok(sum)
    }

    /// Returns the traffic since `start`, once no more is in flight.
    pub(crate) fn drained_since(&self, start: &Counted) -> Result<Counted, BenchError> {
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

    /// Reads the arrival of probe `number`, in nanoseconds of `CLOCK_MONOTONIC`; `None` if it has not
    /// arrived.
    pub(crate) fn arrival(&self, number: u32) -> Result<Option<u64>, BenchError> {
        let value = self.arrivals.lookup(&number.to_ne_bytes(), MapFlags::ANY).map_err(bpf_error)?;
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

    /// Latencies of the stamped frames. The program's classes are about three per cent wide.
    pub(crate) fn latencies(&self) -> Latencies {
        let mut latencies = Latencies::default();
        for (class, frames) in self.latencies.iter().enumerate().filter(|(_, frames)| **frames > 0) {
            latencies.record_ns(highest_ns_of(class), *frames);
        }
        latencies
    }
}

/// Returns the largest number of nanoseconds of a class.
fn highest_ns_of(class: usize) -> u64 {
    let shift = (class >> CLASS_BITS).saturating_sub(1);
    let mantissa = (class - (shift << CLASS_BITS)) as u64;
    ((mantissa + 1) << shift) - 1
}
