//! The limit: this switch's AF_XDP layer and nothing else. What comes in by one port leaves by its pair's other port,
//! unread. Batch sizes, rings, kicks and sleep are the worker's.
//!
//! It is a process of its own (`e2e --forward …`), so that its processor time can be told from the rig's.

use std::time::{Duration, Instant};

use palisade::dataplane::Mac;
use palisade::ids::PortId;
use palisade::lab::Pod;
use palisade::limits::{MTU_MAX, PORT_BURST_FRAMES_MAX, RING_SLOTS};
use palisade::netlink::Interface;
use palisade::xdp::{Frame, PortQueue, Program, Umem, XdpError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::{Kind, Running, System};
use crate::bed::{Bed, SYSTEM_CORE, stay_on};
use crate::policy::PolicyShape;
use crate::tool::{Daemon, Trouble};

/// Longest wait for its start.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long it looks for frames before it sleeps, as the switch's default has it.
const SPIN: Duration = Duration::from_micros(50);
/// Frames of its UMEM, as the switch's default has it.
const FRAMES: usize = 32_768;
/// What it says when it forwards.
const READY: &str = "forwarding";
/// Longest sleep, nanoseconds.
const SLEEP_NS: i64 = 100_000_000;

pub(super) struct Noop;

/// A process that joins interfaces in pairs.
pub(super) struct Wire(pub(super) Daemon);

impl System for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn kind(&self) -> Kind {
        Kind::Wire
    }

    fn versions(&self) -> Vec<String> {
        vec![format!("palisade::xdp {}", env!("CARGO_PKG_VERSION"))]
    }

    fn mtu_max(&self) -> u32 {
        MTU_MAX as u32
    }

    fn start(&self, bed: &mut Bed, _: &PolicyShape) -> Result<Box<dyn Running>, Trouble> {
        join_in_pairs(bed)?;
        let program = std::env::current_exe()?;
        let mut command = bed.node_command(&program.to_string_lossy());
        command.arg("--forward").args(bed.host_ends());
        let log = bed.lab().directory().join("noop.log");
        let mut forwarder = Daemon::start(&mut command, "noop", log)?;
        bed.lab_and_node().0.note_process(forwarder.pid())?;
        forwarder.wait_for(PATIENCE, |said| said.contains(READY))?;
        Ok(Box::new(Wire(forwarder)))
    }
}

impl Running for Wire {
    fn pids(&self) -> Vec<u32> {
        vec![self.0.pid()]
    }

    fn next_hop(&self, to: &Pod) -> Mac {
        to.plan().mac
    }

    fn routes(&self) -> bool {
        false
    }

    fn note(&self) -> Option<String> {
        Some("no policy, no addresses; checksums are finished in the pods".to_owned())
    }
}

/// Makes each pod's gateway the pod that it is joined with, and has it finish its checksums: a wire does neither.
pub(super) fn join_in_pairs(bed: &Bed) -> Result<(), Trouble> {
    let macs: Vec<Mac> = bed.lab().pods().map(|pod| pod.plan().mac).collect();
    bed.tell_gateway(|pod| {
        let own = macs.iter().position(|mac| *mac == pod.plan().mac).unwrap_or(0);
        macs[pair_of(own, macs.len())]
    })?;
    bed.finish_checksums_in_pods()
}

/// The other port of a pair; the last of an odd number has itself.
fn pair_of(port: usize, ports: usize) -> usize {
    if port ^ 1 < ports { port ^ 1 } else { port }
}

struct End {
    queue: PortQueue,
    waiting: Vec<Frame>,
    level: usize,
}

/// Forwards between the interfaces, in pairs, until the process is ended.
pub(crate) fn forward(interfaces: &[String]) -> Result<(), XdpError> {
    stay_on(SYSTEM_CORE);
    let (mut umem, frames) = Umem::new(FRAMES, true)?;
    let mut free = Vec::with_capacity(frames.len());
    free.extend(frames);
    let level = (umem.frames_total() / 2 / interfaces.len().max(1)).min(RING_SLOTS);
    let open = |(number, name): (usize, &String)| {
        let (program, _) = Program::attach(&Interface::find(name)?, 1)?;
        let queue = PortQueue::open(&umem.binder(), PortId(number as u16), program.interface(), 0, &program)?;
        Ok(End { queue, waiting: Vec::with_capacity(RING_SLOTS), level })
    };
    let mut ends = interfaces.iter().enumerate().map(open).collect::<Result<Vec<End>, XdpError>>()?;
    for end in &mut ends {
        end.queue.refill(&mut umem, &mut free, end.level);
    }
    println!("{READY}");
    let mut last_frame = Instant::now();
    loop {
        let now = Instant::now();
        if turn(&mut ends, &mut umem, &mut free) > 0 {
            last_frame = now;
        } else if now.duration_since(last_frame) > SPIN && ends.iter().all(|end| end.queue.outstanding() == 0)
        {
            sleep(&ends);
        }
    }
}

/// One batch, in the worker's order. Returns how many frames it received.
fn turn(ends: &mut [End], umem: &mut Umem, free: &mut Vec<Frame>) -> usize {
    let mut received = 0;
    for port in 0..ends.len() {
        let out = pair_of(port, ends.len());
        let mut arrived = std::mem::take(&mut ends[out].waiting);
        let count = ends[port].queue.receive(umem, &mut arrived, PORT_BURST_FRAMES_MAX);
        ends[out].waiting = arrived;
        if count > 0 {
            let level = ends[port].level;
            ends[port].queue.refill(umem, free, level);
        }
        received += count;
    }
    for end in ends {
        if !end.waiting.is_empty() {
            end.queue.transmit(umem, &mut end.waiting);
        }
        if end.queue.outstanding() > 0 {
            // Whatever the kernel says, the frames are still in the ring, and the next round kicks again.
            let _ = end.queue.kick();
            end.queue.complete(umem, free);
        }
        end.queue.refill(umem, free, end.level);
    }
    received
}

fn sleep(ends: &[End]) {
    let mut fds: Vec<PollFd<'_>> = ends
        .iter()
        .filter_map(|end| end.queue.fd())
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    // An interrupted sleep is a short one.
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: SLEEP_NS }));
}
