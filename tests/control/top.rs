//! Live view of the running switch in a terminal: tmux shows what the command draws.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use palisade::control::{Server, SwitchSettings};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Scratch, on_port, pod, pod_port, switch};
use crate::small_tables::small_tables;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Terminal in which a shell runs the command, and prints its exit code and the terminal's modes.
struct Terminal {
    name: String,
    scratch: Scratch,
}

impl Terminal {
    /// Runs `palisade top` on a socket, with variables of the environment.
    fn start(environment: &str, socket: &Path) -> Terminal {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let scratch = Scratch::new();
        let name = format!("palisade-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let script = format!(
            "sh -c 'echo $$ > {pid}; exec env {environment} {palisade} top --socket {socket}'\necho \"ended with $?\"\nstty -a\nsleep 600\n",
            pid = scratch.0.join("pid").display(),
            palisade = env!("CARGO_BIN_EXE_palisade"),
            socket = socket.display(),
        );
        let script = scratch.write("script", &script);
        let terminal = Terminal { name, scratch };
        let started = terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "120",
            "-y",
            "40",
            "sh",
            script.to_str().unwrap(),
        ]);
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.args(["-u", "-L", &self.name]).args(arguments).env_remove("TMUX").env_remove("NO_COLOR");
        command.output().expect("this test needs tmux: `sudo apt-get install tmux` (or `make test`)")
    }

    /// Text of the terminal, with the escape sequences of its styles if `styled`.
    fn text(&self, styled: bool) -> String {
        let arguments: &[&str] = if styled { &["capture-pane", "-p", "-e"] } else { &["capture-pane", "-p"] };
        String::from_utf8(self.tmux(arguments).stdout).unwrap()
    }

    /// Waits for a text.
    fn wait_for(&self, is_shown: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let text = self.text(false);
            if is_shown(&text) {
                return text;
            }
            assert!(start.elapsed() < TIMEOUT, "{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the end of the command, which leaves the terminal as it was.
    fn wait_for_end(&self) {
        let text = self.wait_for(|text| text.contains("ended with") && text.contains("icanon"));
        assert!(text.contains("ended with 0"), "{text}");
        let modes: Vec<&str> = text.split_whitespace().collect();
        assert!(
            modes.contains(&"icanon")
                && modes.contains(&"echo")
                && modes.contains(&"isig;") | modes.contains(&"isig")
        );
        assert!(!text.contains("drops by reason"), "the screen before is back: {text}");
        let cursor = self.tmux(&["display-message", "-p", "#{cursor_flag} #{alternate_on}"]);
        assert_eq!(String::from_utf8_lossy(&cursor.stdout).trim(), "1 0");
    }

    fn pid(&self) -> Pid {
        let text = std::fs::read_to_string(self.scratch.0.join("pid")).unwrap();
        Pid::from_raw(text.trim().parse().unwrap()).unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Returns whether the text has escape sequences of colours: SGR 30 to 37, 38, 90 to 97.
fn has_colors(text: &str) -> bool {
    let codes = text.split("\u{1b}[").skip(1).filter_map(|rest| rest.split('m').next());
    codes.flat_map(|codes| codes.split(';')).any(|code| matches!(code.parse(), Ok(30..=38 | 90..=97)))
}

fn is_complete(text: &str) -> bool {
    ["palisade 0.1.0", "1 rules for 1 pods", "policy-ingress", "default/db:6379", "denied in the last minute"]
        .iter()
        .all(|part| text.contains(part))
}

#[test]
fn the_view_follows_resizes_and_a_switch_that_goes_and_comes_back() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let (_, switch) = switch(SwitchSettings::default());
    let server = Server::start(&socket, 0o660, switch.clone()).unwrap();
    switch.put_tables(small_tables("10.1.0.3")).unwrap();
    switch.put_port("p", &pod_port()).unwrap();
    switch.put_pod(&pod("db"), &on_port("p", "10.1.0.3")).unwrap();
    let terminal = Terminal::start("-u NO_COLOR", &socket);
    let text = terminal.wait_for(is_complete);
    assert!(text.contains("10.1.0.2:40000 -> default/db:6379") && text.contains("flows: 9"), "{text}");
    assert!(has_colors(&terminal.text(true)));

    terminal.tmux(&["resize-window", "-x", "60", "-y", "16"]);
    terminal.wait_for(|text| text.lines().all(|line| line.chars().count() <= 60) && text.contains("more)"));
    terminal.tmux(&["resize-window", "-x", "120", "-y", "40"]);
    terminal.wait_for(is_complete);

    drop(server);
    let text = terminal.wait_for(|text| text.contains("switch gone, trying again"));
    assert!(is_complete(&text), "the last frame stays: {text}");
    let _server = Server::start(&socket, 0o660, switch).unwrap();
    terminal.wait_for(|text| is_complete(text) && !text.contains("switch gone"));
    terminal.tmux(&["send-keys", "q"]);
    terminal.wait_for_end();
}

#[test]
fn a_signal_or_control_c_ends_the_view_and_restores_the_terminal() {
    let absent = Scratch::new();
    let socket = absent.0.join("control.sock");
    for signal in [Some(Signal::TERM), Some(Signal::HUP), Some(Signal::INT), None] {
        let terminal = Terminal::start("NO_COLOR=1", &socket);
        terminal.wait_for(|text| text.contains("switch gone, trying again: no switch answers at"));
        assert!(!has_colors(&terminal.text(true)));
        match signal {
            Some(signal) => kill_process(terminal.pid(), signal).unwrap(),
            None => assert!(terminal.tmux(&["send-keys", "C-c"]).status.success()),
        }
        terminal.wait_for_end();
    }
}

#[test]
fn a_dumb_terminal_and_a_pipe_get_one_frame_as_text() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let (_, switch) = switch(SwitchSettings::default());
    let _server = Server::start(&socket, 0o660, switch.clone()).unwrap();
    let hostile = palisade::tables::PodName::new("default", "a\u{1b}[2Jb\u{202e}c");
    switch.put_tables(small_tables("10.1.0.3")).unwrap();
    switch.put_port("p", &pod_port()).unwrap();
    switch
        .put_pod(&hostile, &on_port("p", "10.1.0.3"))
        .unwrap_or_else(|_| switch.put_pod(&pod("db"), &on_port("p", "10.1.0.3")).unwrap());
    let terminal = Terminal::start("TERM=dumb", &socket);
    terminal.wait_for(|text| text.contains("ended with 0"));
    assert!(!has_colors(&terminal.text(true)));

    let top = |socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(["top", "--once", "--socket"]).arg(socket).env("TERM", "xterm").output().unwrap()
    };
    let output = top(&socket);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("policy-ingress") && !text.contains('\u{1b}'), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    let output = top(&scratch.0.join("absent.sock"));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no switch answers at"));
}
