//! Flow offload: the kernel forwards established flows, and nothing that policy, a change of it, or the end of a flow denies.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use palisade::control::protocol::{CaptureRequest, PortInfo};
use palisade::dataplane::FlowInfo;
use palisade::lab::traffic::{Server, Services, transfer};
use palisade::lab::{Lab, LabSpec, Pod, PodPorts, Switch, SwitchSpec};
use palisade::net::flow::Protocol;
use palisade::netlink::Interface;
use palisade::xdp::namespace_cookie;

use super::rig_of;
use crate::support::connection::Connection;
use crate::support::namespace::run;
use crate::support::packet_socket::PacketSocket;
use crate::support::veth::program_on;
use crate::support::{
    INGRESS, PORT, Rig, TIMEOUT, assert_accounted, eventually, isolated, only_from, pods_manifest, spec_of,
};

pub(super) const MEGABYTES: u64 = 8 << 20;

pub(super) fn rig(pods: &[&str]) -> Rig {
    rig_of(PodPorts::Offload, pods, 1, "")
}

/// Frames that workers have received.
pub(super) fn upcalls(rig: &Rig) -> u64 {
    rig.counters().workers.values().map(|worker| worker.received).sum()
}

/// Asserts that the packets of a known flow did not come up. A pod may look for its neighbours meanwhile.
pub(super) fn assert_few(upcalls: u64) {
    assert!(upcalls < 20, "{upcalls} packets came up");
}

fn port_of(rig: &Rig, pod: &Pod) -> PortInfo {
    let ports = rig.switch.client().ports().unwrap();
    ports.into_iter().find(|port| port.name == pod.plan().host_interface).unwrap()
}

/// The flow of a connection.
pub(super) fn flow_of(rig: &Rig, client: SocketAddr) -> FlowInfo {
    let mut flows = rig.flows(100);
    flows.retain(|flow| flow.key.src_port == client.port());
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows.remove(0)
}

/// A socket of each pod, connected to the other's.
fn udp_pair(one: &Pod, other: &Pod) -> [UdpSocket; 2] {
    let bind = |pod: &Pod| pod.run(|| UdpSocket::bind((pod.v4(), 0)).unwrap()).unwrap();
    let pair = [bind(one), bind(other)];
    pair[0].connect(pair[1].local_addr().unwrap()).unwrap();
    pair[1].connect(pair[0].local_addr().unwrap()).unwrap();
    pair
}

fn exchange(pair: &[UdpSocket; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        pair[from].send(b"hello").unwrap();
        pair[to].set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(pair[to].recv(&mut [0; 16]).unwrap(), 5);
    }
}

#[test]
fn established_flows_cross_without_the_workers_and_every_byte_is_counted() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "server"]);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    assert!([&client, &server].iter().all(|pod| port_of(&rig, pod).report.offloaded));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        let before = upcalls(&rig);
        transfer(&client, address, PORT, MEGABYTES, TIMEOUT).unwrap();
        let upcalls = upcalls(&rig) - before;
        assert!(upcalls < 60, "{upcalls} packets of a connection came up");
    }
    let flows = rig.flows(100);
    for flow in flows.iter().filter(|flow| flow.key.protocol == Protocol::TCP) {
        // Headers and what is sent back come on top.
        let sent = flow.bytes + flow.reply_bytes;
        assert!(sent > MEGABYTES && sent < 2 * MEGABYTES + MEGABYTES / 4, "{flow:?}");
    }
    let pair = udp_pair(&client, &server);
    exchange(&pair);
    exchange(&pair);
    let before = upcalls(&rig);
    for _ in 0..500 {
        exchange(&pair);
    }
    assert_few(upcalls(&rig) - before);
    let flow = flow_of(&rig, pair[0].local_addr().unwrap());
    assert_eq!((flow.packets, flow.reply_packets), (502, 502), "{flow:?}");
    assert_eq!((flow.bytes, flow.reply_bytes), (502 * 33, 502 * 33), "{flow:?}");
    assert!(flow.offloaded);
    let packets = |flow: &FlowInfo| flow.packets + flow.reply_packets;
    let of_flows: u64 = rig.flows(100).iter().map(packets).sum();
    let counters = rig.counters();
    assert_accounted(&counters);
    let forwarded: u64 = counters.ports.values().map(|port| port.forwarded).sum();
    assert_eq!(forwarded, of_flows, "the ports have counted the packets of all flows, and no other");
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
}

#[test]
fn a_change_of_policy_ends_offloaded_flows_at_once_and_others_go_on() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["db", "friend", "stranger", "web", "cache"]);
    let [db, friend, stranger, web, cache] =
        ["db", "friend", "stranger", "web", "cache"].map(|pod| rig.pod(pod));
    let mut denied = Connection::open(&stranger, &db);
    assert!(denied.goes_on(TIMEOUT));
    let udp = udp_pair(&friend, &db);
    exchange(&udp);
    exchange(&udp);
    let others = udp_pair(&web, &cache);
    exchange(&others);
    exchange(&others);
    let before = upcalls(&rig);
    // Whole tables may change every pod's policy: a packet of each direction is evaluated again.
    rig.apply(&only_from("db", "friend"));
    for _ in 0..100 {
        exchange(&others);
    }
    assert_few(upcalls(&rig) - before);
    denied.assert_ended(&rig.switch, &stranger, INGRESS);
    // The policy allows TCP alone.
    udp[0].send(b"hello").unwrap();
    eventually("a datagram of a known flow is denied", || {
        rig.counters().ports[&friend.plan().host_interface].drops.contains_key(INGRESS)
    });
    udp[1].set_nonblocking(true).unwrap();
    assert!(udp[1].recv(&mut [0; 16]).is_err());
    let mut allowed = Connection::open(&friend, &db);
    assert!(allowed.goes_on(TIMEOUT) && flow_of(&rig, allowed.client.local_addr().unwrap()).offloaded);
}

#[test]
fn the_ends_of_a_connection_end_its_offload() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "server"]);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let mut talk = Connection::open(&client, &server);
    assert!(talk.goes_on(TIMEOUT));
    let of = talk.client.local_addr().unwrap();
    assert!(flow_of(&rig, of).offloaded);
    let Connection { client: mut one, server: mut other } = talk;
    one.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(other.read(&mut [0; 16]).unwrap(), 0);
    // The other direction goes on.
    other.write_all(&[7; 4096]).unwrap();
    let mut heard = vec![0; 4096];
    one.read_exact(&mut heard).unwrap();
    let flow = flow_of(&rig, of);
    assert_eq!((&*flow.state, flow.offloaded), ("fin-wait", false));
    drop((one, other));
    eventually("the connection has ended", || flow_of(&rig, of).state == "time-wait");
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
}

/// Sends `frame` as a pod does that writes every byte itself.
fn send_frame(pod: &Pod, frame: &[u8]) {
    let socket = pod.run(|| PacketSocket::open("eth0").unwrap()).unwrap();
    socket.send(frame).unwrap();
}

#[test]
fn a_flow_is_forwarded_from_the_port_of_its_pod_alone() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["db", "friend", "liar"]);
    let (db, friend, liar) = (rig.pod("db"), rig.pod("friend"), rig.pod("liar"));
    let pair = udp_pair(&friend, &db);
    exchange(&pair);
    exchange(&pair);
    let [from, to] = [0, 1].map(|i: usize| pair[i].local_addr().unwrap());
    let gateway = palisade::dataplane::Gateway::default().mac.0;
    let frame = |source: [u8; 6], ttl: u8| udp_frame(gateway, source, (from, to), ttl);
    pair[1].set_nonblocking(true).unwrap();
    let hears = || pair[1].recv(&mut [0; 16]).is_ok();
    let drops = |pod: &Pod| rig.counters().ports[&pod.plan().host_interface].drops.clone();
    // Another pod with the tuple and the Ethernet address of the flow.
    send_frame(&liar, &frame(friend.plan().mac.0, 64));
    eventually("it is dropped", || drops(&liar).get("spoofed") == Some(&1));
    assert!(!hears());
    // A packet that has come to the end of its way.
    send_frame(&friend, &frame(friend.plan().mac.0, 1));
    eventually("it is dropped", || drops(&friend).get("ttl-exceeded") == Some(&1));
    assert!(!hears());
    // To another station than the switch.
    send_frame(&friend, &udp_frame(db.plan().mac.0, friend.plan().mac.0, (from, to), 64));
    eventually("it is dropped", || drops(&friend).get("not-for-us") == Some(&1));
    assert!(!hears());
    // The positive control.
    send_frame(&friend, &frame(friend.plan().mac.0, 64));
    eventually("it arrives", hears);
}

/// A datagram over IPv4 in an Ethernet frame.
fn udp_frame(
    to: [u8; 6],
    from: [u8; 6],
    (source, destination): (SocketAddr, SocketAddr),
    ttl: u8,
) -> Vec<u8> {
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(_) => panic!("the datagram is one of IPv4"),
    };
    let builder = etherparse::PacketBuilder::ethernet2(from, to)
        .ipv4(octets(source), octets(destination), ttl)
        .udp(source.port(), destination.port());
    let mut frame = Vec::new();
    builder.write(&mut frame, b"false").unwrap();
    frame
}

#[test]
fn a_capture_sees_every_packet_and_the_kernel_forwards_again_behind_it() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "server"]);
    let pair = udp_pair(&rig.pod("client"), &rig.pod("server"));
    exchange(&pair);
    exchange(&pair);
    let client = rig.switch.client();
    let capture = client.start_capture(&CaptureRequest::default()).unwrap();
    let before = upcalls(&rig);
    for _ in 0..10 {
        exchange(&pair);
    }
    assert!(upcalls(&rig) - before >= 20);
    client.stop_capture(capture).unwrap();
    eventually("the kernel forwards again", || {
        let before = upcalls(&rig);
        (0..100).for_each(|_| exchange(&pair));
        upcalls(&rig) - before < 100
    });
}

/// Frames that the node's end of a pod's veth pair has received.
fn received(pod: &Pod) -> u64 {
    let count = std::fs::read_to_string(format!(
        "/sys/class/net/{}/statistics/rx_packets",
        pod.plan().host_interface
    ));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn flows_go_on_without_the_switch_until_their_lease_ends() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig_of(PodPorts::Offload, &["client", "server"], 1, "[offload]\nlease_s = 10\n");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let pair = udp_pair(&client, &server);
    exchange(&pair);
    exchange(&pair);
    let mut talk = Connection::open(&client, &server);
    assert!(talk.goes_on(TIMEOUT));
    let Rig { switch, mut lab } = rig;
    switch.kill().unwrap();
    exchange(&pair);
    assert!(talk.goes_on(TIMEOUT), "the connection goes on");
    pair[1].set_nonblocking(true).unwrap();
    // The program delivers a datagram before the node's end counts the next one.
    let passes = || {
        let before = received(&client);
        for _ in 0..10 {
            pair[0].send(b"hello").unwrap();
        }
        eventually("the node's end receives them", || received(&client) >= before + 10);
        let mut heard = 0;
        while pair[1].recv(&mut [0; 16]).is_ok() {
            heard += 1;
        }
        heard
    };
    eventually("the lease ends", || passes() < 10);
    assert_eq!(passes(), 0, "datagrams pass without a switch");
    let switch = Rig::start(&mut lab, "");
    let rig = Rig { switch, lab };
    eventually("the connection goes on with the next switch", || talk.goes_on(TIMEOUT));
    assert_eq!(flow_of(&rig, talk.client.local_addr().unwrap()).state, "established");
}

#[test]
fn no_packet_of_an_offloaded_flow_is_lost_while_the_switch_is_killed_and_started_again() {
    const EXCHANGES_BESIDE: u32 = 200;
    let Some(_isolated) = isolated() else { return };
    let Rig { switch, mut lab } = rig(&["client", "server"]);
    let mut switch = Some(switch);
    let [client, server] = ["client", "server"].map(|pod| lab.pod(pod).unwrap());
    let pair = udp_pair(&client, &server);
    exchange(&pair);
    exchange(&pair);
    let mut talk = Connection::open(&client, &server);
    assert!(talk.goes_on(TIMEOUT));
    let (is_over, exchanges) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each waits for its datagrams: one that is lost fails the test.
            while !is_over.load(Ordering::Relaxed) {
                exchange(&pair);
                exchanges.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..3 {
            let before = exchanges.load(Ordering::Relaxed);
            eventually("datagrams pass beside the switch", || {
                exchanges.load(Ordering::Relaxed) > before + EXCHANGES_BESIDE
            });
            switch.take().unwrap().kill().unwrap();
            switch = Some(Rig::start(&mut lab, ""));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(talk.goes_on(TIMEOUT));
    let rig = Rig { switch: switch.unwrap(), lab };
    let flow = flow_of(&rig, pair[0].local_addr().unwrap());
    let sent = u64::from(exchanges.load(Ordering::Relaxed)) + 2;
    assert_eq!((flow.packets, flow.reply_packets), (sent, sent), "{flow:?}");
}

#[test]
fn a_port_to_which_no_program_can_be_attached_works_without_offload_and_says_why() {
    let Some(_isolated) = isolated() else { return };
    let spec = LabSpec { ports: PodPorts::Offload, ..spec_of(&["client", "server"]) };
    let mut lab = Lab::up(&spec).unwrap();
    let [client, server] = ["client", "server"].map(|pod| lab.pod(pod).unwrap());
    // A directory has the name of the program's file, so that the kernel refuses it, as it does without tcx.
    let index = Interface::find(&client.plan().host_interface).unwrap().index;
    let pins = format!("/sys/fs/bpf/palisade/netns-{}", namespace_cookie().unwrap());
    std::fs::create_dir_all(format!("{pins}/{index}-ingress")).unwrap();
    let switch = Rig::start(&mut lab, "");
    let rig = Rig { switch, lab };
    let port = port_of(&rig, &client).report;
    assert!(!port.offloaded && port.native, "{port:?}");
    assert!(port.warnings.iter().any(|warning| warning.contains("its flows are not offloaded")), "{port:?}");
    assert!(port_of(&rig, &server).report.offloaded);
    assert!(Interface::find(&format!("palup{index}")).is_err(), "the upcall device is gone");
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        transfer(&client, address, PORT, MEGABYTES, TIMEOUT).unwrap();
    }
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
}

#[test]
fn a_policy_holds_at_once_after_a_restart_though_the_port_of_another_pod_is_gone() {
    let Some(_isolated) = isolated() else { return };
    let Rig { switch, mut lab } =
        rig_of(PodPorts::Offload, &["db", "friend", "gone"], 1, "[offload]\nlease_s = 3600\n");
    let [db, friend, gone] = ["db", "friend", "gone"].map(|pod| lab.pod(pod).unwrap());
    let mut denied = Connection::open(&friend, &db);
    assert!(denied.goes_on(TIMEOUT));
    switch.kill().unwrap();
    run(&format!("ip link delete {}", gone.plan().host_interface));
    let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    spec.config.push_str("[offload]\nlease_s = 3600\n");
    let switch = Switch::start(&mut lab, &spec).unwrap();
    for pod in [&db, &friend] {
        switch.attach(pod).unwrap();
    }
    let problems = || switch.client().status().unwrap().problems;
    let is_held =
        || problems().iter().any(|problem| problem.contains("under the policy of the process before"));
    assert!(denied.goes_on(TIMEOUT) && is_held(), "{:?}", problems());
    switch.apply(&format!("{}---\n{}", pods_manifest(&lab), only_from("db", "nobody"))).unwrap();
    assert!(!is_held(), "{:?}", problems());
    denied.assert_ended(&switch, &friend, INGRESS);
}

#[test]
fn connections_outlive_restarts_that_begin_and_end_the_offload_and_a_stop_leaves_nothing() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec { ports: PodPorts::Offload, ..spec_of(&["client", "server"]) }).unwrap();
    let [client, server] = ["client", "server"].map(|pod| lab.pod(pod).unwrap());
    let host_end = client.plan().host_interface.clone();
    let index = Interface::find(&host_end).unwrap().index;
    let pins = || files_below(Path::new("/sys/fs/bpf/palisade"));
    let mut talk = None;
    for mode in ["off", "kernel", "off", "kernel"] {
        let switch = Rig::start(&mut lab, &format!("[offload]\nmode = \"{mode}\"\n"));
        let is_on = mode == "kernel";
        assert_eq!(program_on(&host_end).is_none(), is_on, "an XDP program, {mode}");
        assert_eq!(Interface::find(&format!("palup{index}")).is_ok(), is_on, "an upcall device, {mode}");
        let talk = talk.get_or_insert_with(|| Connection::open(&client, &server));
        assert!(talk.goes_on(TIMEOUT), "{mode}");
        assert_ne!(pins(), Vec::<PathBuf>::new(), "{mode}");
        switch.kill().unwrap();
    }
    let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    spec.config.push_str("on_stop = \"detach\"\n");
    let switch = Switch::start(&mut lab, &spec).unwrap();
    switch.attach_all(&lab).unwrap();
    assert!(switch.stop().unwrap().success());
    assert!(Interface::find(&format!("palup{index}")).is_err() && program_on(&host_end).is_none());
    assert_eq!(pins(), Vec::<PathBuf>::new());
}

/// Files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn nothing_that_the_node_sends_by_an_upcall_device_is_taken_for_the_pods() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "server"]);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let pair = udp_pair(&client, &server);
    exchange(&pair);
    exchange(&pair);
    let index = Interface::find(&client.plan().host_interface).unwrap().index;
    let device = PacketSocket::open(&format!("palup{index}")).unwrap();
    let gateway = palisade::dataplane::Gateway::default().mac.0;
    let [from, to] = [0, 1].map(|i: usize| pair[i].local_addr().unwrap());
    // The pod's own packet, word for word, and one that would teach the switch another station behind the port.
    let before = flow_of(&rig, from).packets;
    for station in [client.plan().mac.0, [2, 0, 0, 0, 0, 9]] {
        let sent = device.send(&udp_frame(gateway, station, (from, to), 64));
        assert!(sent.is_err(), "the program drops it on its way out");
    }
    pair[1].set_nonblocking(true).unwrap();
    // The positive control: the pod sends them.
    send_frame(&client, &udp_frame(gateway, [2, 0, 0, 0, 0, 9], (from, to), 64));
    eventually("the pod's packet arrives", || pair[1].recv(&mut [0; 16]).is_ok());
    assert!(pair[1].recv(&mut [0; 16]).is_err(), "a packet of the node arrives");
    assert_eq!(flow_of(&rig, from).packets, before + 1);
}
