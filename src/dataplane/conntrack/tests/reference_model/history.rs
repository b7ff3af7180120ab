//! A random history of the table and of its model.

use std::collections::BTreeMap;

use super::model_flow::{Expected, Flow, ModelSide, Sent};
use super::*;
use crate::dataplane::conntrack::Outcome;
use crate::dataplane::packet::Packet;

/// The table and its model.
pub(super) struct History {
    random: Random,
    fixture: Fixture,
    keys: Vec<Key>,
    /// Flows by number of the key.
    flows: Vec<Option<Flow>>,
    pickup: bool,
    now_ms: u64,
    start_ms: u32,
    generation: u32,
    /// Whether this generation denies a flow, by number of the key and by opening end.
    denied: Vec<[bool; 2]>,
}

fn random_key(number: usize) -> Key {
    let protocols =
        [Protocol::TCP, Protocol::TCP, Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP];
    let protocol = *protocols.get(number % 7).unwrap_or(&Protocol(47));
    // The lower end has sent the echo request; these are the bits of its type.
    let echo = if protocol == Protocol::ICMP { 1 << 40 | 8 << 42 } else { 0 };
    let word = number as u64 | 53 << 16 | u64::from(protocol.0) << 32 | echo;
    if number.is_multiple_of(2) || protocol == Protocol::ICMP {
        Key::new(from_v4(0x0a00_0001), from_v4(0x0a00_0002), word)
    } else {
        Key::new(0xfd << 120 | 1, 0xfd << 120 | 2, word)
    }
}

impl History {
    pub(super) fn new(seed: u64) -> History {
        let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let pickup = random.one_in(4);
        let percent = random.pick(&[20, 50, 100]);
        let settings = ConntrackSettings { tcp_pickup: pickup, ..settings(SLOTS, percent) };
        // Few keys, for many events of each; or more than the table has slots.
        let keys: Vec<Key> = (0..random.pick(&[2, 7, 60])).map(random_key).collect();
        History {
            fixture: Fixture::new(&settings, random.pick(&[1, 2, 3])),
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

    pub(super) fn play(mut self) {
        for _ in 0..STEPS {
            self.fixture.start_batches();
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

    /// Advances the time, and sometimes sweeps all flows.
    fn wait(&mut self) {
        self.now_ms += self.random.pick(&[1, 9_000, 11_000, 29_000, 61_000, 119_000, 301_000, 8_000_000]);
        if self.random.one_in(2) {
            let now_ms = self.clock();
            for worker_state in &mut self.fixture.workers {
                let buckets = self.fixture.table.buckets_per_worker(worker_state);
                self.fixture.table.sweep(buckets, now_ms, worker_state, |_| false);
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
        // The lower end sends echo requests; the type marks a reply.
        let from_low = self.random.one_in(2);
        let worker = self.random.below(self.fixture.workers.len() as u64) as usize;
        let found = self.fixture.find(&key);
        assert_eq!(found.is_some(), self.flows[number].is_some(), "{key:?}");
        match found {
            Some(slot) => self.advance(number, slot, from_low, worker),
            None if key.protocol() == Protocol::ICMP && !from_low => {}
            None => self.open(number, None, from_low, worker, None),
        }
        if let (Some(slot), Some(flow)) = (self.fixture.find(&key), &self.flows[number]) {
            compare(flow, self.fixture.table.entry(slot), key.protocol() == Protocol::TCP);
        }
    }

    /// Handles a packet of a known flow as the packet path does.
    fn advance(&mut self, number: usize, slot: Slot, from_low: bool, worker: usize) {
        let (key, clock) = (self.keys[number], self.clock());
        let (table, random) = (&self.fixture.table, &mut self.random);
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
                table.remove(slot, None, &mut self.fixture.workers[worker]);
                self.flows[number] = None;
                return;
            }
            let hop = random.pick(&[None, Some(7), Some(u16::MAX - 1)]);
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
            let outcome =
                if drawn.is_data() && before.state == FlowState::Established && random.pick(&[true, false]) {
                    entry.pass_segment(from_low, &segment);
                    Outcome::Pass
                } else {
                    after.advance(&segment, entry.sender(from_low))
                };
            if outcome == Outcome::Pass && entry.store_tcp(&before, &after) {
                table.on_state_change(slot, before.state, after.state);
            }
            (flow.tcp(&drawn, side), outcome)
        } else {
            let chunk = random.pick(&[0, 1, 2, 6, 11, 14]);
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

    /// Handles a packet that may open a flow; in `slot` where it replaces an ended one.
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
        flow.hops[usize::from(!from_low)] = random.pick(&[None, Some(3)]);
        let new = NewFlow {
            opened_by_low: from_low,
            by_node_socket: false,
            pods: [true, false],
            owner_port: PortId(port),
            policy_epoch: Generation(self.generation),
            state,
            tcp,
            virtual_end: None,
            hops: flow.hops,
        };
        if let Some(slot) = slot {
            self.fixture.table.restart(slot, &new, clock);
            self.fixture.table.entry(slot).count(from_low, 100, clock);
            self.flows[number] = Some(flow);
            return;
        }
        let before = self.classes();
        let hash = self.fixture.table.hash(&key);
        let worker_state = &mut self.fixture.workers[worker];
        let ended = worker_state.ended;
        match self.fixture.table.insert(&key, hash, &new, clock, worker_state) {
            InsertOutcome::Inserted(slot) => {
                self.fixture.table.entry(slot).count(from_low, 100, clock);
                self.flows[number] = Some(flow);
            }
            InsertOutcome::Full => {}
            InsertOutcome::Exists(slot) => panic!("{slot:?} has a flow that was not found"),
        }
        let ended = self.fixture.workers[worker].ended - ended;
        self.note_evicted(&before, port, ended, self.flows[number].is_some());
    }

    /// Class of every flow in the table.
    fn classes(&self) -> Vec<Option<QuotaClass>> {
        let class = |key: &Key| {
            let slot = self.fixture.table.look_up(key, self.fixture.table.hash(key))?;
            Some(self.fixture.table.entry(slot).quota_owner()?.class)
        };
        self.keys.iter().map(class).collect()
    }

    /// Removes the flow that an insertion of a port has evicted from the model, or two that had ended. Checks that it is
    /// not assured, that its port has no fewer flows, and that the table was full.
    fn note_evicted(&mut self, before: &[Option<QuotaClass>], port: u16, ended: u64, inserted: bool) {
        let taken = before.iter().flatten().count();
        assert!(inserted || taken >= SLOTS - 4, "refused with {taken} flows in {SLOTS} slots");
        if ended == 0 {
            return;
        }
        assert!(ended <= 2 && taken >= SLOTS - 4, "{ended} of {taken} evicted");
        let unassured = |of: u16| {
            let is_one = |(flow, class): (&Option<Flow>, &Option<QuotaClass>)| {
                *class == Some(QuotaClass::Unassured) && flow.as_ref().is_some_and(|flow| flow.port == of)
            };
            self.flows.iter().zip(before).filter(|pair| is_one(*pair)).count()
        };
        let is_gone =
            |number: &usize| before[*number].is_some() && self.fixture.find(&self.keys[*number]).is_none();
        let victims: Vec<usize> = (0..self.keys.len()).filter(is_gone).collect();
        assert_eq!(victims.len() as u64, ended, "{victims:?} are gone");
        for victim in &victims {
            let flow = self.flows[*victim].as_ref().expect("a flow that the model has");
            let is_idle = self.now_ms - flow.last_seen_ms > flow.timeout_ms();
            let may_go = match before[*victim] {
                _ if is_idle => true,
                Some(QuotaClass::Ended) => true,
                Some(QuotaClass::Unassured) if ended == 1 => {
                    // The counts may include the new flow already.
                    unassured(flow.port)
                        >= unassured(port) - usize::from(inserted && flow.port != port).min(unassured(port))
                }
                _ => false,
            };
            assert!(may_go, "{flow:?} was evicted as {:?}", before[*victim]);
        }
        for victim in victims {
            self.flows[victim] = None;
        }
    }

    /// Compares all flows, and the counts of each port.
    fn compare(&self) {
        let mut counts = BTreeMap::<(u16, u8), u32>::new();
        for (key, flow) in self.keys.iter().zip(&self.flows) {
            let found = self.fixture.find(key);
            assert_eq!(found.is_some(), flow.is_some(), "{key:?}");
            if let (Some(slot), Some(flow)) = (found, flow) {
                let entry = self.fixture.table.entry(slot);
                compare(flow, entry, key.protocol() == Protocol::TCP);
                let owner = entry.quota_owner().expect("a flow");
                *counts.entry((owner.port.0, owner.class as u8)).or_default() += 1;
            }
        }
        assert_eq!(self.fixture.table.len(), self.flows.iter().flatten().count());
        for port in 0..PORTS as u16 {
            for class in [QuotaClass::Unassured, QuotaClass::Assured, QuotaClass::Ended] {
                let counted = counts.get(&(port, class as u8)).copied().unwrap_or(0);
                assert_eq!(
                    self.fixture.table.flows_of(PortId(port), class),
                    counted,
                    "{class:?} of port {port}"
                );
            }
        }
    }
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
    let sides = entry.load_tcp().sides;
    for (side, seen) in sides.into_iter().enumerate() {
        let expected = flow.side(side);
        let seen = TcpSide { max_end: seen.limit(&sides[1 - side]), ..seen };
        if flow.sides[side].has_sent {
            let acknowledged = flow.sides[side].expects.map_or(seen.acknowledged, |_| expected.acknowledged);
            assert_eq!(seen, TcpSide { acknowledged, ..expected }, "side {side} of {flow:?}");
        } else {
            // A side without segments has only the number that its peer asks for.
            assert_eq!((seen.max_window, seen.acknowledged), (0, expected.acknowledged), "{flow:?}");
        }
    }
}

/// Draws a segment of a side: often the next one, sometimes at an edge of a window, rarely far away.
fn draw(random: &mut Random, sides: &[ModelSide; 2], side: usize) -> Sent {
    let [ours, peer] = [sides[side], sides[1 - side]];
    let start = if ours.has_sent { ours.sent } else { peer.expects.unwrap_or(0) };
    let near = random.below(200) as i64 - 100;
    let flags =
        random.pick(&[SYN, SYN | ACK, ACK, ACK, ACK, ACK, FIN | ACK, FIN | ACK, RST, RST | ACK, FIN, 0]);
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
        window: random.pick(&[0, 1, 100, 1000, u16::MAX]),
        bytes: random.pick(&[0, 0, 1, 100, 1460]),
        scale: (flags & SYN != 0 && random.one_in(2)).then(|| random.below(15) as u8),
    }
}
