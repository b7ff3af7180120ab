//! Services between pods on veth pairs and tap devices: real connections to virtual addresses.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use palisade::control::protocol::ServicesPatch;
use palisade::lab::traffic::{Outcome, Server, Services, tcp_connect, transfer, udp_exchange};
use palisade::lab::{Lab, LabSpec, Pod, PodPorts};
use palisade::net::flow::Protocol;
use palisade::tables::{ServicePort, ServicePortName, ServiceTable, ServicesDiff};

use crate::support::{
    INGRESS, PORT, Rig, TIMEOUT, assert_accounted, assert_protocol_denied, isolated, only_from,
};

/// Port of the Service; its backends have [`PORT`].
pub(super) const SERVICE: u16 = 80;
const BYTES: u64 = 1 << 18;
/// Fewest connections while the backends change, and fewest changes meanwhile.
const CONNECTIONS: usize = 60;
const CHANGES: usize = 30;

/// Lab with a client and a backend on a tap device, and a client and a backend on a veth pair.
fn rig(config: &str, workers: u16) -> Rig {
    let taps = ["client-tap", "web-tap"].map(|pod| (pod.to_owned(), PodPorts::Tap));
    let mut lab = Lab::up(&LabSpec {
        ports_of: taps.into(),
        mtu: 1500,
        workers,
        ..LabSpec::of(&["client-tap", "client-veth", "web-tap", "web-veth"]).unwrap()
    })
    .unwrap();
    let switch = Rig::start(&mut lab, config);
    Rig { switch, lab }
}

pub(super) fn virtual_addresses() -> [IpAddr; 2] {
    ["10.96.0.1", "fd00:96::1"].map(|address| address.parse().unwrap())
}

fn name(protocol: Protocol) -> ServicePortName {
    ServicePortName { namespace: "default".to_owned(), name: "web".to_owned(), port: None, protocol }
}

fn port(pods: &[&Pod]) -> ServicePort {
    let backends = pods.iter().flat_map(|pod| pod.addresses());
    ServicePort {
        cluster: virtual_addresses().map(|address| SocketAddr::new(address, SERVICE)).to_vec(),
        internal_backends: backends.map(|address| SocketAddr::new(address, PORT)).collect(),
        ..ServicePort::default()
    }
}

pub(super) fn table(pods: &[&Pod]) -> ServiceTable {
    let ports = [Protocol::TCP, Protocol::UDP].map(|protocol| (name(protocol), port(pods)));
    ServiceTable { node_addresses: Vec::new(), ports: ports.into() }
}

#[test]
fn connections_reach_the_backends_of_a_service_while_these_change() {
    let Some(_isolated) = isolated() else { return };
    reach_backends_that_change(&rig("", 1));
}

#[test]
fn connections_reach_the_backends_of_a_service_by_two_workers() {
    let Some(_isolated) = isolated() else { return };
    reach_backends_that_change(&rig("", 2));
}

fn reach_backends_that_change(rig: &Rig) {
    let [tap, veth, web_tap, web_veth] =
        ["client-tap", "client-veth", "web-tap", "web-veth"].map(|name| rig.pod(name));
    let client = rig.switch.client();
    let _servers = [&web_tap, &web_veth].map(|web| Server::start(web, &[PORT], Services::Both).unwrap());
    for (backend, from) in [(&web_tap, &veth), (&web_veth, &tap), (&web_tap, &tap), (&web_veth, &veth)] {
        client.put_services(&table(&[backend])).unwrap();
        for address in virtual_addresses() {
            transfer(from, address, SERVICE, BYTES, TIMEOUT).unwrap();
            assert_eq!(udp_exchange(from, address, SERVICE, TIMEOUT).unwrap(), Outcome::Allowed);
        }
        // The backend reaches itself.
        transfer(backend, virtual_addresses()[0], SERVICE, 1 << 16, TIMEOUT).unwrap();
    }
    assert!(rig.flows(1000).iter().any(|flow| flow.service.is_some_and(|service| service.port() == SERVICE)));

    let base = client.put_services(&table(&[&web_tap, &web_veth])).unwrap().generation;
    let (changes, connections) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_done =
        || changes.load(Ordering::Relaxed) >= CHANGES && connections.load(Ordering::Relaxed) >= CONNECTIONS;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (client, mut base) = (rig.switch.client(), base);
            while !is_done() {
                let pods = match changes.fetch_add(1, Ordering::Relaxed) % 3 {
                    0 => vec![&web_tap],
                    1 => vec![&web_veth],
                    _ => vec![&web_tap, &web_veth],
                };
                let set = [(name(Protocol::TCP), port(&pods))].into();
                let diff = ServicesDiff { set, ..ServicesDiff::default() };
                base = client.patch_services(&ServicesPatch { base, diff }).unwrap().generation;
            }
        });
        while !is_done() {
            let n = connections.fetch_add(1, Ordering::Relaxed);
            let (from, address) = ([&tap, &veth][n % 2], virtual_addresses()[n / 2 % 2]);
            let outcome = tcp_connect(from, address, SERVICE, TIMEOUT).unwrap();
            if outcome != Outcome::Allowed {
                // The other thread ends with this one.
                changes.store(CHANGES, Ordering::Relaxed);
                connections.store(CONNECTIONS, Ordering::Relaxed);
            }
            assert_eq!(outcome, Outcome::Allowed, "{n}");
        }
    });
    let report = client.services().unwrap();
    let tcp = report.ports.iter().find(|port| port.service == name(Protocol::TCP)).unwrap();
    assert!(tcp.flows_opened >= CONNECTIONS as u64, "{tcp:?}");

    // Policy is asked about the backend.
    rig.apply(&only_from("web-veth", "client-tap"));
    client.put_services(&table(&[&web_veth])).unwrap();
    let to = virtual_addresses()[0];
    assert_eq!(tcp_connect(&tap, to, SERVICE, TIMEOUT).unwrap(), Outcome::Allowed);
    // Late packets of the other client's connections are denied.
    let of_tap = &rig.counters().ports[&tap.plan().host_interface];
    assert!(!of_tap.drops.contains_key(INGRESS), "{of_tap:?}");
    assert_protocol_denied(&rig.switch, &veth, (Protocol::TCP, to, SERVICE), INGRESS);
    client.put_services(&table(&[])).unwrap();
    for address in virtual_addresses() {
        assert_eq!(tcp_connect(&tap, address, SERVICE, TIMEOUT).unwrap(), Outcome::Refused);
    }
    assert_accounted(&rig.counters());
}

#[test]
fn a_connection_to_a_service_outlives_the_switch_and_its_backends_place() {
    let Some(_isolated) = isolated() else { return };
    let config = "[conntrack]\ntcp_pickup = false\n";
    let Rig { switch, mut lab } = rig(config, 1);
    let [from, web, other] = ["client-veth", "web-veth", "web-tap"].map(|name| lab.pod(name).unwrap());
    switch.client().put_services(&table(&[&web])).unwrap();
    let listener = web.run(|| TcpListener::bind((web.v4(), PORT))).unwrap().unwrap();
    let to = SocketAddr::new(virtual_addresses()[0], SERVICE);
    let mut there = from.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap().unwrap();
    let (mut back, _) = listener.accept().unwrap();
    there.set_read_timeout(Some(TIMEOUT)).unwrap();
    back.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut goes_on = || {
        let mut heard = [0; 5];
        there.write_all(b"hello").unwrap();
        back.read_exact(&mut heard).unwrap();
        back.write_all(&heard).unwrap();
        there.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    };
    goes_on();
    switch.kill().unwrap();
    let switch = Rig::start(&mut lab, config);
    // Without Services so far.
    goes_on();
    switch.client().put_services(&table(&[&other])).unwrap();
    goes_on();
    drop(switch);
}
