//! Policy that the kernel enforces on pods.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::process::Command;

use palisade::control::protocol::{CaptureRequest, FlowQuery, PortRequest};
use palisade::dataplane::PortKind;
use palisade::lab::traffic::{Outcome, ping};
use palisade::lab::{Lab, LabSpec};
use palisade::net::flow::Protocol;
use palisade::netlink::Interface;
use palisade::tables::Verdict;

use super::rig::{allowed, denied, dropped, only_passes, run, serve, start, up};
use crate::support::closed::{assert_cut, assert_hears_nothing, drops};
use crate::support::connection::Connection;
use crate::support::packet_socket::PacketSocket;
use crate::support::{
    INGRESS, PORT, Rig, TIMEOUT, assert_protocol_denied, eventually, isolated, only_from, pods_manifest,
};

#[test]
fn the_kernel_connects_pods_once_the_tables_place_them_and_as_they_say() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec::of(&["db", "client", "other"]).unwrap()).unwrap();
    let switch = start(&mut lab, "");
    switch.attach_all(&lab).unwrap();
    let rig = Rig { switch, lab };
    let _servers = serve(&rig, &["db"]);
    run("ip address add 192.0.2.10/32 dev lo");
    // No tables are loaded: the pods are closed, also for the node.
    dropped(&rig, ("client", "db"), &[Protocol::TCP, Protocol::UDP], "unknown-pod");
    let node_pings =
        || Command::new("ping").args(["-c1", "-W1", &rig.pod("db").v4().to_string()]).output().unwrap();
    assert!(!node_pings().status.success());
    rig.switch.apply(&pods_manifest(&rig.lab)).unwrap();
    for from in ["client", "other"] {
        allowed(&rig, from, "db");
    }
    assert!(node_pings().status.success());
    rig.apply(&only_from("db", "client"));
    denied(&rig, "other", "db");
    // The policy allows one port of TCP to one pod, and the node always.
    only_passes(&rig, "client", "db", Protocol::TCP);
    assert!(node_pings().status.success());
    let (db, other) = (rig.pod("db"), rig.pod("other"));
    assert_protocol_denied(&rig.switch, &other, (Protocol::ICMP, db.v4().into(), 0), INGRESS);
    // Isolation for ingress leaves the pod's own connections.
    assert_eq!(ping(&db, other.v6().into(), TIMEOUT).unwrap(), Outcome::Allowed);
    assert_counted(&rig);
    assert_announced(&rig);
    // Without its tables the pod is closed again.
    rig.switch.client().delete_tables().unwrap();
    dropped(&rig, ("client", "db"), &[Protocol::TCP, Protocol::UDP], "unknown-pod");
}

/// Asserts that denials are counted by rule, and drops by port and reason.
fn assert_counted(rig: &Rig) {
    let counters = rig.counters();
    let of = |verdict| counters.decisions.iter().filter(move |count| count.verdict == verdict);
    let names =
        |verdict| of(verdict).map(|count| (count.origin.to_string(), count.packets)).collect::<Vec<_>>();
    let denials = names(Verdict::Deny);
    assert!(denials.iter().any(|(origin, packets)| origin.contains("to-db") && *packets >= 5), "{denials:?}");
    let allowed = names(Verdict::Allow);
    assert!(
        allowed.iter().any(|(origin, packets)| origin.contains("to-db ingress[0]") && *packets == 2),
        "{allowed:?}"
    );
    let host_end = |pod: &str| rig.pod(pod).plan().host_interface.clone();
    let port = &counters.ports[&host_end("other")];
    assert!(port.drops["policy-ingress"] >= 5 && port.forwarded > 0, "{port:?}");
    let closed = counters.ports[&host_end("client")].drops.get("unknown-pod");
    assert!(closed.is_some_and(|packets| *packets >= 2), "{counters:?}");
    for (name, port) in &counters.ports {
        let dropped: u64 = port.drops.values().sum();
        assert!(
            port.received >= port.forwarded + port.consumed && port.received >= dropped,
            "{name}: {port:?}"
        );
    }
}

/// Asserts that reports name the backend, and that requests which need workers say so.
fn assert_announced(rig: &Rig) {
    let client = rig.switch.client();
    let status = client.status().unwrap();
    assert_eq!((status.backend.to_string().as_str(), &status.problems), ("nftables", &vec![]));
    let capture = client.start_capture(&CaptureRequest::default()).unwrap_err().to_string();
    let flows = client.flows(&FlowQuery::first(1)).unwrap_err().to_string();
    for (error, what) in [(capture, "captures of packets"), (flows, "lists of flows")] {
        assert!(error.contains(what) && error.contains("backend af-xdp"), "{error}");
    }
    let tap =
        PortRequest { namespace: Some(rig.pod("db").plan().netns.clone()), ..PortRequest::of(PortKind::Tap) };
    let error = client.put_port("tap", &tap).unwrap_err().to_string();
    assert!(error.contains("no tap ports"), "{error}");
    assert!(rig.switch.log().unwrap().contains("backend nftables: the kernel forwards"));
}

#[test]
fn a_change_ends_the_flows_that_it_denies_and_no_other() {
    let Some(_isolated) = isolated() else { return };
    let rig = up(&["db", "client", "other"], "");
    let (db, client, other) = (rig.pod("db"), rig.pod("client"), rig.pod("other"));
    let mut stays = Connection::open(&client, &db);
    let mut ends = Connection::open(&other, &db);
    assert!(stays.goes_on(TIMEOUT) && ends.goes_on(TIMEOUT));
    rig.apply(&only_from("db", "client"));
    assert_cut(&rig.switch, &other, &mut ends, INGRESS);
    let dropped = || drops(rig.switch.client(), &db.plan().host_interface, INGRESS);
    let before = dropped();
    ends.server.write_all(b"reply").unwrap();
    eventually("replies of a denied connection are dropped", || dropped() > before);
    assert_hears_nothing(&ends.client);
    assert!(stays.goes_on(TIMEOUT));
    // A connection that is allowed again goes on.
    rig.switch.apply(&pods_manifest(&rig.lab)).unwrap();
    ends.client.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(ends.client.read(&mut [0; 8]).unwrap(), 5);
}

#[test]
fn a_forged_source_is_dropped_and_another_program_cannot_open_the_pods_for_long() {
    let Some(_isolated) = isolated() else { return };
    let rig = up(&["db", "client", "other"], "");
    let _servers = serve(&rig, &["db"]);
    // The forger knows its gateway.
    allowed(&rig, "other", "db");
    let (forger, victim) = (rig.pod("other"), rig.pod("client"));
    let addresses: [IpAddr; 2] = [victim.v4().into(), victim.v6().into()];
    for (number, address) in addresses.into_iter().enumerate() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let to: IpAddr = if number == 0 { rig.pod("db").v4().into() } else { rig.pod("db").v6().into() };
        let own = format!("{address}/{bits}");
        let added =
            forger.output(Command::new("ip").args(["address", "add", &own, "dev", "lo", "nodad"])).unwrap();
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        let receiver = victim.run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let sender = forger.run(|| UdpSocket::bind((address, port))).unwrap().unwrap();
        let spoofed = || rig.drops().get("spoofed").copied().unwrap_or(0);
        let before = spoofed();
        sender.send_to(b"forged", (to, PORT)).unwrap();
        eventually("the forged datagram is dropped", || spoofed() > before);
        assert!(receiver.recv_from(&mut [0; 16]).is_err(), "{address}");
    }

    rig.apply(&only_from("db", "client"));
    denied(&rig, "other", "db");
    run("nft delete table ip palisade");
    let problems = || rig.switch.client().status().unwrap().problems;
    eventually("the removal is reported", || {
        problems().iter().any(|problem| problem.contains("removed the rules"))
    });
    eventually("the rules are loaded again", || run("nft list tables").contains("table ip palisade"));
    denied(&rig, "other", "db");
    only_passes(&rig, "client", "db", Protocol::TCP);
}

#[test]
fn a_frame_that_comes_by_a_card_is_not_the_nodes_own() {
    const OWN: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77);
    const FRIEND: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let Some(_isolated) = isolated() else { return };
    let rig = up(&["db"], "");
    let db = rig.pod("db");
    run("ip link add up0 type veth peer name up1");
    ["up0", "up1"].iter().for_each(|end| _ = run(&format!("ip link set {end} up")));
    run(&format!("ip address add {OWN}/128 dev lo"));
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
    rig.switch.client().put_port("up0", &PortRequest::of(PortKind::Uplink)).unwrap();
    let receiver = db.run(|| UdpSocket::bind((db.v6(), PORT))).unwrap().unwrap();
    receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
    let card = PacketSocket::open("up1").unwrap();
    let [from, to] = ["up1", "up0"].map(|end| Interface::find(end).unwrap().mac.0);
    let send = |source: Ipv6Addr, words: &[u8]| {
        let mut frame = Vec::new();
        let packet = etherparse::PacketBuilder::ethernet2(from, to);
        packet.ipv6(source.octets(), db.v6().octets(), 64).udp(PORT, PORT).write(&mut frame, words).unwrap();
        card.send(&frame).unwrap();
    };
    let next = || {
        let mut words = [0; 16];
        let length = receiver.recv(&mut words).unwrap();
        String::from_utf8_lossy(&words[..length]).into_owned()
    };
    let ping = ["-c1", "-W1", &db.v6().to_string()].map(str::to_owned);
    eventually("the node has found the pod", || {
        Command::new("ping").args(&ping).output().unwrap().status.success()
    });
    // Without a policy the node forwards to the pod.
    send(FRIEND, b"open");
    assert_eq!(next(), "open");
    let policy = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: to-db, namespace: default}}\nspec: {{podSelector: \
         {{}}, ingress: [{{from: [{{ipBlock: {{cidr: '{FRIEND}/128'}}}}]}}]}}\n"
    );
    let status = format!("\"status\": {{\"hostIP\": \"{OWN}\",");
    let pods = pods_manifest(&rig.lab).replace("\"status\": {", &status);
    assert!(pods.contains("hostIP"), "{pods}");
    rig.switch.apply(&format!("{pods}---\n{policy}")).unwrap();
    // The node's own sockets reach the pod. A frame from the link with their address comes before an allowed one, and does
    // not arrive.
    UdpSocket::bind((OWN, PORT)).unwrap().send_to(b"own", (db.v6(), PORT)).unwrap();
    assert_eq!(next(), "own");
    send(OWN, b"forged");
    send(FRIEND, b"allowed");
    assert_eq!(next(), "allowed");
    // The node's own multicast comes back by the card, and its other sockets hear it.
    let hears = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    let card = Interface::find("up0").unwrap().index;
    let group: Ipv6Addr = "ff02::1234".parse().unwrap();
    hears.join_multicast_v6(&group, card).unwrap();
    hears.set_read_timeout(Some(TIMEOUT)).unwrap();
    let says = UdpSocket::bind((OWN, 0)).unwrap();
    says.send_to(b"group", std::net::SocketAddrV6::new(group, PORT, 0, card)).unwrap();
    assert_eq!(hears.recv(&mut [0; 16]).unwrap(), 5);
}
