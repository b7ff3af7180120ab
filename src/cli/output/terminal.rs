//! Text on standard error, with colours where the terminal has them.

use std::io::{self, IsTerminal, Stderr, Write, stderr};
use std::time::Duration;

use indicatif::ProgressBar;

use crate::printable;

/// Returns whether a stream has colours: a terminal has, unless the environment forbids them.
pub(crate) fn has_colors(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !forbids_colors()
}

/// Returns whether the environment forbids colours: with `NO_COLOR` set (no-color.org), or with a dumb terminal.
pub(crate) fn forbids_colors() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_set("NO_COLOR") || std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Prints one line to standard error, with control characters escaped.
pub(crate) fn note(text: &str) {
    eprintln!("{}", printable::line(text));
}

/// Prints a report with colours, whose text is escaped already.
pub(crate) fn report(text: &str) {
    eprint!("{text}");
}

/// Creates a spinner on a terminal, and a hidden one elsewhere.
pub(crate) fn spinner() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// Writer of the log to standard error. It keeps the log's colours and escapes other control characters.
#[derive(Debug)]
pub(crate) struct LogWriter(Stderr);

impl LogWriter {
    pub(crate) fn new() -> LogWriter {
        LogWriter(io::stderr())
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    /// Writes a whole line of the log. The subscriber escapes escape characters within messages, so the
    /// remaining ones are its own.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        let safe: Vec<_> = text.split('\u{1b}').map(printable::block).collect();
        self.0.write_all(safe.join("\u{1b}").as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
