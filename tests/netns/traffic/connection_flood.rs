//! Floods of SYNs from one pod: the connections of other pods are established and survive. `tests/sim/connection_floods.rs` has
//! the shares of the table.

use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palisade::dataplane::Gateway;
use palisade::lab::traffic::{Server, Services};
use palisade::lab::{LabSpec, POD_INTERFACE, Pod, PodPorts};
use palisade::net::tcp::Flags;
use palisade::pktgen::{Content, FlowSpace, FrameSize, Kind, Rate, Receive, Session, Setup, Target, Traffic};

use crate::support::connection::Connection;
use crate::support::{
    PORT, Rig, TIMEOUT, assert_accounted, assert_allowed, assert_pings, eventually, isolated, only_from,
    spec_of,
};

/// Size of the flow table.
const FLOWS: usize = 1024;
/// Pace of a flood, which leaves a core to the other pods.
const FRAMES_PER_S: f64 = 15_000.0;
/// Length of a frame: an SCTP INIT over IPv4 fits, and a SYN over IPv6.
const FRAME_BYTES: usize = 78;
/// Fewest flows that a flood of SYNs evicts.
const EVICTED_MIN: u64 = 1000;
/// Fewest frames of a flood.
const FLOOD_FRAMES: u64 = 10_000;
/// Largest growth of a switch by a flood that it denies.
const GROWTH_BYTES_MAX: u64 = 32 << 20;
/// Longest duration of a flood, on a machine under load.
const FLOOD_TIME_MAX: Duration = Duration::from_mins(3);

/// Frames of a flood.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flood {
    pub(super) kind: Kind,
    pub(super) src: IpAddr,
}

impl Flood {
    /// SYNs of a family, 0 or 1.
    fn syns(from: &Pod, family: usize) -> Flood {
        Flood { kind: Kind::Tcp(Flags::SYN), src: from.addresses()[family] }
    }
}

/// Sends frames to the server's port of `to`, each from the next of 64,512 ports, until `stop`. Returns their number.
fn send(flood: Flood, from: &Pod, to: &Pod, stop: &AtomicBool) -> u64 {
    let space = FlowSpace {
        src: flood.src.into(),
        dst: to.addresses()[usize::from(flood.src.is_ipv6())].into(),
        src_ports: 1024..=u16::MAX,
        dst_ports: PORT..=PORT,
    };
    let traffic = Traffic {
        flows: u32::from(u16::MAX) - 1023,
        size: FrameSize::Fixed(FRAME_BYTES),
        ..Traffic::new(flood.kind, from.plan().mac, Gateway::default().mac, space)
    };
    let namespace = Some(from.namespace().path().to_str().unwrap().to_owned());
    let setup = Setup {
        tx: Target { interface: POD_INTERFACE.to_owned(), namespace },
        rx: None,
        receive: Receive::Nothing,
        content: Content::Generated(traffic),
        queues: 1,
        cores: vec![],
    };
    let mut session = Session::open(&setup).unwrap();
    session.trial(Rate::PerSecond(FRAMES_PER_S), FLOOD_TIME_MAX, stop).unwrap().sent.frames
}

/// Repeats `work` beside a flood from one pod to another, until it returns `true` and the switch has received
/// [`FLOOD_FRAMES`]. Returns the number of sent frames.
pub(super) fn beside_a_flood(
    rig: &Rig,
    flood: Flood,
    [from, to]: [&Pod; 2],
    mut work: impl FnMut() -> bool,
) -> u64 {
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let flooder = &from.plan().host_interface;
    let received = || rig.counters().ports[flooder].received;
    let lost = || rig.counters().ports[flooder].lost.values().sum::<u64>();
    let (received_before, lost_before) = (received(), lost());
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| send(flood, from, to, &stop));
        let stop = StopWhenDropped(&stop);
        while !work() || received() < received_before + FLOOD_FRAMES {
            let is_possible = start.elapsed() < FLOOD_TIME_MAX && !sender.is_finished();
            assert!(is_possible, "the flood does not arrive: {:?}", rig.counters());
        }
        drop(stop);
        sender.join().unwrap()
    });
    eventually("every frame is received, or lost before the switch and counted", || {
        received() + lost() >= received_before + lost_before + sent
    });
    sent
}

/// Stop flag of a flood, set on drop, so that also a failed test ends it.
struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts a rig with a `flooder` that `db` cannot reply to: its connections stay half-open, and none is
/// reset.
fn deaf_rig(config: &str, ports: PodPorts, workers: u16) -> Rig {
    let spec = LabSpec { ports, workers, ..spec_of(&["db", "client", "other", "flooder"]) };
    deaf(Rig::of(&spec, config))
}

/// Takes from `db` the route to `flooder`.
pub(super) fn deaf(rig: Rig) -> Rig {
    let db = rig.pod("db");
    for flooder in rig.pod("flooder").addresses() {
        let deaf = ["route", "add", "blackhole", &flooder.to_string()].map(str::to_owned);
        assert!(db.status(Command::new("ip").args(deaf)).unwrap().success());
    }
    rig
}

#[test]
fn a_flood_fills_a_small_table_and_established_flows_stay() {
    let Some(_isolated) = isolated() else { return };
    fill_a_small_table(PodPorts::Veth, 1);
}

#[test]
fn a_flood_fills_a_small_table_of_two_workers_and_established_flows_stay() {
    let Some(_isolated) = isolated() else { return };
    fill_a_small_table(PodPorts::Veth, 2);
}

#[test]
fn a_flood_on_taps_fills_a_small_table_and_established_flows_stay() {
    let Some(_isolated) = isolated() else { return };
    fill_a_small_table(PodPorts::Tap, 1);
}

#[test]
fn a_flood_on_taps_fills_a_small_table_of_two_workers_and_established_flows_stay() {
    let Some(_isolated) = isolated() else { return };
    fill_a_small_table(PodPorts::Tap, 2);
}

fn fill_a_small_table(ports: PodPorts, workers: u16) {
    let small = format!("[conntrack]\nflows = {FLOWS}\npod_quota_percent = 100\n");
    let rig = deaf_rig(&small, ports, workers);
    let pods = ["db", "client", "other", "flooder"].map(|name| rig.pod(name));
    let [db, client, other, flooder] = &pods;
    let mut talk = Connection::open(client, db);
    let _server = Server::start(client, &[PORT], Services::Tcp).unwrap();
    let evicted = || rig.counters().workers.values().map(|worker| worker.flows_evicted).sum::<u64>();
    for family in [0, 1] {
        let (before, mut words) = (evicted(), 0);
        beside_a_flood(&rig, Flood::syns(flooder, family), [flooder, db], || {
            assert!(talk.goes_on(TIMEOUT), "the established connection lives, {words} words");
            words += 1;
            words > 16 && evicted() >= before + EVICTED_MIN
        });
    }
    // The table stays full after the flood; a new connection evicts an unassured flow.
    let full = rig.flows(2 * FLOWS).len();
    assert!(full > FLOWS / 2, "{full} flows");
    (0..8).flat_map(|_| client.addresses()).for_each(|address| assert_allowed(other, address));
    let counters = rig.counters();
    assert_accounted(&counters);
    for innocent in [client, db] {
        assert!(counters.ports[&innocent.plan().host_interface].drops.is_empty(), "{counters:?}");
    }
    assert!(talk.goes_on(TIMEOUT), "it outlives the flood");
}

#[test]
fn a_denied_flood_leaves_memory_log_and_the_packets_of_others_as_they_are() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["db", "client", "flooder"], 1, "[log]\ndenied_interval_s = 1\n");
    rig.apply(&only_from("db", "client"));
    let pods = ["db", "client", "flooder"].map(|name| rig.pod(name));
    let [db, client, flooder] = &pods;
    assert_pings(db, client.v4().into());
    let resident_before = resident_bytes(rig.switch.pid());
    let lines = || rig.switch.log().unwrap().lines().filter(|line| line.contains("palisade::denied")).count();
    beside_a_flood(&rig, Flood::syns(flooder, 0), [flooder, db], || {
        let pings = ["-q", "-c", "20", "-i", "0.01", "-W", "10", &client.v4().to_string()].map(str::to_owned);
        let pings = db.output(Command::new("ping").args(pings)).unwrap();
        let pings = String::from_utf8(pings.stdout).unwrap();
        // A backlog of the kernel that processes of other namespaces have filled may drop one.
        assert!(!pings.contains("100% packet loss"), "{pings}{:#?}", rig.counters());
        lines() >= 2
    });
    let counters = rig.counters();
    for innocent in [client, db] {
        let port = &counters.ports[&innocent.plan().host_interface];
        assert!(port.drops.is_empty() && port.lost.is_empty(), "{counters:#?}");
    }
    let log = rig.switch.log().unwrap();
    assert!(log.contains("from=\"default/flooder"), "{log}");
    // The flood is one connection of the log: a line in each interval.
    let received = rig.counters().ports[&flooder.plan().host_interface].received;
    assert!((lines() as u64) < received / 100, "{} lines of {received} packets", lines());
    let grown = resident_bytes(rig.switch.pid()).saturating_sub(resident_before);
    assert!(grown < GROWTH_BYTES_MAX, "the switch has grown by {grown} bytes");
    assert_eq!(rig.flows(FLOWS).iter().filter(|flow| flow.key.src == flooder.v4()).count(), 0);
}

/// Memory of a process in bytes (`VmRSS` of `/proc/PID/status`).
fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}
