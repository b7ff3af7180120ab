//! Programs that tests use where they are installed.

use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

/// Runs a program with this input. Without the program the test says on standard error what it leaves out, past the capture
/// of its output, and returns `None`.
pub(crate) fn run_if_installed(program: &str, arguments: &[&str], input: &[u8]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            let _ = writeln!(std::io::stderr(), "SKIPPED: {program} is not installed: a part of {test}");
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
