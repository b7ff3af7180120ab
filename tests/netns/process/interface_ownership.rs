//! Ownership of interfaces: each has one switch, and keeps its program between two switches.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use palisade::control::protocol::PortState;
use palisade::lab::{Lab, LabSpec, Switch};

use crate::support::capture::Capture;
use crate::support::closed::assert_closed;
use crate::support::connection::Connection;
use crate::support::veth::{host_end, ip, make_again, port_of, program_on, try_ip, wait_for};
use crate::support::{Rig, TIMEOUT, eventually, isolated};

/// BPF file system of one test, unmounted on drop.
struct BpfFileSystem(PathBuf);

impl BpfFileSystem {
    fn mount() -> BpfFileSystem {
        let path = PathBuf::from("/run/bpf");
        std::fs::create_dir(&path).unwrap();
        assert!(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&path).status().unwrap().success());
        BpfFileSystem(path)
    }

    fn config(&self) -> String {
        format!("[xdp]\npin_directory = \"{}\"\n", self.0.join("palisade").display())
    }

    /// Files of pinned links.
    fn pins(&self) -> Vec<PathBuf> {
        let list =
            |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        list(&self.0.join("palisade")).flat_map(|directory| list(&directory).collect::<Vec<_>>()).collect()
    }
}

impl Drop for BpfFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Starts a second switch on these interfaces with a socket of its own, and expects it to fail.
fn start_another(lab: &Lab, config: &str, interfaces: &[&str]) -> Output {
    let (file, socket) = (lab.directory().join("another.toml"), lab.directory().join("another.sock"));
    let sizes = "[workers]\nframes = 4096\n[conntrack]\nflows = 4096\n";
    let mut text = format!("{config}{sizes}[control]\nsocket = \"{}\"\n", socket.display());
    for name in interfaces {
        text.extend(["[[ports]]\nkind = \"pod\"\nname = \"", name, "\"\n"]);
    }
    std::fs::write(&file, text).unwrap();
    let output = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_palisade"), "run", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(!socket.exists(), "a socket is left behind");
    output
}

fn assert_refused(output: &Output, says: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(says), "{says:?} is not in: {text}");
}

/// Attempts of a second switch on the interfaces of a running and of a dead one.
fn one_owner(config: &str, mut lab: Lab) -> (Lab, [String; 2]) {
    let switch = Rig::start(&mut lab, config);
    let rig = Rig { switch, lab };
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let hosts = [host_end(&client), host_end(&server)];
    let programs = || hosts.each_ref().map(|host| program_on(host));
    let mut talk = Connection::open(&client, &server);
    let owned = programs();

    let output = start_another(&rig.lab, config, &[&hosts[0], &hosts[1]]);
    assert_refused(&output, "is taken by another AF_XDP socket");
    assert_eq!(programs(), owned, "the second start has touched the first one's programs");
    assert!(talk.goes_on(TIMEOUT), "the first switch is dead");
    let states: Vec<PortState> = rig.switch.client().ports().unwrap().iter().map(|port| port.state).collect();
    assert_eq!(states, [PortState::Up; 2]);

    // A failed start on the interfaces of a dead switch leaves its programs attached.
    let Rig { switch, lab } = rig;
    switch.kill().unwrap();
    assert_eq!(programs(), owned, "they outlive the process");
    let output = start_another(&lab, config, &[&hosts[0], &hosts[1], "nosuch0"]);
    assert_refused(&output, "nosuch0");
    assert_eq!(programs(), owned, "the failed start has left a trace");
    (lab, hosts)
}

#[test]
fn a_second_switch_fails_before_it_touches_the_first_ones_ports() {
    let Some(_isolated) = isolated() else { return };
    let lab = Lab::up(&LabSpec { workers: 1, ..LabSpec::of(&["client", "server"]).unwrap() }).unwrap();
    let nowhere = format!("[xdp]\npin_directory = \"{}\"\n", lab.directory().join("none").display());
    one_owner(&nowhere, lab);
}

#[test]
fn with_links_nobody_takes_a_program_off_and_the_next_start_takes_them_over() {
    let Some(_isolated) = isolated() else { return };
    let lab = Lab::up(&LabSpec { workers: 1, ..LabSpec::of(&["client", "server"]).unwrap() }).unwrap();
    let file_system = BpfFileSystem::mount();
    let (mut lab, hosts) = one_owner(&file_system.config(), lab);
    assert_eq!(file_system.pins().len(), 2, "the dead switch's links are kept");
    for host in &hosts {
        assert!(!try_ip(&format!("link set dev {host} xdp off")).status.success(), "a link is undone");
    }
    let (client, server) = (lab.pod("client").unwrap(), lab.pod("server").unwrap());
    let detector = Capture::on(&hosts[0], Command::new("tcpdump"));
    assert_closed(&client, server.v4().into());
    assert_eq!(detector.frames(), [""; 0], "the node's stack hears a pod of a dead switch");

    // The next start takes over the interfaces and their links.
    let before = hosts.each_ref().map(|host| program_on(host).unwrap());
    let switch = Rig::start(&mut lab, &file_system.config());
    let rig = Rig { switch, lab };
    for (host, before) in hosts.iter().zip(before) {
        assert_ne!(program_on(host).unwrap(), before);
    }
    assert!(Connection::open(&client, &server).goes_on(TIMEOUT));
    let problems = rig.switch.client().status().unwrap().problems;
    assert_eq!(problems, [""; 0]);
    ip(&format!("link delete {}", hosts[0]));
    wait_for(&rig.switch, &client, PortState::Down, "is gone");
    eventually("its link is gone with it", || file_system.pins().len() == 1);
    make_again(&rig.lab, &client, 1);
    ip(&format!("link set {} up", hosts[0]));
    wait_for(&rig.switch, &client, PortState::Up, "");
    assert!(!try_ip(&format!("link set dev {} xdp off", hosts[0])).status.success());
    // Removal of a pinned link while the switch runs does not open the pod afterwards.
    let pins = file_system.pins();
    std::fs::remove_file(&pins[0]).unwrap();
    eventually("the file is back", || file_system.pins().len() == 2);

    // A clean stop with detach leaves no program.
    let Rig { switch, mut lab } = rig;
    assert!(switch.stop().unwrap().success());
    assert_eq!(file_system.pins().len(), 2, "closed: the links stay");
    let mut spec = palisade::lab::SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    spec.config = file_system.config();
    let switch = Switch::start(&mut lab, &spec).unwrap();
    switch.attach_all(&lab).unwrap();
    assert_eq!(port_of(&switch, &client).state, PortState::Up);
    assert!(switch.stop().unwrap().success());
    assert_eq!(hosts.each_ref().map(|host| program_on(host)), [None, None]);
    assert!(!file_system.0.join("palisade").exists(), "a directory is left behind");
}
