//! Commands of the control socket, run as processes: output and exit codes.

use assert_cmd::Command;
use palisade::control::protocol::{CountersReport, PodInfo};
use palisade::tables::RuleTables;

use crate::fixture::{Scratch, Served, on_port, pod, pod_port};
use crate::small_tables::small_tables;

/// Runs the command and gives exit code, standard output and standard error.
pub(crate) fn palisade(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn tables_file(scratch: &Scratch) -> String {
    let json = serde_json::to_string(&small_tables("10.1.0.2")).unwrap();
    scratch.write("tables.json", &json).to_str().unwrap().to_owned()
}

#[test]
fn help_explains_every_command_with_examples() {
    let (code, out, _) = palisade(&["--help"]);
    assert_eq!(code, 0);
    assert!(out.contains("Exit codes: 0 yes, 1 no, 2"), "{out}");
    for command in ["run", "compile", "apply", "show"] {
        assert!(out.contains(&format!("  {command} ")), "{out}");
        let (code, help, _) = palisade(&[command, "--help"]);
        assert_eq!(code, 0);
        assert!(help.contains("Examples:"), "{command}: {help}");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [
        &[][..],
        &["fly"],
        &["show"],
        &["show", "weather"],
        &["apply"],
        &["apply", "--delete", "file"],
        &["compile"],
        &["show", "flows", "--pod", "a/b/c"],
        &["run", "--config"],
    ] {
        assert_eq!(palisade(arguments).0, 2, "{arguments:?}");
    }
}

#[test]
fn a_wrong_configuration_exits_with_2_and_one_line() {
    let scratch = Scratch::new();
    let config = scratch.write("palisade.toml", "[workers]\nspin_uss = 3\n");
    let (code, out, err) = palisade(&["run", "--config", config.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("palisade.toml:2: unknown key \"spin_uss\", the nearest is \"spin_us\""), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let (code, _, err) = palisade(&["run", "--config", "/nonexistent.toml"]);
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    assert!(err.contains("/nonexistent.toml cannot be read"), "{err}");
}

#[test]
fn a_second_switch_at_the_same_socket_exits_with_2_and_leaves_the_first() {
    let served = Served::start();
    let config = served.scratch.write("palisade.toml", "[control]\nsocket = \"control.sock\"\n");
    let (code, _, err) = palisade(&["run", "--config", config.to_str().unwrap()]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("another switch is running and answers at"), "{err}");
    served.client.status().unwrap();
}

#[test]
fn a_policy_that_does_not_load_exits_with_2_and_leaves_no_socket() {
    let scratch = Scratch::new();
    scratch.write("wrong.json", r#"{"format": 1}"#);
    let config = scratch.write(
        "palisade.toml",
        "[control]\nsocket = \"control.sock\"\n[policy]\ndirectory = \"wrong.json\"\n",
    );
    let (code, _, err) = palisade(&["run", "--config", config.to_str().unwrap()]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("wrong.json"), "{err}");
    assert!(!scratch.0.join("control.sock").exists());
}

#[test]
fn no_switch_is_said_with_what_to_do() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("none.sock");
    let file = tables_file(&scratch);
    for arguments in
        [&["show", "status"][..], &["show", "counters"], &["apply", "--delete"], &["apply", &file]]
    {
        let with_socket = [arguments, &["--socket", socket.to_str().unwrap()]].concat();
        let (code, out, err) = palisade(&with_socket);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(err.contains("is it running? Start it with `palisade run`"), "{err}");
    }
}

#[test]
fn no_objects_at_all_exit_with_2_in_every_command_and_change_nothing() {
    let served = Served::start();
    let socket = served.socket().to_str().unwrap();
    served.client.put_tables(&small_tables("10.1.0.2")).unwrap();
    let empty = served.scratch.write("empty.yaml", "\n---\n# helm: error\n");
    let services = served.scratch.write(
        "services.yaml",
        "kind: Service\napiVersion: v1\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n",
    );
    for file in [&empty, &services] {
        let file = file.to_str().unwrap();
        for command in [
            &["apply", file, "--socket", socket][..],
            &["apply", file, "--allow-empty", "--socket", socket],
            &["compile", file],
            &["matrix", file],
            &["lint", file],
            &["diff", file, file],
            &["explain", "--from", "a", "--to", "b", "--port", "80", file],
        ] {
            let (code, out, err) = palisade(command);
            assert_eq!((code, out.as_str()), (2, ""), "{command:?}: {err}");
            assert!(err.contains("give the NetworkPolicies with the Pods"), "{command:?}: {err}");
        }
    }
    let (code, _, err) = palisade(&["test", empty.to_str().unwrap()]);
    assert_eq!(code, 2, "{err}");
    assert_eq!(served.client.tables_document().unwrap(), small_tables("10.1.0.2"));
}

#[test]
fn a_name_in_place_of_a_port_is_refused_with_what_is_wanted() {
    let (code, _, err) = palisade(&["explain", "--from", "a/b", "--to", "a/c", "--port", "http"]);
    assert!(code == 2 && err.contains("names are those of a pod or a Service"), "{err}");
}

#[test]
fn policies_without_pods_close_nothing_unless_they_may() {
    let served = Served::start();
    let (client, socket) = (&served.client, served.socket().to_str().unwrap());
    client.put_tables(&small_tables("10.1.0.2")).unwrap();
    for name in ["db", "web"] {
        client.put_port(name, &pod_port()).unwrap();
        client
            .put_pod(&pod(name), &on_port(name, if name == "db" { "10.1.0.2" } else { "10.1.0.3" }))
            .unwrap();
    }
    let policy = "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: p}\nspec: {podSelector: {}}\n";
    let file = served.scratch.write("policy.yaml", policy);
    let file = file.to_str().unwrap();
    let (code, out, err) = palisade(&["apply", file, "--socket", socket]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("none of the 2 that are attached: all these would be closed"), "{err}");
    assert_eq!(client.tables_document().unwrap(), small_tables("10.1.0.2"));
    // Loads the pod that is known, and names the other one.
    let known = tables_file(&served.scratch);
    let (code, _, err) = palisade(&["apply", &known, "--socket", socket]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("do not know 1 of 2 attached pods, such as default/web"), "{err}");
    let (code, _, err) = palisade(&["apply", file, "--allow-empty", "--socket", socket]);
    assert_eq!(code, 0, "{err}");
    assert!(client.pods().unwrap().iter().all(|pod| !pod.known));
    let (code, out, _) = palisade(&["show", "status", "--socket", socket]);
    assert_eq!(code, 0);
    assert!(out.contains("policy: from control socket (user "), "{out}");
}

#[test]
fn apply_loads_and_unloads_tables() {
    let served = Served::start();
    let socket = served.socket().to_str().unwrap();
    let file = tables_file(&served.scratch);
    let (code, out, err) = palisade(&["apply", &file, "--socket", socket]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, "rule tables loaded: 1 pods, 1 rules, generation 2\n");
    assert_eq!(served.client.tables_document().unwrap(), small_tables("10.1.0.2"));

    let wrong = served.scratch.write("wrong.json", r#"{"format": 1, "rules": {}}"#);
    let (code, _, err) = palisade(&["apply", wrong.to_str().unwrap(), "--socket", socket]);
    assert_eq!(code, 2);
    assert!(err.contains("wrong.json"), "{err}");
    assert_eq!(
        served.client.tables_document().unwrap(),
        small_tables("10.1.0.2"),
        "a wrong file changed the tables"
    );

    assert_eq!(palisade(&["apply", "--delete", "--socket", socket]).0, 0);
    assert!(!served.client.status().unwrap().tables_loaded);
}

#[test]
fn the_example_policies_compile_and_apply() {
    let served = Served::start();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples");
    let (code, out, err) = palisade(&["compile", examples]);
    let is_note = |line: &str| line.starts_with("note: 1 pod or workload has no address, and is left out");
    assert!(code == 0 && err.lines().all(is_note), "an example has a fault or a warning: {err}");
    let compiled: RuleTables = serde_json::from_str(&out).unwrap();
    assert_eq!(compiled.check(), Ok(()));
    let known: Vec<String> = compiled.pods.keys().map(ToString::to_string).collect();
    assert_eq!(known, ["default/backend", "default/db", "default/frontend"]);
    let (code, _, err) = palisade(&["apply", examples, "--socket", served.socket().to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(served.client.tables_document().unwrap(), compiled);
    let elsewhere: RuleTables =
        serde_json::from_str(&palisade(&["compile", examples, "--node", "node-9"]).1).unwrap();
    assert!(elsewhere.pods.is_empty(), "no example pod is on node-9");
}

#[test]
fn a_wrong_manifest_exits_with_2_names_file_line_and_field_and_leaves_the_running_tables() {
    let served = Served::start();
    served.client.put_tables(&small_tables("10.1.0.2")).unwrap();
    let manifest = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: default}\n\
                    spec:\n  podSelector: {}\n  ingress:\n    - ports:\n        - {port: 80, endPort: 79}\n";
    let file = served.scratch.write("policy.yaml", manifest);
    let file = file.to_str().unwrap();
    let before = (served.client.ports().unwrap(), served.client.pods().unwrap());
    for arguments in [&["compile", file][..], &["apply", file, "--socket", served.socket().to_str().unwrap()]]
    {
        let (code, out, err) = palisade(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(err.contains("policy.yaml:8:"), "{err}");
        assert!(err.contains("spec.ingress[0].ports[0].endPort"), "{err}");
    }
    assert_eq!(served.client.tables_document().unwrap(), small_tables("10.1.0.2"));
    assert_eq!((served.client.ports().unwrap(), served.client.pods().unwrap()), before);
}

#[test]
fn compile_writes_what_apply_reads() {
    let scratch = Scratch::new();
    let (input, output) = (tables_file(&scratch), scratch.0.join("out.json"));
    let (code, out, err) = palisade(&["compile", &input, "-o", output.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    let written = std::fs::read_to_string(&output).unwrap();
    assert_eq!(serde_json::from_str::<RuleTables>(&written).unwrap(), small_tables("10.1.0.2"));
    assert_eq!(palisade(&["compile", &input]).1, written);
    assert_eq!(palisade(&["compile", "/nonexistent"]).0, 2);
    assert_eq!(palisade(&["compile", &input, "-o", "/nonexistent/out.json"]).0, 2);
}

#[test]
fn show_prints_tables_for_people_and_json_for_programs() {
    let served = Served::start();
    let socket = served.socket().to_str().unwrap().to_owned();
    let show = |what: &[&str]| {
        let (code, out, err) = palisade(&[&["show"], what, &["--socket", &socket]].concat());
        assert_eq!(code, 0, "{what:?}: {err}");
        out
    };
    assert!(show(&["ports"]).contains("no ports"));
    assert!(show(&["pods"]).contains("No pod is attached"));
    assert!(show(&["tables"]).contains("No rule tables are loaded"));

    served.client.put_port("veth-db", &pod_port()).unwrap();
    served.client.put_pod(&pod("db"), &on_port("veth-db", "10.1.0.2")).unwrap();
    served.client.put_tables(&small_tables("10.1.0.9")).unwrap();
    assert!(show(&["status"]).contains("loaded"));
    assert!(show(&["ports"]).contains("native, copy"));
    let pods = show(&["pods"]);
    assert!(
        pods.contains("default/db") && pods.contains("warning: default/db: the loaded tables give"),
        "{pods}"
    );
    let counters = show(&["counters"]);
    assert!(counters.contains("policy-ingress"), "{counters}");
    assert!(counters.contains("Policy of the destination pod forbids it."), "{counters}");
    assert!(
        counters.contains("isolated for ingress by NetworkPolicy default/db; no rule matched"),
        "{counters}"
    );
    let four = show(&["flows", "--limit", "4"]);
    assert!(four.lines().count() == 1 + 4 + 1 && four.ends_with("\n5 more (of 9)\n"), "{four}");
    let of_db = show(&["flows", "--pod", "default/db"]);
    assert!(of_db.contains("default/db (10.1.0.2:6379)") && !of_db.contains("10.1.0.7"), "{of_db}");

    let pods: Vec<PodInfo> = serde_json::from_str(&show(&["pods", "--output", "json"])).unwrap();
    assert_eq!(pods, served.client.pods().unwrap());
    let counters: CountersReport = serde_json::from_str(&show(&["counters", "--output", "json"])).unwrap();
    assert_eq!(counters, served.client.counters().unwrap());
    for what in ["status", "ports", "tables", "flows"] {
        serde_json::from_str::<serde_json::Value>(&show(&[what, "--output", "json"])).unwrap();
    }
}

#[test]
fn a_table_on_a_terminal_of_no_size_folds_no_word() {
    let served = Served::start();
    served.client.put_port("veth-long-name0", &pod_port()).unwrap();
    // A new pseudoterminal has no size, as a serial console.
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let mut command = Command::new("python3");
    command.args(["-c", spawn, env!("CARGO_BIN_EXE_palisade"), "show", "ports", "--socket"]);
    let output = command.arg(served.socket()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("veth-long-name0"), "{text}");
}
