//! Shell completions and man pages.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

use crate::commands::palisade;
use crate::fixture::Scratch;

/// Runs a program that a package of the distribution has; `None` without that package.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed");
            None
        }
        output => Some(output.unwrap()),
    }
}

#[test]
fn completions_are_scripts_that_their_shells_accept_and_know_the_commands() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, err) = palisade(&["completions", shell]);
        assert_eq!((code, err.as_str()), (0, ""), "{shell}");
        assert!(script.contains("palisade") && script.contains("counters"), "{shell}");
        let file = scratch.write(shell, &script);
        let Some(checked) = run(shell, &["-n", file.to_str().unwrap()]) else { continue };
        assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr));
    }
    let file = scratch.0.join("bash");
    let ask = format!(
        "source {}; COMP_WORDS=(palisade show co); COMP_CWORD=2; _palisade palisade co show; echo \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    let answer = run("bash", &["-c", &ask]).expect("bash is essential");
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "counters\n");
    assert_eq!(palisade(&["completions", "tcsh"]).0, 2);
}

#[test]
fn every_command_has_a_man_page_that_renders_without_warnings() {
    let scratch = Scratch::new();
    let directory = scratch.0.join("share/man1");
    let (code, out, err) = palisade(&["man", directory.to_str().unwrap()]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let pages: BTreeSet<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for page in [
        "palisade-cni-install.1",
        "palisade.1",
        "palisade-run.1",
        "palisade-show.1",
        "palisade-show-counters.1",
    ] {
        assert!(pages.contains(page), "{page} is not among {pages:?}");
    }
    for page in &pages {
        let path = directory.join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}: {text}");
        // -k: the input is UTF-8. -z: the output is discarded.
        let Some(rendered) = run("groff", &["-k", "-man", "-ww", "-Tutf8", "-z", path.to_str().unwrap()])
        else {
            continue;
        };
        let problems = String::from_utf8_lossy(&rendered.stderr);
        assert!(rendered.status.success() && problems.is_empty(), "{page}: {problems}");
    }
    let file = scratch.write("file", "");
    let (code, _, err) = palisade(&["man", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(err.contains("man pages cannot be written to"), "{err}");
}

#[test]
fn doctor_works_without_a_configuration_and_fails_for_one_that_cannot_be_read() {
    let (code, out, error) = palisade(&["doctor"]);
    assert!(code == 0 || code == 1, "{code}: {error}");
    for subject in ["kernel", "memory", "cores", "control socket"] {
        assert!(out.contains(subject), "{out}");
    }
    assert!(out.lines().last().unwrap().contains(" findings, "), "{out}");
    assert_eq!(code == 1, out.contains("FINDING"), "{out}");
    let (code, out, error) = palisade(&["doctor", "--config", "/nonexistent.toml"]);
    assert_eq!((code, out.as_str()), (2, ""), "{error}");
}
