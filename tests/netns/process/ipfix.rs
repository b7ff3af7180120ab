//! Export of the flows of a running switch: records that add up to the traffic.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use palisade::lab::Pod;
use palisade::lab::traffic::{Server, Services, transfer};
use palisade::net::flow::Protocol;
use palisade::netlink::NetworkNamespace;
use palisade::tables::{ServicePort, ServicePortName, ServiceTable};

use crate::ipfix_collector::{Collector, Record};
use crate::support::connection::Connection;
use crate::support::veth::{ip, try_ip};
use crate::support::{PORT, Rig, TIMEOUT, assert_denied, assert_pings, eventually, isolated, only_from};

// Numbers of elements.
const OCTETS: u16 = 1;
const PACKETS: u16 = 2;
const PROTOCOL: u16 = 4;
const INGRESS: u16 = 10;
const SOURCE_V4: u16 = 8;
const EGRESS: u16 = 14;
const INTERFACE_DESCRIPTION: u16 = 83;
const END_REASON: u16 = 136;
const START: u16 = 152;
const END: u16 = 153;
const FIREWALL_EVENT: u16 = 233;

/// Datagrams in each direction, and only from the client after that.
const EXCHANGED: usize = 60;
const ONE_WAY: usize = 40;
const DATAGRAM: [u8; 100] = [7; 100];

fn config(collector: &Collector) -> String {
    format!(
        "[ipfix]\ncollector = \"{}\"\nactive_timeout_s = 1\ntemplate_interval_s = 1\n\
         [conntrack.timeouts]\ntcp_time_wait_s = 1\ntcp_close_s = 1\nudp_one_way_s = 2\nudp_two_way_s = 2\nicmp_echo_s = 1\n",
        collector.address()
    )
}

/// Records of flows of a protocol.
fn of(collector: &Collector, protocol: u64) -> Vec<&Record> {
    collector.with_element(PACKETS).filter(|record| record.number(PROTOCOL) == protocol).collect()
}

/// Packets and octets of both directions of all these records.
fn sums(records: &[&Record]) -> [u64; 4] {
    let sum = |value: &dyn Fn(&Record) -> u64| records.iter().map(|record| value(record)).sum::<u64>();
    [
        sum(&|record| record.number(PACKETS)),
        sum(&|record| record.number(OCTETS)),
        sum(&|record| record.reverse(PACKETS)),
        sum(&|record| record.reverse(OCTETS)),
    ]
}

/// Sends datagrams to the virtual address of a server, each after the one before has arrived: none is lost.
fn exchange(client: &Pod, server: &Pod, to: SocketAddr) {
    let bind = |pod: &Pod, port: u16| {
        let socket = pod.run(|| UdpSocket::bind((pod.v4(), port))).unwrap().unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    };
    let (here, there) = (bind(client, 0), bind(server, PORT));
    let from = here.local_addr().unwrap();
    let mut buffer = [0; 200];
    for number in 0..EXCHANGED + ONE_WAY {
        here.send_to(&DATAGRAM, to).unwrap();
        assert_eq!(there.recv(&mut buffer).unwrap(), DATAGRAM.len());
        if number < EXCHANGED {
            there.send_to(&DATAGRAM, from).unwrap();
            assert_eq!(here.recv(&mut buffer).unwrap(), DATAGRAM.len());
        }
        // The exchange takes longer than the active timeout.
        std::thread::sleep(Duration::from_millis(15));
    }
}

/// Sums of the records of the exchange.
fn exchanged() -> [u64; 4] {
    let bytes = (DATAGRAM.len() + 28) as u64;
    let (sent, answered) = ((EXCHANGED + ONE_WAY) as u64, EXCHANGED as u64);
    [sent, sent * bytes, answered, answered * bytes]
}

/// Puts a service of the server. Returns its virtual address.
fn serve(rig: &Rig, server: &Pod) -> SocketAddr {
    let virtual_end = SocketAddr::from(([10, 96, 0, 1], 53));
    let port = ServicePort {
        cluster: vec![virtual_end],
        internal_backends: vec![(server.v4(), PORT).into()],
        ..ServicePort::default()
    };
    let name = ServicePortName {
        namespace: "default".to_owned(),
        name: "dns".to_owned(),
        port: None,
        protocol: Protocol::UDP,
    };
    let table = ServiceTable { node_addresses: Vec::new(), ports: [(name, port)].into() };
    rig.switch.client().put_services(&table).unwrap();
    virtual_end
}

#[test]
fn exported_counts_are_those_of_the_traffic_to_the_packet() {
    let Some(_isolated) = isolated() else { return };
    let mut collector = Collector::bind("127.0.0.1:0");
    let rig = Rig::with(&["client", "server", "stranger"], 2, &config(&collector));
    let [client, server, stranger] = ["client", "server", "stranger"].map(|name| rig.pod(name));
    for address in server.addresses() {
        (0..5).for_each(|_| assert_pings(&client, address));
    }
    exchange(&client, &server, serve(&rig, &server));
    let running = Server::start(&server, &[PORT], Services::Tcp).unwrap();
    transfer(&client, IpAddr::V4(server.v4()), PORT, 500_000, TIMEOUT).unwrap();
    transfer(&client, IpAddr::V6(server.v6()), PORT, 500_000, TIMEOUT).unwrap();
    drop(running);
    rig.apply(&only_from("server", "client"));
    assert_denied(&rig.switch, &stranger, server.v4().into(), crate::support::INGRESS);

    // Every flow has ended, and so has its last record. The port counters tell the packets.
    eventually("all flows end", || rig.flows(10).is_empty());
    let forwarded: u64 = rig.counters().ports.values().map(|port| port.forwarded).sum();
    collector.receive_until("all packets", |collector| {
        let all: Vec<&Record> = collector.with_element(PACKETS).collect();
        let [packets, _, replies, _] = sums(&all);
        let ends = |protocol: u64, reason: u64| {
            let records = of(collector, protocol);
            records.into_iter().filter(|record| record.number(END_REASON) == reason).count()
        };
        packets + replies >= forwarded
            && ends(6, 3) >= 2
            && ends(1, 1) > 0
            && ends(58, 1) > 0
            && ends(17, 1) > 0
    });
    let all: Vec<&Record> = collector.with_element(PACKETS).collect();
    let [packets, _, replies, _] = sums(&all);
    assert_eq!(packets + replies, forwarded, "{all:#?}");

    let echo = [of(&collector, 1), of(&collector, 58)];
    for records in &echo {
        let [packets, _, replies, _] = sums(records);
        assert_eq!([packets, replies], [5, 5], "{records:#?}");
    }
    let datagrams = of(&collector, 17);
    assert_eq!(sums(&datagrams), exchanged(), "{datagrams:#?}");
    assert!(datagrams.iter().any(|record| record.number(END_REASON) == 2), "active: {datagrams:#?}");
    let ends: Vec<u64> = datagrams.iter().map(|record| record.number(END)).collect();
    assert!(
        ends.len() > 1
            && ends.is_sorted()
            && datagrams.iter().all(|record| record.number(START) <= record.number(END))
    );
    let connections = of(&collector, 6);
    assert!(sums(&connections)[1] > 1_000_000 && sums(&connections)[3] > 1_000_000, "{connections:#?}");
    let is_end = |record: &&&Record| record.number(END_REASON) == 3;
    assert_eq!(connections.iter().filter(is_end).count(), 2, "two connections have ended: {connections:#?}");

    // Interfaces have the names of the pods, and a denied packet is told.
    let named = |name: &str| {
        let mut options = collector.with_element(INTERFACE_DESCRIPTION);
        let record = options.find(|record| record.text(INTERFACE_DESCRIPTION) == format!("default/{name}"));
        record.unwrap().number(INGRESS)
    };
    for record in connections {
        assert_eq!([record.number(INGRESS), record.number(EGRESS)], ["client", "server"].map(named));
    }
    let is_denied = |record: &&Record| record.number(FIREWALL_EVENT) == 3;
    let denied = collector.with_element(FIREWALL_EVENT).find(is_denied).expect("a denied packet");
    assert_eq!(denied.number(SOURCE_V4), u64::from(u32::from(stranger.v4())));
    assert_eq!(denied.number(INGRESS), named("stranger"));
    let report = rig.switch.client().status().unwrap().ipfix.unwrap();
    assert_eq!((report.lost_ends, report.send_errors, report.unsent_records), (0, 0, 0), "{report:?}");
}

#[test]
fn a_stop_tells_the_rest_and_the_next_start_does_not_tell_it_again() {
    let Some(_isolated) = isolated() else { return };
    let mut collector = Collector::bind("127.0.0.1:0");
    let Rig { switch, mut lab } = Rig::with(
        &["client", "server"],
        1,
        &config(&collector).replace("active_timeout_s = 1", "active_timeout_s = 3600"),
    );
    let [client, server] = ["client", "server"].map(|name| lab.pod(name).unwrap());
    let mut talk = Connection::open(&client, &server);
    (0..5).for_each(|_| assert!(talk.goes_on(TIMEOUT)));
    assert!(switch.stop().unwrap().success());
    collector.receive_until("the rest", |collector| !of(collector, 6).is_empty());
    let [record] = &of(&collector, 6)[..] else { panic!("{:#?}", collector.records) };
    assert_eq!(record.number(END_REASON), 4, "forced end");
    let before = sums(&[record]);
    assert!(before[0] >= 7 && before[2] >= 6, "{before:?}");

    let mut again = Collector::bind("127.0.0.1:0");
    let switch = Rig::start(&mut lab, &config(&again));
    assert!(talk.goes_on(TIMEOUT), "the connection outlives the switch");
    drop(talk);
    again.receive_until("the end", |again| {
        of(again, 6).last().is_some_and(|record| record.number(END_REASON) == 3)
    });
    let [packets, bytes, ..] = sums(&of(&again, 6));
    assert!(packets >= 3 && packets < before[0] + 3 && bytes < before[1], "{packets} packets, {bytes} bytes");
    drop(switch);
}

/// Namespace behind a veth pair with a small MTU.
struct NarrowPath {
    name: String,
    namespace: NetworkNamespace,
}

impl NarrowPath {
    fn add() -> NarrowPath {
        let (name, host) = ("narrow".to_owned(), "narrow0");
        ip(&format!("netns add {name}"));
        ip(&format!("link add {host} mtu 600 type veth peer name eth0 mtu 600 netns {name}"));
        ip(&format!("address add 192.0.2.129/30 dev {host}"));
        ip(&format!("link set {host} up"));
        ip(&format!("-n {name} address add 192.0.2.130/30 dev eth0"));
        ip(&format!("-n {name} link set eth0 up"));
        let namespace = NetworkNamespace::open(&name).unwrap();
        NarrowPath { name, namespace }
    }
}

impl Drop for NarrowPath {
    fn drop(&mut self) {
        try_ip(&format!("netns delete {}", self.name));
    }
}

#[test]
fn messages_fit_into_the_packets_of_a_narrow_path() {
    let Some(_isolated) = isolated() else { return };
    let narrow = NarrowPath::add();
    let mut collector = narrow.namespace.run(|| Collector::bind("192.0.2.130:0")).unwrap();
    let rig = Rig::with(&["client", "server"], 1, &config(&collector));
    let [client, server] = ["client", "server"].map(|name| rig.pod(name));
    let (from, to) = (
        client.run(|| UdpSocket::bind((client.v4(), 0))).unwrap().unwrap(),
        std::net::SocketAddr::from((server.v4(), 9)),
    );
    for port in 1..=40 {
        from.send_to(&DATAGRAM, (to.ip(), port)).unwrap();
    }
    collector.receive_until("the flows", |collector| of(collector, 17).len() >= 40);
    let largest = collector.raw.iter().map(Vec::len).max().unwrap();
    assert!((400..=600 - 28).contains(&largest), "{largest} bytes");
}
