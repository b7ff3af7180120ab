//! One pod opens connections to everything. The others do not notice.

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
use crate::support::{PATIENCE, PORT, Rig, alone, assert_accounted, assert_connects};

/// Flows that the table holds.
const FLOWS: u64 = 4096;
const SYNS_PER_S: f64 = 15_000.0;
/// SYNs that a flood comes to at least.
const FLOOD_SYNS: u64 = 10_000;
/// Longest flood: enough for a machine that does other things besides.
const FLOOD_TIME_MAX: Duration = Duration::from_mins(3);

/// Sends SYNs, each from the next of 64,512 ports, to the server's port of `to` until told to stop: frames that were sent.
fn flood(from: &Pod, to: &Pod, stop: &AtomicBool) -> u64 {
    let space = FlowSpace {
        src: from.addresses()[0].into(),
        dst: to.addresses()[0].into(),
        src_ports: 1024..=u16::MAX,
        dst_ports: PORT..=PORT,
    };
    let kind = Kind::Tcp(Flags::SYN);
    let traffic = Traffic {
        flows: u32::from(u16::MAX) - 1023,
        ..Traffic::new(kind, from.plan().mac, Gateway::default().mac, space)
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
    session.trial(Rate::PerSecond(SYNS_PER_S), FLOOD_TIME_MAX, stop).unwrap().sent.frames
}

/// Does `work` again and again beside a flood from one pod to another, until the switch has received [`FLOOD_SYNS`] and `work` has been
/// done often enough to say so: frames that were sent.
fn beside_a_flood(rig: &Rig, from: &Pod, to: &Pod, mut work: impl FnMut() -> bool) -> u64 {
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let flooder = &from.plan().host_interface;
    thread::scope(|scope| {
        let flood = scope.spawn(|| flood(from, to, &stop));
        let stop = StopWhenDropped(&stop);
        while !work() || rig.counters().ports[flooder].received < FLOOD_SYNS {
            assert!(start.elapsed() < FLOOD_TIME_MAX, "the flood does not arrive: {:?}", rig.counters());
        }
        drop(stop);
        flood.join().unwrap()
    })
}

/// Ends a flood also where a test has failed beside it.
struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `flooder` cannot hear the answers of the others, so none of its connections is ever more than a SYN, and none is reset.
fn deaf_rig(config: &str) -> Rig {
    let rig = Rig::with(&["db", "client", "other", "flooder"], 1, config);
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
    let Some(_alone) = alone() else { return };
    let rig = deaf_rig(&format!("[conntrack]\nflows = {FLOWS}\n"));
    let pods = ["db", "client", "other", "flooder"].map(|name| rig.pod(name));
    let [db, client, other, flooder] = &pods;
    let mut talk = Connection::open(client, db);
    let _servers = [client, other].map(|pod| Server::start(pod, &[PORT], Services::Tcp).unwrap());
    let (mut words, mut connections) = (0, 0);
    let sent = beside_a_flood(&rig, flooder, db, || {
        assert!(talk.goes_on(PATIENCE), "the established connection lives, {words} words");
        words += 1;
        // Ended connections linger: fewer than that, however fast the machine is.
        if words % 16 == 0 && connections < FLOWS / 8 {
            assert_connects(other, client.v4().into());
            assert_connects(db, other.v6().into());
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
    // A worker that is late takes more SYNs at once than there are spare slots; a client that found none has sent its SYN again. The
    // flooder pays for nearly all of it; `tests/sim/connection_floods.rs` has the exact share, on a machine that is never late.
    for innocent in ["db", "client", "other"] {
        let port = port(&rig, &counters, innocent);
        let refused: u64 = port.drops.values().sum();
        assert!(port.drops.keys().all(|reason| reason == "table-full"), "{innocent}: {port:?}");
        assert!(100 * refused <= evicted + refused_of_flooder, "{innocent}: {port:?}, flooder: {flooded:?}");
    }
    let flows = rig.switch.client().flows(FLOWS as usize, None).unwrap();
    let of_flooder = flows.iter().filter(|flow| flow.key.src == flooder.v4()).count() as u64;
    assert!((FLOWS / 2..FLOWS).contains(&of_flooder), "{of_flooder} of the flooder");
    assert_eq!(of_flooder, flooded.flows_unassured, "by its counters");
}

#[test]
fn a_flood_fills_a_small_table_and_established_flows_stay() {
    let Some(_alone) = alone() else { return };
    let rig = deaf_rig("[conntrack]\nflows = 1024\npod_quota_percent = 100\n");
    let pods = ["db", "client", "other", "flooder"].map(|name| rig.pod(name));
    let [db, client, other, flooder] = &pods;
    let mut talk = Connection::open(client, db);
    let _server = Server::start(client, &[PORT], Services::Tcp).unwrap();
    let mut words = 0;
    beside_a_flood(&rig, flooder, db, || {
        if rig.counters().workers.values().any(|worker| worker.flows_evicted > 0) {
            assert!(talk.goes_on(PATIENCE), "the established connection lives, {words} words");
            words += 1;
        }
        words > 16
    });
    // The table is as full when the flood is over; of those who wait, one that nobody has answered makes place.
    let full = rig.switch.client().flows(2048, None).unwrap().len();
    assert!(full > 1024 / 2, "{full} flows");
    let connects = || tcp_connect(other, client.v4().into(), PORT, PATIENCE).unwrap() == Outcome::Allowed;
    assert!((0..32).all(|_| connects()), "{:?}", rig.drops());
    let counters = rig.counters();
    assert_accounted(&counters);
    assert!(port(&rig, &counters, "client").drops.is_empty(), "{counters:?}");
    assert!(port(&rig, &counters, "db").drops.is_empty(), "{counters:?}");
    assert!(talk.goes_on(PATIENCE), "it outlives the flood");
}
