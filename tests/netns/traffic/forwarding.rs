//! Forwarding between kernel stacks, with counters that account for every frame.

use std::net::IpAddr;
use std::process::Command;
use std::time::Instant;

use palisade::lab::traffic::{Outcome, Server, Services, transfer, udp_exchange};
use palisade::lab::{GATEWAY_V4, GATEWAY_V6, Lab, LabSpec, Pod};
use palisade::net::flow::Protocol;

use crate::support::{
    PATIENCE, PORT, Rig, SILENCE, assert_accounted, assert_allowed, assert_pings, assert_udp, eventually,
    isolated, on_taps,
};

const MEGABYTE: u64 = 1 << 20;

#[test]
fn tcp_udp_and_ping_cross_intact_in_both_families() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "server"], 1);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        transfer(&client, address, PORT, MEGABYTE, PATIENCE).unwrap();
        assert_udp(&client, address);
        assert_pings(&client, address);
    }
    assert_pings(&client, GATEWAY_V4.into());
    let counters = rig.counters();
    assert_accounted(&counters);
    assert_eq!(rig.drops().into_keys().collect::<Vec<_>>(), Vec::<String>::new());
    // Whole segments on tap devices are fewer packets.
    let least = if on_taps() { 40 } else { 700 };
    assert!(counters.ports.values().all(|port| port.forwarded > least && port.transmitted > least));
    let echo = counters.ports.values().map(|port| port.consumed).sum::<u64>();
    assert!(echo >= 1, "the echo to the gateway is consumed");
}

#[test]
fn the_gateway_is_found_by_neighbour_discovery_and_arp() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["one", "two"], 1);
    let one = rig.pod("one");
    assert_pings(&one, GATEWAY_V4.into());
    assert_pings(&one, rig.pod("two").v6().into());
    let neighbours = one.output(std::process::Command::new("ip").args(["neigh", "show"])).unwrap();
    let text = String::from_utf8(neighbours.stdout).unwrap();
    for gateway in [GATEWAY_V4.to_string(), GATEWAY_V6.to_string()] {
        let entry = text.lines().find(|line| line.starts_with(&format!("{gateway} ")));
        assert!(entry.is_some_and(|entry| entry.contains("lladdr 02:50:41:4c:00:01")), "{text}");
    }
}

#[test]
fn with_two_workers_flows_cross_between_queues_and_none_is_lost() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "server"], 2);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        for _ in 0..16 {
            transfer(&client, address, PORT, MEGABYTE / 8, PATIENCE).unwrap();
            assert_udp(&client, address);
        }
    }
    // The kernel's hash selects the queue of each direction: some of 64 flows have their directions on two
    // workers.
    let counters = rig.counters();
    assert_accounted(&counters);
    assert_eq!(counters.workers.len(), 2);
    for (number, worker) in &counters.workers {
        assert!(worker.received > 100, "worker {number} had nothing to do: {worker:?}");
        assert!(worker.flows_entered > 0, "worker {number} entered no flow: {worker:?}");
    }
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
    let flows = rig.flows(1000);
    assert!(
        flows.iter().all(|flow| flow.packets > 0 && flow.reply_packets > 0),
        "each has both directions: {flows:?}"
    );
    let of = |protocol| flows.iter().filter(move |flow| flow.key.protocol == protocol);
    assert_eq!(of(Protocol::TCP).count(), 32, "each connection is one entry: {flows:?}");
    // Two exchanges may have the same port from the kernel, and are one flow then.
    assert_eq!(of(Protocol::UDP).map(|flow| flow.packets).sum::<u64>(), 32, "{flows:?}");
    assert_eq!(of(Protocol::UDP).map(|flow| flow.reply_packets).sum::<u64>(), 32, "{flows:?}");
}

/// Sets the number of queues of a pod's interface at both ends. The pod's end is first, since its tx queues
/// must not exceed the host end's rx queues.
fn set_queues(pod: &Pod, queues: u16) {
    let command = |interface: &str| {
        let mut command = Command::new("ethtool");
        command.args(["-L", interface, "rx", &queues.to_string(), "tx", &queues.to_string()]);
        command
    };
    assert!(pod.output(&mut command("eth0")).unwrap().status.success());
    assert!(command(&pod.plan().host_interface).status().unwrap().success());
}

/// Sends a datagram again until one is answered. Queues overflow where eight connections share one, in the pods'
/// kernels too, and nothing else sends a lost datagram again.
fn exchange_datagrams_under_load(from: &Pod, to: IpAddr) {
    let start = Instant::now();
    while udp_exchange(from, to, PORT, SILENCE).unwrap() != Outcome::Allowed {
        assert!(start.elapsed() < PATIENCE, "no datagram to {to} is answered");
    }
}

fn one_queue_serves_two_workers(mtu: u32) {
    let Some(_isolated) = isolated() else { return };
    let spec = LabSpec { workers: 2, mtu, ..LabSpec::of(&["client", "server"]).unwrap() };
    let mut lab = Lab::up(&spec).unwrap();
    set_queues(&lab.pod("server").unwrap(), 1);
    let switch = Rig::start(&mut lab, "");
    let rig = Rig { switch, lab };
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let ports = rig.switch.client().ports().unwrap();
    let report = |pod: &Pod| {
        let port = ports.iter().find(|port| port.name == pod.plan().host_interface);
        port.expect("a port of the lab").report.clone()
    };
    assert_eq!((report(&client).queues, report(&server).queues), (2, 1));
    assert!(report(&client).warnings.is_empty(), "{:?}", report(&client).warnings);
    let warnings = report(&server).warnings;
    assert!(
        warnings.len() == 1 && warnings[0].contains("2 workers") && warnings[0].contains("numrxqueues 2")
    );

    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    let _client = Server::start(&client, &[PORT], Services::Both).unwrap();
    std::thread::scope(|scope| {
        for (from, to) in [(&client, &server), (&server, &client)].repeat(4) {
            scope.spawn(move || {
                for address in to.addresses() {
                    for _ in 0..4 {
                        transfer(from, address, PORT, MEGABYTE / 2, PATIENCE).unwrap();
                        exchange_datagrams_under_load(from, address);
                    }
                }
            });
        }
    });
    let counters = rig.counters();
    assert_accounted(&counters);
    for (number, worker) in &counters.workers {
        assert!(worker.received > 100, "worker {number} had nothing to do: {worker:?}");
    }
    let [from, to] = [&client, &server].map(|pod| &counters.ports[&pod.plan().host_interface]);
    // Requests and replies of the switch itself leave by the ports as well.
    assert!(to.transmitted >= from.forwarded && from.transmitted >= to.forwarded, "{from:?} {to:?}");
    assert!(from.drops.keys().chain(to.drops.keys()).all(|reason| reason == "tx-full"), "{:?}", rig.drops());
    // Segments have the length of the MTU, and are acknowledged.
    assert!(from.received_bytes / from.received > u64::from(mtu) / 8, "{from:?}");
    for pod in [&client, &server] {
        rig.switch.detach(pod).unwrap();
    }
    eventually("every frame is free when every port is closed", || {
        rig.counters().workers.values().all(|worker| worker.frames == worker.frames_free)
    });
}

#[test]
fn a_port_with_one_queue_serves_two_workers_and_says_what_that_costs() {
    one_queue_serves_two_workers(1500);
}

#[test]
fn a_port_with_one_queue_serves_two_workers_at_a_large_mtu_as_well() {
    one_queue_serves_two_workers(9000);
}

#[test]
fn two_pods_that_open_to_each_other_at_once_are_two_flows() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["one", "two"], 1);
    let (one, two) = (rig.pod("one"), rig.pod("two"));
    let _one = Server::start(&one, &[PORT], Services::Tcp).unwrap();
    let _two = Server::start(&two, &[PORT], Services::Tcp).unwrap();
    assert_allowed(&one, two.v4().into());
    assert_allowed(&two, one.v4().into());
    eventually("two flows, each from its own side", || {
        let flows = rig.flows(10);
        let sources: std::collections::BTreeSet<_> = flows.iter().map(|flow| flow.key.src).collect();
        sources.len() == 2
    });
}
