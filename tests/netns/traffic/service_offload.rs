//! Flow offload of connections to Services: the kernel translates what the workers have bound, until a Service or a policy changes.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use palisade::lab::Pod;
use palisade::lab::traffic::{Server, Services, transfer};
use palisade::net::flow::Protocol;
use palisade::tables::ServiceTable;

use super::offload::{MEGABYTES, assert_few, flow_of, rig, upcalls};
use super::services::{SERVICE, table, virtual_addresses};
use crate::support::connection::Connection;
use crate::support::{INGRESS, PORT, Rig, TIMEOUT, assert_accounted, eventually, isolated, only_from};

/// Sockets of a client, connected to the Service, and of each of its backends.
struct Datagrams {
    client: UdpSocket,
    backends: Vec<UdpSocket>,
}

impl Datagrams {
    fn open(client: &Pod, by: IpAddr, backends: &[&Pod]) -> Datagrams {
        let own = |pod: &Pod| if by.is_ipv4() { IpAddr::V4(pod.v4()) } else { IpAddr::V6(pod.v6()) };
        let bind = |pod: &Pod, port| {
            let socket = pod.run(|| UdpSocket::bind((own(pod), port)).unwrap()).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        };
        let backends = backends.iter().map(|pod| bind(pod, PORT)).collect();
        let client = bind(client, 0);
        client.connect((by, SERVICE)).unwrap();
        Datagrams { client, backends }
    }

    /// Has a backend answer the client.
    fn exchange(&self, backend: usize) {
        self.client.send(b"hello").unwrap();
        let mut heard = [0; 16];
        let (bytes, from) = self.backends[backend].recv_from(&mut heard).unwrap();
        assert_eq!((&heard[..bytes], from), (&b"hello"[..], self.client.local_addr().unwrap()));
        self.backends[backend].send_to(b"answer", from).unwrap();
        // A connected socket hears from the address of the Service alone.
        assert_eq!(self.client.recv(&mut heard).unwrap(), 6);
        assert_eq!(heard[..6], *b"answer");
    }
}

/// Packets with a wrong checksum that a pod has received.
fn checksum_errors(pod: &Pod) -> Vec<(String, u64)> {
    let read = || {
        ["snmp", "snmp6"]
            .map(|file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap())
    };
    let [v4, v6] = pod.run(read).unwrap();
    let mut errors = Vec::new();
    let lines: Vec<Vec<&str>> = v4.lines().map(|line| line.split_whitespace().collect()).collect();
    for names in lines.chunks(2).filter(|pair| pair.len() == 2) {
        for (name, value) in names[0].iter().zip(&names[1]).filter(|(name, _)| **name == "InCsumErrors") {
            errors.push((format!("{} {name}", names[0][0]), value.parse().unwrap()));
        }
    }
    for line in v6.lines().filter(|line| line.contains("InCsumErrors")) {
        let mut words = line.split_whitespace();
        errors.push((words.next().unwrap().to_owned(), words.next().unwrap().parse().unwrap()));
    }
    errors
}

/// Has a pod finish the checksums of what it sends: the kernel compares these where it receives them.
fn finish_checksums(pod: &Pod) {
    let set = || Command::new("ethtool").args(["-K", "eth0", "tx", "off"]).status().unwrap();
    assert!(pod.run(set).unwrap().success());
}

#[test]
fn flows_to_a_service_cross_without_the_workers_and_every_byte_is_counted() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "web"]);
    let (client, web) = (rig.pod("client"), rig.pod("web"));
    rig.switch.client().put_services(&table(&[&web])).unwrap();
    for is_finished in [false, true] {
        if is_finished {
            [&client, &web].into_iter().for_each(finish_checksums);
        }
        let _server = Server::start(&web, &[PORT], Services::Tcp).unwrap();
        for address in virtual_addresses() {
            let before = upcalls(&rig);
            transfer(&client, address, SERVICE, MEGABYTES, TIMEOUT).unwrap();
            let upcalls = upcalls(&rig) - before;
            assert!(upcalls < 60, "{upcalls} packets of a connection came up");
            let datagrams = Datagrams::open(&client, address, &[&web]);
            datagrams.exchange(0);
            datagrams.exchange(0);
            let before = self::upcalls(&rig);
            (0..500).for_each(|_| datagrams.exchange(0));
            assert_few(self::upcalls(&rig) - before);
            let flow = flow_of(&rig, datagrams.client.local_addr().unwrap());
            assert_eq!((flow.packets, flow.reply_packets), (502, 502), "{flow:?}");
            assert_eq!(flow.service, Some(SocketAddr::new(address, SERVICE)));
            assert!(flow.offloaded, "{flow:?}");
        }
    }
    let errors = [&client, &web].map(checksum_errors);
    assert!(errors.iter().all(|errors| errors.len() >= 4), "{errors:?}");
    assert!(errors.iter().flatten().all(|(_, count)| *count == 0), "{errors:?}");
    let flows = rig.flows(100);
    let connections: Vec<_> = flows.iter().filter(|flow| flow.key.protocol == Protocol::TCP).collect();
    assert_eq!(connections.len(), 4, "{flows:?}");
    assert!(connections.iter().all(|flow| flow.bytes + flow.reply_bytes > MEGABYTES), "{flows:?}");
    assert_accounted(&rig.counters());
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
}

#[test]
fn a_change_of_a_service_or_of_policy_reaches_its_offloaded_flows_at_once() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "web", "other"]);
    let [client, web, other] = ["client", "web", "other"].map(|pod| rig.pod(pod));
    let control = rig.switch.client();
    for address in virtual_addresses() {
        control.put_services(&table(&[&web])).unwrap();
        let by = SocketAddr::new(address, SERVICE);
        let mut connection = Connection::open_by(&client, &web, by);
        assert!(connection.goes_on(TIMEOUT));
        let datagrams = Datagrams::open(&client, address, &[&web, &other]);
        (0..3).for_each(|_| datagrams.exchange(0));
        // Datagrams go to the backend that there is; a connection stays.
        control.put_services(&table(&[&other])).unwrap();
        // A late answer of the former backend, before the first one of the other, takes nothing back.
        let client_end = datagrams.client.local_addr().unwrap();
        datagrams.client.send(b"hello").unwrap();
        datagrams.backends[1].recv_from(&mut [0; 16]).unwrap();
        for (backend, says) in [(0, &b"late"[..]), (1, b"answer")] {
            datagrams.backends[backend].send_to(says, client_end).unwrap();
            assert_eq!(datagrams.client.recv(&mut [0; 16]).unwrap(), says.len());
        }
        (0..3).for_each(|_| datagrams.exchange(1));
        let before = upcalls(&rig);
        (0..200).for_each(|_| datagrams.exchange(1));
        assert!(connection.goes_on(TIMEOUT));
        assert!(connection.goes_on(TIMEOUT));
        let before_last = upcalls(&rig);
        assert_few(before_last - before);
        (0..100).for_each(|_| assert!(connection.goes_on(TIMEOUT)));
        assert_few(upcalls(&rig) - before_last);
        // Another policy.
        rig.apply(&only_from("web", "other"));
        connection.assert_ended(&rig.switch, &client, INGRESS);
        rig.apply("");
        // No Service.
        let mut connection = {
            control.put_services(&table(&[&web])).unwrap();
            Connection::open_by(&client, &web, by)
        };
        assert!(connection.goes_on(TIMEOUT));
        assert!(connection.goes_on(TIMEOUT));
        control.put_services(&ServiceTable::default()).unwrap();
        connection.client.write_all(b"hello").unwrap();
        eventually("the segment is dropped", || rig.drops().contains_key("no-route"));
        connection.server.set_nonblocking(true).unwrap();
        assert!(connection.server.read(&mut [0; 16]).is_err(), "the backend hears a segment");
    }
}

#[test]
fn flows_to_a_service_outlive_the_switch_and_are_compared_with_the_services_of_the_next_one() {
    let Some(_isolated) = isolated() else { return };
    let Rig { switch, mut lab } = rig(&["client", "web", "other"]);
    let [client, web, other] = ["client", "web", "other"].map(|pod| lab.pod(pod).unwrap());
    switch.client().put_services(&table(&[&web])).unwrap();
    let [address, _] = virtual_addresses();
    let datagrams = Datagrams::open(&client, address, &[&web, &other]);
    (0..3).for_each(|_| datagrams.exchange(0));
    let mut connection = Connection::open_by(&client, &web, SocketAddr::new(address, SERVICE));
    assert!(connection.goes_on(TIMEOUT));
    switch.kill().unwrap();
    // The kernel alone forwards and translates.
    (0..100).for_each(|_| datagrams.exchange(0));
    assert!(connection.goes_on(TIMEOUT));
    let switch = Rig::start(&mut lab, "");
    (0..100).for_each(|_| datagrams.exchange(0));
    switch.client().put_services(&table(&[&web])).unwrap();
    (0..100).for_each(|_| datagrams.exchange(0));
    assert!(connection.goes_on(TIMEOUT));
    let rig = Rig { switch, lab };
    let before = upcalls(&rig);
    (0..200).for_each(|_| datagrams.exchange(0));
    assert_few(upcalls(&rig) - before);
    // The next one has other backends.
    let Rig { switch, mut lab } = rig;
    switch.kill().unwrap();
    let switch = Rig::start(&mut lab, "");
    switch.client().put_services(&table(&[&other])).unwrap();
    (0..100).for_each(|_| datagrams.exchange(1));
    assert!(connection.goes_on(TIMEOUT));
    let rig = Rig { switch, lab };
    assert_accounted(&rig.counters());
}
