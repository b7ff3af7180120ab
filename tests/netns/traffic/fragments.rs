//! Datagrams larger than the MTU, fragmented and reassembled by the kernel.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use palisade::lab::traffic::{Server, Services};
use palisade::lab::{Pod, PodPorts};

use super::rig_of;
use crate::support::{INGRESS, PORT, TIMEOUT, assert_accounted, eventually, isolated, only_from};

const BYTES: usize = 8192;
/// Number of fragments of such a datagram at MTU 1500.
const FRAGMENTS: u64 = 6;

fn message() -> Vec<u8> {
    (0..BYTES).map(|i| (i % 251) as u8).collect()
}

/// Sends a large datagram.
fn send(from: &Pod, to: IpAddr, connected: bool) -> UdpSocket {
    let to = SocketAddr::new(to, PORT);
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = from.run(|| UdpSocket::bind((any, 0))).unwrap().unwrap();
    if connected {
        socket.connect(to).unwrap();
        socket.send(&message()).unwrap();
    } else {
        socket.send_to(&message(), to).unwrap();
    }
    socket
}

/// Sends a large datagram, whose echo must arrive intact.
fn exchange(from: &Pod, to: IpAddr, connected: bool) {
    let socket = send(from, to, connected);
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = vec![0; BYTES + 1];
    let bytes = socket.recv(&mut answer).unwrap();
    assert_eq!(answer[..bytes], message(), "{BYTES} bytes to {to}");
}

#[test]
fn large_datagrams_cross_both_ways_with_two_workers() {
    let Some(_isolated) = isolated() else { return };
    large_datagrams_cross(PodPorts::Veth);
}

pub(super) fn large_datagrams_cross(ports: PodPorts) {
    let rig = rig_of(ports, &["one", "two"], 2, "");
    let (one, two) = (rig.pod("one"), rig.pod("two"));
    let _servers = [&one, &two].map(|pod| Server::start(pod, &[PORT], Services::Udp).unwrap());
    let rounds = 8;
    for round in 0..rounds {
        for (from, to) in [(&one, &two), (&two, &one)] {
            for address in to.addresses() {
                exchange(from, address, round % 2 == 0);
            }
        }
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
    // Each port has transmitted requests and replies in two families.
    for (name, port) in &counters.ports {
        assert!(port.forwarded >= rounds * 2 * 2 * FRAGMENTS, "{name}: {port:?}");
    }
    assert!(counters.workers.values().all(|worker| worker.received > 0), "{:?}", counters.workers);
    assert!(counters.workers.values().all(|worker| worker.fragments_waiting == 0));
}

#[test]
fn policy_denies_every_fragment_of_a_large_datagram() {
    let Some(_isolated) = isolated() else { return };
    denied_fragments(PodPorts::Veth);
}

pub(super) fn denied_fragments(ports: PodPorts) {
    let rig = rig_of(ports, &["db", "stranger"], 2, "");
    let (db, stranger) = (rig.pod("db"), rig.pod("stranger"));
    let _server = Server::start(&db, &[PORT], Services::Udp).unwrap();
    db.addresses().into_iter().for_each(|address| exchange(&stranger, address, true));
    let before = rig.counters().ports.values().map(|port| port.forwarded).sum::<u64>();
    rig.apply(&only_from("db", "nobody"));
    let _sockets: Vec<UdpSocket> =
        db.addresses().into_iter().map(|address| send(&stranger, address, true)).collect();
    eventually("every fragment is dropped by policy", || {
        rig.drops() == [(INGRESS.to_owned(), 2 * FRAGMENTS)].into()
    });
    let after = rig.counters();
    assert_accounted(&after);
    assert_eq!(after.ports.values().map(|port| port.forwarded).sum::<u64>(), before);
}
