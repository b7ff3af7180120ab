mod first_fragment_table;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use etherparse::{EtherType, IpFragOffset, Ipv4Header};

use crate::dataplane::frames::{Spec, Transport, ethernet};
use crate::dataplane::{
    Bandwidth, DesiredState, Gateway, PodAttachment, PortCounters, PortKind, Settings, SimulatedPort,
    Simulation,
};
use crate::ids::{AttachmentId, PortId};
use crate::limits::FRAGMENT_TIMEOUT_MS;
use crate::tables::PodName;

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];
const UDP: Transport = Transport::Udp { ports: [1000, 2000] };
const TCP: Transport =
    Transport::Tcp { ports: [1000, 80], flags: 2, sequence: 1, acknowledgement: 0, window: 9 };

/// A switch with two pods that may talk.
struct Rig {
    sim: Simulation,
    ports: Vec<SimulatedPort>,
}

fn desired_state(fail_open: bool) -> DesiredState {
    let pod = |n: u16| PodAttachment {
        id: AttachmentId(u32::from(n) + 1),
        pod: PodName { namespace: "default".into(), name: format!("pod-{n}") },
        port: PortId(n),
        addresses: [V4, V6].map(|pair| pair[usize::from(n)].parse().unwrap()).into(),
        mac: Some(crate::net::mac::Mac([2, 0, 0, 0, 0, n as u8])),
        bandwidth: Bandwidth::default(),
    };
    DesiredState { fail_open, pods: vec![pod(0), pod(1)], ..DesiredState::default() }
}

impl Rig {
    fn new(workers: usize) -> Rig {
        let settings = Settings {
            cores: vec![0; workers],
            frames_per_worker: 1024,
            huge_pages: false,
            ..Settings::default()
        };
        let mut sim = Simulation::new(&settings).unwrap();
        let ports = (0..2).map(|_| sim.open_port(PortKind::Pod, None, 1500).unwrap()).collect();
        let mut rig = Rig { sim, ports };
        rig.publish(true);
        rig
    }

    fn publish(&mut self, fail_open: bool) {
        self.sim.publish(desired_state(fail_open));
        self.sim.step();
    }

    /// Sends frames from the first pod to a worker. Returns the frames that the second pod receives.
    fn send_on(&mut self, worker: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            assert!(self.ports[0].peers[worker].inject(frame));
        }
        self.run_until_idle()
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.send_on(0, frames)
    }

    /// Runs all workers until they are idle, and checks that every frame is accounted for.
    fn run_until_idle(&mut self) -> Vec<Vec<u8>> {
        let mut rounds = 0;
        while self.sim.step() {
            rounds += 1;
            assert!(rounds < 100, "the workers never become idle");
            self.check_accounts();
        }
        self.check_accounts();
        self.ports[1].peers.iter().flat_map(crate::xdp::MemoryPeer::collect).map(tail).collect()
    }

    fn check_accounts(&self) {
        for worker in 0..self.ports[0].peers.len() {
            let (total, lent, held) = self.sim.frames(worker);
            assert_eq!(total, lent + held, "a frame of worker {worker} is lost");
        }
        for port in self.sim.counters().ports.values() {
            assert_eq!(port.received, port.forwarded + port.consumed + port.drops.values().sum::<u64>());
        }
    }

    fn counters(&self) -> PortCounters {
        self.sim.counters().ports[&PortId(0)].clone()
    }

    fn waiting(&self) -> u64 {
        self.sim.counters().workers.values().map(|worker| worker.fragments_waiting).sum()
    }

    fn assert_drops(&self, expected: &[(&str, u64)]) {
        let expected: BTreeMap<String, u64> =
            expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        assert_eq!(self.counters().drops, expected);
    }
}

/// A datagram that a test sends in fragments.
struct Datagram {
    spec: Spec,
    identification: u16,
}

impl Datagram {
    fn new(pair: [&str; 2], transport: Transport, bytes: usize, identification: u16) -> Datagram {
        let [src, dst] = pair.map(|text| text.parse::<IpAddr>().unwrap());
        let payload = (0..bytes).map(|i| (i % 251) as u8).collect();
        let spec = Spec { dst_mac: Gateway::default().mac.0, payload, ..Spec::new(src, dst, transport) };
        Datagram { spec, identification }
    }

    fn body(&self) -> Vec<u8> {
        self.spec.ip().split_off(if self.spec.src.is_ipv4() { 20 } else { 40 })
    }

    /// The fragment with these bytes of the datagram in a frame.
    fn fragment(&self, from: usize, to: usize) -> Vec<u8> {
        let body = self.body();
        self.part(from, &body[from..to], to < body.len())
    }

    fn part(&self, offset: usize, bytes: &[u8], more: bool) -> Vec<u8> {
        let whole = self.spec.ip();
        let (packet, ether_type) = if self.spec.src.is_ipv4() {
            let (mut header, _) = Ipv4Header::from_slice(&whole).unwrap();
            header.dont_fragment = false;
            header.more_fragments = more;
            header.identification = self.identification;
            header.fragment_offset = IpFragOffset::try_new((offset / 8) as u16).unwrap();
            header.set_payload_len(bytes.len()).unwrap();
            header.header_checksum = header.calc_header_checksum();
            ([&header.to_bytes()[..], bytes].concat(), EtherType::IPV4)
        } else {
            let mut fixed = whole[..40].to_vec();
            let [high, low] = (offset as u16 | u16::from(more)).to_be_bytes();
            let [a, b] = self.identification.to_be_bytes();
            let extension = [fixed[6], 0, high, low, 0, 0, a, b];
            fixed[6] = 44;
            fixed[4..6].copy_from_slice(&((bytes.len() + 8) as u16).to_be_bytes());
            ([&fixed[..], &extension, bytes].concat(), EtherType::IPV6)
        };
        ethernet(self.spec.src_mac, self.spec.dst_mac, None, ether_type, &packet)
    }

    /// All fragments, for a link of MTU 1500.
    fn fragments(&self) -> Vec<Vec<u8>> {
        let len = self.body().len();
        (0..len).step_by(1440).map(|from| self.fragment(from, len.min(from + 1440))).collect()
    }
}

/// The bytes behind the IP header of a frame.
fn tail(frame: impl AsRef<[u8]>) -> Vec<u8> {
    let frame = frame.as_ref();
    frame[if frame[12..14] == [0x86, 0xdd] { 54 } else { 34 }..].to_vec()
}

fn sorted(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = frames.into_iter().collect();
    frames.sort();
    frames
}

fn udp(identification: u16) -> Datagram {
    Datagram::new(V4, UDP, 8192, identification)
}

#[test]
fn fragments_in_order_pass_in_order_in_both_families() {
    for pair in [V4, V6] {
        let mut rig = Rig::new(1);
        let sent = Datagram::new(pair, UDP, 8192, 7).fragments();
        assert_eq!(sent.len(), 6);
        let expected: Vec<_> = sent.iter().map(tail).collect();
        assert_eq!(rig.send(&sent), expected, "in one batch");
        // The identification is free again: the next datagram may have it.
        let one_by_one: Vec<_> =
            sent.iter().flat_map(|frame| rig.send(std::slice::from_ref(frame))).collect();
        assert_eq!(one_by_one, expected);
        assert_eq!(rig.sim.flows_len(), 1);
        rig.assert_drops(&[]);
    }
}

#[test]
fn fragments_before_their_first_wait_uncounted_and_pass_behind_it() {
    for pair in [V4, V6] {
        let mut rig = Rig::new(1);
        let mut sent = Datagram::new(pair, UDP, 8192, 7).fragments();
        let expected = sorted(sent.iter().map(tail));
        sent.reverse();
        let first = sent.pop().unwrap();
        assert_eq!(rig.send(&sent), Vec::<Vec<u8>>::new());
        assert_eq!((rig.waiting(), rig.counters().received), (5, 0));
        assert_eq!(sorted(rig.send(&[first])), expected);
        assert_eq!((rig.waiting(), rig.counters().received), (0, 6));
        assert_eq!(rig.counters().forwarded, 6);
        rig.assert_drops(&[]);
    }
}

#[test]
fn later_fragments_of_a_denied_datagram_follow_it_also_those_that_wait() {
    for pair in [V4, V6] {
        let mut rig = Rig::new(1);
        rig.publish(false);
        let sent = Datagram::new(pair, UDP, 8192, 7).fragments();
        assert!(rig.send(&[sent[3].clone(), sent[5].clone()]).is_empty());
        assert_eq!(rig.waiting(), 2);
        assert!(rig.send(&[sent[0].clone(), sent[1].clone()]).is_empty());
        assert!(rig.send(&[sent[2].clone(), sent[4].clone()]).is_empty());
        assert_eq!(rig.waiting(), 0);
        rig.assert_drops(&[("unknown-pod", 6)]);
    }
}

#[test]
fn a_datagram_is_evaluated_again_when_tables_change_in_its_middle() {
    let mut rig = Rig::new(1);
    let sent = udp(7).fragments();
    assert_eq!(rig.send(&sent[..2]).len(), 2);
    rig.publish(true);
    assert_eq!(rig.send(&sent[2..3]).len(), 1, "still allowed");
    rig.publish(false);
    assert!(rig.send(&sent[3..]).is_empty());
    rig.assert_drops(&[("unknown-pod", 3)]);
}

#[test]
fn a_repeated_fragment_is_dropped_alone() {
    let mut rig = Rig::new(1);
    let sent = udp(7).fragments();
    let again = [&sent[..2], &sent[..2], &sent[2..]].concat();
    assert_eq!(rig.send(&again).len(), 6);
    rig.assert_drops(&[("fragment-overlap", 2)]);
}

#[test]
fn an_overlap_discards_the_datagram_with_all_that_follows_or_waits() {
    for pair in [V4, V6] {
        let mut rig = Rig::new(1);
        let datagram = Datagram::new(pair, UDP, 8192, 7);
        // Over the end of the first one.
        assert_eq!(rig.send(&[datagram.fragment(0, 1440), datagram.fragment(1432, 2880)]).len(), 1);
        assert!(rig.send(&[datagram.fragment(2880, 4320)]).is_empty());
        rig.assert_drops(&[("fragment-overlap", 2)]);
        // Before the first one.
        let datagram = Datagram::new(pair, UDP, 8192, 8);
        assert!(rig.send(&[datagram.fragment(1440, 2880), datagram.fragment(16, 1448)]).is_empty());
        assert!(rig.send(&[datagram.fragment(0, 8)]).is_empty());
        assert_eq!(rig.waiting(), 0);
        rig.assert_drops(&[("fragment-overlap", 5)]);
    }
}

#[test]
fn nothing_comes_behind_the_end_of_a_datagram() {
    let mut rig = Rig::new(1);
    let datagram = udp(7);
    let body = datagram.body();
    let end = datagram.part(1440, &body[1440..2000], false);
    assert_eq!(rig.send(&[datagram.fragment(0, 720), end]).len(), 2);
    assert!(rig.send(&[datagram.fragment(2880, 4320)]).is_empty());
    rig.assert_drops(&[("fragment-overlap", 1)]);
}

#[test]
fn tiny_first_fragments_and_such_as_begin_within_a_tcp_header_are_dropped_by_name() {
    for pair in [V4, V6] {
        let mut rig = Rig::new(1);
        let datagram = Datagram::new(pair, TCP, 2000, 7);
        assert!(rig.send(&[datagram.fragment(0, 16), datagram.fragment(16, 1000)]).is_empty());
        rig.assert_drops(&[("fragment-tiny", 2)]);
        let datagram = Datagram::new(pair, TCP, 2000, 8);
        assert_eq!(rig.send(&[datagram.fragment(0, 24), datagram.fragment(8, 24)]).len(), 1);
        rig.assert_drops(&[("fragment-tiny", 3)]);
    }
}

#[test]
fn a_fragment_of_no_datagram_is_dropped() {
    for pair in [V4, V6] {
        let mut rig = Rig::new(1);
        let datagram = Datagram::new(pair, UDP, 100, 7);
        // More follows, and the length is not a multiple of eight.
        assert!(rig.send(&[datagram.part(0, &datagram.body()[..33], true)]).is_empty());
        assert!(rig.send(&[datagram.part(64, &[0; 33], true)]).is_empty());
        rig.assert_drops(&[("fragment", 2)]);
    }
    let mut rig = Rig::new(1);
    assert!(rig.send(&[Datagram::new(V6, UDP, 100, 7).part(65_528, &[0; 8], false)]).is_empty());
    rig.assert_drops(&[("fragment", 1)]);
}

#[test]
fn fragments_wait_until_their_datagram_times_out() {
    let mut rig = Rig::new(1);
    let sent = udp(7).fragments();
    assert!(rig.send(&sent[1..3]).is_empty());
    rig.sim.now += Duration::from_millis(u64::from(FRAGMENT_TIMEOUT_MS) - 1);
    assert!(rig.send(&sent[3..4]).is_empty());
    assert_eq!(rig.waiting(), 3);
    rig.sim.now += Duration::from_millis(1);
    assert!(rig.run_until_idle().is_empty());
    assert_eq!(rig.waiting(), 0);
    rig.assert_drops(&[("fragment-timeout", 3)]);
    assert_eq!(rig.send(&sent[..1]).len(), 1, "the datagram begins anew");
}

#[test]
fn one_port_waits_with_half_of_the_store_and_the_rest_is_dropped() {
    let mut rig = Rig::new(1);
    let frames: Vec<_> = (0..50).map(|id| udp(id).fragment(1440, 2880)).collect();
    assert!(rig.send(&frames).is_empty());
    // A sixteenth of 1024 frames is 64 places.
    assert_eq!(rig.waiting(), 32);
    rig.assert_drops(&[("fragment-store-full", 18)]);
    let reply = Datagram::new([V4[1], V4[0]], UDP, 8192, 7).fragment(1440, 2880);
    assert!(rig.ports[1].peers[0].inject(&reply));
    rig.run_until_idle();
    assert_eq!(rig.waiting(), 33, "there is place for the other port");
}

#[test]
fn a_closed_port_takes_its_waiting_fragments_along() {
    let mut rig = Rig::new(1);
    assert!(rig.send(&udp(7).fragments()[1..]).is_empty());
    assert_eq!(rig.waiting(), 5);
    rig.sim.close_port(PortId(0)).unwrap();
    rig.sim.now += Duration::from_millis(1);
    rig.sim.step();
    rig.check_accounts();
    assert_eq!(rig.waiting(), 0);
}

#[test]
fn fragments_that_wait_when_the_other_port_is_closed_find_no_port() {
    let mut rig = Rig::new(1);
    let sent = udp(7).fragments();
    assert!(rig.send(&sent[1..]).is_empty());
    rig.sim.close_port(PortId(1)).unwrap();
    assert!(rig.send(&sent[..1]).is_empty());
    assert_eq!(rig.waiting(), 0);
    assert_eq!(rig.counters().drops.values().sum::<u64>(), 6, "{:?}", rig.counters());
}

#[test]
fn another_pod_cannot_add_to_a_datagram() {
    let mut rig = Rig::new(1);
    let sent = udp(7).fragments();
    assert!(rig.ports[1].peers[0].inject(&sent[2]));
    rig.run_until_idle();
    assert_eq!(rig.sim.counters().ports[&PortId(1)].drops, [("spoofed".to_owned(), 1)].into());
    assert_eq!(rig.send(&sent).len(), 6);
}

#[test]
fn a_datagram_whose_fragments_come_to_two_workers_passes_whole() {
    for pair in [V4, V6] {
        let mut rig = Rig::new(2);
        let sent = Datagram::new(pair, UDP, 8192, 7).fragments();
        assert!(rig.send_on(1, &sent[1..3]).is_empty());
        assert_eq!(rig.waiting(), 2);
        assert_eq!(rig.send_on(0, &sent[..1]).len(), 3, "the first one, and those that waited elsewhere");
        assert_eq!(rig.send_on(1, &sent[3..]).len(), 3);
        rig.assert_drops(&[]);
    }
}

#[test]
fn a_denial_reaches_the_other_worker_and_so_does_the_length_of_the_first_fragment() {
    let mut rig = Rig::new(2);
    let datagram = udp(7);
    assert_eq!(rig.send_on(0, &[datagram.fragment(0, 1440)]).len(), 1);
    assert!(
        rig.send_on(1, &[datagram.fragment(8, 1448)]).is_empty(),
        "it would replace what policy has seen"
    );
    rig.assert_drops(&[("fragment-overlap", 1)]);
    rig.publish(false);
    let sent = udp(8).fragments();
    assert!(rig.send_on(1, &sent[1..3]).is_empty());
    assert!(rig.send_on(0, &sent[..1]).is_empty());
    assert!(rig.send_on(1, &sent[3..]).is_empty());
    rig.assert_drops(&[("fragment-overlap", 1), ("unknown-pod", 6)]);
    assert_eq!(rig.waiting(), 0);
}
