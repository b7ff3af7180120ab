//! Connections that survive the end of the switch, by a stop or a kill: allowed ones, and no others.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use palisade::control::protocol::FlowQuery;
use palisade::dataplane::FlowTableReport;
use palisade::lab::{Lab, LabSpec, Pod, PodPorts, Switch, SwitchSpec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use crate::support::closed::drops;
use crate::support::namespace::run;
use crate::support::{
    INGRESS, Rig, assert_allowed, assert_denied, eventually, isolated, only_from, pods_manifest, spec_of,
};

/// Segments outside any connection open none: a connection that continues after a restart has kept its flow.
const STRICT: &str = "[conntrack]\ntcp_pickup = false\n";
/// A kill and a stop, each before policies that come before the pods and after them.
const RESTARTS: usize = 4;
/// Four patterns of ports for each of five kinds of speakers.
const CONNECTIONS: usize = 20;
/// Longest wait for a connection to continue. TCP doubles the time between retransmissions.
const RECOVERY: Duration = Duration::from_mins(1);

/// Sides that send on a connection during restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Both,
    Server,
    Client,
    Nobody,
}

/// Connection with a thread for each sending side.
struct Connection {
    sender: Sender,
    ports: [u16; 2],
    client: TcpStream,
    server: TcpStream,
    /// Bytes received by client and server.
    heard: Arc<[AtomicU64; 2]>,
}

impl Connection {
    fn open(
        client: &Pod,
        server: &Pod,
        ports: [u16; 2],
        sender: Sender,
        stop: &Arc<AtomicBool>,
    ) -> Connection {
        let [from, to] = [(client, ports[0]), (server, ports[1])].map(|(pod, port)| (pod.v4(), port));
        let listener = server.run(|| TcpListener::bind(to)).unwrap().unwrap();
        let opened = client.run(|| connect_from(from, to)).unwrap().unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let connection =
            Connection { sender, ports, client: opened, server: accepted, heard: Arc::default() };
        let [client_speaks, server_speaks] =
            [Sender::Client, Sender::Server].map(|end| sender == end || sender == Sender::Both);
        connection.speak(client_speaks, &connection.client, &connection.server, 1, stop);
        connection.speak(server_speaks, &connection.server, &connection.client, 0, stop);
        connection
    }

    /// Sends a little from one end every 20 ms, and counts the bytes that the other one receives.
    fn speak(&self, speaks: bool, from: &TcpStream, to: &TcpStream, heard_by: usize, stop: &Arc<AtomicBool>) {
        let (mut from, mut to, heard) =
            (from.try_clone().unwrap(), to.try_clone().unwrap(), self.heard.clone());
        std::thread::spawn(move || {
            while let Ok(count @ 1..) = to.read(&mut [0; 4096]) {
                heard[heard_by].fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        let stop = stop.clone();
        std::thread::spawn(move || {
            while speaks && !stop.load(Ordering::Relaxed) && from.write_all(&[7; 500]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    fn heard(&self) -> [u64; 2] {
        [0, 1].map(|end| self.heard[end].load(Ordering::Relaxed))
    }

    /// Tells whether every receiving side has received more than `before`.
    fn has_gone_on(&self, before: [u64; 2]) -> bool {
        let [client, server] = self.heard();
        let (client_heard, server_heard) = (client > before[0], server > before[1]);
        match self.sender {
            Sender::Both => client_heard && server_heard,
            Sender::Server => client_heard,
            Sender::Client => server_heard,
            Sender::Nobody => true,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.client.shutdown(std::net::Shutdown::Both);
        let _ = self.server.shutdown(std::net::Shutdown::Both);
    }
}

/// Connects from a given port.
fn connect_from(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> std::io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddr::from(from))?;
    connect(&socket, &SocketAddr::from(to))?;
    Ok(TcpStream::from(socket))
}

/// Ports of client and server: lower, equal, higher, and two from the ephemeral range.
fn ports_of(number: usize, base: u16) -> [u16; 2] {
    let n = base + number as u16;
    match number % 4 {
        0 => [2000 + n, 50_000 + n],
        1 => [30_000 + n, 30_000 + n],
        2 => [50_000 + n, 2000 + n],
        _ => [40_000 + n, 50_050 + n],
    }
}

/// Waits until no byte arrives any more, and returns the received bytes.
fn settled(connections: &[Connection]) -> Vec<[u64; 2]> {
    let heard = || connections.iter().map(Connection::heard).collect::<Vec<_>>();
    loop {
        let before = heard();
        std::thread::sleep(Duration::from_millis(100));
        if heard() == before {
            return before;
        }
    }
}

fn wait_until_all_go_on(switch: &Switch, connections: &[Connection], before: &[[u64; 2]], what: &str) {
    let start = Instant::now();
    loop {
        let dead: Vec<_> = (connections.iter().zip(before))
            .filter(|(connection, before)| !connection.has_gone_on(**before))
            .map(|(connection, _)| (connection.ports, connection.sender))
            .collect();
        if dead.is_empty() {
            return;
        }
        if start.elapsed() > RECOVERY {
            let ports = switch.client().counters().unwrap().ports;
            let drops: Vec<_> = ports.into_iter().map(|(name, port)| (name, port.drops)).collect();
            let mut flows = switch.client().flows(&FlowQuery::first(1000)).unwrap().flows;
            flows.retain(|flow| dead.iter().any(|(ports, _)| ports[0] == flow.flow.key.src_port));
            panic!(
                "{what}: {} connections are dead: {dead:?}; drops {drops:?}; flows {flows:#?}",
                dead.len()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a switch for the lab. With `policy_first` it gets policies before pods, otherwise pods before
/// policies.
fn start(lab: &mut Lab, config: &str, policies: &str, policy_first: bool) -> Switch {
    let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    spec.stay_closed = true;
    spec.config.push_str(config);
    let switch = Switch::start(lab, &spec).unwrap();
    let manifest = format!("{}---\n{policies}", pods_manifest(lab));
    if policy_first {
        switch.apply(&manifest).unwrap();
    }
    switch.attach_all(lab).unwrap();
    if !policy_first {
        switch.apply(&manifest).unwrap();
    }
    switch
}

fn flow_table(switch: &Switch) -> FlowTableReport {
    switch.client().status().unwrap().flow_table
}

/// Policy by which the server accepts everything from the client and nothing from others.
const FROM_CLIENT_ONLY: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: to-server, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
";

#[test]
fn running_connections_outlive_switches_that_are_killed_or_stopped_and_denied_ones_stay_denied() {
    running_connections_outlive_switches(PodPorts::Veth);
}

#[test]
fn running_connections_outlive_switches_that_are_killed_or_stopped_and_denied_ones_stay_denied_on_taps() {
    running_connections_outlive_switches(PodPorts::Tap);
}

#[test]
fn running_connections_outlive_switches_that_are_killed_or_stopped_and_denied_ones_stay_denied_offloaded() {
    running_connections_outlive_switches(PodPorts::Offload);
}

fn running_connections_outlive_switches(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec { ports, ..spec_of(&["client", "server", "intruder"]) }).unwrap();
    let [client, server, intruder] = ["client", "server", "intruder"].map(|name| lab.pod(name).unwrap());
    // Offloaded connections go on for the lease.
    let config =
        if ports == PodPorts::Offload { &format!("{STRICT}[offload]\nlease_s = 1\n") } else { STRICT };
    let mut switch = start(&mut lab, config, "", true);
    let stop = Arc::new(AtomicBool::new(false));
    let speakers = [Sender::Both, Sender::Server, Sender::Client, Sender::Nobody, Sender::Server];
    let open = |from: &Pod, number: usize, base, sender| {
        Connection::open(from, &server, ports_of(number, base), sender, &stop)
    };
    let allowed: Vec<Connection> =
        (0..CONNECTIONS).map(|number| open(&client, number, 0, speakers[number / 4 % 5])).collect();
    // Connections from before the policy: denied from the first restart on.
    let denied: Vec<Connection> = (0..4).map(|number| open(&intruder, number, 100, Sender::Both)).collect();
    let nobody_yet = vec![[0; 2]; CONNECTIONS];
    wait_until_all_go_on(&switch, &allowed, &nobody_yet, "before any restart");
    wait_until_all_go_on(&switch, &denied, &nobody_yet, "before any restart");
    let mut denied_heard = None;
    for restart in 0..RESTARTS {
        if restart % 2 == 0 {
            switch.kill().unwrap();
        } else {
            assert!(switch.stop().unwrap().success());
        }
        let before = settled(&allowed);
        let denied_before = denied_heard.get_or_insert_with(|| settled(&denied)).clone();
        switch = start(&mut lab, config, FROM_CLIENT_ONLY, restart % 4 < 2);
        let report = flow_table(&switch);
        assert!(report.restored >= CONNECTIONS as u64, "restart {restart}: {report}");
        wait_until_all_go_on(&switch, &allowed, &before, &format!("restart {restart}: {report}"));
        if restart == 0 {
            // The first segment ends the flow, of whichever side it is. The later ones are in no state.
            let dropped = |pod: &Pod, reason| drops(switch.client(), &pod.plan().host_interface, reason);
            eventually("a segment of a denied connection is dropped", || {
                [INGRESS, "invalid-state"]
                    .iter()
                    .any(|reason| dropped(&intruder, reason) + dropped(&server, reason) > 0)
            });
        }
        assert_eq!(heard_by(&denied), denied_before, "restart {restart}: what is denied has gone on");
    }
    assert_denied(&switch, &intruder, server.v4().into(), INGRESS);
    // Connections without a segment in all this time survive as well.
    for connection in allowed.iter().filter(|connection| connection.sender == Sender::Nobody) {
        let before = connection.heard();
        (&connection.server).write_all(b"still there").unwrap();
        (&connection.client).write_all(b"still here").unwrap();
        let start = Instant::now();
        while connection.heard() != [before[0] + 11, before[1] + 10] {
            assert!(start.elapsed() < RECOVERY, "{:?} was idle and is dead", connection.ports);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    stop.store(true, Ordering::Relaxed);
}

/// Received bytes of each connection at this moment.
fn heard_by(connections: &[Connection]) -> Vec<[u64; 2]> {
    connections.iter().map(Connection::heard).collect()
}

/// Asserts that a new connection is established.
fn assert_connects_anew(client: &Pod, server: &Pod) {
    let _server = palisade::lab::traffic::Server::start(
        server,
        &[crate::support::PORT],
        palisade::lab::traffic::Services::Tcp,
    )
    .unwrap();
    assert_allowed(client, server.v4().into());
}

#[test]
fn the_flow_table_is_its_users_alone_in_huge_pages_where_the_switch_says_so_and_refused_to_a_second_switch() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&spec_of(&["client", "server"])).unwrap();
    let [client, server] = ["client", "server"].map(|name| lab.pod(name).unwrap());
    let switch = start(&mut lab, STRICT, &only_from("server", "client"), true);
    let report = flow_table(&switch);
    let directory: PathBuf = report.directory.clone().expect("a directory");
    let mode = |path: PathBuf| std::os::unix::fs::MetadataExt::mode(&fs::metadata(path).unwrap()) & 0o777;
    assert_eq!(mode(directory.clone()), 0o700);
    assert!(["table", "pods.json"].iter().all(|file| mode(directory.join(file)) == 0o600));
    let maps = fs::read_to_string(format!("/proc/{}/smaps", switch.pid())).unwrap();
    let of_table = maps.split_once("control.flows/table").expect("it is mapped").1;
    let pmd = of_table.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
    let kilobytes: u64 = pmd.trim().trim_end_matches(" kB").parse().unwrap();
    let table_kilobytes = fs::metadata(directory.join("table")).unwrap().len() / 1024;
    if report.huge_pages {
        assert_eq!(kilobytes, table_kilobytes, "{report}");
    } else {
        assert!(report.notes.iter().any(|note| note.contains("ordinary pages")), "{report}");
    }

    let config = lab.directory().join("second.toml");
    let flows = directory;
    fs::write(&config, format!("[workers]\nframes = 4096\n[control]\nsocket = \"second.sock\"\n[conntrack]\nflows = 16384\ndirectory = {flows:?}\n"))
        .unwrap();
    let second = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .arg("run")
        .arg("--config")
        .arg(&config)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("another process has the flow table"), "{said}");
    assert!(!lab.directory().join("second.sock").exists());
    assert_connects_anew(&client, &server);
    assert_eq!(flow_table(&switch).directory, Some(flows));
}

#[test]
fn a_full_file_system_below_the_flow_table_is_a_problem_in_the_status() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&spec_of(&["client"])).unwrap();
    let below = lab.directory().join("full");
    fs::create_dir(&below).unwrap();
    run(&format!("mount -t tmpfs -o size=32m tmpfs {}", below.display()));
    let flows = below.join("flows");
    let switch = Rig::start(&mut lab, &format!("[conntrack]\nflows = 4096\ndirectory = {flows:?}\n"));
    let problems = || switch.client().status().unwrap().problems;
    assert_eq!(flow_table(&switch).directory.as_ref(), Some(&flows));
    assert!(problems().is_empty(), "{:?}", problems());
    let mut filler = fs::File::create(below.join("filler")).unwrap();
    while filler.write_all(&[1; 512]).is_ok() {}
    let client = lab.pod("client").unwrap();
    let (pod, request) = (client.plan().pod.clone(), client.plan().pod_request());
    switch.client().delete_pod(&pod).unwrap();
    eventually("the status says so", || problems().iter().any(|problem| problem.contains("No space left")));
    fs::remove_file(below.join("filler")).unwrap();
    switch.client().put_pod(&pod, &request).unwrap();
    eventually("the problem is gone", || problems().is_empty());
    drop((switch, filler));
    // Programs that other threads start have its files until they run.
    run(&format!("umount --lazy {}", below.display()));
}
