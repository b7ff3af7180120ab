//! What the stack hears from an interface: a capture behind the XDP hook, where the stack begins.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for the capture to begin, and for a frame that it must hear.
const PATIENCE: Duration = Duration::from_mins(1);

/// A capture that runs.
pub(crate) struct Capture {
    child: Child,
    lines: Receiver<String>,
    readers: Vec<JoinHandle<()>>,
}

impl Capture {
    /// Listens to an interface with a command that starts tcpdump where the interface is. When this returns, tcpdump has said that it
    /// listens; whether it hears, [`Capture::assert_hears`] tells.
    pub(crate) fn on(interface: &str, mut tcpdump: Command) -> Capture {
        let mut child = tcpdump
            .args(["-Q", "in", "-n", "-l", "--immediate-mode", "-i", interface])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump, which `make setup` installs");
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let ((heard, lines), (said, sayings)) = (channel(), channel());
        let readers = vec![forward(stdout, heard), forward(stderr, said)];
        let tap = Capture { child, lines, readers };
        let mut all = vec![];
        while all.last().is_none_or(|line: &String| !line.starts_with("listening on ")) {
            let line = sayings.recv_timeout(PATIENCE);
            all.push(
                line.unwrap_or_else(|_| panic!("tcpdump does not listen to {interface}: it said {all:?}")),
            );
        }
        tap
    }

    /// Fails unless it hears a frame while `send` is done again and again: it must bring frames to the interface's stack.
    pub(crate) fn assert_hears(&self, mut send: impl FnMut()) {
        let start = Instant::now();
        while self.heard().is_empty() {
            assert!(start.elapsed() < PATIENCE, "the capture hears nothing of what does reach the stack");
            send();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Frames heard since the last time, a line each.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.lines.try_iter().filter(|line| !line.is_empty()).collect()
    }

    /// The same, all of them; ends the capture.
    pub(crate) fn frames(mut self) -> Vec<String> {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.heard()
    }
}

/// Forwards lines until there are no more, on a thread of its own.
fn forward(from: impl Read + Send + 'static, to: Sender<String>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Nobody listens any more: read on all the same, so that the capture does not stop.
            let _ = to.send(line);
        }
    })
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
