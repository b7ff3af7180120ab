//! Tests without a lab, and system commands in the calling thread's namespace.

use std::process::Command;

/// Runs a test in namespaces of its own, unless the run leaves out tests that need root.
pub(crate) fn in_namespace(test: impl FnOnce()) {
    if let Some(_isolated) = super::isolated() {
        test();
    }
}

/// Runs a system command in the calling thread's namespace.
pub(crate) fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{line}: {status:?}");
}

/// Output of a system command.
pub(crate) fn output(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("the command starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
