//! Random histories of conntrack as a whole (table, TCP, time-outs, eviction, revalidation) against a naive model: flows as a list,
//! times that never wrap, sequence numbers as integers that never do either.
//!
//! `PALISADE_HISTORIES` sets how many, `PALISADE_SEED` the first one's seed, which is printed; the others count up from there. A failure
//! names the seed of its history, so that this one can be played alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use super::*;
use crate::dataplane::conntrack::Outcome;
use crate::dataplane::packet::Packet;

const HISTORIES: u64 = if cfg!(debug_assertions) { 1000 } else { 20_000 };
const STEPS: u64 = 60;
/// Slots: two buckets, so that every key may be in every slot.
const SLOTS: usize = 2 * BUCKET_SLOTS;
const PORTS: u64 = 4;

const FIN: u8 = Flags::FIN;
const SYN: u8 = Flags::SYN;
const RST: u8 = Flags::RST;
const ACK: u8 = Flags::ACK;

/// A generator of random numbers (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Model of one side of a TCP connection. Numbers count from the side's first one.
#[derive(Debug, Clone, Copy, Default)]
struct ModelSide {
    spoke: bool,
    /// Number behind the last byte that it sent, and the last that it may send.
    sent: i64,
    allowed: i64,
    /// Largest window that it offered.
    window: i64,
    scale: u32,
    finished: bool,
    /// Number of the other side that it expects next, where that is known.
    expects: Option<i64>,
}

/// A segment, by numbers of the model.
#[derive(Debug, Clone, Copy)]
struct Sent {
    flags: u8,
    sequence: i64,
    acknowledgement: i64,
    window: u16,
    bytes: i64,
    scale: Option<u8>,
}

impl Sent {
    fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    fn end(&self) -> i64 {
        self.sequence + self.bytes + i64::from(self.has(SYN)) + i64::from(self.has(FIN))
    }

    /// As it is on the wire, where the sides' first numbers are these: the sender's first.
    fn segment(&self, first: [u32; 2]) -> Segment {
        Segment {
            flags: Flags(self.flags),
            sequence: first[0].wrapping_add(self.sequence as u32),
            acknowledgement: first[1].wrapping_add(self.acknowledgement as u32),
            window: self.window,
            payload_bytes: self.bytes as u32,
            scale: self.scale,
        }
    }
}

/// A flow of the model. Pairs are of the initiator and of the responder, but for those of ends.
#[derive(Debug, Clone)]
struct Flow {
    opened_by_low: bool,
    port: u16,
    state: &'static str,
    /// First number of each side, and what is known of it.
    first: [u32; 2],
    sides: [ModelSide; 2],
    last_seen_ms: u64,
    packets: [u64; 2],
    bytes: [u64; 2],
    /// Generation that policy_epoch packets of the lower and of the higher end, and the hop that was noted for them.
    policy_epoch: [u32; 2],
    hops: [Option<u16>; 2],
}

/// Verdict of the model on a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Pass,
    Invalid,
    Reopen,
}

impl Flow {
    fn tcp(&mut self, sent: &Sent, side: usize) -> Expected {
        let other = 1 - side;
        if sent.has(RST) {
            return self.reset(sent, side);
        }
        let acknowledges_syn = (self.sides[0].sent..=self.sides[0].allowed).contains(&sent.acknowledgement);
        if sent.has(SYN) {
            let answers = sent.has(ACK);
            match (self.state, side) {
                ("time-wait" | "reset" | "unacknowledged", _) if !answers => return Expected::Reopen,
                ("time-wait" | "reset", _) => return Expected::Invalid,
                ("syn-sent", 1) if answers && !acknowledges_syn => return Expected::Invalid,
                ("syn-sent", 0) if !answers => self.hear(sent, 0),
                ("syn-sent", 1) => self.answer(sent),
                ("syn-received", 1) if answers && sent.acknowledgement == self.sides[0].sent => {
                    self.answer(sent);
                }
                ("syn-received", 0) if answers && sent.acknowledgement == self.sides[1].sent => {
                    self.advance(sent, 0);
                    self.state = "established";
                }
                (_, 0) if answers => return Expected::Invalid,
                (_, 1) if !answers => return Expected::Invalid,
                _ => {}
            }
            return Expected::Pass;
        }
        if self.state == "syn-sent" {
            if side == 1 && sent.has(ACK) {
                self.sides[1].expects = Some(sent.acknowledgement);
            }
            return if side == 0 { Expected::Invalid } else { Expected::Pass };
        }
        if self.state == "reset" || !self.fits(sent, side) {
            return Expected::Pass;
        }
        self.advance(sent, side);
        let fin = sent.has(FIN);
        let others_fin = self.sides[other].finished;
        self.state = match self.state {
            "unacknowledged" if side == 0 => "unacknowledged",
            "unacknowledged" | "fin-wait" if fin && others_fin => "last-ack",
            "unacknowledged" if fin || others_fin => "fin-wait",
            "unacknowledged" => "established",
            "syn-received" | "established" if fin => "fin-wait",
            "syn-received" if side == 0 && sent.has(ACK) => "established",
            "last-ack" if !fin && sent.acknowledgement == self.sides[other].sent => "time-wait",
            state => state,
        };
        Expected::Pass
    }

    fn reset(&mut self, sent: &Sent, side: usize) -> Expected {
        let [ours, peer] = [self.sides[side], self.sides[1 - side]];
        let is_unanswered = self.state == "syn-sent" || self.state == "reset" && !ours.spoke;
        let is_exact = if is_unanswered && side == 1 {
            let refuses = (self.sides[0].sent..=self.sides[0].allowed).contains(&sent.acknowledgement);
            if !sent.has(ACK) || !refuses {
                return Expected::Invalid;
            }
            true
        } else {
            peer.expects == Some(sent.sequence) || (ours.spoke && ours.sent == sent.sequence)
        };
        let start = if ours.spoke { ours.sent } else { ours.allowed };
        if is_exact {
            self.state = "reset";
            Expected::Pass
        } else if (start - peer.window..=ours.allowed).contains(&sent.sequence) {
            Expected::Pass
        } else {
            Expected::Invalid
        }
    }

    fn hear(&mut self, sent: &Sent, side: usize) {
        let expects = if sent.has(ACK) { Some(sent.acknowledgement) } else { self.sides[side].expects };
        self.sides[side] = ModelSide {
            spoke: true,
            sent: sent.sequence + 1,
            allowed: sent.end(),
            window: i64::from(sent.window).max(1),
            scale: u32::from(sent.scale.unwrap_or(0)),
            finished: false,
            expects,
        };
        self.sides[1 - side].expects = Some(sent.sequence + 1);
    }

    fn answer(&mut self, sent: &Sent) {
        self.hear(sent, 1);
        self.sides[1].allowed += self.sides[0].window;
        if sent.has(ACK) {
            self.sides[0].sent = sent.acknowledgement;
            self.sides[0].allowed = sent.acknowledgement;
        }
        self.sides[0].allowed += self.sides[1].window;
        if sent.scale.is_none() {
            self.sides[0].scale = 0;
        }
        self.state = "syn-received";
    }

    fn fits(&self, sent: &Sent, side: usize) -> bool {
        let [ours, peer] = [self.sides[side], self.sides[1 - side]];
        if !peer.spoke {
            return true;
        }
        if !ours.spoke {
            // The first word of the responder of a connection that was picked up.
            let window = (i64::from(sent.window) << ours.scale).max(66_000);
            return sent.has(ACK)
                && (peer.sent - window..=peer.sent).contains(&sent.acknowledgement)
                && sent.sequence <= ours.allowed + 1
                && sent.end() >= ours.allowed - peer.window - 66_000;
        }
        let acknowledged = peer.sent - ours.window.max(66_000)..=peer.sent;
        sent.sequence <= ours.allowed + 1
            && sent.end() >= ours.sent - peer.window.max(1)
            && (!sent.has(ACK) || acknowledged.contains(&sent.acknowledgement))
    }

    fn advance(&mut self, sent: &Sent, side: usize) {
        let mut ours = self.sides[side];
        let scale = if sent.has(SYN) { 0 } else { ours.scale };
        let window = (i64::from(sent.window) << scale).max(1);
        if !ours.spoke {
            (ours.sent, ours.allowed) = (sent.end(), sent.end() + window);
            ours.expects = Some(sent.acknowledgement);
        }
        ours.spoke = true;
        ours.sent = later(ours.sent, sent.end());
        if !self.sides[1 - side].spoke {
            ours.allowed = ours.allowed.max(ours.sent);
        }
        ours.finished |= sent.has(FIN);
        ours.window = ours.window.max(window);
        if sent.has(ACK) {
            let before = ours.expects.unwrap_or(sent.acknowledgement);
            ours.expects = Some(later(before, sent.acknowledgement));
            let peer = &mut self.sides[1 - side];
            let allowed = sent.acknowledgement + window;
            peer.allowed = if peer.spoke { peer.allowed.max(allowed) } else { allowed };
        }
        self.sides[side] = ours;
    }

    fn other(&mut self, protocol: Protocol, chunk: u8, side: usize) -> Expected {
        self.state = match (protocol, self.state, chunk) {
            (Protocol::UDP, "udp-one-way", _) if side == 1 => "udp-two-way",
            (Protocol::SCTP, "sctp-setup", 11) if side == 1 => "sctp-established",
            (Protocol::SCTP, "sctp-setup" | "sctp-established", 6 | 14) => "sctp-shutdown",
            (Protocol::SCTP, "sctp-shutdown", 1) => return Expected::Reopen,
            (Protocol::SCTP, "sctp-established", 1) if side == 1 => return Expected::Invalid,
            (_, "other-one-way", _) if side == 1 => "other",
            (_, state, _) => state,
        };
        Expected::Pass
    }

    /// As the table has a side.
    fn side(&self, side: usize) -> TcpSide {
        let half = self.sides[side];
        let number = |at: i64| self.first[side].wrapping_add(at as u32);
        TcpSide {
            end: number(half.sent),
            max_end: number(half.allowed),
            max_window: half.window as u32,
            acknowledged: half.expects.map_or(0, |at| self.first[1 - side].wrapping_add(at as u32)),
            scale: half.scale as u8,
            finished: half.finished,
        }
    }

    fn timeout_ms(&self) -> u64 {
        let seconds = match self.state {
            "syn-sent" | "syn-received" | "udp-one-way" | "echo" | "sctp-setup" | "other-one-way" => 30,
            "unacknowledged" => 300,
            "established" | "sctp-established" => 7440,
            "fin-wait" | "last-ack" | "udp-two-way" => 120,
            "time-wait" => 60,
            "reset" | "sctp-shutdown" => 10,
            "other" => 600,
            state => panic!("no such state: {state}"),
        };
        seconds * 1000
    }

    /// The class of flows in its state, where the quota does not matter.
    fn class(&self) -> QuotaClass {
        match self.state {
            "established" | "fin-wait" | "last-ack" | "udp-two-way" | "sctp-established" | "other" => {
                QuotaClass::Assured
            }
            "time-wait" | "reset" | "sctp-shutdown" => QuotaClass::Ended,
            _ => QuotaClass::Unassured,
        }
    }
}

/// The table and its model.
struct History {
    random: Random,
    bench: Bench,
    keys: Vec<Key>,
    /// By number of the key.
    flows: Vec<Option<Flow>>,
    pickup: bool,
    now_ms: u64,
    start_ms: u32,
    generation: u32,
    /// By number of the key and by who opens: what this generation denies.
    denied: Vec<[bool; 2]>,
}

fn random_key(number: usize) -> Key {
    let protocols =
        [Protocol::TCP, Protocol::TCP, Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP];
    let protocol = *protocols.get(number % 7).unwrap_or(&Protocol(47));
    // An echo that the lower end has sent, with the bits of its type.
    let echo = if protocol == Protocol::ICMP { 1 << 40 | 8 << 42 } else { 0 };
    let word = number as u64 | 53 << 16 | u64::from(protocol.0) << 32 | echo;
    if number.is_multiple_of(2) || protocol == Protocol::ICMP {
        Key::new(from_v4(0x0a00_0001), from_v4(0x0a00_0002), word)
    } else {
        Key::new(0xfd << 120 | 1, 0xfd << 120 | 2, word)
    }
}

impl History {
    fn new(seed: u64) -> History {
        let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let pickup = random.one_in(4);
        let percent = random.of(&[20, 50, 100]);
        let settings = ConntrackSettings { tcp_pickup: pickup, ..settings(SLOTS, percent) };
        // Few keys, about which much happens; or more than there is room for.
        let keys: Vec<Key> = (0..random.of(&[2, 7, 60])).map(random_key).collect();
        History {
            bench: Bench::new(&settings, random.of(&[1, 2, 3])),
            flows: vec![None; keys.len()],
            denied: vec![[false; 2]; keys.len()],
            start_ms: random.next() as u32,
            keys,
            pickup,
            now_ms: 0,
            generation: 1,
            random,
        }
    }

    fn play(mut self) {
        for _ in 0..STEPS {
            self.bench.start_batches();
            match self.random.below(16) {
                0 => self.publish(),
                1 => self.wait(),
                _ => self.packet(),
            }
        }
        self.compare();
    }

    fn clock(&self) -> u32 {
        self.start_ms.wrapping_add(self.now_ms as u32)
    }

    fn publish(&mut self) {
        self.generation += 1;
        for denied in &mut self.denied {
            *denied = [self.random.one_in(6), self.random.one_in(6)];
        }
    }

    /// Lets time pass, and now and then every flow be looked at.
    fn wait(&mut self) {
        self.now_ms += self.random.of(&[1, 9_000, 11_000, 29_000, 61_000, 119_000, 301_000, 8_000_000]);
        if self.random.one_in(2) {
            let now_ms = self.clock();
            for worker_state in &mut self.bench.workers {
                let buckets = self.bench.table.buckets_per_worker(worker_state);
                self.bench.table.sweep(buckets, now_ms, worker_state, |_| false);
            }
            let now_ms = self.now_ms;
            for flow in &mut self.flows {
                flow.take_if(|flow| now_ms - flow.last_seen_ms > flow.timeout_ms());
            }
        }
    }

    fn packet(&mut self) {
        let number = self.random.below(self.keys.len() as u64) as usize;
        let key = self.keys[number];
        // An echo is asked by the lower end, and the reply is known by its type.
        let from_low = self.random.one_in(2);
        let worker = self.random.below(self.bench.workers.len() as u64) as usize;
        let found = self.bench.find(&key);
        assert_eq!(found.is_some(), self.flows[number].is_some(), "{key:?}");
        match found {
            Some(slot) => self.follow(number, slot, from_low, worker),
            None if key.protocol() == Protocol::ICMP && !from_low => {}
            None => self.open(number, None, from_low, worker, None),
        }
        if let (Some(slot), Some(flow)) = (self.bench.find(&key), &self.flows[number]) {
            compare(flow, self.bench.table.entry(slot), key.protocol() == Protocol::TCP);
        }
    }

    /// A packet of a known flow, as the packet path takes it.
    fn follow(&mut self, number: usize, slot: Slot, from_low: bool, worker: usize) {
        let (key, clock) = (self.keys[number], self.clock());
        let (table, random) = (&self.bench.table, &mut self.random);
        let entry = table.entry(slot);
        let flow = self.flows[number].as_mut().expect("a flow that is found");
        let end = usize::from(!from_low);
        let side = usize::from(from_low != flow.opened_by_low);
        let flow_word = entry.flow_word(from_low);
        assert_eq!(
            (flow_word.policy_epoch(), flow_word.hop()),
            (Generation(flow.policy_epoch[end]), flow.hops[end])
        );
        if flow.policy_epoch[end] < self.generation {
            if self.denied[number][usize::from(flow.opened_by_low)] {
                table.remove(slot, &mut self.bench.workers[worker]);
                self.flows[number] = None;
                return;
            }
            let hop = random.of(&[None, Some(7), Some(u16::MAX - 1)]);
            entry.mark_current(from_low, flow_word, Generation(self.generation), hop);
            (flow.policy_epoch[end], flow.hops[end]) = (self.generation, hop);
        }
        let mut sent = None;
        let (says, outcome) = if key.protocol() == Protocol::TCP {
            let drawn = draw(random, &flow.sides, side);
            sent = Some(drawn);
            let segment = drawn.segment([flow.first[side], flow.first[1 - side]]);
            let before = entry.load_tcp();
            let mut after = before;
            let outcome = after.advance(&segment, entry.sender(from_low));
            if outcome == Outcome::Pass && entry.store_tcp(&before, &after) {
                table.on_state_change(slot, before.state, after.state);
            }
            (flow.tcp(&drawn, side), outcome)
        } else {
            let chunk = random.of(&[0, 1, 2, 6, 11, 14]);
            let packet = Packet { flags: chunk, protocol: key.protocol(), ..Packet::default() };
            let before = entry.state();
            let (outcome, after) = before.advance(&packet, entry.sender(from_low) == Side::Initiator);
            if before != after {
                entry.set_state(before, after);
                table.on_state_change(slot, before, after);
            }
            (flow.other(key.protocol(), chunk, side), outcome)
        };
        let expected = match says {
            Expected::Pass => Outcome::Pass,
            Expected::Invalid => Outcome::Invalid,
            Expected::Reopen => Outcome::Reopen,
        };
        assert_eq!(outcome, expected, "{sent:?} from {side} after {flow:?}");
        match says {
            Expected::Pass => {
                entry.count(from_low, 100, clock);
                flow.packets[side] += 1;
                flow.bytes[side] += 100;
                flow.last_seen_ms = self.now_ms;
            }
            Expected::Invalid => {}
            Expected::Reopen => {
                let first = [flow.first[side], flow.first[1 - side]];
                self.open(number, Some(slot), from_low, worker, sent.map(|sent| (sent, first)));
            }
        }
    }

    /// A packet that opens a flow, if it does; in the place of one that has ended, where there is a slot.
    fn open(
        &mut self,
        number: usize,
        slot: Option<Slot>,
        from_low: bool,
        worker: usize,
        segment: Option<(Sent, [u32; 2])>,
    ) {
        let (key, clock) = (self.keys[number], self.clock());
        let random = &mut self.random;
        let port = random.below(PORTS) as u16;
        let mut state = FlowState::initial(key.protocol());
        let mut flow = Flow {
            opened_by_low: from_low,
            port,
            state: state.name(),
            first: [0; 2],
            sides: [ModelSide::default(); 2],
            last_seen_ms: self.now_ms,
            packets: [1, 0],
            bytes: [100, 0],
            policy_epoch: [self.generation; 2],
            hops: [None; 2],
        };
        let mut tcp = None;
        if key.protocol() == Protocol::TCP {
            let (sent, first) = segment.unwrap_or_else(|| {
                let first = [random.next() as u32, random.next() as u32];
                (draw(random, &flow.sides, 0), first)
            });
            let opened = TcpFlow::open(&sent.segment(first), self.pickup);
            flow.first = first;
            if sent.has(SYN) && !sent.has(ACK) {
                flow.state = "syn-sent";
                flow.sides[1].scale = 14;
                flow.hear(&sent, 0);
            } else if self.pickup && sent.has(ACK) && !sent.has(SYN) && !sent.has(RST) {
                flow.state = "unacknowledged";
                flow.sides.iter_mut().for_each(|half| half.scale = 14);
                flow.advance(&sent, 0);
                flow.sides[1].expects = Some(flow.sides[0].sent);
            } else {
                assert_eq!(opened, None, "{sent:?}");
                return;
            }
            let opened = opened.expect("a segment that opens");
            (state, tcp) = (opened.state, Some(opened));
        }
        if self.denied[number][usize::from(from_low)] {
            return;
        }
        flow.hops[usize::from(!from_low)] = random.of(&[None, Some(3)]);
        let new = NewFlow {
            opened_by_low: from_low,
            pods: [true, false],
            owner_port: PortId(port),
            policy_epoch: Generation(self.generation),
            state,
            tcp,
            hops: flow.hops,
        };
        if let Some(slot) = slot {
            self.bench.table.restart(slot, &new, clock);
            self.bench.table.entry(slot).count(from_low, 100, clock);
            self.flows[number] = Some(flow);
            return;
        }
        let before = self.classes();
        let hash = self.bench.table.hash(&key);
        let worker_state = &mut self.bench.workers[worker];
        let ended = worker_state.ended;
        match self.bench.table.insert(&key, hash, &new, clock, worker_state) {
            InsertOutcome::Inserted(slot) => {
                self.bench.table.entry(slot).count(from_low, 100, clock);
                self.flows[number] = Some(flow);
            }
            InsertOutcome::Full => {}
            InsertOutcome::Exists(slot) => panic!("{slot:?} has a flow that was not found"),
        }
        let ended = self.bench.workers[worker].ended - ended;
        self.note_evicted(&before, port, ended, self.flows[number].is_some());
    }

    /// QuotaClass of every flow, as the table has it.
    fn classes(&self) -> Vec<Option<QuotaClass>> {
        let class = |key: &Key| {
            let slot = self.bench.table.look_up(key, self.bench.table.hash(key))?;
            Some(self.bench.table.entry(slot).quota_owner()?.class)
        };
        self.keys.iter().map(class).collect()
    }

    /// Forgets what a flow of a port has evicted: nothing that is assured, nor of a port that has less; and nothing where there is room.
    fn note_evicted(&mut self, before: &[Option<QuotaClass>], port: u16, ended: u64, inserted: bool) {
        let taken = before.iter().flatten().count();
        assert!(inserted || taken >= SLOTS - 4, "refused with {taken} flows in {SLOTS} slots");
        if ended == 0 {
            return;
        }
        assert!(ended == 1 && taken >= SLOTS - 4, "{ended} of {taken} evicted");
        let unassured = |of: u16| {
            let is_one = |(flow, class): (&Option<Flow>, &Option<QuotaClass>)| {
                *class == Some(QuotaClass::Unassured) && flow.as_ref().is_some_and(|flow| flow.port == of)
            };
            self.flows.iter().zip(before).filter(|pair| is_one(*pair)).count()
        };
        let is_gone =
            |number: &usize| before[*number].is_some() && self.bench.find(&self.keys[*number]).is_none();
        let victims: Vec<usize> = (0..self.keys.len()).filter(is_gone).collect();
        let [victim] = victims[..] else { panic!("{victims:?} are gone, of which {ended} were evicted") };
        let flow = self.flows[victim].as_ref().expect("a flow that the model has");
        let is_idle = self.now_ms - flow.last_seen_ms > flow.timeout_ms();
        let may_go = match before[victim] {
            _ if is_idle => true,
            Some(QuotaClass::Ended) => true,
            Some(QuotaClass::Unassured) => {
                // The newcomer itself may be counted already.
                unassured(flow.port)
                    >= unassured(port) - usize::from(inserted && flow.port != port).min(unassured(port))
            }
            _ => false,
        };
        assert!(may_go, "{flow:?} was evicted as {:?}", before[victim]);
        self.flows[victim] = None;
    }

    /// All flows, and what counts against each port.
    fn compare(&self) {
        let mut counts = BTreeMap::<(u16, u8), u32>::new();
        for (key, flow) in self.keys.iter().zip(&self.flows) {
            let found = self.bench.find(key);
            assert_eq!(found.is_some(), flow.is_some(), "{key:?}");
            if let (Some(slot), Some(flow)) = (found, flow) {
                let entry = self.bench.table.entry(slot);
                compare(flow, entry, key.protocol() == Protocol::TCP);
                let owner = entry.quota_owner().expect("a flow");
                *counts.entry((owner.port.0, owner.class as u8)).or_default() += 1;
            }
        }
        assert_eq!(self.bench.table.len(), self.flows.iter().flatten().count());
        for port in 0..PORTS as u16 {
            for class in [QuotaClass::Unassured, QuotaClass::Assured, QuotaClass::Ended] {
                let counted = counts.get(&(port, class as u8)).copied().unwrap_or(0);
                assert_eq!(
                    self.bench.table.flows_of(PortId(port), class),
                    counted,
                    "{class:?} of port {port}"
                );
            }
        }
    }
}

/// The later of two numbers, as 32 bits tell it (RFC 9293 section 3.4): a side that is alone may jump further than windows reach, and half
/// of all jumps look like steps back.
fn later(a: i64, b: i64) -> i64 {
    a + i64::from((b - a) as i32).max(0)
}

fn compare(flow: &Flow, entry: &Entry, is_tcp: bool) {
    assert_eq!(entry.state().name(), flow.state);
    assert_eq!(entry.sender(true) == Side::Initiator, flow.opened_by_low);
    let [sent, answered] = [0, 1].map(|side| (flow.packets[side], flow.bytes[side]));
    assert_eq!(entry.counts(), [sent, answered]);
    let owner = entry.quota_owner().expect("a flow");
    let is_class = owner.class == flow.class()
        || (owner.class, flow.class()) == (QuotaClass::Unassured, QuotaClass::Assured);
    assert!(owner.port.0 == flow.port && is_class, "{owner:?} of {flow:?}");
    if !is_tcp {
        return;
    }
    for (side, seen) in entry.load_tcp().sides.into_iter().enumerate() {
        let expected = flow.side(side);
        if flow.sides[side].spoke {
            let acknowledged = flow.sides[side].expects.map_or(seen.acknowledged, |_| expected.acknowledged);
            assert_eq!(seen, TcpSide { acknowledged, ..expected }, "side {side} of {flow:?}");
        } else {
            // Of a side that has not spoken its number is known by what it is asked for.
            assert_eq!((seen.max_window, seen.acknowledged), (0, expected.acknowledged), "{flow:?}");
        }
    }
}

/// A segment near what a side may send: often the next one, sometimes at an edge of a window, rarely far away.
fn draw(random: &mut Random, sides: &[ModelSide; 2], side: usize) -> Sent {
    let [ours, peer] = [sides[side], sides[1 - side]];
    let start = if ours.spoke { ours.sent } else { peer.expects.unwrap_or(0) };
    let near = random.below(200) as i64 - 100;
    let flags =
        random.of(&[SYN, SYN | ACK, ACK, ACK, ACK, ACK, FIN | ACK, FIN | ACK, RST, RST | ACK, FIN, 0]);
    let sequence = match random.below(16) {
        0 => start + near,
        1 => peer.expects.unwrap_or(start),
        2 => ours.allowed + random.below(3) as i64,
        3 => start - peer.window - random.below(3) as i64,
        4 => start + (1 << 29),
        5 => start - (1 << 29),
        _ => start,
    };
    let acknowledgement = match random.below(12) {
        0 => peer.sent + near,
        1 => peer.sent + 1,
        2 => ours.expects.unwrap_or(0),
        3 => peer.sent - ours.window.max(66_000) - random.below(2) as i64,
        4 => peer.sent - (1 << 29),
        _ => peer.sent,
    };
    Sent {
        flags,
        sequence,
        acknowledgement,
        window: random.of(&[0, 1, 100, 1000, u16::MAX]),
        bytes: random.of(&[0, 0, 1, 100, 1460]),
        scale: (flags & SYN != 0 && random.one_in(2)).then(|| random.below(15) as u8),
    }
}

#[test]
fn every_random_history_goes_as_the_model_says() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let histories = number("PALISADE_HISTORIES", HISTORIES);
    let seed = number("PALISADE_SEED", super::super::key::HashSeed::random().hash(&key(1)) >> 1);
    eprintln!("{histories} histories of conntrack, PALISADE_SEED={seed}");
    let next = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= histories {
                        return;
                    }
                    let seed = seed.wrapping_add(number);
                    let play = AssertUnwindSafe(|| History::new(seed).play());
                    if let Err(panic) = catch_unwind(play) {
                        eprintln!("PALISADE_HISTORIES=1 PALISADE_SEED={seed} plays the history that failed");
                        next.store(histories, Relaxed);
                        resume_unwind(panic);
                    }
                }
            });
        }
    });
}
