//! Sample of the running switch: all that one frame of the live view needs.

use std::time::Instant;

use crate::control::protocol::{CountersReport, DropRecord, FlowQuery, FlowsReport, Status};
use crate::control::{Client, ClientError, DropQuery};
use crate::dataplane::{DropReason, WorkerTimes};

/// Most flows of a sample: those with most bytes.
const FLOWS_MAX: usize = 2000;
/// Most denied packets of a sample, for each direction of policy.
const DENIED_MAX: usize = 200;

/// State of the switch at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: Status,
    pub(super) counters: CountersReport,
    pub(super) times: Vec<WorkerTimes>,
    pub(super) flows: FlowsReport,
    /// Samples of packets that policy denied.
    pub(super) denied: Vec<DropRecord>,
}

impl Sample {
    /// Asks the switch.
    pub(super) fn take(client: &Client) -> Result<Sample, ClientError> {
        let mut denied = Vec::new();
        for reason in [DropReason::PolicyEgress, DropReason::PolicyIngress] {
            let filter = DropQuery { reason: Some(reason), max: Some(DENIED_MAX), ..DropQuery::default() };
            denied.extend(client.drops(&filter)?.drops);
        }
        Ok(Sample {
            status: client.status()?,
            counters: client.counters()?,
            times: client.worker_times()?,
            flows: client.flows(&FlowQuery::first(FLOWS_MAX))?,
            denied,
            at: Instant::now(),
        })
    }
}
