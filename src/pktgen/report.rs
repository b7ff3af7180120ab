//! A trial's numbers as one flat object.

use serde::Serialize;

use super::session::Trial;
use super::tcp::endpoints::TcpTrial;
use super::traffic::frame_size::FCS_BYTES;

/// What a trial came to, as programs read it. Rates are over the time of sending; latencies and counts that nobody
/// took are null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Time of sending, seconds.
    pub seconds: f64,
    /// Rate asked for, million frames a second; null for as fast as it goes.
    pub rate_mpps: Option<f64>,
    /// Frames sent.
    pub sent: u64,
    /// Frames that the rate asked for in the time, and that could not be sent.
    pub behind: u64,
    /// Fresh flows among those sent.
    pub new_flows: u64,
    /// Million frames sent a second.
    pub tx_mpps: f64,
    /// Gigabits sent a second, frame check sequences counted.
    pub tx_gbps: f64,
    /// CPU time of the sending threads, seconds.
    pub tx_cpu_s: f64,
    /// Frames received, duplicates with them.
    pub received: Option<u64>,
    /// Frames that did not arrive.
    pub lost: Option<u64>,
    /// Lost frames of those sent.
    pub loss: Option<f64>,
    /// Million frames received a second.
    pub rx_mpps: Option<f64>,
    /// Gigabits received a second, frame check sequences counted.
    pub rx_gbps: Option<f64>,
    /// Frames that came twice.
    pub duplicates: Option<u64>,
    /// Frames that came after a later one of their flow.
    pub reordered: Option<u64>,
    /// Received frames that were not of the generator's.
    pub foreign: Option<u64>,
    /// Half of the frames took at most this, microseconds.
    pub p50_us: Option<f64>,
    /// 9 of 10.
    pub p90_us: Option<f64>,
    /// 99 of 100.
    pub p99_us: Option<f64>,
    /// 999 of 1,000.
    pub p999_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

impl From<&Trial> for Report {
    fn from(trial: &Trial) -> Report {
        let (sent, received) = (&trial.sent, trial.received.as_ref());
        let seconds = sent.elapsed_ns as f64 / 1e9;
        let per_s = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let bits = |frames: u64, bytes: u64| (bytes + frames * FCS_BYTES as u64) as f64 * 8.0;
        let measured = received.and_then(|received| received.measured.as_ref());
        let quantile = |share: f64| {
            let latency = &measured?.latency;
            (!latency.is_empty()).then(|| latency.value_at_quantile(share) as f64 / 1e3)
        };
        Report {
            seconds,
            rate_mpps: trial.rate.map(|rate| rate / 1e6),
            sent: sent.frames,
            behind: sent.behind,
            new_flows: trial.new_flows,
            tx_mpps: per_s(sent.frames as f64) / 1e6,
            tx_gbps: per_s(bits(sent.frames, sent.bytes)) / 1e9,
            tx_cpu_s: sent.cpu_ns as f64 / 1e9,
            received: received.map(|received| received.frames),
            lost: trial.lost(),
            loss: trial.loss(),
            rx_mpps: received.map(|received| per_s(received.frames as f64) / 1e6),
            rx_gbps: received.map(|received| per_s(bits(received.frames, received.bytes)) / 1e9),
            duplicates: measured.map(|measured| measured.duplicates),
            reordered: measured.map(|measured| measured.reordered),
            foreign: measured.map(|measured| measured.foreign),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: quantile(1.0),
        }
    }
}

/// What generated connections came to, as programs read it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectionReport {
    /// Until the last one was opened or completed, seconds.
    pub seconds: f64,
    /// SYNs sent.
    pub opened: u64,
    /// Connections that were answered.
    pub established: u64,
    /// Connections that both sides ended.
    pub completed: u64,
    /// Connections that were reset.
    pub reset: u64,
    /// Connections that did not end within a second.
    pub timed_out: u64,
    /// Completed ones, by this time.
    pub completed_per_s: f64,
    /// CPU time of the initiating thread, seconds.
    pub tx_cpu_s: f64,
    /// Half of the connections were answered within this, microseconds; null where none was.
    pub setup_p50_us: Option<f64>,
    /// 99 of 100.
    pub setup_p99_us: Option<f64>,
    /// All.
    pub setup_max_us: Option<f64>,
}

impl From<&TcpTrial> for ConnectionReport {
    fn from(connected: &TcpTrial) -> ConnectionReport {
        let seconds = connected.elapsed_ns as f64 / 1e9;
        let setup = &connected.setup;
        let quantile = |share| (!setup.is_empty()).then(|| setup.value_at_quantile(share) as f64 / 1e3);
        ConnectionReport {
            seconds,
            opened: connected.opened,
            established: connected.established,
            completed: connected.completed,
            reset: connected.reset,
            timed_out: connected.timed_out,
            completed_per_s: if seconds > 0.0 { connected.completed as f64 / seconds } else { 0.0 },
            tx_cpu_s: connected.cpu_ns as f64 / 1e9,
            setup_p50_us: quantile(0.5),
            setup_p99_us: quantile(0.99),
            setup_max_us: quantile(1.0),
        }
    }
}
