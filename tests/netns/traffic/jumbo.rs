//! MTUs larger than a UMEM frame: packets of several buffers between kernel stacks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;

use palisade::lab::traffic::{Server, Services, transfer};
use palisade::lab::{LabSpec, Pod, PodPorts};
use palisade::limits::MTU_MAX;

use crate::support::capture::Capture;
use crate::support::{PORT, Rig, TIMEOUT, assert_accounted, assert_pings, assert_udp, isolated, spec_of};

const MEGABYTES: u64 = 2 << 20;

fn rig(pods: &[&str], mtu: u32) -> Rig {
    Rig::of(&LabSpec { mtu, ..spec_of(pods) }, "")
}

/// Output of a command in a pod.
fn output(pod: &Pod, command: &str) -> String {
    let mut words = command.split(' ');
    let output = pod.output(Command::new(words.next().unwrap()).args(words)).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Pings with this payload, bytes, and Don't Fragment set.
fn ping_uncut(from: &Pod, to: IpAddr, bytes: usize) -> String {
    output(from, &format!("ping -M do -c 1 -W 60 -s {bytes} {to}"))
}

/// Gives both ends of the pod's veth pair an MTU of 1500, before the switch attaches it again.
fn narrow(rig: &Rig, pod: &Pod) {
    rig.switch.detach(pod).unwrap();
    let host = pod.plan().host_interface.clone();
    let narrower = Command::new("ip").args(["link", "set", &host, "mtu", "1500"]).status();
    assert!(narrower.unwrap().success());
    output(pod, "ip link set eth0 mtu 1500");
    rig.switch.attach(pod).unwrap();
}

#[test]
fn tcp_udp_and_ping_cross_intact_at_the_largest_mtu() {
    let Some(_isolated) = isolated() else { return };
    bulk_crosses(PodPorts::Veth);
}

pub(super) fn bulk_crosses(ports: PodPorts) {
    let mtu = MTU_MAX as u32;
    let rig = Rig::of(&LabSpec { ports, mtu, ..LabSpec::of(&["client", "server"]).unwrap() }, "");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        transfer(&client, address, PORT, MEGABYTES, TIMEOUT).unwrap();
        assert_udp(&client, address);
        assert_pings(&client, address);
        let headers = if address.is_ipv4() { 28 } else { 48 };
        let answer = ping_uncut(&client, address, mtu as usize - headers);
        assert!(answer.contains(" 0% packet loss"), "{answer}");
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    for (name, port) in &counters.ports {
        assert!(port.received_bytes > 2 * MEGABYTES, "{name}: {port:?}");
        // Segments have the length of the MTU, and are acknowledged.
        assert!(port.received_bytes / port.received > u64::from(mtu) / 8, "{name}: {port:?}");
    }
    let drops = rig.drops();
    assert!(drops.is_empty(), "{drops:?}");
    for worker in counters.workers.values() {
        assert!(worker.frames_free > 0, "{worker:?}");
    }
}

#[test]
fn a_pod_with_a_large_mtu_learns_that_the_way_to_another_is_narrower() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["large", "small"], 9000);
    let (large, small) = (rig.pod("large"), rig.pod("small"));
    narrow(&rig, &small);
    for address in small.addresses() {
        let headers = if address.is_ipv4() { 28 } else { 48 };
        let refused = ping_uncut(&large, address, 9000 - headers);
        assert!(refused.contains("1500"), "{refused}");
        let answer = ping_uncut(&large, address, 1500 - headers);
        assert!(answer.contains(" 0% packet loss"), "{answer}");
        let route = output(&large, &format!("ip route get {address}"));
        assert!(route.contains("mtu 1500"), "{route}");
    }
    assert!(rig.drops().contains_key("too-big"), "{:?}", rig.drops());
    // TCP discovers the path MTU.
    let _server = Server::start(&small, &[PORT], Services::Both).unwrap();
    for address in small.addresses() {
        transfer(&large, address, PORT, MEGABYTES, TIMEOUT).unwrap();
    }
    assert_accounted(&rig.counters());
}

#[test]
fn routes_let_pods_send_large_packets_to_each_other_and_small_ones_elsewhere() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["one", "two"], 9000);
    let one = rig.pod("one");
    let mtu = |to: IpAddr| output(&one, &format!("ip route get {to}")).contains("mtu 1500");
    let elsewhere: BTreeMap<IpAddr, bool> =
        ["198.51.100.1", "2001:db8::1"].map(|to| (to.parse().unwrap(), true)).into();
    let pods = rig.pod("two").addresses().into_iter().map(|to| (to, false));
    for (to, is_small) in elsewhere.into_iter().chain(pods) {
        assert_eq!(mtu(to), is_small, "{to}");
    }
}

#[test]
fn pods_of_an_ordinary_lab_send_large_packets_to_each_other_and_none_too_large_to_the_outside() {
    let Some(_isolated) = isolated() else { return };
    let addresses = ["198.51.100.7", "2001:db8::7"].map(|address| address.parse().unwrap());
    let given = [("outside".parse().unwrap(), addresses.to_vec())].into();
    let rig = Rig::of(&LabSpec { given, ..LabSpec::of(&["client", "server", "outside"]).unwrap() }, "");
    let (client, server, outside) = (rig.pod("client"), rig.pod("server"), rig.pod("outside"));
    narrow(&rig, &outside);
    let lengths = |capture: Capture| -> Vec<usize> {
        let lines = capture.frames();
        let lengths = lines.iter().filter_map(|line| {
            let (_, length) = line.split_once("length ")?;
            length.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        });
        lengths.collect()
    };
    let enter = |pod: &Pod, program: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &pod.plan().netns, program]);
        command
    };
    for (pod, largest) in [(&outside, 1400..1500), (&server, 10_000..MTU_MAX)] {
        let _server = Server::start(pod, &[PORT], Services::Both).unwrap();
        let capture = Capture::on("eth0", enter(pod, "tcpdump"));
        for address in pod.addresses() {
            transfer(&client, address, PORT, MEGABYTES, TIMEOUT).unwrap();
        }
        let longest = lengths(capture).into_iter().max();
        assert!(longest.is_some_and(|bytes| largest.contains(&bytes)), "{longest:?}");
    }
    assert!(!rig.drops().contains_key("too-big"), "{:?}", rig.drops());
    assert_accounted(&rig.counters());
}
