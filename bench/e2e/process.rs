//! Processes of other packages: commands that run to their end, and daemons that run for as long as a system
//! does.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::BenchError;

/// Longest wait for a daemon after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Characters of a program's output that an error repeats.
const SAID_MAX: usize = 400;
/// Characters of a command line that an error repeats.
const LINE_MAX: usize = 120;

/// Runs a program to its end with `input` on its standard input, and returns its output.
pub(crate) fn run(command: &mut Command, input: &str) -> Result<String, BenchError> {
    let line = line_of(command);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| missing(command, error))?;
    let mut pipe = child.stdin.take().expect("standard input is a pipe");
    let input = input.to_owned();
    // A program that rejects its input closes the pipe and prints the reason itself.
    let writer = spawn(move || drop(pipe.write_all(input.as_bytes())));
    let output = child.wait_with_output()?;
    let _ = writer.join();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(BenchError::Refused { what: line, said: shortened(&(text(&output.stderr) + &text(&output.stdout))) })
}

/// Runs a program that prints its version, and returns the first line.
pub(crate) fn version(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text =
        String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout })
            .into_owned();
    text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

/// Program in the background, ended on drop.
pub(crate) struct Daemon {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts the program with its output in the file `log`. Its standard input stays open until it ends.
    pub(crate) fn start(command: &mut Command, name: &str, log: PathBuf) -> Result<Daemon, BenchError> {
        let file = File::create(&log)?;
        command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().map_err(|error| missing(command, error))?;
        Ok(Daemon { child, name: name.to_owned(), log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` is true of the output. Fails with the last output.
    pub(crate) fn wait_for(
        &mut self,
        timeout: Duration,
        ready: impl Fn(&str) -> bool,
    ) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            if ready(&said) {
                return Ok(());
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || start.elapsed() > timeout {
                let how = ended.map_or("does not get ready".to_owned(), |status| format!("ended ({status})"));
                return Err(BenchError::Refused { what: format!("{} {how}", self.name), said: last(&said) });
            }
            sleep(POLL_INTERVAL);
        }
    }

    /// Returns the resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, BenchError> {
        resident_bytes(self.pid())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32)
            && kill_process(pid, Signal::TERM).is_ok()
        {
            let asked = Instant::now();
            while asked.elapsed() < END_TIMEOUT {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                sleep(POLL_INTERVAL);
            }
        }
        // Fails only if the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the resident memory of a process, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64, BenchError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    // `VmRSS` does not include huge pages of hugetlbfs, which have a line of their own (proc(5)).
    let kib = |field: &str| {
        let line = status.lines().find(|line| line.starts_with(field));
        line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok((kib("VmRSS:") + kib("HugetlbPages:")) * 1024)
}

fn missing(command: &Command, error: io::Error) -> BenchError {
    let program = command.get_program().display().to_string();
    if error.kind() == io::ErrorKind::NotFound { BenchError::Missing { program } } else { error.into() }
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    if line.chars().count() > LINE_MAX {
        line.chars().take(LINE_MAX).chain("…".chars()).collect()
    } else {
        line
    }
}

fn shortened(text: &str) -> String {
    let text = text.trim().replace('\n', " | ");
    text.chars().take(SAID_MAX).collect()
}

/// Finds the error messages in a program's output, or else its end.
fn last(text: &str) -> String {
    let tells = |line: &&str| {
        let line = line.to_lowercase();
        ["error", "fail", "cannot", "refused", "no free"].iter().any(|word| line.contains(word))
    };
    let told: Vec<&str> = text.lines().filter(tells).collect();
    if !told.is_empty() {
        return shortened(&told.join("\n"));
    }
    let text = text.trim().replace('\n', " | ");
    let from = text.chars().count().saturating_sub(SAID_MAX);
    text.chars().skip(from).collect()
}
