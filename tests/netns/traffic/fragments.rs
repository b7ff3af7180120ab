//! Datagrams larger than the MTU, fragmented and reassembled by the kernel.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use palisade::lab::Pod;
use palisade::lab::traffic::{Server, Services};

use crate::support::{PATIENCE, PORT, Rig, SILENCE, assert_accounted, eventually, isolated, only_from};

const BYTES: usize = 8192;
/// Number of fragments of such a datagram at MTU 1500.
const FRAGMENTS: u64 = 6;

/// Sends a large datagram and waits for its echo; tells whether it returns intact.
fn exchange(from: &Pod, to: IpAddr, connected: bool, patience: std::time::Duration) -> bool {
    let to = SocketAddr::new(to, PORT);
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = from.run(|| UdpSocket::bind((any, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    let message: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    if connected {
        socket.connect(to).unwrap();
        socket.send(&message).unwrap();
    } else {
        socket.send_to(&message, to).unwrap();
    }
    let mut answer = vec![0; BYTES + 1];
    socket.recv(&mut answer).is_ok_and(|bytes| answer[..bytes] == message)
}

fn large_datagrams_cross(workers: u16) {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["one", "two"], workers);
    let (one, two) = (rig.pod("one"), rig.pod("two"));
    let _servers = [&one, &two].map(|pod| Server::start(pod, &[PORT], Services::Udp).unwrap());
    let rounds = 8;
    for round in 0..rounds {
        for (from, to) in [(&one, &two), (&two, &one)] {
            for address in to.addresses() {
                assert!(exchange(from, address, round % 2 == 0, PATIENCE), "{BYTES} bytes to {address}");
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
fn large_datagrams_cross_both_ways_with_one_worker() {
    large_datagrams_cross(1);
}

#[test]
fn large_datagrams_cross_both_ways_with_two_workers() {
    large_datagrams_cross(2);
}

#[test]
fn policy_denies_every_fragment_of_a_large_datagram() {
    for workers in [1, 2] {
        let Some(_isolated) = isolated() else { return };
        let rig = Rig::up(&["db", "stranger"], workers);
        let (db, stranger) = (rig.pod("db"), rig.pod("stranger"));
        let _server = Server::start(&db, &[PORT], Services::Udp).unwrap();
        assert!(db.addresses().into_iter().all(|address| exchange(&stranger, address, true, PATIENCE)));
        let before = rig.counters().ports.values().map(|port| port.forwarded).sum::<u64>();
        rig.apply(&only_from("db", "nobody"));
        for address in db.addresses() {
            assert!(!exchange(&stranger, address, true, SILENCE / 4), "{address}");
        }
        eventually("every fragment is dropped by policy", || {
            rig.drops() == [("policy-ingress".to_owned(), 2 * FRAGMENTS)].into()
        });
        let after = rig.counters();
        assert_accounted(&after);
        assert_eq!(after.ports.values().map(|port| port.forwarded).sum::<u64>(), before);
    }
}
