//! Test double of the dataplane, which records requests, and a switch on it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::control::protocol::{PodRequest, PortRequest};
use palisade::control::{Client, Server, Switch, SwitchSettings};
use palisade::dataplane::{
    Backend, Candidate, CandidateTables, Capture, Counters, DataplaneApi, DecisionCount, DesiredState,
    Disagreement, DropSamples, FlowCounters, FlowDecisions, FlowEvents, FlowInfo, FlowPath, FlowTableReport,
    Flows, FlowsLeft, OffloadCounters, PacketCaptures, PortCounters, PortError, PortHealth, PortKind,
    PortReport, PortSpec, PublishError, RouteReport, ServiceFlows, StuckWorker, WorkerCounters, WorkerTimes,
    Workers,
};
use palisade::ids::{Generation, PortId, WorkerId};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::tables::{
    Direction, PodName, PolicyKind, PolicyRef, RuleOrigin, RuleTables, ServicePortName, Verdict,
};

use crate::ipfix::FakeFlows;

/// Records desired states and closed ports. Interfaces with a name that begins with `absent` do not exist.
/// Those that begin with `stuck` do not close.
#[derive(Default)]
pub(crate) struct FakeDataplane {
    pub(crate) published: Mutex<Vec<DesiredState>>,
    pub(crate) ports: Mutex<BTreeMap<PortId, PortSpec>>,
    pub(crate) closed: Mutex<Vec<(PortId, bool)>>,
    /// Lock that publications wait for.
    pub(crate) publishing: Mutex<()>,
    /// Makes publications fail as if a worker did not take them.
    pub(crate) is_late: AtomicBool,
    /// Flows that a flush has ended.
    pub(crate) ended: Mutex<Vec<FlowKey>>,
    pub(crate) is_followed: AtomicBool,
    pub(crate) counted: FakeFlows,
    /// Worker 0 stands still for this long.
    pub(crate) halted_for: Mutex<Duration>,
    pub(crate) offload: Mutex<Option<OffloadCounters>>,
}

impl FakeDataplane {
    pub(crate) fn desired(&self) -> DesiredState {
        self.published.lock().unwrap().last().cloned().unwrap()
    }

    pub(crate) fn publications(&self) -> usize {
        self.published.lock().unwrap().len()
    }
}

impl DataplaneApi for FakeDataplane {
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        if spec.interface.starts_with("absent") {
            return Err(PortError::NoInterface { interface: spec.interface.clone() });
        }
        let mut ports = self.ports.lock().unwrap();
        let id = (0..u16::MAX).map(PortId).find(|id| !ports.contains_key(id)).unwrap();
        ports.insert(id, spec.clone());
        Ok(PortReport {
            id,
            interface_index: 0,
            program: 0,
            mtu: 1500,
            queues: 1,
            native: true,
            zero_copy: false,
            offloaded: false,
            not_offloaded: None,
            warnings: Vec::new(),
        })
    }

    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        let mut ports = self.ports.lock().unwrap();
        let spec = ports.get(&port).ok_or(PortError::Unknown(port))?;
        if spec.interface.starts_with("stuck") {
            return Err(PortError::Kernel("the interface does not let go".to_owned()));
        }
        ports.remove(&port);
        self.closed.lock().unwrap().push((port, detach));
        Ok(())
    }

    fn publish(&self, desired: DesiredState) -> Result<Generation, PublishError> {
        let _may_publish = self.publishing.lock().unwrap();
        let mut published = self.published.lock().unwrap();
        published.push(desired);
        let generation = Generation(published.len() as u32);
        if self.is_late.load(Ordering::Relaxed) {
            return Err(PublishError { generation, workers: vec![WorkerId(1)], kernel: None });
        }
        Ok(generation)
    }

    fn counters(&self) -> Counters {
        let drops = BTreeMap::from([("policy-ingress".to_owned(), 3)]);
        let lost = BTreeMap::from([("ring-full".to_owned(), 2)]);
        let port = PortCounters { received: 10, forwarded: 7, drops, lost, ..PortCounters::default() };
        let ports = self.ports.lock().unwrap().keys().map(|&id| (id, port.clone())).collect();
        let policies = vec![PolicyRef {
            kind: PolicyKind::NetworkPolicy,
            namespace: "default".to_owned(),
            name: "db".to_owned(),
        }];
        let origin = RuleOrigin::DefaultDeny { direction: Direction::Ingress, policies };
        Counters {
            ports,
            workers: BTreeMap::from([(WorkerId(0), WorkerCounters { received: 10, ..Default::default() })]),
            decisions: vec![DecisionCount { verdict: Verdict::Deny, origin, packets: 3 }],
            offload: *self.offload.lock().unwrap(),
        }
    }

    fn path(&self, _: &FlowKey, _: Option<SocketAddr>) -> FlowPath {
        unreachable!("paths are those of a simulated dataplane")
    }

    fn decisions(&self, _: &FlowKey) -> FlowDecisions {
        unreachable!("paths are those of a simulated dataplane")
    }

    fn backend(&self) -> Backend {
        Backend::AfXdp
    }

    fn workers(&self) -> Option<&dyn Workers> {
        Some(self)
    }

    fn reopen_port(&self, port: PortId, _: &PortSpec) -> Result<PortReport, PortError> {
        Err(PortError::Unknown(port))
    }

    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        Err(PortError::Unknown(port))
    }

    fn block_interface(&self, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn block_new_interface(&self, _: u32, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn unblock_interface(&self, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn routes(&self) -> Vec<RouteReport> {
        Vec::new()
    }

    fn route_of(&self, _: IpAddr) -> Option<RouteReport> {
        None
    }

    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Workers for FakeDataplane {
    fn flows(&self) -> &dyn Flows {
        self
    }

    fn candidates(&self) -> &dyn CandidateTables {
        &NoLayout
    }

    fn captures(&self) -> &dyn PacketCaptures {
        &NoPackets
    }

    fn times(&self) -> Vec<WorkerTimes> {
        vec![WorkerTimes {
            worker: WorkerId(0),
            core: 0,
            clock_ns: 2_000_000_000,
            received: 10,
            batches: 4,
            turns: 9,
            sleeps: 3,
            busy_ns: 1_500_000_000,
            waited_ns: Some(250_000_000),
            stages: vec![],
            stage_frames: 0,
            latency: vec![(1000, 8), (5000, 2)],
            turn_times: vec![],
        }]
    }

    fn stuck_for(&self, timeout: Duration) -> Vec<StuckWorker> {
        let since = *self.halted_for.lock().unwrap();
        let stuck = StuckWorker { worker: WorkerId(0), core: 3, since };
        [stuck].into_iter().filter(|stuck| stuck.since > timeout).collect()
    }

    fn take_drop_samples(&self) -> DropSamples {
        DropSamples::default()
    }

    fn offloads(&self) -> bool {
        false
    }

    fn without_links(&self) -> Option<&str> {
        None
    }

    fn without_xdp(&self) -> Option<&str> {
        None
    }

    fn services_left_out(&self) -> usize {
        0
    }
}

impl Flows for FakeDataplane {
    fn report(&self) -> FlowTableReport {
        FlowTableReport { capacity: 4096, restored: 2, ..FlowTableReport::default() }
    }

    fn for_each(&self, see: &mut dyn FnMut(FlowInfo) -> bool) {
        let flow = |last: u8| FlowInfo {
            key: FlowKey {
                src: IpAddr::from([10, 1, 0, last]),
                dst: IpAddr::from([10, 1, 0, last + 1]),
                protocol: Protocol::TCP,
                src_port: 40000,
                dst_port: 6379,
            },
            state: if last == 9 { "time-wait" } else { "established" }.into(),
            assured: true,
            offloaded: false,
            port: PortId(u16::from(last > 4)),
            generation: Generation(1),
            age_ms: (last > 1).then_some(1000 * u64::from(last)),
            idle_ms: 5,
            packets: 4,
            bytes: 100 * u64::from(last),
            reply_packets: 3,
            reply_bytes: 300,
            service: None,
            masquerade: None,
            egress: None,
            ingress: None,
        };
        (1..=9).map(flow).filter(|flow| !self.ended.lock().unwrap().contains(&flow.key)).all(see);
    }

    fn origins(&self, _: &FlowKey) -> [Option<RuleOrigin>; 2] {
        [None, None]
    }

    fn end(&self, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Result<u64, FlowsLeft> {
        if self.is_late.load(Ordering::Relaxed) {
            return Err(FlowsLeft { ended: 2, worker: WorkerId(1) });
        }
        let mut ending = Vec::new();
        self.for_each(&mut |flow| {
            ending.extend(wanted(&flow).then_some(flow.key));
            true
        });
        self.ended.lock().unwrap().extend(&ending);
        Ok(ending.len() as u64)
    }

    fn follow(&self, is_followed: bool) {
        self.is_followed.store(is_followed, Ordering::Relaxed);
    }

    fn take_events(&self) -> FlowEvents {
        FlowEvents::default()
    }

    fn counters(&self) -> &dyn FlowCounters {
        &self.counted
    }

    fn of_services(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
        BTreeMap::new()
    }
}

/// Judges no flow.
struct NoLayout;

impl CandidateTables for NoLayout {
    fn lay_out(&self, _: &Arc<RuleTables>) -> Option<Candidate> {
        None
    }

    fn fits(&self, _: &Candidate) -> bool {
        unreachable!("there is no candidate")
    }

    fn judge(&self, _: &Candidate, _: &FlowKey) -> Option<Disagreement> {
        unreachable!("there is no candidate")
    }

    fn judge_flows(&self, _: &Candidate, _: &mut dyn FnMut(Disagreement)) -> u64 {
        unreachable!("there is no candidate")
    }

    fn flows_evicted(&self) -> u64 {
        0
    }
}

/// Captures no packet.
struct NoPackets;

impl PacketCaptures for NoPackets {
    fn run(&self, _: Vec<Arc<Capture>>) {}

    fn clock(&self) -> Duration {
        Duration::ZERO
    }
}

/// Starts a switch on a fake dataplane.
pub(crate) fn switch(settings: SwitchSettings) -> (Arc<FakeDataplane>, Arc<Switch>) {
    let dataplane = Arc::new(FakeDataplane::default());
    let switch = Switch::new(dataplane.clone(), settings);
    (dataplane, Arc::new(switch))
}

/// Temporary directory, removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("palisade-control-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Switch on a fake dataplane with its control socket.
pub(crate) struct Served {
    pub(crate) dataplane: Arc<FakeDataplane>,
    pub(crate) client: Client,
    pub(crate) scratch: Scratch,
    pub(crate) server: Server,
}

impl Served {
    pub(crate) fn start() -> Served {
        let scratch = Scratch::new();
        let (dataplane, switch) = switch(SwitchSettings::default());
        let socket = scratch.0.join("control.sock");
        let server = Server::start(&socket, 0o660, switch).unwrap();
        Served { dataplane, client: Client::new(socket), scratch, server }
    }

    pub(crate) fn socket(&self) -> &Path {
        self.client.socket()
    }
}

pub(crate) fn pod(name: &str) -> PodName {
    PodName::new("default", name)
}

pub(crate) fn pod_port() -> PortRequest {
    PortRequest::of(PortKind::Pod)
}

pub(crate) fn on_port(port: &str, address: &str) -> PodRequest {
    PodRequest {
        port: port.to_owned(),
        addresses: vec![address.parse().unwrap()],
        mac: None,
        ..PodRequest::default()
    }
}
