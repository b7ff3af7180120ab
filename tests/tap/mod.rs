//! What the stack hears from an interface: a capture behind the XDP hook, where the stack begins.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A capture that runs.
pub(crate) struct Tap(Child);

impl Tap {
    /// Listens to an interface with a command that starts tcpdump where the interface is.
    pub(crate) fn on(interface: &str, mut tcpdump: Command) -> Tap {
        let mut child = tcpdump
            .args(["-Q", "in", "-n", "-l", "--immediate-mode", "-i", interface])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump, which `make setup` installs");
        // It says so when it listens.
        child.stderr.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        Tap(child)
    }

    /// Frames heard, a line each; ends the capture.
    pub(crate) fn frames(mut self) -> Vec<String> {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
