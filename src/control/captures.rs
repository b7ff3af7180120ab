//! Captures of packets: each belongs to a client, which fetches its packets and gives it up by silence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::ApiError;
use super::protocol::{CaptureReport, CaptureRequest, PacketRecord, PacketVerdictName};
use super::state::State;
use crate::dataplane::{
    Capture, CaptureFilter, CapturedPacket, FlowDecisions, PacketCaptures, PacketVerdict,
};
use crate::limits::{CAPTURE_BYTES, CAPTURES_MAX, PACKET_BYTES_MAX};
use crate::net::flow::FlowKey;
use crate::tables::RuleOrigin;

/// Time without a request for its packets after which a capture ends.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Running captures by number.
#[derive(Default)]
pub(super) struct CaptureTable(Mutex<Captures>);

#[derive(Default)]
struct Captures {
    last: u64,
    running: BTreeMap<u64, Running>,
    /// Ended captures. They go when no worker has them any more, so that no worker frees their buffers.
    ended: Vec<Arc<Capture>>,
}

struct Running {
    capture: Arc<Capture>,
    fetched: Instant,
}

impl CaptureTable {
    /// Starts a capture. Returns its number.
    pub(super) fn start(
        &self,
        request: &CaptureRequest,
        state: &State,
        workers: &dyn PacketCaptures,
    ) -> Result<u64, ApiError> {
        let filter = filter(request, state)?;
        let bytes = request.bytes.unwrap_or(CAPTURE_BYTES);
        if !(1..=PACKET_BYTES_MAX).contains(&bytes) {
            let reason = format!("a capture has 1 to {PACKET_BYTES_MAX} bytes of each packet");
            return Err(ApiError::Field { field: "bytes", reason });
        }
        let mut captures = self.lock();
        if captures.running.len() >= CAPTURES_MAX {
            return Err(ApiError::TooManyCaptures);
        }
        captures.last += 1;
        let number = captures.last;
        let capture = Arc::new(Capture::new(filter, bytes));
        captures.running.insert(number, Running { capture, fetched: Instant::now() });
        captures.publish(workers);
        Ok(number)
    }

    /// Takes the packets that wait. `clock` is that of the packets, `decisions` those on a flow.
    pub(super) fn fetch(
        &self,
        number: u64,
        state: &State,
        clock: Duration,
        decisions: &dyn Fn(&FlowKey) -> FlowDecisions,
    ) -> Result<CaptureReport, ApiError> {
        let capture = {
            let mut captures = self.lock();
            let running = captures.running.get_mut(&number).ok_or(ApiError::NoCapture { number })?;
            running.fetched = Instant::now();
            running.capture.clone()
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let started_ns = now.saturating_sub(clock).as_nanos() as u64;
        let mut describer = Describer { state, decisions, started_ns, origins: BTreeMap::new() };
        let mut packets = Vec::new();
        capture.take(|packet| packets.push(describer.describe(packet)));
        Ok(CaptureReport { packets, lost: capture.lost() })
    }

    /// Ends a capture.
    pub(super) fn stop(&self, number: u64, workers: &dyn PacketCaptures) -> Result<(), ApiError> {
        let mut captures = self.lock();
        let running = captures.running.remove(&number).ok_or(ApiError::NoCapture { number })?;
        captures.ended.push(running.capture);
        captures.publish(workers);
        Ok(())
    }

    /// Ends captures whose clients are silent, and frees the buffers of ended ones.
    pub(super) fn expire(&self, workers: &dyn PacketCaptures) {
        let mut captures = self.lock();
        let silent = captures.running.extract_if(.., |_, running| running.fetched.elapsed() >= SILENCE_MAX);
        let silent: Vec<Arc<Capture>> = silent.map(|(_, running)| running.capture).collect();
        if !silent.is_empty() {
            captures.ended.extend(silent);
            captures.publish(workers);
        }
        captures.ended.retain(|capture| Arc::strong_count(capture) > 1);
    }

    fn lock(&self) -> MutexGuard<'_, Captures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Captures {
    fn publish(&self, workers: &dyn PacketCaptures) {
        workers.run(self.running.values().map(|running| running.capture.clone()).collect());
    }
}

/// Resolves the names of a request.
fn filter(request: &CaptureRequest, state: &State) -> Result<CaptureFilter, ApiError> {
    let port = |name: &String| state.known_port(name).map(|port| port.report.id);
    Ok(CaptureFilter {
        port: request.interface.as_ref().map(port).transpose()?,
        flows: state.resolve(&request.filter)?,
        drops_only: request.drops,
        reason: request.reason,
    })
}

/// Gives captured packets the names of ports, pods and policies.
struct Describer<'a> {
    state: &'a State,
    decisions: &'a dyn Fn(&FlowKey) -> FlowDecisions,
    /// Start of the switch: nanoseconds since 1970.
    started_ns: u64,
    /// Origins of the decisions on the flows of this report.
    origins: BTreeMap<FlowKey, Vec<RuleOrigin>>,
}

impl Describer<'_> {
    fn describe(&mut self, packet: &CapturedPacket) -> PacketRecord {
        let name = |id| self.state.port_name(id).cloned();
        let (verdict, egress_port, reason) = match packet.verdict {
            PacketVerdict::Forwarded(port) => (PacketVerdictName::Forwarded, name(port), None),
            PacketVerdict::Consumed => (PacketVerdictName::Consumed, None, None),
            PacketVerdict::Dropped(reason) => (PacketVerdictName::Dropped, None, Some(reason)),
        };
        let port = name(packet.port).unwrap_or_else(|| format!("closed port {}", packet.port.0));
        let (state, decisions) = (self.state, self.decisions);
        let decided_by = packet.flow.filter(|_| packet.is_new_flow).map(|flow| {
            self.origins.entry(flow).or_insert_with(|| {
                let found = decisions(&flow);
                let is_current = found.generation == packet.generation;
                let sides = [found.egress, found.ingress].into_iter().flatten().filter(|_| is_current);
                sides.map(|side| side.decided_by.brief()).collect()
            })
        });
        PacketRecord {
            at_unix_ns: self.started_ns + packet.at_ns,
            port,
            verdict,
            egress_port,
            reason,
            stage: packet.stage.to_owned(),
            is_new_flow: packet.is_new_flow,
            frame_bytes: packet.frame_bytes,
            flow: packet.flow,
            source_pod: packet.flow.and_then(|flow| state.pod_with(flow.src)).cloned(),
            destination_pod: packet.flow.and_then(|flow| state.pod_with(flow.dst)).cloned(),
            decided_by: decided_by.cloned().unwrap_or_default(),
            bytes: packet.bytes.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers that still have the captures of the batch before.
    #[derive(Default)]
    struct Busy(Mutex<Vec<Vec<Arc<Capture>>>>);

    impl PacketCaptures for Busy {
        fn run(&self, captures: Vec<Arc<Capture>>) {
            self.0.lock().unwrap().push(captures);
        }

        fn clock(&self) -> Duration {
            unreachable!("nobody fetches packets")
        }
    }

    #[test]
    fn the_buffers_of_an_ended_capture_go_when_no_worker_has_them_and_not_in_a_worker() {
        let (table, busy) = (CaptureTable::default(), Busy::default());
        let number = table.start(&CaptureRequest::default(), &State::default(), &busy).unwrap();
        let capture = Arc::downgrade(&busy.0.lock().unwrap()[0][0]);
        table.stop(number, &busy).unwrap();
        table.expire(&busy);
        busy.0.lock().unwrap().clear();
        assert!(capture.upgrade().is_some(), "the worker was not the last to have it");
        table.expire(&busy);
        assert!(capture.upgrade().is_none());
    }
    #[test]
    fn captures_are_bounded_and_end_with_their_clients() {
        let (table, busy, state) = (CaptureTable::default(), Busy::default(), State::default());
        let start = || table.start(&CaptureRequest::default(), &state, &busy);
        let numbers: Vec<u64> = (0..CAPTURES_MAX).map(|_| start().unwrap()).collect();
        assert!(matches!(start(), Err(ApiError::TooManyCaptures)));
        table.expire(&busy);
        assert!(matches!(start(), Err(ApiError::TooManyCaptures)), "their clients ask for packets");
        // The client of the first one is silent.
        table.lock().running.get_mut(&numbers[0]).unwrap().fetched -= SILENCE_MAX;
        table.expire(&busy);
        assert!(!table.lock().running.contains_key(&numbers[0]));
        assert_eq!(table.lock().running.len(), CAPTURES_MAX - 1);
        start().unwrap();
    }

    #[test]
    fn requests_of_captures_name_ports_that_are_there_and_a_length() {
        let (table, busy, state) = (CaptureTable::default(), Busy::default(), State::default());
        let refused = |request| table.start(&request, &state, &busy).unwrap_err();
        let nowhere = CaptureRequest { interface: Some("nowhere".to_owned()), ..CaptureRequest::default() };
        assert!(matches!(refused(nowhere), ApiError::NoPort { .. }));
        let none = CaptureRequest { bytes: Some(0), ..CaptureRequest::default() };
        assert!(matches!(refused(none), ApiError::Field { field: "bytes", .. }));
    }
}
