//! Generated traffic through a system: who sends what to whom, and what receives it.
//!
//! The generator sends by the client's own interface, in its namespace, from the core of the traffic. What receives
//! is a program at the other pods' interfaces, run by whichever core brings the packets.

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

use super::Trial;
use crate::bed::TRAFFIC_CORE;
use crate::policy::OPEN_PORTS;
use crate::receiver::{Counted, Receiver, Task};
use crate::tool::Trouble;

/// Source ports: with as many open ports, a million flows.
pub(super) const SRC_PORTS: RangeInclusive<u16> = 10_000..=10_999;
/// The seed of traffic.
const SEED: u64 = 7;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shape {
    /// UDP flows from the client, spread over its ports, the open ports, and where there are many the receivers.
    pub(crate) flows: u32,
    /// Frame sizes.
    pub(crate) size: FrameSize,
}

/// An open generator and its receivers.
pub(super) struct Stream {
    session: Session,
    receiver: Receiver,
    /// Pods that traffic goes to.
    pub(super) destinations: usize,
}

/// What one window came to.
pub(super) struct Window {
    pub(super) sent: Sent,
    pub(super) received: Counted,
}

impl Stream {
    /// Opens it, sends one round of all flows, and has each answered once, so that they are established: a system that tracks
    /// connections asks its policy of every packet of a flow that nobody has answered.
    pub(super) fn open(trial: &Trial<'_>, shape: Shape, task: Task) -> Result<Stream, Trouble> {
        let client = trial.bed.pod("client")?;
        let destinations = destinations(trial)?;
        let pods: Vec<Pod> =
            trial.bed.receivers().into_iter().filter(|pod| destinations.contains(&pod.v4())).collect();
        let receiver = Receiver::attach(trial.bed, &pods, task)?;
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

    /// Sends for a time, and counts what comes.
    pub(super) fn send(&mut self, rate: Rate, time: Duration) -> Result<Window, Trouble> {
        let before = self.receiver.counted()?;
        let sent = self.session.trial(rate, time, &AtomicBool::new(false)).map_err(refused)?.sent;
        Ok(Window { sent, received: self.receiver.settled_since(&before)? })
    }

    /// What receives.
    pub(super) fn receiver(&self) -> &Receiver {
        &self.receiver
    }
}

/// A generator at a pod's interface, on the core of the traffic.
fn generator(pod: &Pod, to: Mac, space: FlowSpace, flows: u32, size: FrameSize) -> Result<Session, Trouble> {
    let traffic = Traffic { flows, size, seed: SEED, ..Traffic::new(Kind::Udp, pod.plan().mac, to, space) };
    let setup = Setup {
        tx: place(pod),
        rx: None,
        receive: Receive::Nothing,
        content: Content::Generated(traffic),
        queues: 1,
        cores: vec![TRAFFIC_CORE],
    };
    Session::open(&setup).map_err(refused)
}

/// Sends long enough for a round of all flows, at a rate that every system keeps up with.
fn round(session: &mut Session, flows: u32) -> Result<(), Trouble> {
    let per_s = if flows > 100_000 { 250e3 } else { 100e3 };
    let time = Duration::from_millis(50) + Duration::from_secs_f64(f64::from(flows) / per_s);
    session.trial(Rate::PerSecond(per_s), time, &AtomicBool::new(false)).map_err(refused)?;
    Ok(())
}

/// Ports of the client and of each destination, such that there are so many flows, as many to each.
fn ports(flows: u32, destinations: u32) -> (RangeInclusive<u16>, RangeInclusive<u16>) {
    let each = flows.div_ceil(destinations).max(1);
    let sources = each.min(SRC_PORTS.len() as u32);
    let first = |all: RangeInclusive<u16>, count: u32| *all.start()..=all.start() + (count - 1) as u16;
    (first(SRC_PORTS, sources), first(OPEN_PORTS, each.div_ceil(sources)))
}

impl Window {
    /// Lost packets of those sent.
    pub(super) fn loss(&self) -> f64 {
        self.sent.frames.saturating_sub(self.received.packets) as f64 / self.sent.frames.max(1) as f64
    }

    /// How many came in a second of sending.
    pub(super) fn per_s(&self, packets: u64) -> f64 {
        packets as f64 * 1e9 / self.sent.elapsed_ns.max(1) as f64
    }
}

/// Where a pod's generator sends.
pub(super) fn place(pod: &Pod) -> Target {
    let namespace = pod.namespace().path().to_string_lossy().into_owned();
    Target { interface: POD_INTERFACE.to_owned(), namespace: Some(namespace) }
}

/// The Ethernet address that frames go to.
pub(super) fn next_hop(trial: &Trial<'_>) -> Result<Mac, Trouble> {
    Ok(trial.running.next_hop(&trial.bed.pod("server")?))
}

/// The largest network whose addresses, the first and the last left out, are all receivers'; the server's alone where
/// there are few, or the system brings everything to one.
fn destinations(trial: &Trial<'_>) -> Result<Ipv4Net, Trouble> {
    let server = trial.bed.pod("server")?.v4();
    let receivers: Vec<Ipv4Addr> = trial.bed.receivers().iter().map(Pod::v4).collect();
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
pub(super) fn refused(error: PktgenError) -> Trouble {
    Trouble::Other(error.to_string())
}
