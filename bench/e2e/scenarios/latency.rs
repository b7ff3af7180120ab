//! No-drop rate, and one-way latency at rates below it.
//!
//! A latency begins when the generator makes a burst and ends when the packet reaches tc ingress of the other
//! pod. Both readings are of one clock, and the second one is in the kernel, so the wake-up of a receiving
//! program is not part of it.

use std::time::Duration;

use palisade::pktgen::ndr::{Outcome, Search, search};
use palisade::pktgen::{FrameSize, Rate};
use serde_json::json;

use super::stream::{Stream, StreamSpec};
use crate::common::json_lines;
use crate::error::BenchError;
use crate::receiver::ReceiverMode;
use crate::scenario::{Measures, Trial};

/// Traffic of all trials.
const STREAM: StreamSpec = StreamSpec { flows: 10_000, size: FrameSize::Fixed(64) };
/// Share of packets that may be lost, because the machines are noisy.
const LOSS_MAX: f64 = 0.001;
/// Relative precision of the search.
const PRECISION: f64 = 0.05;
/// Length of one step of the search, for each second of a trial.
const STEP: Duration = Duration::from_millis(100);

/// Rate at which latency is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LoadLevel {
    /// Share of the system's own no-drop rate.
    Own(f64),
    /// Half of the no-drop rate of the slowest peer, for all systems.
    Common,
}

pub(super) fn no_drop(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    let mut stream = Stream::open(trial, STREAM, ReceiverMode::Count)?;
    let time = STEP * u32::try_from(trial.seconds).unwrap_or(u32::MAX);
    // The no-drop rate is at most a little higher than the rate that gets through under overload.
    let most = stream.send(Rate::Max, time)?;
    let how = Search {
        max_per_s: most.per_s(most.received.packets) * 1.1,
        loss_max: LOSS_MAX,
        precision: PRECISION,
        trials: 1,
    };
    let found = search(&how, |rate| {
        let window = stream.send(Rate::PerSecond(rate), time)?;
        Ok::<_, BenchError>(Outcome { sent_per_s: window.per_s(window.sent.frames), loss: window.loss() })
    })?;
    Ok(json_lines::fields(json!({
        "flows": STREAM.flows,
        "mpps": found.rate_per_s / 1e6,
        "loss": found.loss,
        "limited_by_sender": found.limited_by_sender,
        "steps": found.steps.len(),
    })))
}

pub(super) fn measure(trial: &Trial<'_>, at: LoadLevel) -> Result<Measures, BenchError> {
    let unknown =
        || BenchError::Other("no rate is known: `latency-no-drop` finds it, in the same run".to_owned());
    let rate = match at {
        LoadLevel::Own(share) => share * trial.no_drop_mpps.ok_or_else(unknown)?,
        LoadLevel::Common => 0.5 * trial.peers_no_drop_mpps.ok_or_else(unknown)?,
    };
    if rate <= 0.0 {
        return Err(BenchError::Other("at no rate tried did all packets come".to_owned()));
    }
    let mut stream = Stream::open(trial, STREAM, ReceiverMode::Measure)?;
    let time = Duration::from_secs(trial.seconds);
    let (window, mut cost) = trial.measure_cpu(|| stream.send(Rate::PerSecond(rate * 1e6), time))?;
    cost.packets = window.received.packets;
    let latencies = window.received.latencies();
    if latencies.len() == 0 {
        return Err(BenchError::Other("nothing arrives".to_owned()));
    }
    let mut measures = cost.fields();
    measures.extend(json_lines::fields(json!({
        "flows": STREAM.flows,
        "load_mpps": rate,
        "behind": window.sent.behind,
        "loss": window.loss(),
        "p50_us": latencies.us(0.5),
        "p99_us": latencies.us(0.99),
        "p999_us": latencies.us(0.999),
    })));
    Ok(measures)
}
