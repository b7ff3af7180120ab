//! The switch as a service of systemd: its messages to a notification socket, and the unit file.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::control::Client;
use palisade::control::protocol::{PodRequest, PortRequest, RouteRequest};
use palisade::dataplane::{Bandwidth, FlowTableReport, RouteOrigin};
use palisade::tables::PodName;
use rustix::process::{Pid, Signal, kill_process};

use super::workers::{Stopped, thread_of};
use crate::support::{TIMEOUT, eventually, isolated};

/// Timeout of the watchdog. The switch reports twice in this time.
const WATCHDOG: Duration = Duration::from_millis(400);

/// Switch without ports whose parent reads a notification socket, as systemd does.
struct Service {
    scratch: PathBuf,
    socket: UnixDatagram,
    process: Child,
}

impl Service {
    fn start(name: &str) -> Service {
        let scratch = PathBuf::from("/run").join(name);
        fs::create_dir_all(scratch.join("policies")).unwrap();
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\nstatus: {podIP: 10.9.0.1}\n";
        fs::write(scratch.join("policies/db.yaml"), pod).unwrap();
        let config = scratch.join("palisade.toml");
        let text = "[workers]\ncores = [0]\nframes = 4096\n[conntrack]\nflows = 4096\ndirectory = \"\"\n\
                    [control]\nsocket = \"control.sock\"\n[policy]\ndirectory = \"policies\"\n";
        fs::write(&config, text).unwrap();
        let socket = UnixDatagram::bind(scratch.join("notify")).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_palisade"))
            .args(["run", "--config"])
            .arg(&config)
            .env("NOTIFY_SOCKET", scratch.join("notify"))
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .stdout(Stdio::null())
            .stderr(fs::File::create(scratch.join("log")).unwrap())
            .spawn()
            .unwrap();
        Service { scratch, socket, process }
    }

    /// Next message within `timeout`.
    fn message(&self, timeout: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        let mut message = [0; 256];
        // A process that was stopped and goes on interrupts a receive with a timeout, signal(7).
        let length = loop {
            match self.socket.recv(&mut message) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.ok()?,
            }
        };
        Some(String::from_utf8(message[..length].to_vec()).unwrap())
    }

    /// Next message that is not of the watchdog.
    fn state(&self) -> String {
        loop {
            let message = self.message(TIMEOUT).expect("a message arrives");
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Network namespace, removed on drop.
struct Namespace(String);

impl Namespace {
    fn new() -> Namespace {
        let name = "reload".to_owned();
        assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
        Namespace(name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn systemd_hears_of_start_reload_and_stop() {
    let Some(_isolated) = isolated() else { return };
    let mut service = Service::start("states");
    assert_eq!(service.state(), "READY=1");
    let status = Client::new(service.scratch.join("control.sock")).status();
    let flow_table = status.expect("ready before it answers").flow_table;
    // Without a directory, flows end with the switch.
    let table = FlowTableReport { capacity: flow_table.capacity, ..FlowTableReport::default() };
    assert_eq!(flow_table, table);
    assert!(!service.scratch.join("control.flows").exists());
    for manifest in ["kind: Pod\n", "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\n"] {
        fs::write(service.scratch.join("policies/db.yaml"), manifest).unwrap();
        service.signal(Signal::HUP);
        let reloading = service.state();
        let (_, since_us) = reloading.split_once("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(since_us.parse::<u64>().is_ok(), "{reloading}");
        assert_eq!(service.state(), "READY=1");
    }
    service.signal(Signal::TERM);
    assert_eq!(service.state(), "STOPPING=1");
    assert!(service.process.wait().unwrap().success());
}

#[test]
fn a_reload_changes_ports_and_routes_names_keys_for_a_restart_and_a_bad_file_changes_nothing() {
    let Some(_isolated) = isolated() else { return };
    let service = Service::start("reload");
    assert_eq!(service.state(), "READY=1");
    let client = Client::new(service.scratch.join("control.sock"));
    let file = service.scratch.join("palisade.toml");
    let start = fs::read_to_string(&file).unwrap();
    let reload = |text: &str| {
        fs::write(&file, text).unwrap();
        service.signal(Signal::HUP);
        assert!(service.state().starts_with("RELOADING=1"));
        assert_eq!(service.state(), "READY=1");
        let log = fs::read_to_string(service.scratch.join("log")).unwrap();
        let names = client.ports().unwrap().into_iter().map(|port| (port.name, port.pod.map(|pod| pod.name)));
        (names.collect::<Vec<_>>(), log)
    };
    let namespace = Namespace::new();
    let tap = |name: &str, pod: &str| {
        format!(
            "[[ports]]\nname = \"{name}\"\nkind = \"tap\"\nnamespace = \"{}\"\npod = \"default/{pod}\"\n\
             pod_addresses = [\"10.9.0.1\"]\n[[routes]]\nprefix = \"10.8.0.0/16\"\nport = \"{name}\"\n",
            namespace.0
        )
    };
    let opened = |port: &str, pod: &str| vec![(port.to_owned(), Some(pod.to_owned()))];
    let (ports, log) = reload(&format!("{start}{}", tap("one", "db")));
    assert_eq!(ports, opened("one", "db"), "{log}");
    assert!(log.contains("port one added, routes replaced"), "{log}");

    // The bandwidth of the pod changes, and its attachment stays.
    let limited = |rate: &str| {
        let with_limit = format!("pod_bandwidth = {{ egress_rate = \"{rate}\" }}\n[[routes]]");
        format!("{start}{}", tap("one", "db").replace("[[routes]]", &with_limit))
    };
    let pod = || client.pods().unwrap().remove(0);
    let before = pod();
    let (ports, log) = reload(&limited("10M"));
    assert_eq!((ports, pod().attachment), (opened("one", "db"), before.attachment));
    assert_eq!(pod().bandwidth.egress().unwrap().rate, 10_000_000);
    assert!(log.contains("bandwidth of pod default/db changed"), "{log}");
    assert_eq!(reload(&limited("10")).0, opened("one", "db"));
    assert_eq!(pod().bandwidth.egress().unwrap().rate, 10_000_000);
    // A request has changed it, and the file restores it.
    client.limit_pod(&before.pod, &Bandwidth::default()).unwrap();
    reload(&limited("10M"));
    assert_eq!((pod().bandwidth.egress().unwrap().rate, pod().attachment), (10_000_000, before.attachment));
    reload(&format!("{start}{}", tap("one", "db")));
    assert_eq!(pod(), before);

    for bad in [
        format!("{start}[worker]\n"),
        format!("{start}{}", tap("one", "db").replace(&namespace.0, "no-such")),
        // A file that an editor has truncated.
        String::new(),
    ] {
        assert_eq!(reload(&bad).0, opened("one", "db"));
    }
    let (ports, log) = reload(&format!("{start}{}", tap("one", "web")));
    assert!(
        ["unknown key \"worker\"", "namespace no-such does not exist", "has no key"]
            .iter()
            .all(|words| log.contains(words)),
        "{log}"
    );
    assert_eq!(ports, opened("one", "web"), "the pod of a port changes");

    let next = start.replace("frames = 4096", "frames = 8192").replace("\"policies\"", "\"others\"");
    let (ports, log) = reload(&next);
    assert_eq!(ports, [], "{log}");
    assert!(log.contains("need a restart: workers.frames, policy.directory"), "{log}");
    assert!(log.contains("port one removed, routes replaced"), "{log}");
}

#[test]
fn the_reload_command_tells_what_was_rejected_and_the_status_keeps_it_until_a_good_reload() {
    let Some(_isolated) = isolated() else { return };
    let service = Service::start("command");
    assert_eq!(service.state(), "READY=1");
    let socket = service.scratch.join("control.sock");
    let client = Client::new(&socket);
    let file = service.scratch.join("palisade.toml");
    let start = fs::read_to_string(&file).unwrap();
    let reload = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        let output = command.args(["reload", "--socket"]).arg(&socket).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap(), text)
    };
    let problems = || client.status().unwrap().problems;
    let (code, said) = reload(&format!("{start}[worker]\n"));
    assert!(code == 1 && said.contains("rejected") && said.contains("worker"), "{said}");
    assert!(problems().iter().any(|problem| problem.contains("a restart would fail")), "{:?}", problems());
    let (code, said) = reload(&start.replace("frames = 4096", "frames = 8192"));
    assert!(code == 0 && said.contains("waits for a restart: workers.frames"), "{said}");
    assert!(problems().iter().any(|problem| problem.ends_with("wait for a restart: workers.frames")));
    let (code, said) = reload(&start);
    assert_eq!((code, said), (0, format!("{} is read\n", file.display())));
    assert!(!problems().iter().any(|problem| problem.contains("palisade.toml")), "{:?}", problems());
}

#[test]
fn a_reload_restores_what_the_file_names_and_leaves_what_it_never_named() {
    let Some(_isolated) = isolated() else { return };
    let service = Service::start("restore");
    assert_eq!(service.state(), "READY=1");
    let client = Client::new(service.scratch.join("control.sock"));
    let file = service.scratch.join("palisade.toml");
    let start = fs::read_to_string(&file).unwrap();
    let namespace = Namespace::new();
    let with_port = format!(
        "{start}[[ports]]\nname = \"one\"\nkind = \"tap\"\nnamespace = \"{}\"\npod = \"default/db\"\n\
         pod_addresses = [\"10.9.0.1\"]\n[[routes]]\nprefix = \"10.8.0.0/16\"\nport = \"one\"\n",
        namespace.0
    );
    let reload = |text: &str| {
        fs::write(&file, text).unwrap();
        service.signal(Signal::HUP);
        assert!(service.state().starts_with("RELOADING=1"));
        assert_eq!(service.state(), "READY=1");
        let pods: Vec<_> = client
            .ports()
            .unwrap()
            .into_iter()
            .map(|port| format!("{} {}", port.name, port.pod.map_or("-".to_owned(), |pod| pod.name)))
            .collect();
        let routes = client.routes().unwrap().into_iter();
        let routes = routes.filter(|route| route.origin == RouteOrigin::Configured);
        let routes: Vec<_> =
            routes.map(|route| format!("{} {}", route.prefix, route.port.unwrap_or_default())).collect();
        (pods.join(", "), routes.join(", "))
    };
    let file_alone = ("one db".to_owned(), "10.8.0.0/16 one".to_owned());
    assert_eq!(reload(&with_port), file_alone);

    // Changed by requests: the port of the file goes, and others come.
    let db = PodName::new("default", "db");
    client.drain_port("one", true).unwrap();
    client.delete_pod(&db).unwrap();
    client.delete_port("one").unwrap();
    client.delete_route("10.8.0.0/16".parse().unwrap()).unwrap();
    client.put_port("extra", &PortRequest::tap(&namespace.0, "extra0")).unwrap();
    client
        .put_pod(
            &db,
            &PodRequest {
                port: "extra".to_owned(),
                addresses: vec![[10, 9, 0, 1].into()],
                mac: None,
                ..PodRequest::default()
            },
        )
        .unwrap();
    for prefix in ["10.7.0.0/16", "10.8.0.0/16"] {
        let route = RouteRequest { port: "extra".to_owned(), next_hop: None, node: false };
        client.put_route(prefix.parse().unwrap(), &route).unwrap();
    }
    let both = ("extra -, one db".to_owned(), "10.7.0.0/16 extra, 10.8.0.0/16 one".to_owned());
    assert_eq!(reload(&with_port), both);
    let log = fs::read_to_string(service.scratch.join("log")).unwrap();
    assert!(log.contains("port one restored, routes replaced"), "{log}");

    // A reload of the same file changes nothing, and leaves a drain.
    client.drain_port("one", true).unwrap();
    let generation = client.status().unwrap().generation;
    assert_eq!(reload(&with_port), both);
    assert_eq!(client.status().unwrap().generation, generation);
    assert!(client.ports().unwrap().iter().any(|port| port.name == "one" && port.draining));

    assert_eq!(reload(&start), ("extra -".to_owned(), "10.7.0.0/16 extra".to_owned()));
}

#[test]
fn the_watchdog_is_fed_while_the_workers_go_on() {
    let Some(_isolated) = isolated() else { return };
    let service = Service::start("watchdog");
    assert_eq!(service.state(), "READY=1");
    for _ in 0..2 {
        assert_eq!(service.message(TIMEOUT).as_deref(), Some("WATCHDOG=1"));
    }
    let stopped = Stopped::stop(thread_of(service.process.id(), "palisade-w0"));
    let log = || fs::read_to_string(service.scratch.join("log")).unwrap();
    eventually("the log says that it is not fed", || log().contains("watchdog is not fed"));
    while service.message(Duration::from_millis(1)).is_some() {}
    // As systemd waits.
    assert_eq!(service.message(WATCHDOG), None, "the watchdog is fed although a worker stands still");
    drop(stopped);
    assert_eq!(service.message(TIMEOUT).as_deref(), Some("WATCHDOG=1"));
}

#[test]
fn systemd_finds_no_fault_in_the_unit() {
    let Some(_isolated) = isolated() else { return };
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.service");
    // `verify` looks for the program, which is installed elsewhere.
    let text = fs::read_to_string(unit).unwrap();
    let copy = PathBuf::from("/run/palisade.service");
    fs::write(&copy, text.replace("/usr/local/bin/palisade", env!("CARGO_BIN_EXE_palisade"))).unwrap();
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output();
    let Ok(verified) = verified else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    let problems = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !problems.contains("palisade.service"), "{problems}");
}
