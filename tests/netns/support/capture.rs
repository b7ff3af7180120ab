//! Captures of the frames that reach a network stack, behind the XDP hook.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for tcpdump to listen, and for a frame that it must capture.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Running tcpdump.
pub(crate) struct Capture {
    child: Child,
    lines: Receiver<String>,
    readers: Vec<JoinHandle<()>>,
}

impl Capture {
    /// Starts tcpdump on an interface with a command for the interface's namespace. tcpdump has reported that
    /// it listens when this returns; [`Capture::assert_hears`] verifies it.
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
            let line = sayings.recv_timeout(TIMEOUT);
            all.push(
                line.unwrap_or_else(|_| panic!("tcpdump does not listen to {interface}: it said {all:?}")),
            );
        }
        tap
    }

    /// Fails unless it captures a frame while `send` is repeated. `send` must bring frames to the interface's
    /// stack.
    pub(crate) fn assert_hears(&self, mut send: impl FnMut()) {
        let start = Instant::now();
        while self.heard().is_empty() {
            assert!(start.elapsed() < TIMEOUT, "the capture hears nothing of what does reach the stack");
            send();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Frames captured since the last call, one line each.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.lines.try_iter().filter(|line| !line.is_empty()).collect()
    }

    /// Ends the capture and returns the remaining frames.
    pub(crate) fn frames(mut self) -> Vec<String> {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.heard()
    }
}

/// Starts a thread that forwards lines until the end of the input.
fn forward(from: impl Read + Send + 'static, to: Sender<String>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // The receiver is gone. Reading continues, so that tcpdump does not block.
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
