//! `palisade doctor` on fabricated conditions: interfaces in a namespace, a running switch, and the remains of a killed one.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade::control::protocol::PortState;
use palisade::lab::{Lab, LabSpec, PodPorts};
use palisade::netlink::Interface;
use palisade::xdp::namespace_cookie;
use serde_json::Value;

use crate::support::veth::{host_end, ip, wait_for};
use crate::support::{Rig, isolated, spec_of};

/// Directory of a test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new("/run").join(name);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn config(&self, text: &str) -> PathBuf {
        let path = self.0.join("palisade.toml");
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks of `palisade doctor`, behind a command that starts it.
fn doctor(before: &[&str], config: &Path) -> (i32, Vec<Value>) {
    let mut words = before.to_vec();
    words.extend([env!("CARGO_BIN_EXE_palisade"), "doctor", "--output", "json", "--config"]);
    let output = Command::new(words[0]).args(&words[1..]).arg(config).output().unwrap();
    let checks = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), checks)
}

/// Asserts that a check of `subject` says `what`, in this state.
fn assert_says(checks: &[Value], state: &str, subject: &str, what: &str) {
    let says = |check: &Value| {
        check["state"] == state
            && check["subject"] == subject
            && check["what"].as_str().unwrap().contains(what)
    };
    let found = checks.iter().find(|check| says(check));
    let found = found.unwrap_or_else(|| panic!("no {state} of {subject} says {what:?}: {checks:#?}"));
    assert_eq!(found["remedy"].is_string(), state != "ok", "{found}");
}

/// Network namespace, removed on drop.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn interfaces_that_a_port_cannot_use_well_are_found_with_remedies() {
    let Some(_isolated) = isolated() else { return };
    let scratch = Scratch::new("interfaces");
    let namespace = Namespace("doctor".to_owned());
    let inside = |words: &str| {
        let words = words.split(' ');
        assert!(Command::new("ip").args(["-n", &namespace.0]).args(words).status().unwrap().success());
    };
    assert!(Command::new("ip").args(["netns", "add", &namespace.0]).status().unwrap().success());
    inside("link add one mtu 1000 type veth peer name one-peer mtu 1000");
    inside(
        "link add two numrxqueues 2 numtxqueues 2 type veth peer name two-peer numrxqueues 2 numtxqueues 2",
    );
    // Flows of this port are offloaded where there is a BPF file system.
    let pod = Namespace("doctor-pod".to_owned());
    assert!(Command::new("ip").args(["netns", "add", &pod.0]).status().unwrap().success());
    inside("link add far numrxqueues 3 numtxqueues 3 type veth peer name far-peer");
    inside(&format!("link set far-peer netns {}", pod.0));
    for link in ["one", "one-peer", "two", "two-peer", "far"] {
        inside(&format!("link set {link} up"));
    }
    inside("link add idle type veth peer name idle-peer");
    let ports: String =
        [("one", "fd00::1"), ("two", "10.0.0.2"), ("idle", "10.0.0.3"), ("absent", "10.0.0.4"), ("far", "10.0.0.5")]
        .map(|(name, address)| {
            format!("[[ports]]\nname = \"{name}\"\nkind = \"pod\"\npod = \"default/{name}\"\npod_addresses = [\"{address}\"]\n")
        })
        .concat();
    let text = format!(
        "[workers]\ncores = [0, 0]\nframes = 4096\n[offload]\nmode = \"kernel\"\n[control]\nsocket = \"{0}/a.sock\"\nread_only_socket = \"{0}/b.sock\"\n\
         [conntrack]\ndirectory = \"{0}/flows\"\n{ports}\
         [[ports]]\nname = \"tap\"\nkind = \"tap\"\nnamespace = \"palisade-no-such-namespace\"\n",
        scratch.0.display()
    );
    // Remains: a socket of a process that has ended, a file in place of a socket, a directory for everybody.
    drop(UnixListener::bind(scratch.0.join("a.sock")).unwrap());
    fs::write(scratch.0.join("b.sock"), "").unwrap();
    fs::create_dir(scratch.0.join("flows")).unwrap();
    let config = scratch.config(&text);
    let (code, checks) = doctor(&["ip", "netns", "exec", &namespace.0], &config);
    assert_eq!(code, 1);
    assert_says(&checks, "finding", "interface one", "MTU 1000 carries no IPv6");
    assert_says(&checks, "finding", "interface one", "1 queues for 2 workers");
    assert_says(&checks, "ok", "interface two", "2 queues for 2 workers");
    assert_says(&checks, "ok", "interface two", "MTU 1500");
    assert_says(&checks, "ok", "interface two", "no XDP program");
    assert_says(
        &checks,
        "finding",
        "interface two",
        "its flows are not offloaded: both ends of its veth pair",
    );
    assert_says(
        &checks,
        "finding",
        "BPF pins",
        "is hidden by the /sys that `ip netns exec doctor` has mounted",
    );
    assert_says(&checks, "ok", "kernel", "has tcx");
    let unserved = "3 receive queues, of which workers serve 2: frames of the others are dropped";
    assert_says(&checks, "finding", "interface far", unserved);
    let (_, with_pins) = doctor(&["nsenter", &format!("--net=/run/netns/{}", namespace.0)], &config);
    assert_says(&with_pins, "ok", "interface far", "no XDP program");
    assert!(!with_pins.iter().any(|check| check["what"] == unserved), "{with_pins:#?}");
    assert_says(&checks, "finding", "interface idle", "is down");
    assert_says(&checks, "finding", "interface absent", "does not exist");
    assert_says(&checks, "finding", "port tap", "palisade-no-such-namespace is not there");
    assert_says(&checks, "finding", "cores", "two workers share a core");
    assert_says(&checks, "finding", "control socket", "left of a switch that has ended");
    assert_says(&checks, "finding", "read-only socket", "is not a socket");
    assert_says(&checks, "finding", "flow table", "is not a directory of one user alone");

    // Without privileges the checks that need them say so, and the others stay.
    for path in [&scratch.0, &config] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    let unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let (code, checks) = doctor(&unprivileged, &config);
    assert_eq!(code, 1);
    assert_says(&checks, "unseen", "privileges", "CAP_NET_RAW");
    assert_says(&checks, "unseen", "kernel", "AF_XDP");
    assert_says(&checks, "finding", "interface absent", "does not exist");
}

#[test]
fn a_host_port_without_marks_is_found_and_interfaces_that_are_no_ports_are_named() {
    let Some(_isolated) = isolated() else { return };
    let scratch = Scratch::new("host-port");
    let inside = |words: &str| {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    };
    inside("link add pal type veth peer name pal-node");
    inside("link add bridge type bridge");
    // Upcall devices are of the switch, whatever they belong to.
    inside("tuntap add palup7 mode tap");
    for link in ["pal", "pal-node", "bridge", "palup7"] {
        inside(&format!("link set {link} up"));
    }
    let check = |interface: &str| {
        let ports = format!(
            "[[ports]]\nname = \"host\"\nkind = \"host\"\ninterface = \"{interface}\"\naddresses = [\"10.0.0.1\"]\n"
        );
        doctor(&[], &scratch.config(&ports)).1
    };
    let checks = check("pal");
    assert_says(&checks, "ok", "interface pal", "the node's own packets are marked there");
    let others = |checks: &[Value]| {
        let check = checks.iter().find(|check| check["subject"] == "other interfaces").unwrap();
        let (names, _) = check["what"].as_str().unwrap().split_once(" are no ports: ").unwrap();
        names.split(", ").map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(others(&checks), ["bridge", "card", "wire"].map(str::to_owned).into());
    let checks = check("bridge");
    assert_says(&checks, "finding", "interface bridge", "policy applies to the node's own packets");
    assert_eq!(others(&checks), ["card", "pal", "pal-node", "wire"].map(str::to_owned).into());
}

#[test]
fn a_running_switch_is_recognized_and_the_remains_of_a_killed_one_are_found() {
    finds_remains(PodPorts::Veth);
}

#[test]
fn the_remains_of_a_killed_switch_with_offloaded_ports_are_found() {
    finds_remains(PodPorts::Offload);
}

#[test]
fn an_interface_that_a_running_switch_has_closed_is_no_remain() {
    let Some(_isolated) = isolated() else { return };
    let scratch = Scratch::new("closed");
    let rig = Rig::of(&spec_of(&["client"]), "");
    let pod = rig.pod("client");
    let interface = host_end(&pod);
    ip(&format!("link set {interface} mtu 65535"));
    wait_for(&rig.switch, &pod, PortState::Down, "MTU 65535");
    let text = format!(
        "[control]\nsocket = \"{}\"\n[[ports]]\nname = \"{interface}\"\nkind = \"pod\"\n",
        scratch.0.join("other.sock").display()
    );
    let (_, checks) = doctor(&["env"], &scratch.config(&text));
    assert_says(&checks, "ok", "BPF pins", "1 of a running switch");
    let what = "has the program of a running switch with another control socket";
    assert_says(&checks, "ok", &format!("interface {interface}"), what);
}

#[test]
fn a_port_that_the_running_switch_does_not_offload_is_found_with_the_reason() {
    let Some(_isolated) = isolated() else { return };
    let scratch = Scratch::new("refused");
    let spec = LabSpec { ports: PodPorts::Offload, ..spec_of(&["client", "server"]) };
    let mut lab = Lab::up(&spec).unwrap();
    let interface = lab.pod("client").unwrap().plan().host_interface.clone();
    // A directory has the name of the program's file.
    let index = Interface::find(&interface).unwrap().index;
    let pins = format!("/sys/fs/bpf/palisade/netns-{}", namespace_cookie().unwrap());
    fs::create_dir_all(format!("{pins}/{index}-ingress")).unwrap();
    let switch = Rig::start(&mut lab, "");
    let socket = switch.client().socket().display().to_string();
    let (code, checks) = doctor(&["env"], &scratch.config(&format!("[control]\nsocket = \"{socket}\"\n")));
    assert_eq!(code, 1);
    assert_says(&checks, "finding", &format!("interface {interface}"), "its flows are not offloaded: ");
    let status = Command::new(env!("CARGO_BIN_EXE_palisade")).args(["status", "--socket", &socket]).output();
    let page = String::from_utf8(status.unwrap().stdout).unwrap();
    assert!(page.contains("1 of 2 offloaded (`palisade doctor` says why)"), "{page}");
}

fn finds_remains(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let scratch = Scratch::new("remains");
    let rig = Rig::of(&LabSpec { ports, ..spec_of(&["client", "server"]) }, "");
    let pod = rig.pod("client");
    let interface = &pod.plan().host_interface;
    let socket = rig.switch.client().socket().to_owned();
    let config = scratch.config(&format!(
        "[workers]\nframes = 4096\n[control]\nsocket = \"{}\"\n[[ports]]\nname = \"{interface}\"\nkind = \"pod\"\n",
        socket.display()
    ));
    let subject = format!("interface {interface}");
    let (_, checks) = doctor(&["env"], &config);
    assert_says(&checks, "ok", "control socket", "a switch answers");
    // The problems of the running switch are findings: that of a machine without a BPF file system, for example.
    let problems = rig.switch.client().status().unwrap().problems;
    for problem in &problems {
        assert_says(&checks, "finding", "switch", problem);
    }
    assert_eq!(
        checks.iter().any(|check| check["what"].to_string().contains("no problem")),
        problems.is_empty()
    );
    assert_says(&checks, "ok", &subject, "by the running switch");
    let has_pins = Path::new("/sys/fs/bpf/palisade").exists();
    assert!(has_pins, "the isolated node has a BPF file system");
    assert_says(&checks, "ok", "BPF pins", "of a running switch");
    // Nor are the pins left over for a doctor who knows another control socket.
    let other = scratch.0.join("other.toml");
    let ports = format!("[[ports]]\nname = \"{interface}\"\nkind = \"pod\"\n");
    let nobody = scratch.0.join("other.sock");
    fs::write(&other, format!("[control]\nsocket = \"{}\"\n{ports}", nobody.display())).unwrap();
    let (_, checks) = doctor(&["env"], &other);
    assert_says(&checks, "ok", "BPF pins", "of a running switch");
    assert_says(&checks, "ok", &subject, "has the program of a running switch with another control socket");
    // Nor for one who does not see the switch: a user, and root without the right to trace and with fewer than its rights.
    let assert_unseen = |before: &[&str]| {
        let (_, checks) = doctor(before, &other);
        assert_says(&checks, "unseen", "BPF pins", "whether their switch runs is not seen: ");
        assert_says(&checks, "unseen", &subject, "has ");
        let remedies = checks.iter().filter_map(|check| check["remedy"].as_str());
        let removing: Vec<&str> = remedies.filter(|remedy| remedy.contains("/sys/fs/bpf")).collect();
        assert_eq!(removing, [""; 0], "{before:?}");
    };
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    assert_unseen(&user);
    assert_unseen(&["setpriv", "--bounding-set=-sys_ptrace,-sys_nice"]);
    rig.switch.kill().unwrap();
    assert_unseen(&user);
    let (code, checks) = doctor(&["env"], &config);
    assert_eq!(code, 1);
    assert_says(&checks, "finding", "control socket", "left of a switch that has ended");
    assert_says(&checks, "finding", &subject, "of a switch that does not run");
    assert_says(&checks, "finding", "BPF pins", "are of a switch that does not run: interfaces ");
    let remedies = || checks.iter().filter_map(|check| check["remedy"].as_str());
    let pins = format!("/sys/fs/bpf/palisade/netns-{}", namespace_cookie().unwrap());
    assert!(remedies().any(|remedy| remedy.ends_with(&format!("rm -r {pins}"))), "{checks:#?}");
    assert!(remedies().any(|remedy| remedy.contains(&format!("rm {pins}/"))), "{checks:#?}");
    assert_says(&checks, "ok", "flow table", "a start continues with them");
}
