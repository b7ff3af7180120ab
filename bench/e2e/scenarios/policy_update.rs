//! Policy changes under load, one in every 100 ms: lost packets, and the time until a change is effective.
//!
//! The system's own tool opens a port to the client and closes it again. Probes go to that port all the time,
//! each from another source port, so that none belongs to a tracked connection. A change that opens is
//! effective with the first probe that arrives after the request, one that closes with the last probe that
//! arrives. The time includes the tool's own.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use etherparse::{Ipv4Header, PacketBuilder, UdpHeader};
use palisade::lab::Pod;
use palisade::pktgen::{FrameSize, Rate};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, SocketAddrV4, SocketType, ipproto, sendto, socket};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::stream::{Stream, StreamSpec, Window};
use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::policy::CHANGED_PORT;
use crate::error::BenchError;
use crate::receiver::{PROBES_MAX, Receiver, ReceiverMode};
use crate::rig::{TRAFFIC_CORE, pin_to_core};
use crate::scenario::{Measures, Trial};

/// Time from one change to the next, without the phase shift below.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longest tick of the kernel (100 Hz) and the phase shift of each change in it, both in microseconds. The
/// shift is the tick divided by the golden ratio squared. At even distances all changes would meet the same
/// phase of the tick, and of other work that runs ten times a second.
const TICK_US: u32 = 10_000;
const STEP_US: u32 = 3_819;
/// Mean time from one probe to the next. A result is no more exact than the measured gaps,
/// `probe_gap_p99_ms`: probes wait for their turn on the core that also sends the load. Exact gaps would
/// change the result: with `nice` -20 for this thread, the switch took twice as long for a change.
const PROBE_EVERY: Duration = Duration::from_micros(50);
/// Load that every system carries without loss.
const LOAD: StreamSpec = StreamSpec { flows: 10_000, size: FrameSize::Fixed(64) };
const LOAD_PER_S: f64 = 100e3;
/// First source port of the probes, which take all ports in turn.
const FIRST_PORT: u16 = 1024;
/// Bytes of a probe's payload, as the generator's frames of 64 bytes have.
const PAYLOAD_BYTES: usize = 18;
/// Offset of the checksum in a UDP header (RFC 768).
const UDP_CHECKSUM_OFFSET: usize = 6;

pub(super) fn measure(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    let mut change = trial.running.policy_toggle(trial.rig, trial.shape)?;
    let mut stream = Stream::open(trial, LOAD, ReceiverMode::Measure)?;
    let time = Duration::from_secs(trial.seconds);
    let quiet = stream.send(Rate::PerSecond(LOAD_PER_S), time / 2)?;
    let (done, cost) = trial.measure_cpu(|| under_load(trial, &mut stream, time, &mut change))?;
    let (changes, gaps, loaded) = done;
    let probes = gaps.len() as usize;
    let arrivals = arrivals(stream.receiver(), probes)?;
    let opened: Latencies = changes.windows(2).filter_map(|pair| opened_after(pair, &arrivals)).collect();
    let closed: Latencies = changes.windows(2).filter_map(|pair| closed_after(pair, &arrivals)).collect();
    let requests: Latencies =
        changes.iter().map(|change| Duration::from_nanos(change.returned_ns - change.asked_ns)).collect();
    let seen = (opened.len() + closed.len()) as usize;
    if seen == 0 {
        return Err(BenchError::Other("no change was seen by a probe".to_owned()));
    }
    let mut all = opened.clone();
    all.add(&closed);
    let mut measures = cost.fields();
    measures.extend(json_lines::fields(json!({
        "flows": LOAD.flows,
        "load_mpps": LOAD_PER_S / 1e6,
        "probes": probes,
        "probe_gap_p99_ms": gaps.ms(0.99),
        "changes": changes.len() - 1,
        // Changes that no probe saw before the next one.
        "late": changes.len() - 1 - seen,
        "effective_p50_ms": all.ms(0.5),
        "effective_p99_ms": all.ms(0.99),
        "open_p50_ms": opened.ms(0.5),
        "open_p99_ms": opened.ms(0.99),
        "close_p50_ms": closed.ms(0.5),
        "close_p99_ms": closed.ms(0.99),
        "request_p50_ms": requests.ms(0.5),
        "request_p99_ms": requests.ms(0.99),
        "loss": loaded.loss(),
        "lost": loaded.sent.frames.saturating_sub(loaded.received.packets),
        "loss_without_changes": quiet.loss(),
        "p99_us": loaded.received.latencies().us(0.99),
    })));
    Ok(measures)
}

/// One change of the policy.
#[derive(Debug, Clone, Copy)]
struct Change {
    opens: bool,
    asked_ns: u64,
    returned_ns: u64,
}

/// Runs load, probes and changes at the same time. Returns the changes, the gaps between probes, and the
/// load's result.
fn under_load(
    trial: &Trial<'_>,
    stream: &mut Stream,
    time: Duration,
    change: &mut dyn FnMut(bool) -> Result<(), BenchError>,
) -> Result<(Vec<Change>, Latencies, Window), BenchError> {
    let (client, server) = (trial.rig.pod("client")?, trial.rig.pod("server")?);
    let end = AtomicBool::new(false);
    scope(|scope| {
        let load = scope.spawn(|| stream.send(Rate::PerSecond(LOAD_PER_S), time));
        let probing = scope.spawn(|| probe(&client, server.v4(), &end));
        let changes = make_changes(time, change);
        end.store(true, Ordering::Relaxed);
        let loaded = load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let gaps = probing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((changes?, gaps?, loaded?))
    })
}

fn make_changes(
    time: Duration,
    change: &mut dyn FnMut(bool) -> Result<(), BenchError>,
) -> Result<Vec<Change>, BenchError> {
    let start = Instant::now();
    let mut changes = vec![];
    // The number is even, so that the port is closed at the end.
    for number in 1.. {
        let phase = Duration::from_micros(u64::from(number * STEP_US % TICK_US));
        sleep((start + INTERVAL * number + phase).saturating_duration_since(Instant::now()));
        if start.elapsed() + INTERVAL > time && changes.len() % 2 == 0 {
            break;
        }
        let (opens, asked_ns) = (changes.len() % 2 == 0, now_ns());
        change(opens)?;
        changes.push(Change { opens, asked_ns, returned_ns: now_ns() });
    }
    // This end marker bounds the last change.
    let end = now_ns();
    changes.push(Change { opens: true, asked_ns: end, returned_ns: end });
    Ok(changes)
}

/// Sends probes until `end`. Returns the gaps between them.
fn probe(client: &Pod, server: Ipv4Addr, end: &AtomicBool) -> Result<Latencies, BenchError> {
    let socket = client.run(raw_socket)??;
    pin_to_core(TRAFFIC_CORE);
    let to = SocketAddrV4::new(server, 0);
    let start = Instant::now();
    let (mut gaps, mut last) = (Latencies::default(), start);
    let mut packet = probe_packet(client.v4(), server)?;
    while !end.load(Ordering::Relaxed) && gaps.len() < PROBES_MAX as u64 {
        let (number, now) = (gaps.len() as u32, Instant::now());
        gaps.record(now - last);
        last = now;
        set_number(&mut packet, number);
        // A queue without room costs one probe.
        let _ = sendto(&socket, &packet, SendFlags::DONTWAIT, &to);
        sleep((start + PROBE_EVERY * (number + 1)).saturating_duration_since(Instant::now()));
    }
    Ok(gaps)
}

fn raw_socket() -> std::io::Result<OwnedFd> {
    // With this protocol, packets include their IPv4 header (raw(7)).
    Ok(socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW))?)
}

/// Builds a probe. The kernel fills in checksum, length and identification of the IPv4 header (raw(7)).
fn probe_packet(from: Ipv4Addr, to: Ipv4Addr) -> Result<Vec<u8>, BenchError> {
    let builder = PacketBuilder::ipv4(from.octets(), to.octets(), 64).udp(FIRST_PORT, CHANGED_PORT);
    let mut packet = vec![];
    let written = builder.write(&mut packet, &[0; PAYLOAD_BYTES]);
    written.map_err(|error| BenchError::Other(format!("a probe cannot be built: {error}")))?;
    // A checksum of zero says that there is none (RFC 768), so a probe changes without a further sum.
    packet[Ipv4Header::MIN_LEN + UDP_CHECKSUM_OFFSET..][..2].fill(0);
    Ok(packet)
}

/// Writes the number of a probe into its payload, and a source port of its own into its header.
fn set_number(packet: &mut [u8], number: u32) {
    let port = FIRST_PORT + (number % u32::from(u16::MAX - FIRST_PORT)) as u16;
    let udp = &mut packet[Ipv4Header::MIN_LEN..];
    udp[..2].copy_from_slice(&port.to_be_bytes());
    udp[UdpHeader::LEN..][..4].copy_from_slice(&number.to_be_bytes());
}

/// Reads the arrivals of all probes, in ascending order.
fn arrivals(receiver: &Receiver, probes: usize) -> Result<Vec<u64>, BenchError> {
    let mut arrivals = vec![];
    for number in 0..probes as u32 {
        arrivals.extend(receiver.arrival(number)?);
    }
    arrivals.sort_unstable();
    Ok(arrivals)
}

/// Returns the time from the request to the first arrival; `None` if that comes after the next change, or
/// never.
fn opened_after(changes: &[Change], arrivals: &[u64]) -> Option<Duration> {
    let [this, next] = changes else { return None };
    let first = *arrivals.get(arrivals.partition_point(|ns| *ns < this.asked_ns))?;
    (this.opens && first < next.asked_ns).then(|| Duration::from_nanos(first - this.asked_ns))
}

/// Returns the time from the request to the last arrival before the next change: 0 without any, `None` if
/// probes arrive until the next change.
fn closed_after(changes: &[Change], arrivals: &[u64]) -> Option<Duration> {
    let [this, next] = changes else { return None };
    let before = arrivals.partition_point(|ns| *ns < next.asked_ns);
    let last = before.checked_sub(1).map_or(0, |at| arrivals[at]).max(this.asked_ns);
    let still_open = next.asked_ns - last < 2 * INTERVAL.as_nanos() as u64 / 10;
    (!this.opens && !still_open).then(|| Duration::from_nanos(last - this.asked_ns))
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
