//! The program of a pod's port, which the kernel runs on packets of the tests (`BPF_PROG_TEST_RUN`), beside conntrack: it forwards
//! what it should, as it should, and leaves the numbers that conntrack would have.

use std::cell::RefCell;
use std::net::SocketAddr;

use etherparse::PacketBuilder;
use libbpf_rs::{Object, ProgramInput};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::dataplane::conntrack::{Outcome, Segment, Side, TcpFlow};
use crate::net::address::pack;
use crate::net::tcp::Flags;
use crate::xdp::offload::{Placement, load_program_of_pod};

const PODS: [PortId; 2] = [PortId(1), PortId(2)];
const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const OWN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const SCALE: u8 = 7;
const SLOT: u32 = 9;
/// Number of an out-of-window segment, at least: the largest window is 8 MiB, and known to a factor of two.
const FAR: u32 = 1 << 25;

/// Two pods' ports whose programs are loaded.
struct Rig {
    offload: Offload,
    programs: [RefCell<Object>; 2],
}

impl Rig {
    /// `None` without root.
    fn new() -> Option<Rig> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: programs are loaded by root alone");
            return None;
        }
        let offload = Offload::open(FLOWS, None).unwrap();
        for (number, port) in PODS.into_iter().enumerate() {
            offload.open_port(port, 10 + number as u32, false);
            offload.set_station(port, MACS[number], 1500);
            offload.set_port(port, OffloadPort { epoch: Some(Generation(5)), own_mac: OWN });
        }
        offload.renew_lease(u64::MAX);
        let programs = PODS.map(|port| {
            let at = Placement { port, index: 10, upcall_index: Some(1) };
            RefCell::new(load_program_of_pod(&offload.maps, at).unwrap())
        });
        Some(Rig { offload, programs })
    }

    /// Runs the program of a pod on a frame. Returns the frame as it leaves.
    fn run(&self, pod: usize, frame: &[u8]) -> Vec<u8> {
        let object = self.programs[pod].borrow_mut();
        let program = object.progs_mut().find(|program| program.name() == "palisade_pod").unwrap();
        let mut out = vec![0; 2048];
        let input =
            ProgramInput { data_in: Some(frame), data_out: Some(&mut out), ..ProgramInput::default() };
        let output = program.test_run(input).unwrap();
        // TC_ACT_REDIRECT: into the other pod, or to the upcall device.
        assert_eq!(output.return_value, 7);
        output.data.unwrap().to_vec()
    }
}

/// A frame of a segment between two ends.
fn frame(
    [source, destination]: [Mac; 2],
    [from, to]: [SocketAddr; 2],
    ttl: u8,
    segment: &Segment,
) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(source.0, destination.0);
    let ip = match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => builder.ipv4(from.ip().octets(), to.ip().octets(), ttl),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => builder.ipv6(from.ip().octets(), to.ip().octets(), ttl),
        _ => unreachable!("ends of one family"),
    };
    let mut tcp = etherparse::TcpHeader::new(from.port(), to.port(), segment.sequence, segment.window);
    tcp.acknowledgment_number = segment.acknowledgement;
    [tcp.fin, tcp.syn, tcp.rst, tcp.ack] =
        [Flags::FIN, Flags::SYN, Flags::RST, Flags::ACK].map(|flag| segment.flags.has(flag));
    let mut frame = Vec::new();
    ip.tcp_header(tcp).write(&mut frame, &vec![7; segment.payload_bytes as usize]).unwrap();
    frame
}

/// A segment of one side.
#[derive(Debug, Clone, Copy)]
struct Step {
    by_client: bool,
    flags: u8,
    payload_bytes: u32,
    /// Bytes that it repeats, and by which its acknowledgement is late.
    behind: [u32; 2],
    /// Distance of its sequence number, or of its acknowledgement, from where they should be.
    far: Option<(bool, u32)>,
    window: u16,
    ttl: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let flags = prop_oneof![
        8 => Just(Flags::ACK),
        1 => Just(Flags::ACK | Flags::FIN),
        1 => Just(Flags::RST),
        1 => Just(Flags::SYN),
    ];
    let far = prop_oneof![4 => Just(None), 1 => (any::<bool>(), FAR..u32::MAX - FAR).prop_map(Some)];
    let numbers = (0..1400_u32, [0..1000_u32, 0..1000_u32], 500..=u16::MAX);
    (any::<bool>(), flags, numbers, far, 1..65_u8).prop_map(
        |(by_client, flags, (payload_bytes, behind, window), far, ttl)| Step {
            by_client,
            flags,
            payload_bytes: if flags == Flags::ACK { payload_bytes } else { 0 },
            behind,
            far,
            window,
            ttl,
        },
    )
}

/// A connection, as both ends, conntrack and the program know it.
struct Connection<'a> {
    rig: &'a Rig,
    /// State of conntrack that has seen each segment.
    seen: TcpFlow,
    /// State of conntrack when the kernel took the connection over.
    left: TcpFlow,
    /// Next number of each end.
    next: [u32; 2],
    ends: [SocketAddr; 2],
    /// The end to which the client sends.
    front: SocketAddr,
}

impl Connection<'_> {
    fn open(rig: &Rig, number: u16, [is_v6, to_service]: [bool; 2], first: [u32; 2]) -> Connection<'_> {
        let addresses =
            if is_v6 { ["fd00::1", "fd00::2", "fd00:96::1"] } else { ["10.0.0.1", "10.0.0.2", "10.96.0.1"] };
        let at = |i: usize, port| SocketAddr::new(addresses[i].parse().unwrap(), port);
        let ends = [at(0, number), at(1, 80)];
        let front = if to_service { at(2, 8080) } else { ends[1] };
        let segment = |flags, sequence, acknowledgement, scale| Segment {
            flags: Flags(flags),
            sequence,
            acknowledgement,
            window: 1000,
            payload_bytes: 0,
            scale,
        };
        let mut seen = TcpFlow::open(&segment(Flags::SYN, first[0], 0, Some(SCALE)), false).unwrap();
        let next = first.map(|number| number.wrapping_add(1));
        let answer = segment(Flags::SYN | Flags::ACK, first[1], next[0], Some(SCALE));
        assert_eq!(seen.advance(&answer, Side::Responder), Outcome::Pass);
        let offloaded = OffloadedFlow {
            addresses: ends.map(|end| pack(end.ip())),
            transport_ports: ends.map(|end| end.port()),
            protocol: Protocol::TCP,
            ports: PODS,
            epochs: [Some(Generation(5)); 2],
            front: to_service.then_some(OffloadedFront {
                client: 0,
                address: pack(front.ip()),
                port: front.port(),
                service: UNCHANGED,
                epoch: Some(Generation(5)),
            }),
            gateway: Gateway::None,
            numbers: seen.numbers(),
        };
        assert!(rig.offload.record(SLOT, &offloaded, || true));
        Connection { rig, seen, left: seen, next, ends, front }
    }

    fn say(&mut self, step: &Step) {
        let [from, to] = if step.by_client { [0, 1] } else { [1, 0] };
        let (side, peer) =
            if step.by_client { (Side::Initiator, self.next[1]) } else { (Side::Responder, self.next[0]) };
        let is_data = step.flags == Flags::ACK;
        // A sender stays in the window of the other end.
        let limit = self.seen.sides[from].limit(&self.seen.sides[to]);
        let room = limit.wrapping_sub(self.next[from]) as i32;
        let payload_bytes = step.payload_bytes.min(room.max(0) as u32);
        let repeated = step.behind[0].min(payload_bytes);
        let mut segment = Segment {
            flags: Flags(step.flags),
            sequence: self.next[from].wrapping_sub(repeated),
            acknowledgement: peer.wrapping_sub(step.behind[1]),
            window: step.window,
            payload_bytes,
            scale: None,
        };
        match step.far {
            Some((true, far)) => segment.sequence = segment.sequence.wrapping_add(far),
            Some((false, far)) if segment.flags.has(Flags::ACK) => {
                segment.acknowledgement = segment.acknowledgement.wrapping_add(far);
            }
            _ => {}
        }
        let macs = [MACS[from], OWN];
        let sent_to = if step.by_client { [self.ends[0], self.front] } else { [self.ends[1], self.ends[0]] };
        let sent = frame(macs, sent_to, step.ttl, &segment);
        let before = self.rig.offload.peek(SLOT)[from];
        let left = self.rig.run(from, &sent);
        let forwarded = self.rig.offload.peek(SLOT)[from].packets - before.packets;
        if !is_data || step.ttl == 1 {
            assert_eq!((forwarded, &left), (0, &sent), "an upcall is as it was");
            return self.judge(&segment, side);
        }
        let heard = if step.by_client { self.ends } else { [self.front, self.ends[0]] };
        assert_eq!((forwarded, left), (1, frame([OWN, MACS[to]], heard, step.ttl - 1, &segment)));
        assert_eq!(self.seen.advance(&segment, side), Outcome::Pass);
        if step.far.is_none() {
            let end = segment.sequence.wrapping_add(segment.payload_bytes);
            self.next[from] = end;
        }
        let numbers = |numbers: [TcpNumbers; 2]| numbers.map(|of| (of.end, of.acknowledged));
        assert_eq!(numbers(self.rig.offload.numbers(SLOT).unwrap()), numbers(self.seen.numbers()));
    }

    /// Compares the verdicts on a segment that comes up.
    fn judge(&self, segment: &Segment, side: Side) {
        let mut followed = self.left;
        followed.take_over(self.rig.offload.numbers(SLOT).unwrap());
        let mut seen = self.seen;
        // The third segment is an acknowledgement like others to the program.
        followed.state = seen.state;
        let verdicts = [&mut followed, &mut seen].map(|flow| (flow.advance(segment, side), flow.state));
        assert_eq!(verdicts[0], verdicts[1], "{segment:?}");
    }
}

#[test]
fn the_program_forwards_what_it_should_and_leaves_the_numbers_of_conntrack() {
    let Some(rig) = Rig::new() else { return };
    let steps = proptest::collection::vec(step(), 1..40);
    let strategy = (1024..60_000_u16, any::<[bool; 2]>(), any::<[u32; 2]>(), steps);
    TestRunner::default()
        .run(&strategy, |(number, kind, first, steps)| {
            let mut connection = Connection::open(&rig, number, kind, first);
            steps.iter().for_each(|step| connection.say(step));
            rig.offload.remove(SLOT);
            rig.offload.end_grace_period(|| true);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_sender_that_guesses_once_does_not_lead_the_numbers_away() {
    let Some(rig) = Rig::new() else { return };
    let mut connection = Connection::open(&rig, 5000, [false; 2], [1000, 9000]);
    let step = Step {
        by_client: true,
        flags: Flags::ACK,
        payload_bytes: 1000,
        behind: [0; 2],
        far: None,
        window: 1000,
        ttl: 9,
    };
    for by_client in [true, false] {
        connection.say(&Step { by_client, ..step });
    }
    let end = |rig: &Rig| rig.offload.numbers(SLOT).unwrap()[0].end;
    let first = end(&rig);
    let mut segment = Segment {
        flags: Flags(Flags::ACK),
        sequence: first,
        acknowledgement: connection.next[1],
        window: 1000,
        payload_bytes: 1400,
        scale: None,
    };
    for _ in 0..1000 {
        rig.run(0, &frame([MACS[0], OWN], connection.ends, 9, &segment));
        segment.sequence = segment.sequence.wrapping_add(1400);
    }
    // The server's window, to the next power of two, and what an acknowledgement may be late.
    let most = (1000_u32 << SCALE).next_power_of_two() + 66_000;
    assert!(end(&rig).wrapping_sub(first) <= most, "{first} {}", end(&rig));
}
