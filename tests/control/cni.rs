//! Installation of the CNI plugin.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::fixture::Scratch;

fn install(scratch: &Scratch, conf: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-cni"));
    command.arg("install").arg("--bin-dir").arg(scratch.0.join("bin/cni"));
    command.arg("--conf-dir").arg(scratch.0.join("net.d")).env_remove("CNI_COMMAND");
    if let Some(conf) = conf {
        command.arg("--conf").arg(scratch.write("10-own.conflist", conf));
    }
    command.output().unwrap()
}

fn names(scratch: &Scratch, directory: &str) -> Vec<String> {
    let entries = fs::read_dir(scratch.0.join(directory)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_plugin_installs_itself_and_its_configuration() {
    let scratch = Scratch::new();
    // A second installation replaces the first.
    for _ in 0..2 {
        let output = install(&scratch, None);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(names(&scratch, "bin/cni"), ["palisade-cni"]);
        assert_eq!(names(&scratch, "net.d"), ["05-palisade.conflist"]);
    }
    let program = scratch.0.join("bin/cni/palisade-cni");
    assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
    let version = Command::new(&program).env("CNI_COMMAND", "VERSION").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).contains("\"1.1.0\""), "{version:?}");
    let own =
        r#"{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "palisade-cni", "interface": "veth"}]}"#;
    assert!(install(&scratch, Some(own)).status.success());
    assert_eq!(names(&scratch, "net.d"), ["05-palisade.conflist", "10-own.conflist"]);
    assert_eq!(fs::read_to_string(scratch.0.join("net.d/10-own.conflist")).unwrap(), own);
}

#[test]
fn a_configuration_that_the_plugin_would_refuse_is_not_installed() {
    let scratch = Scratch::new();
    let wrong =
        r#"{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "palisade-cni", "interface": "tun"}]}"#;
    let output = install(&scratch, Some(wrong));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && said.contains("10-own.conflist") && said.contains("tun"),
        "{said}"
    );
    assert!(names(&scratch, "bin/cni").is_empty() && names(&scratch, "net.d").is_empty());
}

#[test]
fn a_call_of_a_runtime_is_answered_with_json_and_an_exit_code() {
    let call = |verb: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-cni"));
        command.env("CNI_COMMAND", verb).stdin(std::process::Stdio::null()).output().unwrap()
    };
    let refused = call("ADD");
    let error: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!((refused.status.code(), &error["code"]), (Some(1), &serde_json::json!(6)));
    assert!(call("VERSION").status.success());
}
