//! `docs/getting-started.md`, command by command, on a node in namespaces of its own.

use std::fs;
use std::process::Command;

use crate::support::isolated;

const SOURCES: &str = env!("CARGO_MANIFEST_DIR");

/// A block of commands of a page, and the output that the page shows behind it.
struct Step {
    commands: String,
    output: Option<String>,
}

/// The fenced blocks of a page: `sh` begins a step, `text` behind it is its output.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    for (number, block) in page.split("\n```").enumerate() {
        let Some((kind, text)) = block.split_once('\n').filter(|_| number % 2 == 1) else { continue };
        match (kind, steps.last_mut()) {
            ("sh", _) => steps.push(Step { commands: text.to_owned(), output: None }),
            ("text", Some(step)) => step.output = Some(text.to_owned()),
            _ => {}
        }
    }
    steps
}

/// Runs all steps in one shell; gives the standard output of each.
fn run(steps: &[Step]) -> Vec<String> {
    let mut script = format!(". {SOURCES}/tests/netns/getting_started.sh\n");
    for step in steps {
        script.extend(["echo '--- step'\n", &step.commands, "\n"]);
    }
    script += "echo '--- step'\nip -o link; ls /sys/fs/bpf /run /usr/local/bin\n";
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "-m", "-c", &script])
        .env("PALISADE", env!("CARGO_BIN_EXE_palisade"))
        .env("SOURCES", SOURCES)
        .output()
        .expect("unshare and bash");
    let text = String::from_utf8(output.stdout).unwrap();
    let problems = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}\n{problems}", output.status);
    text.split("--- step\n").skip(1).map(str::to_owned).collect()
}

/// Whether an output has the lines that the page shows, up to numbers and blanks: `…` stands for any lines, or for the rest of
/// a line.
fn is_as_shown(output: &str, shown: &str) -> bool {
    let normal = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(without_numbers).collect();
        words.join(" ")
    };
    let mut lines = output.trim().lines().map(normal).peekable();
    let mut is_gap = false;
    for wanted in shown.trim().lines().map(normal) {
        if wanted == "…" {
            is_gap = true;
            continue;
        }
        let matches = |line: &String| match wanted.strip_suffix('…') {
            Some(begin) => line.starts_with(begin),
            None => *line == wanted,
        };
        let found = if is_gap {
            lines.any(|line| matches(&line))
        } else {
            lines.next().is_some_and(|line| matches(&line))
        };
        if !found {
            return false;
        }
        is_gap = false;
    }
    is_gap || lines.peek().is_none()
}

/// A word with `#` for each number or address.
fn without_numbers(word: &str) -> String {
    let mut text = String::new();
    for character in word.chars() {
        let is_in_number = text.ends_with('#') && (character.is_ascii_digit() || character == '.');
        if !is_in_number {
            text.push(if character.is_ascii_digit() { '#' } else { character });
        }
    }
    text
}

#[test]
fn every_command_for_the_first_node_works_and_connections_end_as_shown() {
    let Some(_isolated) = isolated() else { return };
    let page = fs::read_to_string(format!("{SOURCES}/docs/getting-started.md")).unwrap();
    let steps = steps(&page);
    let outputs = run(&steps);
    let is_status = |line: &str| line.len() == 3 && line.bytes().all(|byte| byte.is_ascii_digit());
    let (mut compared, mut shown_outputs) = (0, 0);
    for (step, output) in steps.iter().zip(&outputs) {
        let Some(shown) = &step.output else { continue };
        assert!(is_as_shown(output, shown), "{}prints\n{output}and the page shows\n{shown}", step.commands);
        shown_outputs += 1;
        // Lists of HTTP status codes are the same in each run, unlike counters and times.
        if shown.lines().all(is_status) {
            assert_eq!(output.trim(), shown.trim(), "{}", step.commands);
            compared += 1;
        }
    }
    assert_eq!(compared, 2, "connections without and with the policy");
    assert_eq!(shown_outputs, 8);
    let step_with = |word: &str| {
        let found = steps.iter().position(|step| step.commands.contains(word));
        &outputs[found.unwrap_or_else(|| panic!("a step has {word}"))]
    };
    assert!(step_with("palisade show counters").contains("policy-ingress"));
    assert!(step_with("palisade explain").contains("deny (policy-ingress): TCP 10.77.0.3"));
    let left = outputs.last().unwrap();
    assert!(!left.contains("veth-") && !left.contains("xdp") && !left.contains("palisade"), "{left}");
}
