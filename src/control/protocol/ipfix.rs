//! Report on the export of flows.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Work of the exporter of flows since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpfixReport {
    /// Address of the collector.
    pub collector: SocketAddr,
    /// Messages that the kernel has taken.
    pub messages: u64,
    /// Data records in them.
    pub records: u64,
    /// Data records that the kernel has not taken.
    pub unsent_records: u64,
    /// Messages that were not sent, or whose arrival was refused.
    pub send_errors: u64,
    /// Ended flows that the workers had no room for.
    pub lost_ends: u64,
    /// Of these, flows that got a record from an earlier reading of their counters.
    pub missed_flows: u64,
    /// Samples of denied packets without room.
    pub lost_denials: u64,
    /// Flows that go on, with counters that the exporter remembers.
    pub flows: u64,
    /// Flows beyond its memory: they get one record, at their end.
    pub untracked_flows: u64,
    /// Error of the last messages; absent while they are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl fmt::Display for IpfixReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IpfixReport { collector, messages, records, send_errors, lost_ends, .. } = self;
        write!(
            f,
            "to {collector}: {records} records in {messages} messages, {send_errors} send errors, {lost_ends} ends lost"
        )
    }
}
