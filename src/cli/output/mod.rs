//! Results on standard output: a table for people, JSON for programs.

pub(super) mod terminal;

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Cell, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

use crate::printable;

/// Form of a command's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
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

/// Prints text. Escapes control characters other than line breaks and tabs.
pub(super) fn text(text: &str) -> io::Result<()> {
    styled(&printable::block(text))
}

/// Prints text with styles, which contains nothing untrusted.
pub(super) fn styled(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Creates a table with these columns, without borders, so that `awk` can read it.
pub(super) fn table<const N: usize>(columns: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.map(|column| Cell::new(column.to_uppercase())));
    table
}

/// Renders a table without trailing blanks, or the `none` sentence if it has no rows.
pub(super) fn render(table: &Table, none: &str) -> String {
    if table.is_empty() {
        return format!("{none}\n");
    }
    table.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
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
