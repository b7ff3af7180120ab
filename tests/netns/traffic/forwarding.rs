//! Forwarding between kernel stacks, with counters that account for every frame.

use std::process::Command;

use palisade::lab::traffic::{Server, Services, transfer};
use palisade::lab::{GATEWAY_V4, GATEWAY_V6, Lab, LabSpec, Pod, PodPorts};
use palisade::net::flow::Protocol;

use super::rig_of;
use crate::support::{PORT, Rig, TIMEOUT, assert_accounted, assert_pings, assert_udp, eventually, isolated};

const MEGABYTE: u64 = 1 << 20;

#[test]
fn tcp_udp_and_ping_cross_intact_in_both_families_and_the_gateway_is_found() {
    let Some(_isolated) = isolated() else { return };
    crosses(PodPorts::Veth);
}

pub(super) fn crosses(ports: PodPorts) {
    let rig = rig_of(ports, &["client", "server"], 1, "");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        transfer(&client, address, PORT, MEGABYTE, TIMEOUT).unwrap();
        assert_udp(&client, address);
        assert_pings(&client, address);
    }
    assert_pings(&client, GATEWAY_V4.into());
    // ARP and neighbour discovery have found the gateway.
    let neighbours = client.output(Command::new("ip").args(["neigh", "show"])).unwrap();
    let text = String::from_utf8(neighbours.stdout).unwrap();
    for gateway in [GATEWAY_V4.to_string(), GATEWAY_V6.to_string()] {
        let entry = text.lines().find(|line| line.starts_with(&format!("{gateway} ")));
        assert!(entry.is_some_and(|entry| entry.contains("lladdr 02:50:41:4c:00:01")), "{text}");
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    assert_eq!(rig.drops().into_keys().collect::<Vec<_>>(), Vec::<String>::new());
    // Whole segments on tap devices are fewer packets.
    let least = if ports == PodPorts::Veth { 700 } else { 40 };
    assert!(counters.ports.values().all(|port| port.forwarded > least && port.transmitted > least));
    let echo = counters.ports.values().map(|port| port.consumed).sum::<u64>();
    assert!(echo >= 1, "the echo to the gateway is consumed");
}

#[test]
fn with_two_workers_flows_cross_between_queues_and_none_is_lost() {
    let Some(_isolated) = isolated() else { return };
    two_workers(PodPorts::Veth);
}

pub(super) fn two_workers(ports: PodPorts) {
    let rig = rig_of(ports, &["client", "server"], 2, "");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        for _ in 0..16 {
            transfer(&client, address, PORT, MEGABYTE / 32, TIMEOUT).unwrap();
            assert_udp(&client, address);
        }
    }
    // The kernel's hash selects the queue of each direction: some of 64 flows have their directions on two
    // workers.
    let counters = rig.counters();
    assert_accounted(&counters);
    assert_eq!(counters.workers.len(), 2);
    for (number, worker) in &counters.workers {
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

#[test]
fn a_port_with_one_queue_serves_two_workers_and_says_what_that_costs() {
    const MTU: u32 = 9000;
    let Some(_isolated) = isolated() else { return };
    let spec = LabSpec { workers: 2, mtu: MTU, ..LabSpec::of(&["client", "server"]).unwrap() };
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
        for (from, to) in [(&client, &server), (&server, &client)].repeat(2) {
            scope.spawn(move || {
                for address in to.addresses() {
                    transfer(from, address, PORT, MEGABYTE, TIMEOUT).unwrap();
                }
            });
        }
    });
    // The queues are empty: nothing sends a lost datagram again.
    server.addresses().into_iter().for_each(|address| assert_udp(&client, address));
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
    assert!(from.received_bytes / from.received > u64::from(MTU) / 8, "{from:?}");
    for pod in [&client, &server] {
        rig.switch.detach(pod).unwrap();
    }
    eventually("every frame is free when every port is closed", || {
        rig.counters().workers.values().all(|worker| worker.frames == worker.frames_free)
    });
}
