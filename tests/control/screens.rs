//! Output of commands on terminals of three widths.

use std::process::Command;

use crate::fixture::{Served, on_port, pod, pod_port};
use crate::small_tables::small_tables;

const COMMANDS: &[&[&str]] = &[
    &["status"],
    &["show", "status"],
    &["show", "ports"],
    &["show", "pods"],
    &["show", "tables"],
    &["show", "classes"],
    &["show", "policies"],
    &["show", "routes"],
    &["show", "services"],
    &["show", "umem"],
    &["show", "counters"],
    &["show", "flows"],
    &["show", "flows", "--by-pod"],
    &["show", "workers", "--seconds", "0"],
    &["show", "latency"],
    &["port", "list"],
    &["pod", "list"],
    &["route", "list"],
    &["audit", "report"],
];

fn served() -> Served {
    let served = Served::start();
    served.client.put_tables(&small_tables("10.1.0.2")).unwrap();
    for (name, address) in [("db", "10.1.0.2"), ("frontend-7d4b9c8f6-x2x4z", "10.1.0.9")] {
        let port = format!("veth-{}", &name[..2]);
        served.client.put_port(&port, &pod_port()).unwrap();
        served.client.put_pod(&pod(name), &on_port(&port, address)).unwrap();
    }
    served
}

/// Runs a command on a terminal of so many columns, in a shell.
fn on_terminal(columns: u32, line: &str) -> String {
    let line = format!("stty cols {columns} rows 50; {line}");
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).env("NO_COLOR", "1").output();
    let output = output.expect("script of the package bsdutils");
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

#[test]
fn no_word_is_folded_and_no_line_is_longer_than_the_terminal() {
    let served = served();
    for command in COMMANDS {
        let line = format!(
            "{} {} --socket {}",
            env!("CARGO_BIN_EXE_palisade"),
            command.join(" "),
            served.socket().display()
        );
        // All that the command says, in lines of any length.
        let whole = on_terminal(2000, &line);
        assert!(whole.lines().count() > 0, "{command:?}");
        for columns in [80, 120, 200] {
            let shown = on_terminal(columns, &line);
            for line in shown.lines().filter(|line| line.contains(' ')) {
                assert!(
                    line.chars().count() <= columns as usize,
                    "{command:?} at {columns}: {line}\n{shown}"
                );
            }
            let is_known = |word: &&str| {
                // Numbers and times differ between two runs.
                word.contains('…') || word.contains(|c: char| c.is_ascii_digit()) || whole.contains(*word)
            };
            let note = |line: &&str| line.starts_with("(without ");
            for line in shown.lines().filter(|line| !note(line)) {
                let unknown: Vec<&str> = line.split_whitespace().filter(|word| !is_known(word)).collect();
                assert!(unknown.is_empty(), "{command:?} at {columns}: {unknown:?}\n{shown}\n{whole}");
            }
        }
    }
}

#[test]
fn the_wide_form_has_all_columns() {
    let served = served();
    let socket = served.socket().display().to_string();
    let line = format!("{} show flows --socket {socket}", env!("CARGO_BIN_EXE_palisade"));
    let narrow = on_terminal(80, &line);
    assert!(narrow.contains("(without IDLE") && !narrow.contains(" IDLE "), "{narrow}");
    let wide = on_terminal(80, &format!("{line} --output wide"));
    assert!(wide.contains(" IDLE ") && wide.contains("ALLOWED BY") && !wide.contains("(without"), "{wide}");
}
