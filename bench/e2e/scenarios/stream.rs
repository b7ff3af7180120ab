//! Stream of generated traffic through a system.
//!
//! The generator sends by the client's own interface, in its namespace, from the core of the traffic. The
//! receiver is a program at the interfaces of the other pods. It runs on the core that delivers the packet.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ipnet::Ipv4Net;
use palisade::dataplane::Mac;
use palisade::lab::{POD_INTERFACE, Pod};
use palisade::pktgen::{
    Content, FlowSpace, FrameSize, Kind, PktgenError, Rate, Receive, Sent, Session, Setup, Target, Traffic,
};

use crate::common::policy::OPEN_PORTS;
use crate::error::BenchError;
use crate::receiver::{Counted, Receiver, ReceiverMode};
use crate::rig::TRAFFIC_CORE;
use crate::scenario::Trial;

/// Source ports: a million flows together with the open ports.
pub(super) const SRC_PORTS: RangeInclusive<u16> = 10_000..=10_999;
/// Seed of traffic.
const SEED: u64 = 7;

/// Specification of a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StreamSpec {
    /// UDP flows from the client, spread over source ports, open ports, and receivers where there are many.
    pub(crate) flows: u32,
    /// Frame size.
    pub(crate) size: FrameSize,
}

/// Open generator and its receivers.
pub(super) struct Stream {
    session: Session,
    receiver: Receiver,
    /// Number of pods that traffic goes to.
    pub(super) destinations: usize,
}

/// Result of one window.
pub(super) struct Window {
    pub(super) sent: Sent,
    pub(super) received: Counted,
}

impl Stream {
    /// Opens the stream, sends one round of all flows, and answers each once. The flows so are established: a
    /// system with connection tracking evaluates policy for every packet of a flow without a reply.
    pub(super) fn open(
        trial: &Trial<'_>,
        shape: StreamSpec,
        task: ReceiverMode,
    ) -> Result<Stream, BenchError> {
        let client = trial.rig.pod("client")?;
        let destinations = destinations(trial)?;
        let pods: Vec<Pod> =
            trial.rig.receivers().into_iter().filter(|pod| destinations.contains(&pod.v4())).collect();
        let receiver = Receiver::attach(trial.rig, &pods, task)?;
        let (src_ports, dst_ports) = ports(shape.flows, destinations.hosts().count() as u32);
        let space = FlowSpace {
            src: Ipv4Net::from(client.v4()).into(),
            dst: destinations.into(),
            src_ports: src_ports.clone(),
            dst_ports: dst_ports.clone(),
        };
        let to = next_hop(trial)?;
        let mut session = generator(&client, to, space, shape.flows, shape.size)?;
        round(&mut session, shape.flows)?;
        for pod in &pods {
            let space = FlowSpace {
                src: Ipv4Net::from(pod.v4()).into(),
                dst: Ipv4Net::from(client.v4()).into(),
                src_ports: dst_ports.clone(),
                dst_ports: src_ports.clone(),
            };
            let flows = (src_ports.len() * dst_ports.len()) as u32;
            let to = trial.running.next_hop(&client);
            round(&mut generator(pod, to, space, flows, FrameSize::Fixed(64))?, flows)?;
        }
        Ok(Stream { session, receiver, destinations: pods.len() })
    }

    /// Sends for a time, and counts the received packets.
    pub(super) fn send(&mut self, rate: Rate, time: Duration) -> Result<Window, BenchError> {
        let before = self.receiver.counted()?;
        let sent = self.session.trial(rate, time, &AtomicBool::new(false)).map_err(pktgen_error)?.sent;
        Ok(Window { sent, received: self.receiver.drained_since(&before)? })
    }

    /// Returns the receiver.
    pub(super) fn receiver(&self) -> &Receiver {
        &self.receiver
    }
}

/// Opens a generator at a pod's interface, on the core of the traffic.
fn generator(
    pod: &Pod,
    to: Mac,
    space: FlowSpace,
    flows: u32,
    size: FrameSize,
) -> Result<Session, BenchError> {
    let traffic = Traffic { flows, size, seed: SEED, ..Traffic::new(Kind::Udp, pod.plan().mac, to, space) };
    let setup = Setup {
        tx: target(pod),
        rx: None,
        receive: Receive::Nothing,
        content: Content::Generated(traffic),
        queues: 1,
        cores: vec![TRAFFIC_CORE],
    };
    Session::open(&setup).map_err(pktgen_error)
}

/// Sends one round of all flows, at a rate that every system keeps up with.
fn round(session: &mut Session, flows: u32) -> Result<(), BenchError> {
    let per_s = if flows > 100_000 { 250e3 } else { 100e3 };
    let time = Duration::from_millis(50) + Duration::from_secs_f64(f64::from(flows) / per_s);
    session.trial(Rate::PerSecond(per_s), time, &AtomicBool::new(false)).map_err(pktgen_error)?;
    Ok(())
}

/// Chooses ports of the client and of each destination that make `flows` flows, the same number to each
/// destination.
fn ports(flows: u32, destinations: u32) -> (RangeInclusive<u16>, RangeInclusive<u16>) {
    let each = flows.div_ceil(destinations).max(1);
    let sources = each.min(SRC_PORTS.len() as u32);
    let first = |all: RangeInclusive<u16>, count: u32| *all.start()..=all.start() + (count - 1) as u16;
    (first(SRC_PORTS, sources), first(OPEN_PORTS, each.div_ceil(sources)))
}

impl Window {
    /// Share of the sent packets that did not arrive.
    pub(super) fn loss(&self) -> f64 {
        self.sent.frames.saturating_sub(self.received.packets) as f64 / self.sent.frames.max(1) as f64
    }

    /// Returns packets a second of sending time.
    pub(super) fn per_s(&self, packets: u64) -> f64 {
        packets as f64 * 1e9 / self.sent.elapsed_ns.max(1) as f64
    }
}

/// Returns the interface that a pod's generator sends by.
pub(super) fn target(pod: &Pod) -> Target {
    let namespace = pod.namespace().path().to_string_lossy().into_owned();
    Target { interface: POD_INTERFACE.to_owned(), namespace: Some(namespace) }
}

/// Returns the Ethernet address that frames go to.
pub(super) fn next_hop(trial: &Trial<'_>) -> Result<Mac, BenchError> {
    Ok(trial.running.next_hop(&trial.rig.pod("server")?))
}

/// Finds the largest network whose host addresses are all receivers'. It is the server's address alone if
/// there are few receivers, or if the system delivers everything to one.
fn destinations(trial: &Trial<'_>) -> Result<Ipv4Net, BenchError> {
    let server = trial.rig.pod("server")?.v4();
    let receivers: Vec<Ipv4Addr> = trial.rig.receivers().iter().map(Pod::v4).collect();
    if !trial.running.routes() {
        return Ok(server.into());
    }
    let networks = (24..=30).flat_map(|length| {
        receivers.iter().filter_map(move |address| Some(Ipv4Net::new(*address, length).ok()?.trunc()))
    });
    let mut whole = networks.filter(|network| network.hosts().all(|host| receivers.contains(&host)));
    Ok(whole.next().unwrap_or(server.into()))
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
pub(super) fn pktgen_error(error: PktgenError) -> BenchError {
    BenchError::Other(error.to_string())
}
