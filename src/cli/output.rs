//! Facts on standard output: a table for people, JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Cell, ContentArrangement, Table, presets};
use serde::Serialize;

/// The form of what a command prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// For programs; the form is that of the control socket's answers
    Json,
}

/// Prints a value as indented JSON.
pub(super) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

/// Prints text as it is.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A table with these columns, without lines, so that `awk` can read it too.
pub(super) fn table<const N: usize>(columns: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.map(|column| Cell::new(column.to_uppercase())));
    table
}

/// The table's text, lines without blanks at their ends; the `none` sentence where it has no rows.
pub(super) fn render(table: &Table, none: &str) -> String {
    if table.is_empty() {
        return format!("{none}\n");
    }
    table.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

/// Several values in one cell.
pub(super) fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if values.is_empty() { "-".to_owned() } else { values.join(", ") }
}

/// A value that may be missing in one cell.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
