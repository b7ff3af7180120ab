//! The way of all text to standard error, and whether it has colours.

use std::io::{self, IsTerminal, Stderr, Write};

use crate::printable;

/// Whether text for a terminal has colours: not where `NO_COLOR` has a value (no-color.org), nor on a terminal that has none.
pub(in crate::cli) fn has_colors(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Prints a line to standard error, whatever it holds as one line.
pub(in crate::cli) fn note(text: &str) {
    eprintln!("{}", printable::line(text));
}

/// Prints a report that is made for a terminal: it has its colours, and its text is safe already.
pub(in crate::cli) fn report(text: &str) {
    eprint!("{text}");
}

/// Standard error for the log. The log's own colours pass; what else steers a terminal is spelt out.
#[derive(Debug)]
pub(in crate::cli) struct LogWriter(Stderr);

impl LogWriter {
    pub(in crate::cli) fn new() -> LogWriter {
        LogWriter(io::stderr())
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    /// A line of the log comes whole. The subscriber spells out escape characters within messages, so those that are left are its own.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        let safe: Vec<_> = text.split('\u{1b}').map(printable::block).collect();
        self.0.write_all(safe.join("\u{1b}").as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
