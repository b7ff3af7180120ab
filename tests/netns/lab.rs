//! Tests of the lab with the kernel's bridge in place of the switch.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use palisade::lab::traffic::{
    Outcome, Server, Services, latency, ping, tcp_connect, throughput, transfer, udp_exchange,
};
use palisade::lab::{Journal, Lab, LabError, LabSpec, clean};
use palisade::net::flow::Protocol;

use crate::support::closed::{FirstPacket, assert_counted};
use crate::support::isolated;

/// Longest wait for a reply.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Environment variable of the child process that makes a lab and is killed.
const HOLDS_A_LAB: &str = "PALISADE_TEST_HOLDS_A_LAB";

fn lab(pods: &[&str], workers: u16) -> Lab {
    Lab::up(&LabSpec { workers, ..LabSpec::of(pods).unwrap() }).unwrap()
}

/// Output of a command.
fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Command that sleeps, and holds no pipe of this process open.
fn sleep(seconds: u32) -> Command {
    let mut command = Command::new("sleep");
    command.arg(seconds.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Interfaces, namespaces and files of this machine with the id of a lab in their names.
fn traces(id: &str) -> Vec<String> {
    let mut lines: Vec<String> = ["ip -o link", "ip netns list", "ls -R /run"]
        .iter()
        .flat_map(|command| {
            let words: Vec<&str> = command.split(' ').collect();
            run(&words).lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    lines.retain(|line| line.contains(id));
    lines
}

/// Interfaces of the calling thread's network namespace and their addresses, whose duplicate address detection may still be
/// running.
fn interfaces() -> String {
    let addresses = run(&["ip", "-o", "address"]).replace(" tentative", "");
    addresses + &run(&["ip", "-o", "link"])
}

/// Packets of an interface in a direction: `rx` or `tx`.
fn link_statistic(interface: &str, direction: &str) -> u64 {
    let shown = run(&["ip", "-s", "-j", "link", "show", interface]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown[0]["stats64"][direction]["packets"].as_u64().unwrap()
}

#[test]
fn pods_have_their_queues_mtu_addresses_and_routes_and_the_host_end_has_nothing() {
    let Some(_isolated) = isolated() else { return };
    let lab = Lab::up(&LabSpec { workers: 2, mtu: 3000, ..LabSpec::of(&["a", "team/b"]).unwrap() }).unwrap();
    let pod = lab.pod("team/b").unwrap();
    let in_pod = |words: &[&str]| run(&[&["ip", "netns", "exec", pod.namespace().name()], words].concat());

    let link = in_pod(&["ip", "-d", "link", "show", "eth0"]);
    assert!(link.contains("numtxqueues 2") && link.contains("numrxqueues 2"), "{link}");
    assert!(link.contains("mtu 3000") && link.contains("LOWER_UP"), "{link}");
    assert!(link.contains(&pod.plan().mac.to_string()), "{link}");
    let addresses = in_pod(&["ip", "-o", "address", "show", "eth0"]);
    assert!(addresses.contains(&format!("{}/32", pod.v4())), "{addresses}");
    let v6 = addresses.lines().find(|line| line.contains(&format!("{}/128", pod.v6())));
    assert!(v6.is_some_and(|line| !line.contains("tentative")), "{addresses}");
    assert!(in_pod(&["ip", "route"]).contains("default via 169.254.1.1 dev eth0"));
    assert!(in_pod(&["ip", "-6", "route"]).contains("default via fe80::1 dev eth0"));

    let host = run(&["ip", "-d", "address", "show", &pod.plan().host_interface]);
    assert!(host.contains("numtxqueues 2") && host.contains("numrxqueues 2"), "{host}");
    assert!(host.contains("mtu 3000") && host.contains("LOWER_UP"), "{host}");
    assert!(!host.contains("inet"), "{host}");
    assert!(host.contains(&lab.journal().mark()), "{host}");
}

#[test]
fn pods_talk_over_the_kernels_bridge_by_tcp_udp_and_icmp_of_both_families() {
    let Some(_isolated) = isolated() else { return };
    let lab = lab(&["client", "server"], 1);
    let bridge = lab.bridge().unwrap();
    let (client, server) = (lab.pod("client").unwrap(), lab.pod("server").unwrap());
    let serving = Server::start(&server, &[6379], Services::Both).unwrap();
    for address in server.addresses() {
        assert_eq!(ping(&client, address, TIMEOUT).unwrap(), Outcome::Allowed, "{address}");
        assert_eq!(tcp_connect(&client, address, 6379, TIMEOUT).unwrap(), Outcome::Allowed, "{address}");
        assert_eq!(udp_exchange(&client, address, 6379, TIMEOUT).unwrap(), Outcome::Allowed, "{address}");
        assert_eq!(tcp_connect(&client, address, 6380, TIMEOUT).unwrap(), Outcome::Refused, "{address}");
        assert_eq!(udp_exchange(&client, address, 6380, TIMEOUT).unwrap(), Outcome::Refused, "{address}");
        transfer(&client, address, 6379, 1 << 20, TIMEOUT).unwrap();
    }
    let moment = Duration::from_millis(100);
    // A measurement is empty if this thread never runs meanwhile.
    let measured = |_| latency(&client, server.v4().into(), 6379, moment).unwrap();
    let round_trips = (0..100).map(measured).find(|round_trips| round_trips.count > 0).expect("one of many");
    assert!(round_trips.p50_us <= round_trips.p99_us, "{round_trips:?}");
    assert!((0..100).any(|_| throughput(&client, server.v4().into(), 6379, moment).unwrap().bytes > 0));

    drop(serving);
    assert_eq!(tcp_connect(&client, server.v4().into(), 6379, TIMEOUT).unwrap(), Outcome::Refused);
    drop(bridge);
    assert!(!traces(lab.id()).iter().any(|line| line.contains("_bridge")));
    // The host end receives what the pod sends, and nobody takes it from there.
    for protocol in [Protocol::TCP, Protocol::UDP] {
        assert_counted(
            "no bridge",
            || link_statistic(&client.plan().host_interface, "rx"),
            || client.run(|| FirstPacket::send(protocol, server.v4().into(), 6379)).unwrap(),
        );
    }
    // With the bridge back, the pods reach each other again.
    let _bridge = lab.bridge().unwrap();
    assert_eq!(ping(&client, server.v6().into(), TIMEOUT).unwrap(), Outcome::Allowed);
}

#[test]
fn the_host_neither_answers_nor_sends_on_its_ends_of_the_pods() {
    let Some(_isolated) = isolated() else { return };
    // The pod of an outer lab is the host of an inner one, so that no other traffic touches that host.
    let outer = lab(&["host"], 1);
    let host = outer.pod("host").unwrap();
    let address = host.v4();
    host.run(|| {
        let inner = LabSpec {
            v4: "10.78.0.0/16".parse().unwrap(),
            v6: "fd78::/64".parse().unwrap(),
            ..LabSpec::of(&["a"]).unwrap()
        };
        let inner = Lab::up(&inner).unwrap();
        let pod = inner.pod("a").unwrap();
        let interface = &pod.plan().host_interface;
        let gateway: IpAddr = "169.254.1.1".parse().unwrap();
        for to in [address.into(), host.v6().into(), gateway] {
            let protocol = if to.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
            assert_counted(
                "the host",
                || link_statistic(interface, "rx"),
                || pod.run(|| FirstPacket::send(protocol, to, 0)).unwrap(),
            );
        }
        assert_eq!(link_statistic(interface, "tx"), 0);
    })
    .unwrap();
}

#[test]
fn a_dropped_lab_leaves_nothing() {
    let Some(_isolated) = isolated() else { return };
    let outer = lab(&["host"], 1);
    outer
        .pod("host")
        .unwrap()
        .run(|| {
            let before = interfaces();
            let inner = lab(&["a", "b"], 1);
            let id = inner.id().to_owned();
            let _bridge = inner.bridge().unwrap();
            let mut sleeper = inner.pod("a").unwrap().spawn(&mut sleep(30)).unwrap();
            assert!(traces(&id).len() >= 4, "{:?}", traces(&id));
            drop(inner);
            assert_eq!(interfaces(), before);
            assert_eq!(traces(&id), Vec::<String>::new());
            assert!(!sleeper.child().wait().unwrap().success(), "ends with its pod");
        })
        .unwrap();
    drop(outer);
    assert!(!Path::new("/run/palisade/lab").exists(), "the directory of labs goes with the last one");
}

#[test]
fn a_lab_that_cannot_stand_leaves_nothing() {
    let Some(_isolated) = isolated() else { return };
    let (before, _) = Journal::all().unwrap();
    let mut id = None;
    let spec = LabSpec::of(&["a", "b"]).unwrap();
    let foreign = std::cell::RefCell::new(None);
    let result = Lab::up_with(&spec, &mut |pod| {
        // Another interface takes the name of the second pod's.
        let lab = pod.host_interface.trim_end_matches("p0").to_owned();
        let name = format!("{lab}p1");
        run(&["ip", "link", "add", &name, "type", "bridge"]);
        *foreign.borrow_mut() = Some(name);
        id = Some(lab.trim_start_matches("pal").to_owned());
    });
    let foreign = foreign.into_inner().unwrap();
    let left = traces(&id.unwrap());
    run(&["ip", "link", "del", &foreign]);
    assert!(matches!(result.unwrap_err(), LabError::Kernel { .. }));
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].contains(&foreign), "what is not the lab's stays: {left:?}");
    assert!(before.iter().all(|journal| Journal::of(&journal.id).is_ok() || !journal.is_owned()));
}

/// Child process that the next test starts and kills.
#[test]
#[ignore = "the child of another test"]
fn child_that_holds_a_lab() {
    if std::env::var_os(HOLDS_A_LAB).is_none() {
        return;
    }
    let mut lab = lab(&["a", "b"], 1);
    let _bridge = lab.bridge().unwrap();
    let guarded = lab.pod("a").unwrap().spawn(&mut sleep(30)).unwrap().child().id();
    // Dropping the guard above has ended its child; these two processes stay.
    let inside = lab.pod("a").unwrap().run(|| sleep(31).spawn().unwrap().id()).unwrap();
    let outside = sleep(32).spawn().unwrap().id();
    lab.note_process(outside).unwrap();
    assert!(palisade::lab::Process::find(guarded).is_none());
    println!("standing {} {inside} {outside}", lab.id());
    std::thread::sleep(Duration::from_secs(30));
}

#[test]
fn clean_removes_the_lab_of_a_killed_process_and_spares_the_living_and_the_foreign() {
    let Some(_isolated) = isolated() else { return };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lab::child_that_holds_a_lab", "--ignored", "--nocapture"])
        .env(HOLDS_A_LAB, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let standing = lines.find_map(|line| Some(line.split_once("standing ")?.1.to_owned()));
    let standing = standing.unwrap();
    let words: Vec<&str> = standing.split(' ').collect();
    let id = words[0].to_owned();
    let processes: Vec<_> = words[1..]
        .iter()
        .map(|pid| palisade::lab::Process::find(pid.parse().unwrap()).expect("runs"))
        .collect();

    let alive = clean(std::slice::from_ref(&id)).unwrap();
    assert_eq!(alive.in_use, std::slice::from_ref(&id), "its process runs");
    assert!(processes.iter().all(palisade::lab::Process::is_alive));

    child.kill().unwrap();
    child.wait().unwrap();
    assert!(processes.iter().all(palisade::lab::Process::is_alive), "a killed process removes nothing");
    let foreign = [format!("pal-{id}-c"), format!("pal{id}p7")];
    run(&["ip", "netns", "add", &foreign[0]]);
    run(&["ip", "link", "add", &foreign[1], "type", "bridge"]);
    let neighbour = lab(&["a"], 1);

    let teardown = clean(std::slice::from_ref(&id)).unwrap();
    let left = traces(&id);
    run(&["ip", "netns", "del", &foreign[0]]);
    run(&["ip", "link", "del", &foreign[1]]);

    assert_eq!(teardown.removed, std::slice::from_ref(&id));
    assert_eq!(teardown.errors, Vec::<String>::new());
    assert!(left.iter().all(|line| foreign.iter().any(|name| line.contains(name))), "{left:?}");
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(!processes.iter().any(palisade::lab::Process::is_alive), "ended with the lab");
    assert!(!traces(neighbour.id()).is_empty());
    assert!(matches!(clean(&[id]), Err(LabError::NoLab { .. })));
}

#[test]
fn a_namespace_or_interface_that_took_a_labs_name_is_spared() {
    let Some(_isolated) = isolated() else { return };
    let journal = lab(&["a"], 1).keep().unwrap();
    assert!(!journal.is_owned());
    let (netns, interface) = (&journal.pods[0].netns, &journal.pods[0].host_interface);
    run(&["ip", "netns", "del", netns]);
    // The kernel removes the veth pair with the namespace, with a delay.
    while run(&["ip", "-o", "link"]).contains(interface) {
        std::thread::sleep(Duration::from_millis(20));
    }
    run(&["ip", "netns", "add", netns]);
    run(&["ip", "link", "add", interface, "type", "bridge"]);
    let teardown = clean(std::slice::from_ref(&journal.id)).unwrap();
    run(&["ip", "netns", "del", netns]);
    run(&["ip", "link", "del", interface]);
    assert_eq!(teardown.spared, [format!("interface {interface}"), format!("network namespace {netns}")]);
    assert_eq!(teardown.removed, std::slice::from_ref(&journal.id));
    assert_eq!(traces(&journal.id), Vec::<String>::new());
}
