//! Results on standard output: a table for people, JSON for programs.

pub(super) mod annotations;
pub(super) mod reader;
mod table;
pub(super) mod terminal;
pub(super) mod times;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

use crate::printable;
use crate::tables::PodName;

use self::table::{Table, wrapped};

/// Form of a command's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people, in the width of the terminal
    #[default]
    Table,
    /// For people, with all columns in lines of any length
    Wide,
    /// For programs, in the form of the control socket's responses
    Json,
}

/// Prints a value as indented JSON.
pub(super) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, Readable::default());
    value.serialize(&mut serializer)?;
    writeln!(out)?;
    out.flush()
}

/// Indented JSON with an escape for every control character.
#[derive(Default)]
struct Readable(PrettyFormatter<'static>);

impl Formatter for Readable {
    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }

    /// Writes a part of a string without quotes and C0, which serde escapes elsewhere.
    fn write_string_fragment<W: Write + ?Sized>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        for part in text.split_inclusive(printable::is_steering) {
            match part.chars().next_back().filter(|c| printable::is_steering(*c)) {
                // All control characters are in the basic multilingual plane.
                Some(c) => write!(out, "{}\\u{:04x}", &part[..part.len() - c.len_utf8()], u32::from(c))?,
                None => out.write_all(part.as_bytes())?,
            }
        }
        Ok(())
    }
}

/// Prints text, in lines that fit the terminal. Escapes control characters other than line breaks and tabs.
pub(super) fn text(text: &str) -> io::Result<()> {
    styled(&wrapped(&printable::block(text)))
}

/// Prints text that a program reads, in lines as they are. Escapes control characters like [`text`].
pub(super) fn document(text: &str) -> io::Result<()> {
    styled(&printable::block(text))
}

/// Prints text with styles, which contains nothing untrusted.
pub(super) fn styled(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Makes all tables of this process as wide as this form of the output has them.
pub(super) fn set_form(output: Output) {
    table::set_wide(output == Output::Wide);
}

/// Creates a table with these columns.
pub(super) fn table<const N: usize>(columns: [&str; N]) -> Table {
    Table::new(&columns)
}

/// Creates a table with these columns as [`table`] does.
pub(super) fn table_of(columns: &[&str]) -> Table {
    Table::new(columns)
}

/// Renders a table, or the `none` sentence if it has no rows.
pub(super) fn render(table: &Table, none: &str) -> String {
    table.render(none)
}

/// Joins several values for one cell.
pub(super) fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if values.is_empty() { "-".to_owned() } else { values.join(", ") }
}

/// Formats an optional value for one cell.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// One end of a packet or flow: the pod where it is known, with address and port.
pub(super) fn end(pod: Option<&PodName>, address: Option<(IpAddr, u16)>) -> String {
    let address = address.map(|(address, port)| match port {
        0 => address.to_string(),
        port => SocketAddr::new(address, port).to_string(),
    });
    match (pod, address) {
        (Some(pod), Some(address)) => format!("{pod} ({address})"),
        (Some(pod), None) => pod.to_string(),
        (None, Some(address)) => address,
        (None, None) => "-".to_owned(),
    }
}

/// Duration in its two largest units: `250 ms`, `12 s`, `3 m 10 s`, `2 h 5 m`, `3 d 4 h`.
pub(super) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let two = |unit: u64, name: &str, part: u64, part_name: &str| match seconds % unit / part {
        0 => format!("{} {name}", seconds / unit),
        rest => format!("{} {name} {rest} {part_name}", seconds / unit),
    };
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => two(60, "m", 1, "s"),
        3600..86_400 => two(3600, "h", 60, "m"),
        _ => two(86_400, "d", 3600, "h"),
    }
}

/// Number with commas between groups of three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let comma = |(at, digit): (usize, char)| {
        [(at > 0 && (digits.len() - at).is_multiple_of(3)).then_some(','), Some(digit)]
    };
    digits.chars().enumerate().flat_map(comma).flatten().collect()
}

/// Time of day in UTC: `09:41:07.250`.
pub(super) fn time_of_day(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1000 % 86_400, unix_ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_that_of_utc() {
        assert_eq!(time_of_day(0), "00:00:00.000");
        assert_eq!(time_of_day(1_763_890_867_250), "09:41:07.250");
    }

    #[test]
    fn durations_and_numbers_are_short_and_readable() {
        let shown = [0, 999, 1000, 59_999, 60_000, 190_000, 7_500_000, 86_400_000, 273_600_000].map(duration);
        assert_eq!(shown, ["0 ms", "999 ms", "1 s", "59 s", "1 m", "3 m 10 s", "2 h 5 m", "1 d", "3 d 4 h"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
