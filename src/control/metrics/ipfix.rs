//! Metrics of the export of flows.

use super::exposition::Exposition;
use super::exposition::Kind::{Counter, Gauge};
use crate::control::protocol::IpfixReport;

/// Describes the work of the exporter.
pub(super) fn describe(out: &mut Exposition, report: &IpfixReport) {
    for (kind, name, unit, help, value) in [
        (
            Counter,
            "palisade_ipfix_sent_messages",
            "messages",
            "Messages to the collector of flows.",
            report.messages,
        ),
        (
            Counter,
            "palisade_ipfix_sent_records",
            "records",
            "Data records in these messages.",
            report.records,
        ),
        (
            Counter,
            "palisade_ipfix_unsent_records",
            "records",
            "Data records that the kernel has not taken.",
            report.unsent_records,
        ),
        (
            Counter,
            "palisade_ipfix_send_errors",
            "errors",
            "Messages that were not sent, or whose arrival was refused.",
            report.send_errors,
        ),
        (
            Counter,
            "palisade_ipfix_lost_ends",
            "ends",
            "Ended flows that the workers had no room for.",
            report.lost_ends,
        ),
        (
            Counter,
            "palisade_ipfix_missed_flows",
            "flows",
            "Of these, flows with a last record from an earlier reading of their counters.",
            report.missed_flows,
        ),
        (
            Counter,
            "palisade_ipfix_lost_denials",
            "denials",
            "Samples of denied packets without room.",
            report.lost_denials,
        ),
        (
            Gauge,
            "palisade_ipfix_flows",
            "flows",
            "Flows whose counters the exporter remembers.",
            report.flows,
        ),
        (
            Gauge,
            "palisade_ipfix_untracked_flows",
            "flows",
            "Flows beyond its memory, which get one record, at their end.",
            report.untracked_flows,
        ),
    ] {
        out.family(kind, name, unit, help).sample(&[], value);
    }
}
