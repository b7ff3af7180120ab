//! ICMP echo under policy, and after idle time of the worker.

use std::io;
use std::net::UdpSocket;

use palisade::lab::{GATEWAY_V4, Pod, PodPorts};
use palisade::net::flow::Protocol;
use palisade::net::icmp::v4::ECHO_REQUEST;
use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use super::rig_of;
use crate::support::{
    INGRESS, PORT, TIMEOUT, assert_accounted, assert_pings, assert_protocol_denied, eventually, isolated,
    only_from,
};

/// Policy that isolates `app` for ingress and allows `from` on every protocol.
fn everything_from(app: &str, from: &str) -> String {
    only_from(app, from).replace(&format!("    ports: [{{protocol: TCP, port: {PORT}}}]\n"), "")
}

#[test]
fn ping_passes_where_all_ports_are_open_and_not_where_one_is() {
    let Some(_isolated) = isolated() else { return };
    pings(PodPorts::Veth);
}

pub(super) fn pings(ports: PodPorts) {
    let rig = rig_of(ports, &["db", "friend", "stranger"], 1, "");
    let (db, friend, stranger) = (rig.pod("db"), rig.pod("friend"), rig.pod("stranger"));
    for address in db.addresses() {
        assert_pings(&stranger, address);
    }
    let are_denied = |from: &Pod| {
        for address in db.addresses() {
            let protocol = if address.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
            assert_protocol_denied(&rig.switch, from, (protocol, address, 0), INGRESS);
        }
    };
    rig.apply(&everything_from("db", "friend"));
    for address in db.addresses() {
        assert_pings(&friend, address);
    }
    are_denied(&stranger);
    assert_eq!(rig.drops(), [("policy-ingress".to_owned(), 2)].into());
    // The isolated pod sends requests and receives replies.
    for address in stranger.addresses() {
        assert_pings(&db, address);
    }
    rig.apply(&only_from("db", "friend"));
    are_denied(&friend);
    assert_eq!(rig.drops(), [("policy-ingress".to_owned(), 4)].into());
    assert_accounted(&rig.counters());
}

/// ICMP socket of a pod to the gateway. The switch itself replies, so that only one worker and the sender
/// wake.
fn echo_socket(pod: &Pod) -> io::Result<UdpSocket> {
    let open = || socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP));
    let socket = UdpSocket::from(pod.run(open).unwrap()?);
    socket.connect((GATEWAY_V4, 0))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

#[test]
fn a_worker_that_sleeps_wakes_for_the_first_packet() {
    let Some(_isolated) = isolated() else { return };
    wakes(PodPorts::Veth);
}

pub(super) fn wakes(ports: PodPorts) {
    const ROUNDS: usize = 20;
    let rig = rig_of(ports, &["pod", "idle"], 1, "");
    let socket = echo_socket(&rig.pod("pod")).unwrap();
    let sleeps = || rig.counters().workers.values().map(|worker| worker.sleeps).sum::<u64>();
    for _ in 0..ROUNDS {
        let before = sleeps();
        socket.send(&[ECHO_REQUEST, 0, 0, 0, 0, 0, 0, 1, b'?']).unwrap();
        assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 9);
        eventually("the worker goes to sleep", || sleeps() > before);
    }
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
}
