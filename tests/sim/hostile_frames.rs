//! Hostile frames of two pods, several hundred kinds: each has its verdict, and the target receives the allowed ones and
//! no other. `tests/netns/battery.rs` sends them through the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use palisade::dataplane::{
    Bandwidth, ConntrackSettings, DesiredState, Gateway, PodAttachment, PortKind, Settings, SimulatedPort,
    Simulation,
};
use palisade::ids::AttachmentId;
use palisade::lab::{GATEWAY_V4, GATEWAY_V6};
use palisade::net::flow::Protocol;
use palisade::net::mac::Mac;
use palisade::tables::PodName;

use crate::frames::describe;
use crate::hostile_kinds::{self as kinds, Kind, PORT, Station, Topology};
use crate::rig::ip;
use crate::rig::rule_lists::{PodRules, Rule, tables};

/// Pods in the order of their ports.
const NAMES: [&str; 3] = ["target", "friend", "stranger"];
const TARGET: usize = 0;
const FRIEND: usize = 1;
const STRANGER: usize = 2;
/// Drop reason of a fragment whose first one does not arrive in time.
const FRAGMENT_TIMEOUT: &str = "fragment-timeout";
/// Fewest kinds of a run.
const KINDS_MIN: usize = 600;

#[test]
fn each_kind_of_hostile_frame_has_its_verdict_with_one_worker() {
    battery(1, PortKind::Pod);
}

#[test]
fn each_kind_of_hostile_frame_has_its_verdict_with_two_workers() {
    battery(2, PortKind::Pod);
}

#[test]
fn each_kind_of_hostile_frame_has_its_verdict_on_taps() {
    battery(1, PortKind::Tap);
}

#[test]
fn each_kind_of_hostile_frame_has_its_verdict_on_taps_with_two_workers() {
    battery(2, PortKind::Tap);
}

/// Pod `number` of a lab.
fn station(number: usize) -> Station {
    let host = number + 2;
    Station {
        mac: [2, 0, 0, 0, 0xaa, host as u8],
        addresses: [ip(&format!("10.77.0.{host}")), ip(&format!("fd77::{host}"))],
    }
}

fn topology(pod: usize) -> Topology {
    Topology {
        own: station(pod),
        other: station(FRIEND + STRANGER - pod),
        target: station(TARGET),
        gateway: Station {
            mac: Gateway::default().mac.0,
            addresses: [IpAddr::from(GATEWAY_V4), IpAddr::from(GATEWAY_V6)],
        },
        node: Station { mac: [2, 0, 0, 0, 0xcc, 1], addresses: [ip("192.0.2.77"), ip("2001:db8::77")] },
        is_friend: pod == FRIEND,
    }
}

/// Policies of a desired state.
#[derive(Clone, Copy)]
enum Policies {
    /// No pod is isolated.
    None,
    /// The friend may reach the target, and nobody anybody else.
    OfFriend,
    /// Nobody may reach anybody.
    OfNobody,
}

fn desired(policies: Policies) -> DesiredState {
    let name = |pod: usize| PodName::new("default", NAMES[pod]);
    let allowed = |friend: usize| Rule {
        peers: Some(station(friend).addresses.to_vec()),
        ..Rule::port(Protocol::TCP, PORT)
    };
    let isolated = |allowed: Vec<Rule>| PodRules { ingress: Some(allowed), egress: None };
    let rules = |pod: usize| match policies {
        Policies::None => PodRules::default(),
        Policies::OfFriend if pod == TARGET => isolated(vec![allowed(FRIEND)]),
        Policies::OfFriend | Policies::OfNobody => isolated(vec![]),
    };
    let pods = (0..NAMES.len()).map(|pod| (name(pod), (station(pod).addresses.to_vec(), rules(pod))));
    let addresses: Vec<IpAddr> = (0..NAMES.len()).flat_map(|pod| station(pod).addresses).collect();
    let attached = |pod: usize| PodAttachment {
        id: AttachmentId(pod as u32 + 1),
        pod: name(pod),
        port: palisade::ids::PortId(pod as u16),
        addresses: station(pod).addresses.to_vec(),
        mac: Some(Mac(station(pod).mac)),
        bandwidth: Bandwidth::default(),
    };
    DesiredState {
        tables: Some(tables(&pods.collect(), &addresses).into()),
        fail_open: false,
        rejects: false,
        gateway: Gateway { addresses: vec![GATEWAY_V4.into(), GATEWAY_V6.into()], ..Gateway::default() },
        pods: (0..NAMES.len()).map(attached).collect(),
        draining: BTreeSet::new(),
        node: None,
        pod_prefixes: Vec::new(),
        routes: Vec::new(),
        services: None,
        services_awaited: false,
        masquerade: None,
        tunnel: None,
    }
}

struct Switch {
    sim: Simulation,
    ports: Vec<SimulatedPort>,
    /// Frames that the target has received.
    arrived: Vec<Vec<u8>>,
    /// Kinds sent so far. The workers take turns: fragments of one datagram come on one queue, as from the kernel.
    sent: usize,
}

impl Switch {
    fn start(workers: usize, kind: PortKind) -> Switch {
        let settings = Settings {
            cores: vec![0; workers],
            frames_per_worker: 4096,
            huge_pages: false,
            conntrack: ConntrackSettings { flows_max: 1 << 14, ..ConntrackSettings::default() },
            ..Settings::default()
        };
        let mut sim = Simulation::new(&settings).unwrap();
        let ports = NAMES.map(|_| sim.open_port(kind, None, 1500).unwrap()).into();
        sim.publish(desired(Policies::OfFriend));
        sim.step();
        Switch { sim, ports, arrived: vec![], sent: 0 }
    }

    fn publish(&mut self, policies: Policies) {
        self.sim.publish(desired(policies));
        self.sim.step();
    }

    /// Sends a frame of a pod.
    fn send(&mut self, pod: usize, frame: &[u8]) {
        let peers = &self.ports[pod].peers;
        assert!(peers[self.sent % peers.len()].inject(frame), "a frame is lost before the switch");
        self.sim.step();
        for (number, port) in self.ports.iter().enumerate() {
            let frames = port.peers.iter().flat_map(palisade::xdp::MemoryPeer::collect_with_headers);
            let frames: Vec<Vec<u8>> = frames.map(|(_, frame)| frame).collect();
            if number == TARGET {
                self.arrived.extend(frames);
            }
        }
    }

    /// Counters of a pod's port, and the number of fragments that wait or have waited in vain.
    fn counted(&self, pod: usize) -> BTreeMap<String, u64> {
        let counters = self.sim.counters();
        let port = counters.ports[&self.ports[pod].id].clone();
        let mut counted = port.drops;
        counted.remove(FRAGMENT_TIMEOUT);
        counted.insert("consumed".to_owned(), port.consumed);
        counted.insert("delivered".to_owned(), port.forwarded);
        let waiting: u64 = counters.workers.values().map(|worker| worker.fragments_waiting).sum();
        let in_vain: u64 = counters.ports.values().filter_map(|port| port.drops.get(FRAGMENT_TIMEOUT)).sum();
        counted.insert("waiting".to_owned(), waiting + in_vain);
        counted
    }

    /// Sends one kind after the other; returns the differences between counted and expected verdicts, and unexpected or
    /// missing frames at the target.
    fn send_all<'a>(&mut self, pod: usize, kinds: impl IntoIterator<Item = &'a Kind>) -> Vec<String> {
        let mut wrong = vec![];
        for kind in kinds {
            let (before, expected) = (self.counted(pod), kind.verdicts());
            kind.frames.iter().for_each(|(frame, _)| self.send(pod, frame));
            self.sent += 1;
            let added = self.counted(pod).into_iter().filter_map(|(name, count)| {
                let more = count - before.get(&name).unwrap_or(&0);
                (more > 0).then_some((name, more))
            });
            let counted: BTreeMap<String, u64> = added.collect();
            let name = format!("{} from {}", kind.name, NAMES[pod]);
            if counted != expected {
                wrong.push(format!("{name}: {counted:?}, not {expected:?}"));
            }
            let arrived: Vec<Vec<u8>> = self.arrived.drain(..).collect();
            let mut numbers: Vec<_> = arrived.iter().map(|frame| kinds::number(frame)).collect();
            let mut delivered: Vec<_> = kind.delivered().collect();
            numbers.sort_unstable();
            delivered.sort_unstable();
            if numbers != delivered {
                let heard: Vec<String> = arrived.iter().map(|frame| describe(frame)).collect();
                wrong.push(format!("{name}: the target hears {heard:?}, and not {delivered:?}"));
            }
            // Fragments that wait time out among later kinds.
            self.sim.now += Duration::from_millis(10);
        }
        wrong
    }
}

fn battery(workers: usize, kind: PortKind) {
    let mut switch = Switch::start(workers, kind);
    let of = |pod: usize, build: fn(&Topology, u16) -> Vec<Kind>, first: u16| build(&topology(pod), first);
    for family in [0, 1] {
        for (frame, by_friend) in kinds::handshake(&topology(FRIEND), family) {
            switch.send(if by_friend { FRIEND } else { TARGET }, &frame);
            switch.sent += 1;
        }
    }
    assert_eq!(switch.arrived.drain(..).count(), 4, "the friend's segments arrive");
    let (mut wrong, mut count) = (vec![], 0);
    for (pod, first) in [(FRIEND, 0), (STRANGER, 20_000)] {
        let all = of(pod, kinds::all, first);
        count += all.len();
        wrong.extend(switch.send_all(pod, &all));
    }
    // The stranger's frames on the friend's connection come first, then the friend's own.
    let of_strangers = of(STRANGER, kinds::about_a_connection, 27_000);
    wrong.extend(switch.send_all(STRANGER, &of_strangers));
    let own = of(FRIEND, kinds::about_a_connection, 7000);
    wrong.extend(switch.send_all(FRIEND, &own));
    // A connection ends once policy no longer allows it.
    switch.publish(Policies::OfNobody);
    let later = own.iter().filter(|kind| kind.name.contains(": an acknowledgement")).map(Kind::denied);
    wrong.extend(switch.send_all(FRIEND, &later.collect::<Vec<_>>()));
    // Without a policy the denied frames arrive.
    switch.publish(Policies::None);
    for (pod, first) in [(FRIEND, 8000), (STRANGER, 28_000)] {
        let open: Vec<Kind> = of(pod, kinds::all, first).iter().filter_map(Kind::without_policy).collect();
        assert!(open.len() > 50, "{} kinds arrive without a policy", open.len());
        wrong.extend(switch.send_all(pod, &open));
    }
    assert!(wrong.is_empty(), "{} of the verdicts:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= KINDS_MIN, "{count} kinds");
}
