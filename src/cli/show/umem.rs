//! Command `palisade show umem`: frames of the workers' packet memory.

use crate::cli::CliError;
use crate::cli::output::{Output, json, render, table, text};
use crate::control::Client;
use crate::dataplane::WorkerCounters;
use serde::Serialize;

/// Frames of one worker.
#[derive(Debug, Serialize)]
struct Frames {
    worker: String,
    core: usize,
    total: u64,
    free: u64,
    in_rings: u64,
    held: u64,
    fragments_waiting: u64,
}

impl Frames {
    fn of(worker: String, counters: &WorkerCounters) -> Frames {
        let WorkerCounters { core, frames, frames_free, frames_in_rings, fragments_waiting, .. } = *counters;
        Frames {
            worker,
            core,
            total: frames,
            free: frames_free,
            in_rings: frames_in_rings,
            // The worker writes its counters one after the other.
            held: frames.saturating_sub(frames_free.saturating_add(frames_in_rings)),
            fragments_waiting,
        }
    }
}

pub(super) fn umem(client: &Client, output: Output) -> Result<(), CliError> {
    let workers = client.counters()?.workers;
    let mut workers: Vec<Frames> =
        workers.into_iter().map(|(worker, counters)| Frames::of(worker, &counters)).collect();
    workers.sort_by_key(|frames| frames.worker.parse::<u16>().ok());
    if output == Output::Json {
        return Ok(json(&workers)?);
    }
    let mut table = table(["worker", "core", "frames", "free", "in rings", "held", "fragments waiting"]);
    for frames in &workers {
        table.add_row([
            frames.worker.clone(),
            frames.core.to_string(),
            frames.total.to_string(),
            frames.free.to_string(),
            frames.in_rings.to_string(),
            frames.held.to_string(),
            frames.fragments_waiting.to_string(),
        ]);
    }
    Ok(text(&render(&table, "The switch has no workers."))?)
}
