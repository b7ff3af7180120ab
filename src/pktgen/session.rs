//! Measurement sessions: open sockets, and single trials on them.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::pin;
use super::frames::capture::Capture;
use super::frames::replay::{Replay, Replayed};
use super::frames::{Generated, Source};
use super::io::link_end::LinkEnd;
use super::io::receiver::{self, Measured, Progress};
use super::io::sender::{self, Sent, Until};
use super::rate_limiter::{Rate, RateLimiter};
use super::target::{Attached, Target, open_rx, open_tx};
use super::traffic::flows::Share;
use super::traffic::frame_size::FCS_BYTES;
use super::{PktgenError, Traffic};
use crate::net::ethernet;
use crate::xdp::{DropCounter, Dropped, MemoryPeer};

/// Silence after the last sent frame that ends a trial: frames still missing are lost.
const QUIET: Duration = Duration::from_millis(100);
/// Longest wait for that silence.
const SETTLE_MAX: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);

/// Receiver of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receive {
    /// None.
    Nothing,
    /// An XDP program that counts and drops. It costs next to nothing and knows nothing but counts.
    Count,
    /// A thread that reads every frame and measures loss, order and latency.
    Measure,
}

/// Content of the sent frames.
#[derive(Debug, Clone)]
pub enum Content {
    /// Frames of templates.
    Generated(Traffic),
    /// Frames of a capture.
    Replay(Replay),
}

/// Parameters of a session.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Sending interface.
    pub tx: Target,
    /// Receiving interface; not used with [`Receive::Nothing`].
    pub rx: Option<Target>,
    /// Receiver.
    pub receive: Receive,
    /// Content of the frames.
    pub content: Content,
    /// Number of sending queues, from queue 0 on, each with a thread.
    pub queues: u16,
    /// Cores of the sending threads in order, then of the receiving one. Threads beyond these are not pinned.
    pub cores: Vec<usize>,
}

/// Open sockets and their content. Dropped, it detaches its programs from the interfaces.
pub struct Session {
    senders: Vec<Sender>,
    receiver: Receiver,
    flows: u32,
    /// Most frames of a trial.
    frames: u64,
    recorded: Option<Arc<Capture>>,
    cores: Vec<usize>,
}

/// Link end and frame source of one sending thread.
struct Sender {
    wire: LinkEnd,
    source: AnySource,
}

enum AnySource {
    Generated(Box<Generated>),
    Replayed(Replayed),
}

enum Receiver {
    Nothing,
    Count(Attached),
    /// Link ends, and the program that redirects frames to them; it is detached with the session.
    Measure {
        wires: Vec<LinkEnd>,
        _attached: Option<Attached>,
    },
}

/// Result of a trial.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Requested rate, frames a second; `None` without a limit, and for the times of a capture.
    pub rate: Option<f64>,
    /// Counts of the senders.
    pub sent: Sent,
    /// Flows begun after the first ones.
    pub new_flows: u64,
    /// Counts of the receiver; `None` without one.
    pub received: Option<Received>,
}

/// Received frames.
#[derive(Debug, Clone)]
pub struct Received {
    /// Frames, duplicates included.
    pub frames: u64,
    /// Bytes of the frames in memory, without frame check sequences.
    pub bytes: u64,
    /// Measurements by the stamps, where frames were read.
    pub measured: Option<Measured>,
}

impl Session {
    /// Opens the sockets of a setup. Needs the privileges that AF_XDP needs.
    pub fn open(setup: &Setup) -> Result<Session, PktgenError> {
        check_mtu(setup)?;
        let receiver = match (setup.receive, &setup.rx) {
            (Receive::Nothing, _) => Receiver::Nothing,
            (_, None) => {
                return Err(PktgenError::Traffic("no interface to receive by: give --rx".to_owned()));
            }
            (Receive::Count, Some(rx)) => Receiver::Count(Attached::counter(rx)?),
            (Receive::Measure, Some(rx)) => {
                let (wires, attached) = open_rx(rx)?;
                Receiver::Measure { wires, _attached: Some(attached) }
            }
        };
        let wires = open_tx(&setup.tx, setup.queues)?;
        Session::with(wires, receiver, &setup.content, setup.cores.clone())
    }

    /// Opens a session on in-memory ports. It sends to the ports of `tx`, with one thread each, and receives
    /// from the ports of `rx`, if there are any.
    pub fn in_memory(
        tx: Vec<MemoryPeer>,
        rx: Vec<MemoryPeer>,
        content: &Content,
    ) -> Result<Session, PktgenError> {
        let wires = |peers: Vec<MemoryPeer>| peers.into_iter().map(LinkEnd::Memory).collect::<Vec<_>>();
        let receiver = if rx.is_empty() {
            Receiver::Nothing
        } else {
            Receiver::Measure { wires: wires(rx), _attached: None }
        };
        Session::with(wires(tx), receiver, content, Vec::new())
    }

    fn with(
        wires: Vec<LinkEnd>,
        receiver: Receiver,
        content: &Content,
        cores: Vec<usize>,
    ) -> Result<Session, PktgenError> {
        let stamped = matches!(receiver, Receiver::Measure { .. });
        let of = wires.len() as u32;
        let sender = |(wire, number)| Sender::new(wire, content, stamped, Share { number, of });
        let senders = wires.into_iter().zip(0..).map(sender).collect::<Result<_, _>>()?;
        let (flows, frames, recorded) = match content {
            Content::Generated(traffic) => (traffic.flows, u64::MAX, None),
            Content::Replay(replay) => (1, replay.frames(), Some(replay.recording.clone())),
        };
        Ok(Session { senders, receiver, flows, frames, recorded, cores })
    }

    /// Sends at one rate for one time, waits for what is still under way, and counts. Ends early when `stop`
    /// is set.
    pub fn trial(&mut self, rate: Rate, time: Duration, stop: &AtomicBool) -> Result<Trial, PktgenError> {
        let Session { senders, receiver, flows, frames, recorded, cores } = self;
        let until = Until { elapsed_ns: time.as_nanos() as u64, frames: *frames };
        let limiter = match (rate, recorded) {
            (Rate::Recorded, Some(recording)) => RateLimiter::Recorded(recording.times().into()),
            (Rate::Recorded, None) => {
                let sentence = "generated frames have no recorded speed: give --rate";
                return Err(PktgenError::Traffic(sentence.to_owned()));
            }
            (Rate::Max, _) => RateLimiter::Max,
            (Rate::PerSecond(rate), _) => RateLimiter::of(rate, senders.len()),
        };
        let receiving_core = cores.get(senders.len()).copied();
        let mut send = || send_all(senders, &limiter, until, cores, stop);
        let (sent, received) = match receiver {
            Receiver::Nothing => (send()?, None),
            Receiver::Count(counter) => {
                let before = dropped(counter)?;
                let sent = send()?;
                wait_for_arrival(sent.frames, || Ok(dropped(counter)?.frames - before.frames))?;
                let after = dropped(counter)?;
                let (frames, bytes) = (after.frames - before.frames, after.bytes - before.bytes);
                (sent, Some(Received { frames, bytes, measured: None }))
            }
            Receiver::Measure { wires, .. } => {
                let (sent, measured) = measure(wires, *flows, receiving_core, send)?;
                let (frames, bytes) = (measured.frames, measured.bytes);
                (sent, Some(Received { frames, bytes, measured: Some(measured) }))
            }
        };
        let new_flows = senders.iter().map(|sender| sender.source.opened()).sum();
        let rate = match rate {
            Rate::Max | Rate::Recorded => None,
            Rate::PerSecond(rate) => Some(rate),
        };
        Ok(Trial { rate, sent, new_flows, received })
    }
}

impl Trial {
    /// Counts the sent frames that did not arrive; `None` without a receiver.
    pub fn lost(&self) -> Option<u64> {
        let received = self.received.as_ref()?;
        let duplicates = received.measured.as_ref().map_or(0, |measured| measured.duplicates);
        Some(self.sent.frames.saturating_sub(received.frames - duplicates))
    }

    /// Returns the share of the sent frames that were lost: 0 where none was sent, `None` without a receiver.
    pub fn loss(&self) -> Option<f64> {
        Some(self.lost()? as f64 / self.sent.frames.max(1) as f64)
    }

    /// Returns the sent rate, frames a second.
    pub fn sent_per_s(&self) -> f64 {
        self.sent.frames as f64 * 1e9 / self.sent.elapsed_ns.max(1) as f64
    }
}

impl Sender {
    fn new(wire: LinkEnd, content: &Content, stamped: bool, share: Share) -> Result<Sender, PktgenError> {
        let source = match content {
            Content::Generated(traffic) => {
                AnySource::Generated(Box::new(Generated::new(traffic, stamped, share)?))
            }
            Content::Replay(_) if share.of > 1 => {
                let sentence = "a recording is sent in its order, by one queue: leave --queues out";
                return Err(PktgenError::Traffic(sentence.to_owned()));
            }
            Content::Replay(_) if stamped => {
                let sentence = "recorded frames do not tell when they were sent: --receive count counts them";
                return Err(PktgenError::Traffic(sentence.to_owned()));
            }
            Content::Replay(replay) => AnySource::Replayed(Replayed::new(replay)),
        };
        Ok(Sender { wire, source })
    }
}

impl Source for AnySource {
    #[inline]
    fn next(&mut self, now_ns: u64) -> &[u8] {
        match self {
            AnySource::Generated(generated) => generated.next(now_ns),
            AnySource::Replayed(replayed) => replayed.next(now_ns),
        }
    }

    fn start(&mut self, now_ns: u64) {
        match self {
            AnySource::Generated(generated) => generated.start(now_ns),
            AnySource::Replayed(replayed) => replayed.start(now_ns),
        }
    }
}

impl AnySource {
    fn opened(&self) -> u64 {
        match self {
            AnySource::Generated(generated) => generated.opened(),
            AnySource::Replayed(_) => 0,
        }
    }
}

/// Fails for a frame that is larger than the MTU of the sending interface allows.
fn check_mtu(setup: &Setup) -> Result<(), PktgenError> {
    let (largest, vlan) = match &setup.content {
        Content::Generated(traffic) => {
            let sizes = traffic.sizes(setup.receive == Receive::Measure);
            (sizes.into_iter().max().unwrap_or(0), traffic.vlan)
        }
        Content::Replay(replay) => (replay.recording.largest() + FCS_BYTES, Some(1)),
    };
    let mtu = setup.tx.find()?.mtu as usize;
    let most = mtu + ethernet::bytes_with(vlan.unwrap_or(0)) + FCS_BYTES;
    if largest > most {
        return Err(PktgenError::Traffic(format!(
            "frames of {largest} bytes do not pass {}, whose MTU is {mtu}: {most} are the most",
            setup.tx
        )));
    }
    Ok(())
}

/// Runs every sender on a thread of its own.
fn send_all(
    senders: &mut [Sender],
    limiter: &RateLimiter,
    until: Until,
    cores: &[usize],
    stop: &AtomicBool,
) -> Result<Sent, PktgenError> {
    thread::scope(|scope| {
        let threads: Vec<_> = senders
            .iter_mut()
            .enumerate()
            .map(|(number, sender)| {
                let core = cores.get(number).copied();
                scope.spawn(move || {
                    pin(core)?;
                    sender::send(&mut sender.wire, &mut sender.source, limiter, until, stop)
                })
            })
            .collect();
        threads.into_iter().try_fold(Sent::default(), |sum, thread| {
            Ok(sum.with(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?))
        })
    })
}

/// Sends while a thread receives and measures.
fn measure(
    wires: &mut [LinkEnd],
    flows: u32,
    core: Option<usize>,
    send: impl FnOnce() -> Result<Sent, PktgenError>,
) -> Result<(Sent, Measured), PktgenError> {
    let (end, progress) = (AtomicBool::new(false), Progress::default());
    receiver::forget(wires);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            pin(core)?;
            Ok(receiver::receive(wires, flows, &end, &progress))
        });
        let sent = send().and_then(|sent| {
            wait_for_arrival(sent.frames, || Ok(progress.frames()))?;
            Ok(sent)
        });
        end.store(true, Ordering::Relaxed);
        let measured: Result<Measured, PktgenError> =
            receiver.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok((sent?, measured?))
    })
}

/// Waits until every sent frame has arrived, or no more frames arrive.
fn wait_for_arrival(
    sent: u64,
    mut come: impl FnMut() -> Result<u64, PktgenError>,
) -> Result<(), PktgenError> {
    let start = Instant::now();
    let (mut last, mut since) = (come()?, start);
    while last < sent && since.elapsed() < QUIET && start.elapsed() < SETTLE_MAX {
        thread::sleep(POLL);
        let now = come()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

fn dropped(counter: &Attached) -> Result<Dropped, PktgenError> {
    Ok(counter.as_counter().map_or(Ok(Dropped::default()), DropCounter::dropped)?)
}
