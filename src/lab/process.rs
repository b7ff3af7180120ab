//! Identity of processes. A process id alone may be another process's by the time it is used.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Interval of looks at a process that was asked to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A process, identified by id and start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot: field 22 of `/proc/PID/stat` (`proc_pid_stat(5)`).
    pub started: u64,
}

impl Process {
    /// Identifies the process with this id; `None` without one.
    pub fn find(pid: u32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Process { pid, started: started(&stat)? })
    }

    /// Identifies the calling process.
    pub fn this() -> Option<Process> {
        Process::find(std::process::id())
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        Process::find(self.pid) == Some(*self)
    }

    /// Sends SIGKILL. Another process that has the id by now is left alone.
    pub fn kill(&self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    /// Sends SIGTERM, and SIGKILL if the process still runs after `timeout`.
    pub fn stop(&self, timeout: Duration) -> io::Result<()> {
        self.send(Signal::TERM)?;
        let asked = Instant::now();
        while self.is_alive() {
            if asked.elapsed() > timeout {
                return self.kill();
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return Ok(()) };
        // The descriptor refers to one process for good, so a check after opening it stays true.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            process => process?,
        };
        if self.is_alive() {
            pidfd_send_signal(process, signal)?;
        }
        Ok(())
    }
}

/// Parses the start time of a process that is not a zombie.
fn started(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain any character. Field 3 follows the last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_one_of_another_start_is_not() {
        let this = Process::this().unwrap();
        assert!(this.is_alive());
        let other = Process { started: this.started + 1, ..this };
        assert!(!other.is_alive());
        other.kill().unwrap();
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        assert_eq!(started(&format!("1 (a) R 7) S {}", fields.join(" "))), Some(22));
        assert_eq!(started(&format!("1 (a) Z {}", fields.join(" "))), None);
    }
}
