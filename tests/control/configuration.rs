//! Check of a configuration, its documented defaults, and the environment variable of the socket.

use std::fs;
use std::path::Path;

use assert_cmd::Command;

use crate::commands::palisade;
use crate::fixture::{Scratch, Served};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\nstatus: {podIP: 10.9.0.1}\n";

/// Configuration with a policy directory, and two host ports on interfaces of these names.
fn config(scratch: &Scratch, rest: &str) -> String {
    let policies = scratch.0.join("policies");
    fs::create_dir_all(&policies).unwrap();
    fs::write(policies.join("db.yaml"), POD).unwrap();
    let text =
        format!("[control]\nsocket = \"run/control.sock\"\n[policy]\ndirectory = \"policies\"\n{rest}\n");
    scratch.write("palisade.toml", &text).to_str().unwrap().to_owned()
}

fn port(name: &str, kind: &str, rest: &str) -> String {
    format!("[[ports]]\nname = \"{name}\"\nkind = \"{kind}\"\n{rest}\n")
}

fn check(config: &str) -> (i32, String, String) {
    palisade(&["run", "--check", "--config", config])
}

/// Names of the files in a directory.
fn files(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_check_prints_the_switch_that_a_start_would_run_and_changes_nothing() {
    let scratch = Scratch::new();
    let file = config(&scratch, "[conntrack]\nflows = 2048");
    let (code, out, err) = check(&file);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let directory = scratch.0.display();
    for line in [
        "workers:  1 on cores [".to_owned(),
        format!("control:  {directory}/run/control.sock, mode 0660\n"),
        format!("flows:    2048, in {directory}/run/control.flows\n"),
        format!("policy:   directory {directory}/policies: 1 pods, "),
        "fail closed\n".to_owned(),
        "ports:    0\n".to_owned(),
    ] {
        assert!(out.contains(&line), "{line:?} is not in {out}");
    }
    assert_eq!(files(&scratch.0), ["palisade.toml", "policies"]);
}

#[test]
fn a_check_reports_every_error_that_a_start_would_come_to() {
    let scratch = Scratch::new();
    let pod = "pod = \"default/db\"\npod_addresses = [\"10.9.0.1\"]";
    let ports = [
        port("absent", "pod", pod),
        port("tap", "tap", &format!("namespace = \"no-such-namespace\"\n{pod}")),
        port("large", "uplink", "interface = \"lo\""),
    ];
    let file = config(&scratch, &ports.concat());
    fs::write(scratch.0.join("policies/broken.yaml"), "kind: NetworkPolicy\napiVersion: [\n").unwrap();
    let (code, out, err) = check(&file);
    assert_eq!((code, out.as_str()), (2, ""));
    for part in [
        "broken.yaml:3:1",
        "port \"absent\": interface absent does not exist: create it first, or correct its name",
        "port \"tap\": network namespace no-such-namespace does not exist",
        "port \"large\": interface lo has MTU 65536, and the switch takes at most",
    ] {
        assert!(err.contains(part), "{part:?} is not in {err}");
    }

    let (code, out, err) = check(&config(&scratch, "[workers]\ncores = [1023]"));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("workers.cores: there is no core 1023"), "{err}");
    let (code, _, err) = check(&config(&scratch, "[workers]\ncorse = [0]"));
    assert_eq!(code, 2);
    assert!(err.contains("palisade.toml:6: unknown key \"corse\", the nearest is \"cores\""), "{err}");
    assert_eq!(check("/nonexistent.toml").0, 2);
}

#[test]
fn the_printed_configuration_is_the_documented_one_and_passes_the_check() {
    let (code, text, err) = palisade(&["config"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let documented = concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.toml");
    assert_eq!(text, fs::read_to_string(documented).unwrap());
    let scratch = Scratch::new();
    let file = scratch.write("palisade.toml", &text);
    assert_eq!(check(file.to_str().unwrap()).0, 0);
}

#[test]
fn the_environment_names_the_socket_unless_an_option_does() {
    let served = Served::start();
    let show = |variable: &str, option: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        let output = command.env("PALISADE_SOCKET", variable).args(["show", "status"]).args(option).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let socket = served.socket().to_str().unwrap();
    assert_eq!(show(socket, &[]), (Some(0), String::new()));
    assert_eq!(show("/nonexistent.sock", &["--socket", socket]), (Some(0), String::new()));
    let (code, err) = show("/nonexistent.sock", &[]);
    assert_eq!(code, Some(2));
    assert!(err.contains("/nonexistent.sock") && err.contains("PALISADE_SOCKET"), "{err}");
}
