//! UDP throughput under overload: the packets that get through.

use std::time::Duration;

use palisade::pktgen::Rate;
use serde_json::json;

use super::stream::{Stream, StreamSpec};
use crate::common::json_lines;
use crate::error::BenchError;
use crate::receiver::ReceiverMode;
use crate::scenario::{Measures, Trial};

pub(super) fn measure(trial: &Trial<'_>, shape: StreamSpec) -> Result<Measures, BenchError> {
    let mut stream = Stream::open(trial, shape, ReceiverMode::Count)?;
    let time = Duration::from_secs(trial.seconds);
    let dropped_before = trial.running.dropped_before()?;
    let (window, mut cost) = trial.measure_cpu(|| stream.send(Rate::Max, time))?;
    cost.packets = window.received.packets;
    if window.received.packets == 0 {
        return Err(BenchError::Other("nothing arrives".to_owned()));
    }
    let mut measures = cost.fields();
    let bits = 8.0 * window.received.bytes as f64;
    let fields = json!({
        "flows": shape.flows,
        "destinations": stream.destinations,
        "mpps": window.per_s(window.received.packets) / 1e6,
        "gbps": bits / window.sent.elapsed_ns as f64,
        "tx_mpps": window.per_s(window.sent.frames) / 1e6,
        "loss": window.loss(),
        // Lost packets that the kernel dropped before the system.
        "lost_before_system": trial.running.dropped_before()?.zip(dropped_before).map(|(after, before)| after - before),
        "lost": window.sent.frames.saturating_sub(window.received.packets),
    });
    measures.extend(json_lines::fields(fields));
    Ok(measures)
}
