//! Endpoints of generated TCP connections: an initiator that opens them at a rate, each with a new
//! five-tuple, and a responder.
//!
//! ```text
//! initiator                             responder (stateless)
//!   SYN           seq I             ->
//!                                   <-  SYN, ACK      seq R      ack I+1
//!   ACK           seq I+1  ack R+1  ->
//!   FIN, ACK      seq I+1  ack R+1  ->
//!                                   <-  FIN, ACK      seq R+1    ack I+2
//!   ACK           seq I+2  ack R+2  ->
//! ```
//!
//! The initial sequence number I is the number of the connection, so that no answer needs a look-up. No
//! segment is sent again, so a lost segment shows as a connection that times out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;

use crate::limits::BATCH_FRAMES_MAX;
use crate::net::tcp::Flags;
use crate::pktgen::PktgenError;
use crate::pktgen::clock::{cpu_ns, now_ns};
use crate::pktgen::io::link_end::LinkEnd;
use crate::pktgen::io::receiver::sleep;
use crate::pktgen::rate_limiter::RateLimiter;
use crate::pktgen::tcp::segment::{Link, SEGMENT_BYTES_MAX, Segment};
use crate::pktgen::traffic::flows::Tuples;

/// Longest life of a connection; after it the connection has failed.
const TIMEOUT_NS: u64 = 1_000_000_000;
/// Shift of the slot in a sequence number. The bits below count the sent sequence numbers.
const SLOT_SHIFT: u32 = 3;
/// Most connections at a time.
pub const CONCURRENT_MAX: u32 = 1 << 20;
/// Initial sequence number of the responder.
const RESPONDER: u32 = 0x1000_0000;
/// Connections opened between two looks at answers.
const BURST: u64 = 32;
/// Idle time after which a thread sleeps.
const IDLE_NS: u64 = 200_000;

/// Result of a trial of connections.
#[derive(Debug, Clone)]
pub struct TcpTrial {
    /// SYNs sent.
    pub opened: u64,
    /// Connections with a SYN, ACK.
    pub established: u64,
    /// Connections closed by both sides.
    pub completed: u64,
    /// Connections reset by the other side or by a device between.
    pub reset: u64,
    /// Connections that did not end within a second.
    pub timed_out: u64,
    /// Time until the last connection was opened or completed, nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of the initiating thread, nanoseconds.
    pub cpu_ns: u64,
    /// Time from SYN to SYN, ACK, nanoseconds.
    pub setup: Histogram<u64>,
}

/// The endpoint that opens connections.
pub(crate) struct Initiator<'a> {
    wires: &'a mut [LinkEnd],
    link: Link,
    tuples: Tuples,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots in the order of their connections' age, with the flow of each.
    by_age: VecDeque<(u32, u32)>,
    answers: Vec<Segment>,
    start_ns: u64,
    result: TcpTrial,
}

/// State of one connection.
#[derive(Debug, Clone, Copy)]
struct Slot {
    flow: u32,
    state: State,
    since_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// SYN sent.
    Opening,
    /// FIN sent.
    Closing,
}

impl<'a> Initiator<'a> {
    pub(crate) fn new(
        wires: &'a mut [LinkEnd],
        link: Link,
        tuples: Tuples,
        concurrent: u32,
    ) -> Initiator<'a> {
        let idle = Slot { flow: 0, state: State::Free, since_ns: 0 };
        let setup =
            Histogram::new_with_bounds(1, TIMEOUT_NS, 3).expect("bounds and digits that the crate allows");
        Initiator {
            wires,
            link,
            tuples,
            slots: vec![idle; concurrent as usize],
            free: (0..concurrent).rev().collect(),
            by_age: VecDeque::with_capacity(concurrent as usize),
            answers: Vec::with_capacity(BATCH_FRAMES_MAX),
            start_ns: 0,
            result: TcpTrial {
                opened: 0,
                established: 0,
                completed: 0,
                reset: 0,
                timed_out: 0,
                elapsed_ns: 0,
                cpu_ns: 0,
                setup,
            },
        }
    }

    /// Opens connections when they are due, the first of them with flow `first`, and waits for the last ones
    /// to end.
    pub(crate) fn run(
        mut self,
        first: u32,
        limiter: &RateLimiter,
        time_ns: u64,
        stop: &AtomicBool,
    ) -> Result<TcpTrial, PktgenError> {
        let (start, cpu) = (now_ns(), cpu_ns());
        self.start_ns = start;
        let mut idle_since = start;
        loop {
            let now = now_ns();
            let opening = now - start < time_ns && !stop.load(Ordering::Relaxed);
            let mut busy = 0;
            if opening {
                self.result.elapsed_ns = now - start;
                busy += self.open(first, limiter.due(now - start, self.result.opened), now)?;
            } else if self.by_age.is_empty() {
                break;
            }
            busy += self.answer(now)?;
            self.expire(now);
            if busy > 0 {
                idle_since = now;
            } else if now - idle_since > IDLE_NS
                && !matches!(limiter, RateLimiter::Every(gap) if *gap < IDLE_NS as f64)
            {
                sleep(self.wires);
            }
        }
        self.result.cpu_ns = cpu_ns() - cpu;
        Ok(self.result)
    }

    /// Opens connections that are due, as far as slots are free.
    fn open(&mut self, first: u32, due: u64, now: u64) -> Result<usize, PktgenError> {
        let count = due.saturating_sub(self.result.opened).min(BURST).min(self.free.len() as u64) as usize;
        for _ in 0..count {
            let Some(slot) = self.free.pop() else { break };
            let flow = first.wrapping_add(self.result.opened as u32);
            self.slots[slot as usize] = Slot { flow, state: State::Opening, since_ns: now };
            self.by_age.push_back((slot, flow));
            self.result.opened += 1;
            let syn = Segment {
                tuple: self.tuples.of(flow),
                sequence: slot << SLOT_SHIFT,
                acknowledgement: 0,
                flags: Flags::SYN,
            };
            self.send(&syn)?;
        }
        self.wires[0].flush()?;
        Ok(count)
    }

    /// Receives answers, and sends the next segments.
    fn answer(&mut self, now: u64) -> Result<usize, PktgenError> {
        let mut answers = std::mem::take(&mut self.answers);
        for wire in &mut *self.wires {
            wire.receive(|frame| answers.extend(Segment::read(frame)));
        }
        let count = answers.len();
        for segment in answers.drain(..) {
            self.take(&segment, now)?;
        }
        self.answers = answers;
        self.wires[0].flush()?;
        Ok(count)
    }

    fn take(&mut self, answer: &Segment, now: u64) -> Result<(), PktgenError> {
        let (number, sent) = (answer.acknowledgement >> SLOT_SHIFT, answer.acknowledgement & 7);
        let Some(slot) = self.slots.get_mut(number as usize) else { return Ok(()) };
        let tuple = self.tuples.of(slot.flow);
        if answer.tuple.reversed() != tuple {
            return Ok(());
        }
        let flags = Flags(answer.flags);
        let (sequence, acknowledgement) = (answer.acknowledgement, answer.sequence.wrapping_add(1));
        let segment = |flags| Segment { tuple, sequence, acknowledgement, flags };
        match slot.state {
            State::Opening | State::Closing if flags.has(Flags::RST) => {
                self.result.reset += 1;
                self.release(number);
            }
            State::Opening if flags.has(Flags::SYN | Flags::ACK) && sent == 1 => {
                slot.state = State::Closing;
                self.result.established += 1;
                self.result.setup.saturating_record((now - slot.since_ns).max(1));
                self.send(&segment(Flags::ACK))?;
                self.send(&segment(Flags::FIN | Flags::ACK))?;
            }
            State::Closing if flags.has(Flags::FIN | Flags::ACK) && sent == 2 => {
                self.result.completed += 1;
                self.result.elapsed_ns = now - self.start_ns;
                self.release(number);
                self.send(&segment(Flags::ACK))?;
            }
            State::Free | State::Opening | State::Closing => (),
        }
        Ok(())
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize].state = State::Free;
        self.free.push(slot);
    }

    /// Ends connections that are too old.
    fn expire(&mut self, now: u64) {
        while let Some(&(number, flow)) = self.by_age.front() {
            let slot = self.slots[number as usize];
            if slot.flow == flow && slot.state != State::Free {
                if now - slot.since_ns < TIMEOUT_NS {
                    return;
                }
                self.result.timed_out += 1;
                self.release(number);
            }
            self.by_age.pop_front();
        }
    }

    fn send(&mut self, segment: &Segment) -> Result<(), PktgenError> {
        send(&mut self.wires[0], &self.link, segment)
    }
}

/// Answers segments until `stop` is set. It keeps no state of connections.
pub(crate) fn respond(
    wires: &mut [LinkEnd],
    vlan: Option<u16>,
    stop: &AtomicBool,
) -> Result<(), PktgenError> {
    let mut asked: Vec<(Link, Segment)> = Vec::with_capacity(BATCH_FRAMES_MAX);
    let mut idle_since = now_ns();
    while !stop.load(Ordering::Relaxed) {
        let mut received = 0;
        for wire in &mut *wires {
            received += wire.receive(|frame| {
                asked.extend(Segment::read(frame).map(|segment| (Link::back(frame, vlan), segment)));
            });
            for (link, segment) in asked.drain(..) {
                if let Some(answer) = answer_to(&segment) {
                    send(wire, &link, &answer)?;
                }
            }
            wire.flush()?;
        }
        if received > 0 {
            idle_since = now_ns();
        } else if now_ns() - idle_since > IDLE_NS {
            sleep(wires);
        }
    }
    Ok(())
}

/// Returns the answer of the stateless responder to a segment.
fn answer_to(segment: &Segment) -> Option<Segment> {
    let flags = Flags(segment.flags);
    let (sequence, flags) = if flags.has(Flags::SYN) {
        (RESPONDER, Flags::SYN | Flags::ACK)
    } else if flags.has(Flags::FIN) {
        (segment.acknowledgement, Flags::FIN | Flags::ACK)
    } else {
        return None;
    };
    let acknowledgement = segment.sequence.wrapping_add(1);
    Some(Segment { tuple: segment.tuple.reversed(), sequence, acknowledgement, flags })
}

/// Stages a segment, and flushes until there is a free frame for it.
fn send(wire: &mut LinkEnd, link: &Link, segment: &Segment) -> Result<(), PktgenError> {
    let mut bytes = [0; SEGMENT_BYTES_MAX];
    let frame = segment.write(link, &mut bytes);
    while !wire.stage(frame)? {
        wire.flush()?;
        wire.room();
    }
    Ok(())
}
