//! Messages about flows: queries, listed flows, holders of the flow table, and events.

use serde::{Deserialize, Serialize};

use super::PacketFilter;
use crate::dataplane::{FlowEnd, FlowInfo};
use crate::net::flow::FlowKey;
use crate::tables::{PodName, RuleOrigin};

/// Selection of flows: those that have every property that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowQuery {
    /// Properties of packets and flows, which are parameters of the same request.
    #[serde(skip)]
    pub filter: PacketFilter,
    /// Name of the state.
    pub state: Option<String>,
    /// Order of the list.
    pub sort: FlowSort,
    /// Most flows of the list: [`FLOWS_LISTED`](crate::limits::FLOWS_LISTED) where absent.
    #[serde(alias = "max")]
    pub limit: Option<usize>,
    /// Whether to report the holders of the flows in place of a list.
    pub by_pod: bool,
    /// Whether a flush without any property is meant.
    pub all: bool,
}

impl FlowQuery {
    /// Query for the first flows of the list.
    pub fn first(limit: usize) -> FlowQuery {
        FlowQuery { limit: Some(limit), ..FlowQuery::default() }
    }

    /// Query for the flows that a filter selects.
    pub fn of(filter: PacketFilter) -> FlowQuery {
        FlowQuery { filter, ..FlowQuery::default() }
    }

    /// Query for the flows of a pod.
    pub fn of_pod(pod: &PodName) -> FlowQuery {
        FlowQuery::of(PacketFilter::of_pod(pod))
    }

    /// Whether a property is given.
    pub fn has_filter(&self) -> bool {
        self.filter != PacketFilter::default() || self.state.is_some()
    }

    /// Parameters of the request: names and values, not encoded.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let FlowQuery { filter, state, sort, limit, by_pod, all } = self;
        let given = |name, value: Option<String>| value.map(|value| (name, value));
        let flag = |name, is_set: bool| is_set.then(|| (name, "true".to_owned()));
        let own = [
            given("state", state.clone()),
            (*sort != FlowSort::default()).then(|| ("sort", sort.name().to_owned())),
            given("limit", limit.map(|limit| limit.to_string())),
            flag("by_pod", *by_pod),
            flag("all", *all),
        ];
        filter.parameters().into_iter().chain(own.into_iter().flatten()).collect()
    }
}

/// Order of listed flows, the first one the one with most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FlowSort {
    /// Bytes of both directions
    #[default]
    Bytes,
    /// Packets of both directions
    Packets,
    /// Time since the first packet
    Age,
    /// Time since the last packet
    Idle,
}

impl FlowSort {
    /// Name in requests.
    pub fn name(self) -> &'static str {
        match self {
            FlowSort::Bytes => "bytes",
            FlowSort::Packets => "packets",
            FlowSort::Age => "age",
            FlowSort::Idle => "idle",
        }
    }
}

/// Flows of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsReport {
    /// First selected flows in the requested order; none in a report of holders.
    pub flows: Vec<FlowRecord>,
    /// Number of selected flows.
    pub matched: u64,
    /// Number of flows in the table.
    pub total: u64,
    /// Most flows that the table holds.
    pub capacity: u64,
    /// Holders of the selected flows, if the request asks for them: the one with most flows first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<FlowHolder>,
}

/// Flow with the names of its ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// The flow. Its origins of decisions are those of the tables in force.
    #[serde(flatten)]
    pub flow: FlowInfo,
    /// Pod that has the source address.
    pub source_pod: Option<PodName>,
    /// Pod that has the destination address.
    pub destination_pod: Option<PodName>,
}

/// Port of the switch that opened flows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowHolder {
    /// Name of the port.
    pub port: String,
    /// Pod behind the port.
    pub pod: Option<PodName>,
    /// Flows that were opened from the port. They count against its quota.
    pub flows: u64,
    /// Assured ones of these, which are not evicted for others.
    pub assured: u64,
    /// Flows that were opened to the pod behind the port.
    pub accepted: u64,
    /// Packets of the flows from the port, both directions.
    pub packets: u64,
    /// Bytes of these packets, IP headers included.
    pub bytes: u64,
}

/// Result of a flush.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsEnded {
    /// Number of flows that have ended.
    pub ended: u64,
}

/// Line of the stream of events. Lines without text keep the connection open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum FlowEventLine {
    /// A flow has begun.
    Opened(FlowEventRecord),
    /// A flow has ended.
    Closed(FlowEventRecord),
    /// Policy has denied a packet. Workers sample some of these packets; counters count all.
    Denied(FlowEventRecord),
    /// Policy has changed, and allows the flow still.
    Revalidated(FlowEventRecord),
    /// Events that are not in the stream, because there were too many at once.
    Lost {
        /// Their number. It counts events that the filters would not have selected, too.
        count: u64,
    },
    /// Last line.
    End {
        /// Reason for the end.
        reason: String,
    },
}

impl FlowEventLine {
    /// Event of a flow, if the line is one.
    pub fn record(&self) -> Option<&FlowEventRecord> {
        match self {
            FlowEventLine::Opened(record)
            | FlowEventLine::Closed(record)
            | FlowEventLine::Denied(record)
            | FlowEventLine::Revalidated(record) => Some(record),
            FlowEventLine::Lost { .. } | FlowEventLine::End { .. } => None,
        }
    }
}

/// Event of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEventRecord {
    /// Time: milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Five-tuple of the original direction, or of the denied packet.
    pub flow: FlowKey,
    /// Pod that has the source address.
    pub source_pod: Option<PodName>,
    /// Pod that has the destination address.
    pub destination_pod: Option<PodName>,
    /// State of the flow; empty for a denied packet.
    #[serde(default)]
    pub state: String,
    /// Packets of the original direction so far.
    pub packets: u64,
    /// Bytes of these packets, IP headers included.
    pub bytes: u64,
    /// Packets of the reply direction so far.
    pub reply_packets: u64,
    /// Bytes of these packets, IP headers included.
    pub reply_bytes: u64,
    /// Reason for the end of a flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_by: Option<FlowEnd>,
    /// Origins of the decisions that allow the flow, or deny the packet, under the tables in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decided_by: Vec<RuleOrigin>,
}

impl FlowEventRecord {
    /// Event of a flow of which nothing else is known.
    pub fn new(at_unix_ms: u64, flow: FlowKey) -> FlowEventRecord {
        FlowEventRecord {
            at_unix_ms,
            flow,
            source_pod: None,
            destination_pod: None,
            state: String::new(),
            packets: 0,
            bytes: 0,
            reply_packets: 0,
            reply_bytes: 0,
            closed_by: None,
            decided_by: Vec::new(),
        }
    }
}
