//! Failed starts: a message, exit code 2, and nothing left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use palisade::lab::{Lab, LabSpec, PodPorts};

use crate::support::{eventually, isolated};

fn start(directory: &Path, config: &str) -> Output {
    let file = directory.join("broken.toml");
    let socket = directory.join("broken.sock");
    let sizes = "[conntrack]\nflows = 4096\n";
    std::fs::write(&file, format!("{config}\n{sizes}[control]\nsocket = \"{}\"\n", socket.display()))
        .unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_palisade")).arg("run").arg("--config").arg(&file).output().unwrap();
    assert!(!socket.exists(), "a socket is left behind");
    output
}

fn assert_refused(output: &Output, says: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for words in says {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
}

fn has_program(interface: &str) -> bool {
    let output = Command::new("ip").args(["-d", "link", "show", "dev", interface]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing() {
    let Some(_isolated) = isolated() else { return };
    let lab = Lab::up(&LabSpec { workers: 1, ..LabSpec::of(&["good", "bad"]).unwrap() }).unwrap();
    let good = lab.pod("good").unwrap().plan().host_interface.clone();
    let bad = lab.pod("bad").unwrap().plan().host_interface.clone();
    let directory = lab.directory();
    let ports = |last: &str| {
        format!(
            "[[ports]]\nname = \"good\"\nkind = \"pod\"\ninterface = {good:?}\n\
             [[ports]]\nname = \"bad\"\nkind = \"pod\"\ninterface = {last:?}\n"
        )
    };
    let cores = |cores: &str| format!("[workers]\nframes = 4096\ncores = {cores}\n");

    let output = start(&directory, &format!("{}{}", cores("[0]"), ports("nosuch0")));
    assert_refused(&output, &["nosuch0", "does not exist"]);
    assert!(!has_program(&good), "the port that could be opened is open still");

    let status = Command::new("ip").args(["link", "set", "dev", &bad, "mtu", "65535"]).status().unwrap();
    assert!(status.success());
    let output = start(&directory, &format!("{}{}", cores("[0]"), ports(&bad)));
    assert_refused(&output, &[&bad, "MTU 65535", "at most"]);
    assert!(!has_program(&good) && !has_program(&bad));

    let output = start(&directory, "[worker]\ncores = [0]\n");
    assert_refused(&output, &["worker", "workers"]);
}

#[test]
fn a_start_that_fails_leaves_nothing_for_the_next_one() {
    let Some(_isolated) = isolated() else { return };
    let spec = LabSpec { workers: 1, ports: PodPorts::Offload, ..LabSpec::of(&["good"]).unwrap() };
    let lab = Lab::up(&spec).unwrap();
    let good = lab.pod("good").unwrap().plan().host_interface.clone();
    let port = |name: &str| format!("[[ports]]\nname = \"{name}\"\nkind = \"pod\"\n");
    for offload in ["off", "kernel"] {
        let config = format!(
            "[workers]\nframes = 4096\ncores = [0]\n[offload]\nmode = \"{offload}\"\n{}{}",
            port(&good),
            port("nosuch0")
        );
        assert_refused(&start(&lab.directory(), &config), &["nosuch0"]);
        assert!(!Path::new("/sys/fs/bpf/palisade").exists(), "{offload}: pins are left");
        assert!(!lab.directory().join("broken.flows").exists(), "{offload}: a flow table is left");
    }
}

#[test]
fn a_start_within_ip_netns_exec_says_that_it_hides_the_pins() {
    let Some(_isolated) = isolated() else { return };
    for words in
        ["netns add blue", "-n blue link add pod type veth peer name peer", "-n blue link set pod up"]
    {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    }
    let config = "[workers]\nframes = 4096\ncores = [0]\n[conntrack]\nflows = 4096\n[control]\nsocket = \"/run/blue.sock\"\n\
                  [[ports]]\nname = \"pod\"\nkind = \"pod\"\n";
    fs::write("/run/blue.toml", config).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args([env!("CARGO_BIN_EXE_palisade"), "run", "--config", "/run/blue.toml"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut first = run(&["nsenter", "--net=/run/netns/blue"]).spawn().unwrap();
    let client = palisade::control::Client::new("/run/blue.sock");
    eventually("the switch runs", || client.status().is_ok());
    first.kill().unwrap();
    first.wait().unwrap();
    let second = run(&["ip", "netns", "exec", "blue"]).output().unwrap();
    assert_refused(&second, &["`ip netns exec blue`", "`nsenter --net=/run/netns/blue COMMAND`"]);
}

#[test]
fn a_start_with_a_broken_file_names_the_last_configuration_that_has_worked() {
    let Some(_isolated) = isolated() else { return };
    fs::create_dir_all("/run/palisade").unwrap();
    let file = Path::new("/run/palisade-test.toml");
    let good = "[workers]\nframes = 4096\n[conntrack]\nflows = 4096\ndirectory = \"\"\n";
    fs::write(file, good).unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(["run", "--config"]).arg(file).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut switch = run().spawn().unwrap();
    let client = palisade::control::Client::new("/run/palisade/control.sock");
    let kept = || {
        let files = fs::read_dir("/run/palisade").unwrap().flatten().map(|entry| entry.path());
        files.filter(|path| path.display().to_string().contains("configuration-")).collect::<Vec<_>>()
    };
    eventually("the switch runs, and keeps a copy", || client.status().is_ok() && kept().len() == 1);
    fs::write(file, "[workers]\nframes = many\n").unwrap();
    client.reload().unwrap();
    eventually("the file is rejected", || {
        let report = client.status().unwrap().configuration;
        report.is_some_and(|report| !report.rejected.is_empty())
    });
    assert_eq!(fs::read_to_string(&kept()[0]).unwrap(), good);
    switch.kill().unwrap();
    switch.wait().unwrap();
    let broken = run().output().unwrap();
    let said = String::from_utf8_lossy(&broken.stderr);
    assert_eq!(broken.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("has worked is in {}", kept()[0].display())), "{said}");
}
