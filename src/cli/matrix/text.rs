//! Matrix as a table, as CSV, and as a graph.

use std::fmt::Write;
use std::io;

use comfy_table::{Cell as TableCell, ContentArrangement, Table, presets};

use crate::cli::output;
use crate::policy::connectivity::matrix::{Cell, Matrix, Omitted};

/// Most groups in a square table. A list of pairs replaces it beyond, because it does not fit a terminal.
const SQUARE_MAX: usize = 10;

/// Renders a square of sources and destinations, or a list of pairs.
pub(super) fn table(matrix: &Matrix) -> String {
    if matrix.cells.is_empty() {
        return "No policy table applies to any pod.\n".to_owned();
    }
    if matrix.groups.len() <= SQUARE_MAX { square(matrix) } else { list(matrix) }
}

fn square(matrix: &Matrix) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    let numbers = (1..=matrix.groups.len()).map(|number| format!("to {number}"));
    table.set_header(["from".to_owned()].into_iter().chain(numbers));
    for (from, end) in matrix.groups.iter().enumerate() {
        let mut row = vec![TableCell::new(format!("{} {}", from + 1, end.name))];
        for to in 0..matrix.groups.len() {
            row.push(TableCell::new(cell_at(matrix, from, to).map_or_else(String::new, brief)));
        }
        table.add_row(row);
    }
    format!("{table}\n")
}

fn list(matrix: &Matrix) -> String {
    let mut table = output::table(["from", "to", "what passes"]);
    for cell in matrix.cells.iter().filter(|cell| !is_void(cell)) {
        table.add_row([&matrix.groups[cell.from].name, &matrix.groups[cell.to].name, &brief(cell)]);
    }
    output::render(&table, "Nothing passes.")
}

/// Writes one line for each pair, with every port.
pub(super) fn csv(matrix: &Matrix, out: &mut impl io::Write) -> io::Result<()> {
    writeln!(out, "from,to,traffic")?;
    for cell in &matrix.cells {
        let fields = [&matrix.groups[cell.from].name, &matrix.groups[cell.to].name, &cell.to_string()]
            .map(|field| quoted(field));
        writeln!(out, "{}", fields.join(","))?;
    }
    Ok(())
}

/// Note on the groups that are left out, and on the option that shows them; `None` if none are.
pub(super) fn omitted(matrix: &Matrix) -> Option<String> {
    let Omitted { groups, pods } = matrix.omitted;
    if matrix.omitted.is_nothing() {
        return None;
    }
    let all = groups + matrix.groups.len();
    let pods = if pods > 0 { format!(" (pods in them: {pods})") } else { String::new() };
    Some(format!(
        "{groups} of {all} lines are left out{pods}: name pods with --pod, or allow more pairs with --limit"
    ))
}

/// Renders a directed graph with an edge for each pair with allowed traffic.
pub(super) fn dot(matrix: &Matrix) -> String {
    let mut text =
        String::from("digraph reach {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n");
    for (at, end) in matrix.groups.iter().enumerate() {
        let shape = if end.pods.is_empty() { ", style=dashed" } else { "" };
        let _ = writeln!(text, "  n{at} [label={}{shape}];", quoted_dot(&end.name));
    }
    for cell in matrix.cells.iter().filter(|cell| !is_void(cell)) {
        let label = quoted_dot(&brief(cell));
        let _ = writeln!(text, "  n{} -> n{} [label={label}];", cell.from, cell.to);
    }
    text + "}\n"
}

fn cell_at(matrix: &Matrix, from: usize, to: usize) -> Option<&Cell> {
    let at = matrix.cells.binary_search_by_key(&(from, to), |cell| (cell.from, cell.to));
    at.ok().map(|at| &matrix.cells[at])
}

fn is_void(cell: &Cell) -> bool {
    cell.traffic.is_empty() && cell.ipv6.is_none()
}

fn brief(cell: &Cell) -> String {
    if is_void(cell) { "-".to_owned() } else { cell.brief() }
}

/// Quotes a field as in RFC 4180 section 2: "a double-quote appearing inside a field must be escaped by
/// preceding it with another double quote".
fn quoted(field: &str) -> String {
    format!("\"{}\"", field.replace('"', "\"\""))
}

fn quoted_dot(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::connectivity::Traffic;
    use crate::policy::connectivity::matrix::MatrixGroup;

    fn matrix() -> Matrix {
        let end = |name: &str| MatrixGroup { name: name.to_owned(), pods: Vec::new(), addresses: Vec::new() };
        let cell = |from, to, traffic: Traffic| Cell { from, to, traffic: traffic.into(), ipv6: None };
        let cells = vec![cell(0, 1, Traffic::everything()), cell(1, 0, Traffic::default())];
        Matrix { groups: vec![end("a"), end("b \"x\", y")], cells, omitted: Omitted::default() }
    }

    #[test]
    fn names_with_quotes_and_commas_stay_one_field() {
        let mut text = Vec::new();
        csv(&matrix(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().nth(1), Some(r#""a","b ""x"", y","everything""#));
        assert!(dot(&matrix()).contains(r#"n1 [label="b \"x\", y", style=dashed];"#));
    }

    #[test]
    fn an_edge_is_there_only_where_something_passes() {
        let text = dot(&matrix());
        assert!(text.contains("n0 -> n1") && !text.contains("n1 -> n0"), "{text}");
    }
}
