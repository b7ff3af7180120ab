//! Floods of SYNs from one pod: the connections of other pods are established and survive.

use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palisade::control::protocol::CountersReport;
use palisade::dataplane::Gateway;
use palisade::lab::traffic::{Outcome, Server, Services, tcp_connect};
use palisade::lab::{POD_INTERFACE, Pod};
use palisade::net::tcp::Flags;
use palisade::pktgen::{Content, FlowSpace, Kind, Rate, Receive, Session, Setup, Target, Traffic};

use crate::support::connection::Connection;
use crate::support::{PATIENCE, PORT, Rig, assert_accounted, assert_allowed, eventually, isolated};

/// Size of the flow table.
const FLOWS: u64 = 4096;
const FRAMES_PER_S: f64 = 15_000.0;
/// Fewest frames of a flood.
const FLOOD_FRAMES: u64 = 10_000;
/// Longest duration of a flood, on a machine under load.
const FLOOD_TIME_MAX: Duration = Duration::from_mins(3);

/// Frames of a flood.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flood {
    pub(super) kind: Kind,
    pub(super) src: IpAddr,
}

impl Flood {
    fn syns(from: &Pod) -> Flood {
        Flood { kind: Kind::Tcp(Flags::SYN), src: from.addresses()[0] }
    }
}

/// Sends frames to the server's port of `to`, each from the next of 64,512 ports, until `stop`. Returns their number.
fn send(flood: Flood, from: &Pod, to: &Pod, stop: &AtomicBool) -> u64 {
    let space = FlowSpace {
        src: flood.src.into(),
        dst: to.addresses()[0].into(),
        src_ports: 1024..=u16::MAX,
        dst_ports: PORT..=PORT,
    };
    let traffic = Traffic {
        flows: u32::from(u16::MAX) - 1023,
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
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| send(flood, from, to, &stop));
        let stop = StopWhenDropped(&stop);
        while !work() || rig.counters().ports[flooder].received < FLOOD_FRAMES {
            assert!(start.elapsed() < FLOOD_TIME_MAX, "the flood does not arrive: {:?}", rig.counters());
        }
        drop(stop);
        sender.join().unwrap()
    });
    eventually("every frame is received, or lost before the switch and counted", || {
        let port = &rig.counters().ports[flooder];
        port.received + port.lost.values().sum::<u64>() >= sent
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
fn deaf_rig(config: &str) -> Rig {
    deaf(Rig::with(&["db", "client", "other", "flooder"], 1, config))
}

/// Takes from `db` the route to `flooder`.
pub(super) fn deaf(rig: Rig) -> Rig {
    let flooder = rig.pod("flooder").v4();
    let db = rig.pod("db");
    let deaf = ["route", "add", "blackhole", &format!("{flooder}/32")].map(str::to_owned);
    assert!(db.status(Command::new("ip").args(deaf)).unwrap().success());
    rig
}

fn port<'a>(rig: &Rig, counters: &'a CountersReport, pod: &str) -> &'a palisade::dataplane::PortCounters {
    &counters.ports[&rig.pod(pod).plan().host_interface]
}

#[test]
fn a_flood_of_syns_makes_room_for_the_others_connections_at_its_own_cost() {
    let Some(_isolated) = isolated() else { return };
    let rig = deaf_rig(&format!("[conntrack]\nflows = {FLOWS}\n"));
    let pods = ["db", "client", "other", "flooder"].map(|name| rig.pod(name));
    let [db, client, other, flooder] = &pods;
    let mut talk = Connection::open(client, db);
    let _servers = [client, other].map(|pod| Server::start(pod, &[PORT], Services::Tcp).unwrap());
    let (mut words, mut connections) = (0, 0);
    let sent = beside_a_flood(&rig, Flood::syns(flooder), [flooder, db], || {
        assert!(talk.goes_on(PATIENCE), "the established connection lives, {words} words");
        words += 1;
        // Closed connections stay in the table for a while, so the test opens a limited number.
        if words % 16 == 0 && connections < FLOWS / 8 {
            assert_allowed(other, client.v4().into());
            assert_allowed(db, other.v6().into());
            connections += 2;
        }
        words > 16 && connections > 0
    });
    eprintln!("beside {sent} SYNs: {words} words on one connection, {connections} new connections");
    let counters = rig.counters();
    assert_accounted(&counters);
    let flooded = port(&rig, &counters, "flooder");
    assert!(flooded.drops.keys().all(|reason| reason == "table-full"), "{flooded:?}");
    let evicted: u64 = counters.workers.values().map(|worker| worker.flows_evicted).sum();
    let refused_of_flooder = flooded.drops.get("table-full").copied().unwrap_or(0);
    assert!(evicted + refused_of_flooder >= flooded.received - FLOWS, "{evicted} evicted, {flooded:?}");
    // A worker under load takes more SYNs in a batch than there are spare slots, and drops SYNs of other
    // pods, which their kernels retransmit. The flooder pays for nearly all of it.
    // `tests/sim/connection_floods.rs` has the exact share, without load.
    for innocent in ["db", "client", "other"] {
        let port = port(&rig, &counters, innocent);
        let refused: u64 = port.drops.values().sum();
        assert!(port.drops.keys().all(|reason| reason == "table-full"), "{innocent}: {port:?}");
        assert!(100 * refused <= evicted + refused_of_flooder, "{innocent}: {port:?}, flooder: {flooded:?}");
    }
    let of_flooder = || {
        let flows = rig.flows(FLOWS as usize);
        flows.iter().filter(|flow| flow.key.src == flooder.v4()).count() as u64
    };
    assert!((FLOWS / 2..FLOWS).contains(&of_flooder()), "{} of the flooder", of_flooder());
    // Flows time out between the two readings, so equality may take several.
    eventually("the port's counter agrees with the table", || {
        port(&rig, &rig.counters(), "flooder").flows_unassured == of_flooder()
    });
}

#[test]
fn a_flood_fills_a_small_table_and_established_flows_stay() {
    let Some(_isolated) = isolated() else { return };
    let rig = deaf_rig("[conntrack]\nflows = 1024\npod_quota_percent = 100\n");
    let pods = ["db", "client", "other", "flooder"].map(|name| rig.pod(name));
    let [db, client, other, flooder] = &pods;
    let mut talk = Connection::open(client, db);
    let _server = Server::start(client, &[PORT], Services::Tcp).unwrap();
    let mut words = 0;
    beside_a_flood(&rig, Flood::syns(flooder), [flooder, db], || {
        if rig.counters().workers.values().any(|worker| worker.flows_evicted > 0) {
            assert!(talk.goes_on(PATIENCE), "the established connection lives, {words} words");
            words += 1;
        }
        words > 16
    });
    // The table stays full after the flood; a new connection evicts an unassured flow.
    let full = rig.flows(2048).len();
    assert!(full > 1024 / 2, "{full} flows");
    let connects = || tcp_connect(other, client.v4().into(), PORT, PATIENCE).unwrap() == Outcome::Allowed;
    assert!((0..32).all(|_| connects()), "{:?}", rig.drops());
    let counters = rig.counters();
    assert_accounted(&counters);
    assert!(port(&rig, &counters, "client").drops.is_empty(), "{counters:?}");
    assert!(port(&rig, &counters, "db").drops.is_empty(), "{counters:?}");
    assert!(talk.goes_on(PATIENCE), "it outlives the flood");
}
