//! Requests for what only workers have: flows, captures, candidates, times.

use std::time::Duration;

use super::Switch;
use crate::control::protocol::{
    CaptureReport, CaptureRequest, CaptureStarted, FlowQuery, FlowsEnded, FlowsReport,
};
use crate::control::{ApiError, flows};
use crate::dataplane::{CandidateTables, PacketCaptures, StuckWorker, WORKER_TIMEOUT, WorkerTimes, Workers};

impl Switch {
    /// Lists the workers that do not come to the end of a batch.
    pub fn stuck_workers(&self) -> Vec<StuckWorker> {
        self.stuck_for(WORKER_TIMEOUT)
    }

    /// Lists the workers that have not come to the end of a batch for longer than `timeout`.
    pub(in crate::control) fn stuck_for(&self, timeout: Duration) -> Vec<StuckWorker> {
        self.dataplane.workers().map_or_else(Vec::new, |workers| workers.stuck_for(timeout))
    }

    /// Starts a capture of packets. Returns its number.
    pub fn start_capture(&self, request: &CaptureRequest) -> Result<CaptureStarted, ApiError> {
        let captures = self.packet_captures()?;
        Ok(CaptureStarted { number: self.captures.start(request, &self.state.load(), captures)? })
    }

    /// Takes the captured packets that wait.
    pub fn fetch_capture(&self, number: u64) -> Result<CaptureReport, ApiError> {
        let clock = self.packet_captures()?.clock();
        self.captures.fetch(number, &self.state.load(), clock, &|flow| self.dataplane.decisions(flow))
    }

    /// Ends a capture.
    pub fn stop_capture(&self, number: u64) -> Result<(), ApiError> {
        self.captures.stop(number, self.packet_captures()?)
    }

    /// Lists the flows that `query` selects, or their holders.
    pub fn flows(&self, query: &FlowQuery) -> Result<FlowsReport, ApiError> {
        let workers = self.require_workers("lists of flows", "`conntrack -L` shows those of the kernel")?;
        flows::list(query, &self.state.load_full(), workers.flows())
    }

    /// Ends the flows that `query` selects. The next packet of each is one of no known flow.
    pub fn flush_flows(&self, query: &FlowQuery) -> Result<FlowsEnded, ApiError> {
        let workers = self.require_workers("flushes of flows", "`conntrack -D` ends those of the kernel")?;
        flows::flush(query, &self.state.load_full(), workers.flows())
    }

    /// Tables beside those in force, by which the workers' flows are judged.
    pub(in crate::control) fn candidates(&self) -> Result<&dyn CandidateTables, ApiError> {
        Ok(self.require_workers("candidate tables", "`palisade diff` compares manifests")?.candidates())
    }

    /// Reports work and times of the workers.
    pub fn worker_times(&self) -> Vec<WorkerTimes> {
        self.dataplane.workers().map_or_else(Vec::new, Workers::times)
    }

    /// The workers. Refuses a request for a thing that only they see, where the kernel forwards.
    pub(in crate::control) fn require_workers(
        &self,
        what: &'static str,
        instead: &'static str,
    ) -> Result<&dyn Workers, ApiError> {
        let backend = self.dataplane.backend();
        self.dataplane.workers().ok_or(ApiError::NeedsWorkers { what, backend, instead })
    }

    fn packet_captures(&self) -> Result<&dyn PacketCaptures, ApiError> {
        let instead = "`tcpdump -i INTERFACE` shows those of a port";
        Ok(self.require_workers("captures of packets", instead)?.captures())
    }
}
