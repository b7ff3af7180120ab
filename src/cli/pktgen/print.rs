//! Results as text, and the JSON object of a search.

use serde::Serialize;

use crate::cli::output;
use crate::pktgen::{ConnectionReport, Report, ndr};

/// Result of a search and of a trial at the rate found, in one object.
#[derive(Debug, Serialize)]
pub(super) struct NdrReport {
    /// No-drop rate, million frames a second.
    ndr_mpps: f64,
    /// Median loss of the search's trials at that rate.
    ndr_loss: f64,
    /// Whether the sender limits the rate.
    ndr_limited_by_sender: bool,
    /// Number of rates tried.
    ndr_steps: usize,
    /// Report of one more trial at the rate. `None` if no rate passes.
    #[serde(flatten)]
    report: Option<Report>,
}

impl NdrReport {
    pub(super) fn new(found: &ndr::Found, report: Option<Report>) -> NdrReport {
        NdrReport {
            ndr_mpps: found.rate_per_s / 1e6,
            ndr_loss: found.loss,
            ndr_limited_by_sender: found.limited_by_sender,
            ndr_steps: found.steps.len(),
            report,
        }
    }
}

pub(super) fn report(report: &Report) -> String {
    let mut table = output::table(["", "frames", "mpps", "gbit/s"]);
    let number = |value: Option<f64>| output::or_dash(value.map(|value| format!("{value:.3}")));
    table.add_row([
        "sent",
        &report.sent.to_string(),
        &format!("{:.3}", report.tx_mpps),
        &format!("{:.3}", report.tx_gbps),
    ]);
    table.add_row([
        "received",
        &output::or_dash(report.received),
        &number(report.rx_mpps),
        &number(report.rx_gbps),
    ]);
    let rows = [
        ("lost", report.lost),
        ("duplicates", report.duplicates),
        ("reordered", report.reordered),
        ("foreign", report.foreign),
    ];
    for (name, count) in rows {
        table.add_row([name, &output::or_dash(count), "", ""]);
    }
    let mut text = vec![output::render(&table, "")];
    if let (Some(p50), Some(p90), Some(p99), Some(p999), Some(max)) =
        (report.p50_us, report.p90_us, report.p99_us, report.p999_us, report.max_us)
    {
        let tail = format!("p99 {p99:.1}, p99.9 {p999:.1}, most {max:.1}");
        text.push(format!("latency, us: p50 {p50:.1}, p90 {p90:.1}, {tail}\n"));
    }
    if let Some(loss) = report.loss {
        text.push(format!("loss: {:.4} %\n", loss * 100.0));
    }
    text.push(format!("sent for {:.2} s with {:.2} s of CPU time\n", report.seconds, report.tx_cpu_s));
    if report.new_flows > 0 {
        text.push(format!("{} fresh flows\n", report.new_flows));
    }
    if report.behind > 0 {
        let why = "were due and could not be sent: the rate is more than the sender can do";
        text.push(format!("{} frames {why}\n", report.behind));
    }
    text.concat()
}

pub(super) fn connections(report: &ConnectionReport) -> String {
    let mut table = output::table(["connections", "number"]);
    let rows = [
        ("opened", report.opened),
        ("established", report.established),
        ("completed", report.completed),
        ("reset", report.reset),
        ("timed out", report.timed_out),
    ];
    for (name, count) in rows {
        table.add_row([name, &count.to_string()]);
    }
    let mut text = vec![output::render(&table, "")];
    text.push(format!("completed a second: {:.0}\n", report.completed_per_s));
    if let (Some(p50), Some(p99), Some(max)) = (report.setup_p50_us, report.setup_p99_us, report.setup_max_us)
    {
        text.push(format!("SYN to SYN, ACK, us: p50 {p50:.1}, p99 {p99:.1}, most {max:.1}\n"));
    }
    text.push(format!("opened for {:.2} s with {:.2} s of CPU time\n", report.seconds, report.tx_cpu_s));
    text.concat()
}

pub(super) fn search(found: &ndr::Found) -> String {
    let mut table = output::table(["mpps asked", "mpps sent", "loss", "passed"]);
    for step in &found.steps {
        table.add_row([
            format!("{:.4}", step.rate_per_s / 1e6),
            format!("{:.4}", step.sent_per_s / 1e6),
            format!("{:.4} %", step.loss * 100.0),
            if step.passed { "yes".to_owned() } else { "no".to_owned() },
        ]);
    }
    let end = match found {
        found if found.rate_per_s == 0.0 => {
            "no rate passes: nothing arrives, or too little at any rate\n".to_owned()
        }
        found => format!(
            "no-drop rate: {:.4} Mpps{}\n\n",
            found.rate_per_s / 1e6,
            if found.limited_by_sender { " at least: the sender can do no more" } else { "" }
        ),
    };
    output::render(&table, "") + &end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_finds_nothing_says_so_and_one_that_the_sender_ends_too() {
        let found = |rate_per_s, limited_by_sender| ndr::Found {
            rate_per_s,
            loss: 0.0,
            limited_by_sender,
            steps: vec![],
        };
        assert!(search(&found(0.0, false)).contains("no rate passes"));
        assert!(search(&found(1.5e6, true)).contains("1.5000 Mpps at least"));
        assert!(search(&found(1.5e6, false)).contains("1.5000 Mpps\n"));
    }
}
