//! One pod opens connections to everything. The others do not notice.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use palisade::control::protocol::CountersReport;
use palisade::dataplane::Gateway;
use palisade::lab::traffic::{Outcome, Server, Services, tcp_connect};
use palisade::lab::{POD_INTERFACE, Pod};
use palisade::net::tcp::Flags;
use palisade::pktgen::{Content, FlowSpace, Kind, Rate, Receive, Session, Setup, Target, Traffic};

use crate::support::{PATIENCE, PORT, Rig, alone, assert_accounted, assert_connects, eventually};
use crate::talk::Talk;

/// Flows that the table holds.
const FLOWS: u64 = 4096;
const SYNS_PER_S: f64 = 15_000.0;
const FLOOD: Duration = Duration::from_secs(4);

/// Sends SYNs, each from a port that it has not used before, to the server's port of `to`: frames that were sent.
fn flood(from: &Pod, to: &Pod) -> u64 {
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
    let trial = session.trial(Rate::PerSecond(SYNS_PER_S), FLOOD, &AtomicBool::new(false)).unwrap();
    trial.sent.frames
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
    let mut talk = Talk::open(client, db);
    let _servers = [client, other].map(|pod| Server::start(pod, &[PORT], Services::Tcp).unwrap());
    let (sent, words, connections) = thread::scope(|scope| {
        let flood = scope.spawn(|| flood(flooder, db));
        let (mut words, mut connections) = (0, 0);
        while !flood.is_finished() {
            assert!(talk.goes_on(PATIENCE), "the established connection lives, {words} words");
            words += 1;
            // Ended connections linger: fewer than that, however fast the machine is.
            if words % 16 == 0 && connections < FLOWS / 8 {
                assert_connects(other, client.v4().into());
                assert_connects(db, other.v6().into());
                connections += 2;
            }
        }
        (flood.join().unwrap(), words, connections)
    });
    eprintln!("beside {sent} SYNs: {words} words on one connection, {connections} new connections");
    assert!(sent >= 10_000 && words > 16 && connections > 0, "{sent} {words} {connections}");
    let counters = rig.counters();
    assert_accounted(&counters);
    let flooded = port(&rig, &counters, "flooder");
    // What the veth's ring has no place for is lost before the switch.
    assert!(flooded.received >= sent / 2, "{sent} SYNs, {flooded:?}");
    assert!(flooded.drops.keys().all(|reason| reason == "table-full"), "{flooded:?}");
    let evicted: u64 = counters.workers.values().map(|worker| worker.flows_evicted).sum();
    let refused = flooded.drops.get("table-full").copied().unwrap_or(0);
    assert!(evicted + refused >= flooded.received - FLOWS, "{evicted} evicted, {flooded:?}");
    // A worker that is late takes more SYNs at once than there are spare slots; who found none came again.
    for innocent in ["db", "client", "other"] {
        let port = port(&rig, &counters, innocent);
        let refused: u64 = port.drops.values().sum();
        assert!(port.drops.keys().all(|reason| reason == "table-full"), "{innocent}: {port:?}");
        assert!(refused <= 2 + connections / 10, "{innocent}: {port:?} of {connections}");
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
    let mut talk = Talk::open(client, db);
    let _server = Server::start(client, &[PORT], Services::Tcp).unwrap();
    let sent = thread::scope(|scope| {
        let flood = scope.spawn(|| flood(flooder, db));
        eventually("the table is full", || {
            rig.counters().workers.values().any(|worker| worker.flows_evicted > 0)
        });
        let mut words = 0;
        while !flood.is_finished() {
            assert!(talk.goes_on(PATIENCE), "the established connection lives, {words} words");
            words += 1;
        }
        assert!(words > 16, "{words}");
        flood.join().unwrap()
    });
    // The table is as full when the flood is over; of those who wait, one that nobody has answered makes place.
    let full = rig.switch.client().flows(2048, None).unwrap().len();
    assert!(full > 1024 / 2, "{full} flows");
    let connects = || tcp_connect(other, client.v4().into(), PORT, PATIENCE).unwrap() == Outcome::Allowed;
    assert!((0..32).all(|_| connects()), "{:?}", rig.drops());
    let counters = rig.counters();
    assert_accounted(&counters);
    assert!(sent >= 10_000, "{sent}");
    assert!(port(&rig, &counters, "client").drops.is_empty(), "{counters:?}");
    assert!(port(&rig, &counters, "db").drops.is_empty(), "{counters:?}");
    assert!(talk.goes_on(PATIENCE), "it outlives the flood");
}
