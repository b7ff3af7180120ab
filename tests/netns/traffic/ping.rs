//! ICMP echo under policy, and after idle time of the worker.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use palisade::lab::traffic::{Outcome, ping};
use palisade::lab::{GATEWAY_V4, Pod};
use palisade::net::icmp::v4::ECHO_REQUEST;
use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::support::{PATIENCE, PORT, Rig, SILENCE, assert_accounted, assert_pings, isolated, only_from};

/// Policy that isolates `app` for ingress and allows `from` on every protocol.
fn everything_from(app: &str, from: &str) -> String {
    only_from(app, from).replace(&format!("    ports: [{{protocol: TCP, port: {PORT}}}]\n"), "")
}

#[test]
fn ping_passes_where_all_ports_are_open_and_not_where_one_is() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "friend", "stranger"], 1);
    let (db, friend, stranger) = (rig.pod("db"), rig.pod("friend"), rig.pod("stranger"));
    for address in db.addresses() {
        assert_pings(&stranger, address);
    }
    let silence = |from: &Pod| {
        for address in db.addresses() {
            assert_eq!(ping(from, address, SILENCE / 4).unwrap(), Outcome::TimedOut, "{address}");
        }
    };
    rig.apply(&everything_from("db", "friend"));
    for address in db.addresses() {
        assert_pings(&friend, address);
    }
    silence(&stranger);
    assert_eq!(rig.drops(), [("policy-ingress".to_owned(), 2)].into());
    // The isolated pod sends requests and receives replies.
    for address in stranger.addresses() {
        assert_pings(&db, address);
    }
    rig.apply(&only_from("db", "friend"));
    silence(&friend);
    assert_eq!(rig.drops(), [("policy-ingress".to_owned(), 4)].into());
    assert_accounted(&rig.counters());
}

/// ICMP socket of a pod to the gateway. The switch itself replies, so that only one worker and the sender
/// wake.
fn echo_socket(pod: &Pod) -> io::Result<UdpSocket> {
    let open = || socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP));
    let socket = UdpSocket::from(pod.run(open).unwrap()?);
    socket.connect((GATEWAY_V4, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn round_trip(socket: &UdpSocket) -> Duration {
    let start = Instant::now();
    socket.send(&[ECHO_REQUEST, 0, 0, 0, 0, 0, 0, 1, b'?']).unwrap();
    assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 9);
    start.elapsed()
}

#[test]
fn a_worker_that_sleeps_wakes_for_the_first_packet() {
    const ROUNDS: usize = 500;
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["pod", "idle"], 1);
    let socket = echo_socket(&rig.pod("pod")).unwrap();
    round_trip(&socket);
    let sleeps = || rig.counters().workers.values().map(|worker| worker.sleeps).sum::<u64>();
    let (before, start) = (sleeps(), Instant::now());
    // The second request reaches a worker that is awake. The difference between both is the time that worker
    // and sender need to wake.
    let round = |_| {
        std::thread::sleep(Duration::from_millis(3));
        (round_trip(&socket), round_trip(&socket))
    };
    let (first, second): (Vec<_>, Vec<_>) = (0..ROUNDS).map(round).unzip();
    let quantiles = |mut times: Vec<Duration>| {
        times.sort_unstable();
        [50, 99].map(|percent| times[ROUNDS * percent / 100].as_micros())
    };
    let ([p50, p99], [awake_p50, awake_p99]) = (quantiles(first), quantiles(second));
    eprintln!("round trip to the switch after 3 ms of idleness: p50 {p50} us, p99 {p99} us");
    eprintln!("round trip while the worker is awake: p50 {awake_p50} us, p99 {awake_p99} us");
    // A worker without CPU time goes to sleep in fewer rounds.
    while sleeps() - before < ROUNDS as u64 / 2 {
        assert!(start.elapsed() < PATIENCE, "{} sleeps", sleeps() - before);
        round(0);
    }
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
}
