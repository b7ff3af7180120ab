//! Interfaces that are deleted, made again or renamed: ports follow them, and no frame of a pod reaches the
//! node's stack.

use std::process::Command;

use palisade::control::protocol::PortState;
use palisade::lab::traffic::{Server, Services};
use palisade::lab::{Lab, LabSpec, Pod, Switch, SwitchSpec, manifests};

use crate::support::capture::Capture;
use crate::support::closed::{assert_closed, assert_cut};
use crate::support::connection::Connection;
use crate::support::veth::{host_end, ip, make_again, port_of, program_on, try_ip, wait_for};
use crate::support::{PORT, Rig, TIMEOUT, assert_allowed, eventually, isolated};

/// Only a first segment opens a connection: one that continues has kept its flow.
const STRICT: &str = "[conntrack]\ntcp_pickup = false\n";

/// Captures frames of the node's stack on any of its interfaces.
fn tap_on_all() -> Capture {
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.arg("net 10.77.0.0/16");
    Capture::on("any", tcpdump)
}

/// Thread that sends from a pod until drop.
struct Chatter {
    _child: palisade::lab::PodChild,
}

impl Chatter {
    fn of(pod: &Pod) -> Chatter {
        let script =
            format!("while :; do echo x > /dev/udp/{}/9 ; sleep 0.001; done 2>/dev/null", "10.77.0.200");
        Chatter { _child: pod.spawn(Command::new("bash").args(["-c", &script])).unwrap() }
    }
}

#[test]
fn a_veth_that_is_made_again_is_closed_while_it_is_down_and_attached_again_without_its_connections() {
    let Some(_isolated) = isolated() else { return };
    // A pod without a switch is the positive control of the capture.
    let mut lab =
        Lab::up(&LabSpec { workers: 1, ..LabSpec::of(&["client", "server", "stranger"]).unwrap() }).unwrap();
    let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    (spec.stay_closed, spec.config) = (true, STRICT.to_owned());
    let switch = Switch::start(&mut lab, &spec).unwrap();
    let [client, server, stranger] = ["client", "server", "stranger"].map(|name| lab.pod(name).unwrap());
    switch.attach(&client).unwrap();
    switch.attach(&server).unwrap();
    switch.apply(&manifests(&lab, |_| [].into())).unwrap();
    let mut talk = Connection::open(&client, &server);
    assert!(talk.goes_on(TIMEOUT));
    let _server = Server::start(&server, &[PORT], Services::Tcp).unwrap();

    let detector = tap_on_all();
    let chatter = Chatter::of(&stranger);
    detector.assert_hears(|| ());
    drop(chatter);
    ip(&format!("link delete {}", host_end(&stranger)));

    let before = port_of(&switch, &client);
    let attachment = |name: &Pod| {
        let pods = switch.client().pods().unwrap();
        pods.into_iter().find(|pod| pod.pod == name.plan().pod).unwrap().attachment
    };
    let first_attachment = attachment(&client);
    let detector = tap_on_all();
    let _chatter = Chatter::of(&client);
    let host = host_end(&client);
    for _ in 0..3 {
        ip(&format!("link delete {host}"));
        let port = wait_for(&switch, &client, PortState::Down, "is gone");
        assert_eq!(port.pod, Some(client.plan().pod.clone()), "the pod stays attached");
        let problems = switch.client().status().unwrap().problems;
        assert!(problems.iter().any(|problem| problem.contains(&host)), "{problems:?}");
        make_again(&lab, &client, 1);
        eventually("the interface is closed while it is down", || program_on(&host).is_some());
        ip(&format!("link set {host} up"));
        wait_for(&switch, &client, PortState::Up, "");
    }
    let after = port_of(&switch, &client);
    assert_ne!(after.report.interface_index, before.report.interface_index);
    assert_eq!(Some(after.report.program), program_on(&host));
    assert_ne!(attachment(&client), first_attachment, "another attachment");
    assert_allowed(&client, server.v4().into());
    // The connection of the earlier attachment is not inherited.
    assert_cut(&switch, &client, &mut talk, "invalid-state");
    let leaked = detector.frames();
    assert!(
        leaked.is_empty(),
        "{} frames reached the node's stack: {:?}",
        leaked.len(),
        &leaked[..leaked.len().min(3)]
    );
    for pod in [&client, &server] {
        switch.detach(pod).unwrap();
    }
    eventually("every frame is free when every port is closed", || {
        let counters = switch.client().counters().unwrap();
        counters.workers.values().all(|worker| worker.frames == worker.frames_free)
    });
}

#[test]
fn a_changed_mtu_is_followed_and_connections_go_on() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client", "server"], 2, STRICT);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let host = host_end(&client);
    let mut talk = Connection::open(&client, &server);
    assert!(talk.goes_on(TIMEOUT));

    ip(&format!("link set {host} mtu 1400"));
    eventually("the port has the MTU", || port_of(&rig.switch, &client).report.mtu == 1400);
    assert!(talk.goes_on(TIMEOUT), "the connection goes on over another MTU");

    ip(&format!("link set {host} mtu 65535"));
    wait_for(&rig.switch, &client, PortState::Down, "MTU 65535");
    assert!(program_on(&host).is_some(), "and it is closed");
    assert_closed(&client, server.v4().into());
    ip(&format!("link set {host} mtu 1500"));
    wait_for(&rig.switch, &client, PortState::Up, "");
    assert_connects_to(&client, &server);
}

#[test]
fn a_changed_number_of_queues_is_followed_and_connections_go_on() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec { workers: 2, ..LabSpec::of(&["client", "server"]).unwrap() }).unwrap();
    let client = lab.pod("client").unwrap();
    let host = host_end(&client);
    // The kernel refuses fewer queues than there are sockets, so the test begins with one.
    let set = |queues: &str| Command::new("ethtool").args(["-L", &host, "rx", queues, "tx", queues]).status();
    let pod_end = client.status(Command::new("ethtool").args(["-L", "eth0", "rx", "1", "tx", "1"]));
    assert!(pod_end.unwrap().success() && set("1").unwrap().success());
    let switch = Rig::start(&mut lab, STRICT);
    let rig = Rig { switch, lab };
    assert_eq!(port_of(&rig.switch, &client).report.queues, 1);
    let mut talk = Connection::open(&client, &rig.pod("server"));
    assert!(set("2").unwrap().success());
    eventually("the port has both queues", || port_of(&rig.switch, &client).report.queues == 2);
    assert!(talk.goes_on(TIMEOUT), "the connection goes on over other queues");
}

fn assert_connects_to(client: &Pod, server: &Pod) {
    let _server = Server::start(server, &[PORT], Services::Tcp).unwrap();
    assert_allowed(client, server.v4().into());
}

#[test]
fn a_renamed_interface_is_followed_and_a_newcomer_of_its_name_is_closed() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client", "server"], 1, STRICT);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let host = host_end(&client);
    let mut talk = Connection::open(&client, &server);
    ip(&format!("link set {host} down"));
    wait_for(&rig.switch, &client, PortState::Down, "is set down");
    ip(&format!("link set {host} name pal-renamed"));
    ip("link set pal-renamed up");
    wait_for(&rig.switch, &client, PortState::Up, "is called pal-renamed now");
    assert!(talk.goes_on(TIMEOUT), "the port stays on its interface");

    ip(&format!("link add {host} type bridge"));
    eventually("the newcomer is closed", || program_on(&host).is_some());
    wait_for(&rig.switch, &client, PortState::Up, "another interface has that name now");
    assert!(talk.goes_on(TIMEOUT));
    ip(&format!("link delete {host}"));
    ip("link set pal-renamed down");
    ip(&format!("link set pal-renamed name {host}"));
    ip(&format!("link set {host} up"));
    eventually("nothing is amiss", || {
        let port = port_of(&rig.switch, &client);
        (port.state, port.reason) == (PortState::Up, None)
    });
    assert!(talk.goes_on(TIMEOUT));
}

#[test]
fn a_program_that_is_taken_off_is_put_back() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec { workers: 1, ..LabSpec::of(&["client", "server"]).unwrap() }).unwrap();
    // Without a BPF file system the program is attached by netlink, and anybody may detach it.
    let pins = format!("[xdp]\npin_directory = \"{}\"\n", lab.directory().join("pins").display());
    let switch = Rig::start(&mut lab, &pins);
    let rig = Rig { switch, lab };
    let problems = rig.switch.client().status().unwrap().problems;
    assert!(problems.iter().any(|problem| problem.contains("without BPF links")), "{problems:?}");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let host = host_end(&client);
    let before = program_on(&host).expect("attached");
    ip(&format!("link set dev {host} xdp off"));
    eventually("a program of the port is back", || {
        let port = port_of(&rig.switch, &client);
        port.state == PortState::Up
            && port.report.program != before
            && Some(port.report.program) == program_on(&host)
    });
    assert_connects_to(&client, &server);
}

#[test]
fn something_else_under_the_name_is_closed_and_said_and_the_veth_is_taken_again() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client", "server"], 1, "");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let host = host_end(&client);
    ip(&format!("link delete {host}"));
    // A bridge takes XDP in the generic hook only. Here it has the name of the port's interface.
    ip(&format!("link add {host} mtu 65535 type bridge"));
    wait_for(&rig.switch, &client, PortState::Down, "cannot be attached to (what it receives is dropped)");
    assert!(program_on(&host).is_some());
    ip(&format!("link delete {host}"));
    make_again(&rig.lab, &client, 1);
    ip(&format!("link set {host} up"));
    wait_for(&rig.switch, &client, PortState::Up, "");
    assert_connects_to(&client, &server);
}

#[test]
fn a_runtime_that_remakes_and_swaps_all_interfaces_in_a_loop_ends_with_every_port_up() {
    let Some(_isolated) = isolated() else { return };
    let names = ["a", "b", "c", "d"];
    let rig = Rig::with(&names, 1, "");
    let pods: Vec<Pod> = names.iter().map(|name| rig.pod(name)).collect();
    let detector = tap_on_all();
    for round in 0..2 {
        for pod in &pods {
            ip(&format!("link delete {}", host_end(pod)));
            make_again(&rig.lab, pod, 2 - round % 2);
        }
        for pod in &pods {
            let host = host_end(pod);
            eventually("the interface is closed while it is down", || program_on(&host).is_some());
            ip(&format!("link set {host} up"));
        }
    }
    // Two interfaces exchange names, while both are up if the kernel allows it.
    let [one, other] = [host_end(&pods[0]), host_end(&pods[1])];
    let rename = |from: &str, to: &str| {
        ip(&format!("link set {from} down"));
        ip(&format!("link set {from} name {to}"));
        ip(&format!("link set {to} up"));
    };
    for _ in 0..2 {
        rename(&one, "pal-swap");
        rename(&other, &one);
        rename("pal-swap", &other);
    }
    for pod in &pods {
        eventually("the port is up", || {
            let port = port_of(&rig.switch, pod);
            (port.state, port.reason) == (PortState::Up, None)
                && Some(port.report.program) == program_on(&host_end(pod))
        });
    }
    for pair in pods.chunks(2) {
        assert_connects_to(&pair[0], &pair[1]);
    }
    let leaked = detector.frames();
    assert!(leaked.is_empty(), "{leaked:?} reached the node's stack");
    assert!(!try_ip("link show pal-swap").status.success());
}
