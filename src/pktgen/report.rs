//! A trial's numbers as one flat object.

use serde::Serialize;

use super::session::Trial;
use super::tcp::endpoints::TcpTrial;
use super::traffic::frame_size::FCS_BYTES;

/// Result of a trial, as programs read it. Rates are over the time of sending. Latencies and counts that were
/// not measured are null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Time of sending, seconds.
    pub seconds: f64,
    /// Requested rate, million frames a second; null without a limit.
    pub rate_mpps: Option<f64>,
    /// Frames sent.
    pub sent: u64,
    /// Frames that were due and could not be sent in time.
    pub behind: u64,
    /// Flows begun after the first ones.
    pub new_flows: u64,
    /// Sent rate, million frames a second.
    pub tx_mpps: f64,
    /// Sent rate, gigabits a second, frame check sequences counted.
    pub tx_gbps: f64,
    /// CPU time of the sending threads, seconds.
    pub tx_cpu_s: f64,
    /// Frames received, duplicates included.
    pub received: Option<u64>,
    /// Frames that did not arrive.
    pub lost: Option<u64>,
    /// Share of the sent frames that were lost.
    pub loss: Option<f64>,
    /// Received rate, million frames a second.
    pub rx_mpps: Option<f64>,
    /// Received rate, gigabits a second, frame check sequences counted.
    pub rx_gbps: Option<f64>,
    /// Frames that arrived again.
    pub duplicates: Option<u64>,
    /// Frames that arrived after a later one of their flow (RFC 4737 section 3.3).
    pub reordered: Option<u64>,
    /// Received frames without a stamp of the generator.
    pub foreign: Option<u64>,
    /// Median latency, microseconds.
    pub p50_us: Option<f64>,
    /// Latency of the 90th percentile.
    pub p90_us: Option<f64>,
    /// Latency of the 99th percentile.
    pub p99_us: Option<f64>,
    /// Latency of the 99.9th percentile.
    pub p999_us: Option<f64>,
    /// Longest latency.
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

/// Result of generated connections, as programs read it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectionReport {
    /// Time until the last connection was opened or completed, seconds.
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
    /// Completed connections per second.
    pub completed_per_s: f64,
    /// CPU time of the initiating thread, seconds.
    pub tx_cpu_s: f64,
    /// Median time from SYN to SYN, ACK, microseconds; null without an answer.
    pub setup_p50_us: Option<f64>,
    /// 99th percentile of that time, microseconds.
    pub setup_p99_us: Option<f64>,
    /// Longest such time, microseconds.
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
