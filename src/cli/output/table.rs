//! Tables that fit a terminal.
//!
//! Without a terminal a row is a line, however long. On a terminal whose width is too small the columns that matter least are
//! left out first. Then cells are folded between words, and words that are longer than their column are cut in the middle.

use std::fmt::Write;
use std::io::{IsTerminal, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::tcgetwinsize;

/// Characters between two columns, and before the first one.
const GAP: usize = 1;
/// Least width of a column with longer words.
const COLUMN_MIN: usize = 16;

/// Whether tables have all columns, in lines of any length.
static IS_WIDE: AtomicBool = AtomicBool::new(false);

/// Table without borders, so that `awk` can read it.
pub(in crate::cli) struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns that a narrow terminal leaves out, the first one first.
    left_out_first: &'static [&'static str],
}

/// Sets whether all tables of this process have all columns, in lines of any length.
pub(super) fn set_wide(is_wide: bool) {
    IS_WIDE.store(is_wide, Ordering::Relaxed);
}

impl Table {
    pub(super) fn new(columns: &[&str]) -> Table {
        let columns = columns.iter().map(|column| column.to_uppercase()).collect();
        Table { columns, rows: Vec::new(), left_out_first: &[] }
    }

    /// Names the columns that a narrow terminal leaves out, the first one first.
    pub(in crate::cli) fn left_out_first(mut self, columns: &'static [&'static str]) -> Table {
        self.left_out_first = columns;
        self
    }

    pub(in crate::cli) fn add_row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        // A cell is one line: a line break would look like a row.
        self.rows.push(cells.into_iter().map(|cell| cell.to_string().replace('\n', " ")).collect());
    }

    /// Text of the table, or the `none` sentence if it has no rows.
    pub(in crate::cli) fn render(&self, none: &str) -> String {
        if self.rows.is_empty() { format!("{none}\n") } else { self.fitted(terminal_width()) }
    }

    /// Text in lines of at most `width` characters.
    fn fitted(&self, width: Option<usize>) -> String {
        let natural: Vec<usize> = (0..self.columns.len()).map(|at| self.width(at)).collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let total = |shown: &[usize], most: usize| -> usize {
            shown.iter().map(|at| natural[*at].min(most) + 2 * GAP).sum()
        };
        let mut left_out = Vec::new();
        let mut most = usize::MAX;
        if let Some(width) = width {
            for column in self.left_out_first {
                if total(&shown, most) <= width {
                    break;
                }
                shown.retain(|at| !self.columns[*at].eq_ignore_ascii_case(column));
                left_out.push(column.to_uppercase());
            }
            let longest = shown.iter().map(|at| natural[*at]).max().unwrap_or(0);
            let fits = |most: &usize| total(&shown, *most) <= width;
            most = (COLUMN_MIN..=longest).rev().find(fits).unwrap_or(COLUMN_MIN);
        }
        let widths: Vec<usize> = shown.iter().map(|at| natural[*at].min(most)).collect();
        let mut text = String::new();
        for row in [&self.columns].into_iter().chain(&self.rows) {
            let cells = shown.iter().map(|at| row.get(*at).map_or("", String::as_str));
            let cells: Vec<Vec<String>> =
                cells.zip(&widths).map(|(cell, width)| folded(cell, *width)).collect();
            for line in 0..cells.iter().map(Vec::len).max().unwrap_or(1) {
                let parts = cells.iter().zip(&widths).map(|(cell, width)| {
                    let part = cell.get(line).map_or("", String::as_str);
                    format!("{:GAP$}{part:<width$}{:GAP$}", "", "")
                });
                text += parts.collect::<String>().trim_end();
                text.push('\n');
            }
        }
        if !left_out.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "(without {}: `--output wide` has all columns)", left_out.join(", "));
        }
        text
    }

    /// Characters of the longest cell of a column.
    fn width(&self, at: usize) -> usize {
        let cells = [&self.columns].into_iter().chain(&self.rows).filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// Characters of a line of the terminal on standard output. `None` without a terminal, for one of unknown size, and for all
/// columns.
fn terminal_width() -> Option<usize> {
    if IS_WIDE.load(Ordering::Relaxed) || !stdout().is_terminal() {
        return None;
    }
    let columns = tcgetwinsize(stdout()).ok()?.ws_col;
    // A serial console has no size.
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// Text whose lines fit the terminal, folded between words. Further lines are indented.
pub(super) fn wrapped(text: &str) -> String {
    match terminal_width() {
        Some(width) if text.lines().any(|line| line.chars().count() > width) => wrapped_to(text, width),
        _ => text.to_owned(),
    }
}

fn wrapped_to(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let indent = line.chars().take_while(|c| *c == ' ').count() + 2;
        let mut length = 0;
        for (number, word) in line.split(' ').enumerate() {
            let word_length = word.trim_end().chars().count();
            if number > 0 && length + 1 + word_length > width && length > indent {
                let _ = write!(out, "\n{:indent$}", "");
                length = indent;
            } else if number > 0 {
                out.push(' ');
                length += 1;
            }
            out.push_str(word);
            length += word_length;
        }
    }
    out
}

/// Lines of a cell, folded between words. Longer words lose their middle.
fn folded(cell: &str, width: usize) -> Vec<String> {
    if cell.chars().count() <= width {
        return vec![cell.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in cell.split(' ').map(|word| cut(word, width)) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Word of at most `width` characters, without its middle if it is longer.
fn cut(word: &str, width: usize) -> String {
    let length = word.chars().count();
    if length <= width {
        return word.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (start, end) = (kept - kept / 2, kept / 2);
    word.chars().take(start).chain(['…']).chain(word.chars().skip(length - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table =
            Table::new(&["pod", "state", "idle", "decided by"]).left_out_first(&["idle", "state"]);
        table.add_row([
            "default/frontend-7d4b9c8f6-x2x4z",
            "established",
            "12 s",
            "no policy isolates the pod",
        ]);
        table.add_row(["default/db", "closed", "3 s", "-"]);
        table
    }

    #[test]
    fn without_a_terminal_a_row_is_a_line() {
        let lines = [
            " POD                               STATE        IDLE  DECIDED BY\n",
            " default/frontend-7d4b9c8f6-x2x4z  established  12 s  no policy isolates the pod\n",
            " default/db                        closed       3 s   -\n",
        ];
        assert_eq!(sample().fitted(None), lines.concat());
        assert_eq!(sample().fitted(Some(200)), lines.concat());
        assert_eq!(Table::new(&["pod"]).render("No pod."), "No pod.\n");
    }

    #[test]
    fn a_narrow_terminal_leaves_out_columns_then_folds_between_words_and_cuts_the_middle() {
        let lines = [
            " POD                               STATE        DECIDED BY\n",
            " default/frontend-7d4b9c8f6-x2x4z  established  no policy isolates the pod\n",
            " default/db                        closed       -\n",
            "(without IDLE: `--output wide` has all columns)\n",
        ];
        assert_eq!(sample().fitted(Some(75)), lines.concat());
        let lines = [
            " POD                      DECIDED BY\n",
            " default/fro…9c8f6-x2x4z  no policy isolates the\n",
            "                          pod\n",
            " default/db               -\n",
            "(without IDLE, STATE: `--output wide` has all columns)\n",
        ];
        assert_eq!(sample().fitted(Some(50)), lines.concat());
    }

    #[test]
    fn no_line_is_longer_than_the_terminal_and_no_word_is_lost() {
        for width in 40..120 {
            let text = sample().fitted(Some(width));
            let rows = text.lines().filter(|line| !line.starts_with('('));
            assert!(rows.clone().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            for word in ["no", "policy", "isolates", "the", "pod", "default/db"] {
                assert!(text.split_whitespace().any(|found| found == word), "{width}: {word}\n{text}");
            }
        }
    }

    #[test]
    fn sentences_are_folded_between_words_with_an_indent() {
        let text = "short\n  - port veth-web is down: interface veth-web has no carrier\nend";
        let folded = "short\n  - port veth-web is down:\n    interface veth-web has no\n    carrier\nend";
        assert_eq!(wrapped_to(text, 30), folded);
        let path = format!("{} b\n", "a".repeat(40));
        assert_eq!(wrapped_to(&path, 30), format!("{}\n  b\n", "a".repeat(40)), "a long word stays whole");
    }

    #[test]
    fn a_cell_is_one_row_whatever_it_says() {
        let mut table = Table::new(&["name"]);
        table.add_row(["a\nb"]);
        assert_eq!(table.fitted(None), " NAME\n a b\n");
    }
}
