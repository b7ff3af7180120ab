//! Programs that tests use where they are installed.

use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

/// Says on standard error, past the capture of a test's output, why a part of the test is left out.
pub(crate) fn skipped(reason: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}: a part of {test}");
}

/// Runs a program with this input. Without the program the test says on standard error what it leaves out, past the capture
/// of its output, and returns `None`.
pub(crate) fn run_if_installed(program: &str, arguments: &[&str], input: &[u8]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped(&format!("{program} is not installed"));
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // The program may end before it has read all of its input.
        scope.spawn(move || stdin.write_all(input));
        Some(child.wait_with_output().unwrap())
    })
}
