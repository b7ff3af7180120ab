//! Limit of AF_XDP: the switch's AF_XDP layer alone. It forwards each frame unread to the other port of its
//! pair, with the batch sizes, rings, kicks and sleep of a worker.
//!
//! It is a process of its own (`e2e --forward …`), so that its processor time is apart from the benchmark's.

use std::time::{Duration, Instant};

use palisade::ids::PortId;
use palisade::lab::{POD_INTERFACE, PodPorts};
use palisade::limits::{MTU_MAX, PORT_BURST_FRAMES_MAX, RING_SLOTS};
use palisade::netlink::Interface;
use palisade::tap::{TapDevice, TapSpec};
use palisade::xdp::{Frame, PortQueue, Program, Umem, XdpError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::cross_connect::{CrossConnect, cross_connect_pods, pair_of};
use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::process::Daemon;
use crate::rig::{Rig, SYSTEM_CORE, pin_to_core};
use crate::system::{Kind, Running, System};

/// Longest wait for the start.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time without a frame before it sleeps: the switch's default.
const SPIN: Duration = Duration::from_micros(50);
/// Frames of the UMEM: the switch's default.
const FRAMES: usize = 32_768;
/// Line that it prints when it forwards.
const READY: &str = "forwarding";
/// Longest sleep, in nanoseconds.
const SLEEP_NS: i64 = 100_000_000;

/// The forwarder, with pods on these interfaces.
pub(super) struct Noop(pub(super) PodPorts);

impl System for Noop {
    fn name(&self) -> &'static str {
        match self.0 {
            PodPorts::Veth | PodPorts::Offload => "noop",
            PodPorts::Tap => "noop-tap",
        }
    }

    fn ports(&self) -> PodPorts {
        self.0
    }

    fn kind(&self) -> Kind {
        Kind::CrossConnect
    }

    fn versions(&self) -> Vec<String> {
        vec![format!("palisade::xdp {}", env!("CARGO_PKG_VERSION"))]
    }

    fn mtu_max(&self) -> u32 {
        MTU_MAX as u32
    }

    fn start(&self, rig: &mut Rig, _: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        cross_connect_pods(rig)?;
        if self.0 == PodPorts::Veth {
            rig.disable_tx_offload_in_pods()?;
        }
        let program = std::env::current_exe()?;
        let mut command = rig.node_command(&program.to_string_lossy());
        match self.0 {
            PodPorts::Veth | PodPorts::Offload => command.arg("--forward").args(rig.host_ends()),
            PodPorts::Tap => {
                command.arg("--forward-taps").args(rig.lab().pods().map(|pod| pod.plan().netns.clone()))
            }
        };
        let log = rig.lab().directory().join("noop.log");
        let mut forwarder = Daemon::start(&mut command, "noop", log)?;
        rig.lab_and_node().0.note_process(forwarder.pid())?;
        forwarder.wait_for(TIMEOUT, |said| said.contains(READY))?;
        Ok(Box::new(CrossConnect(forwarder)))
    }
}

struct Port {
    queue: PortQueue,
    pending: Vec<Frame>,
    fill_target: usize,
}

impl Port {
    fn of(queue: PortQueue, fill_target: usize) -> Port {
        Port { queue, pending: Vec::with_capacity(RING_SLOTS), fill_target }
    }
}

/// Forwards between the tap devices of these namespaces in pairs, until the process ends.
pub(crate) fn forward_taps(namespaces: &[String]) -> Result<(), BenchError> {
    let (umem, frames) = Umem::in_memory(FRAMES);
    let mut devices = Vec::new();
    let mut ports = Vec::new();
    for (number, namespace) in namespaces.iter().enumerate() {
        let interface = POD_INTERFACE.to_owned();
        let spec = TapSpec {
            namespace: namespace.clone(),
            namespace_cookie: None,
            interface,
            mtu: None,
            mac: None,
            queues: 1,
            is_silent: false,
        };
        let (device, queues) =
            TapDevice::open(&spec).map_err(|error| BenchError::Other(error.to_string()))?;
        devices.push(device);
        for queue in queues {
            ports.push(Port::of(PortQueue::tap(&umem.binder(), PortId(number as u16), queue)?, 0));
        }
    }
    run(ports, umem, frames)
}

/// Forwards between the interfaces in pairs, until the process ends.
pub(crate) fn forward(interfaces: &[String]) -> Result<(), BenchError> {
    let (umem, frames) = Umem::new(FRAMES, true)?;
    let fill_target = (umem.frames_total() / 2 / interfaces.len().max(1)).min(RING_SLOTS);
    let open = |(number, name): (usize, &String)| {
        let (program, _) = Program::attach(&Interface::find(name)?, 1)?;
        let queue = PortQueue::open(&umem.binder(), PortId(number as u16), program.interface(), 0, &program)?;
        Ok(Port::of(queue, fill_target))
    };
    let ports = interfaces.iter().enumerate().map(open).collect::<Result<Vec<Port>, XdpError>>()?;
    run(ports, umem, frames)
}

fn run(mut ports: Vec<Port>, mut umem: Umem, frames: Vec<Frame>) -> Result<(), BenchError> {
    pin_to_core(SYSTEM_CORE);
    let mut free = Vec::with_capacity(frames.len());
    free.extend(frames);
    for port in &mut ports {
        port.queue.refill(&mut umem, &mut free, port.fill_target);
    }
    println!("{READY}");
    let mut last_frame = Instant::now();
    loop {
        let now = Instant::now();
        if forward_batch(&mut ports, &mut umem, &mut free) > 0 {
            last_frame = now;
        } else if now.duration_since(last_frame) > SPIN
            && ports.iter().all(|port| port.queue.outstanding() == 0)
        {
            sleep(&ports);
        }
    }
}

/// Forwards one batch in the order of a worker, and returns the number of received frames.
fn forward_batch(ports: &mut [Port], umem: &mut Umem, free: &mut Vec<Frame>) -> usize {
    let mut received = 0;
    for input in 0..ports.len() {
        let output = pair_of(input, ports.len());
        let mut arrived = std::mem::take(&mut ports[output].pending);
        let before = arrived.len();
        let count = ports[input].queue.receive_into(umem, free, &mut arrived, PORT_BURST_FRAMES_MAX);
        // A packet of a tap device keeps its header, and its checksum unfinished.
        for packet in &mut arrived[before..] {
            if let Some(header) = umem.virtio_header(packet) {
                packet.leave_checksum(header.csum_start.into(), header.csum_offset.into());
            }
        }
        ports[output].pending = arrived;
        if count > 0 {
            let fill_target = ports[input].fill_target;
            ports[input].queue.refill(umem, free, fill_target);
        }
        received += count;
    }
    for port in ports {
        if !port.pending.is_empty() {
            port.queue.transmit(umem, &mut port.pending);
        }
        if port.queue.outstanding() > 0 {
            // On an error the frames are still in the ring, and the next round kicks again.
            let _ = port.queue.kick();
            port.queue.complete(umem, free);
        }
        port.queue.refill(umem, free, port.fill_target);
    }
    received
}

fn sleep(ports: &[Port]) {
    let mut fds: Vec<PollFd<'_>> = ports
        .iter()
        .filter_map(|port| port.queue.fd())
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    // An interrupted sleep is a short one.
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: SLEEP_NS }));
}
