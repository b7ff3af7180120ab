//! Matrix as one HTML page: a heat map with details of the cell under the pointer.

use std::fmt::Write;

use crate::policy::connectivity::matrix::{Cell, Matrix, MatrixGroup};

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Who reaches whom</title>
<style>
:root { color-scheme: light dark; --line: #8884; --some: 40 90% 55%; --all: 8 75% 52%; }
body { font: 14px/1.4 system-ui, sans-serif; margin: 2rem; }
h1 { font-size: 1.3rem; margin: 0 0 .2rem; }
p { margin: .2rem 0 1rem; max-width: 60rem; }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .25rem .4rem; }
th { font-weight: 500; text-align: left; white-space: nowrap; max-width: 22rem; overflow: hidden; text-overflow: ellipsis; }
thead th { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 16rem; vertical-align: bottom; }
thead th:first-child { writing-mode: horizontal-tb; transform: none; }
td { width: 1.8rem; min-width: 1.8rem; text-align: center; cursor: default; }
td.none { background: transparent; }
td.some { background: hsl(var(--some) / calc(.35 + .5 * var(--share))); }
td.all { background: hsl(var(--all) / .8); }
td.void { background: repeating-linear-gradient(45deg, transparent 0 4px, var(--line) 4px 5px); }
td:hover { outline: 2px solid currentColor; }
#what { position: sticky; bottom: 0; background: Canvas; border-top: 1px solid var(--line); padding: .6rem 0; min-height: 2.6rem; }
.key span { display: inline-block; width: 1rem; height: 1rem; vertical-align: -2px; margin: 0 .3rem 0 1rem; border: 1px solid var(--line); }
</style>
</head>
<body>
"#;

const TAIL: &str = r#"<p id="what">Point at a cell.</p>
<script>
const what = document.getElementById("what");
document.querySelector("table").addEventListener("mouseover", event => {
  const cell = event.target.closest("td, th");
  if (cell && cell.title) what.textContent = cell.title;
});
</script>
</body>
</html>
"#;

/// Renders the page.
pub(super) fn page(matrix: &Matrix) -> String {
    let mut text = String::from(HEAD);
    let pods: usize = matrix.groups.iter().map(|end| end.pods.len()).sum();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "<h1>Who reaches whom</h1>\n<p>{pods} pods in {} lines: those that no policy tells apart share one. \
         Sources stand on the left, destinations above.</p>\n\
         <p class=\"key\"><span></span>nothing<span style=\"background:hsl(var(--some)/.6)\"></span>some ports\
         <span style=\"background:hsl(var(--all)/.8)\"></span>everything</p>\n",
        matrix.groups.len()
    );
    if let Some(omitted) = super::text::omitted(matrix) {
        let _ = writeln!(text, "<p>{}</p>", escape(&omitted));
    }
    text.push_str("<table>\n<thead><tr><th>from \\ to</th>");
    for end in &matrix.groups {
        let _ = write!(text, "<th title=\"{}\">{}</th>", escape(&members(end)), escape(&end.name));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    let mut cells = matrix.cells.iter().peekable();
    for (from, end) in matrix.groups.iter().enumerate() {
        let _ = write!(text, "<tr><th title=\"{}\">{}</th>", escape(&members(end)), escape(&end.name));
        for to in 0..matrix.groups.len() {
            match cells.next_if(|cell| (cell.from, cell.to) == (from, to)) {
                Some(found) => cell(&mut text, matrix, found),
                None => text.push_str("<td class=\"void\" title=\"not traffic of a pod\"></td>"),
            }
        }
        text.push_str("</tr>\n");
    }
    text + "</tbody>\n</table>\n" + TAIL
}

fn cell(text: &mut String, matrix: &Matrix, cell: &Cell) {
    let share = cell.traffic.share().max(cell.ipv6.as_ref().map_or(0.0, |traffic| traffic.share()));
    let class = match share {
        0.0 => "none",
        1.0 if cell.ipv6.is_none() => "all",
        _ => "some",
    };
    let names = [cell.from, cell.to].map(|end| &matrix.groups[end].name);
    let title = escape(&format!("{} to {}: {}", names[0], names[1], cell.brief()));
    let _ = write!(text, "<td class=\"{class}\" style=\"--share:{share:.3}\" title=\"{title}\"></td>");
}

fn members(end: &MatrixGroup) -> String {
    let pods = end.pods.iter().map(ToString::to_string);
    pods.chain(end.addresses.iter().cloned()).collect::<Vec<_>>().join(", ")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::connectivity::Traffic;
    use crate::policy::connectivity::matrix::Omitted;

    #[test]
    fn the_page_refers_to_nothing_else_and_has_a_cell_for_every_pair() {
        let end = |name: &str| MatrixGroup {
            name: name.to_owned(),
            pods: Vec::new(),
            addresses: vec![name.to_owned()],
        };
        let cells = vec![
            Cell { from: 0, to: 1, traffic: Traffic::everything().into(), ipv6: None },
            Cell { from: 1, to: 0, traffic: Traffic::default().into(), ipv6: None },
        ];
        let omitted = Omitted { groups: 3, pods: 1 };
        let text = page(&Matrix { groups: vec![end("a<b"), end("c")], cells, omitted });
        assert!(text.contains("3 of 5 lines are left out (pods in them: 1)"), "{text}");
        assert_eq!(text.matches("<td").count(), 4);
        assert!(
            text.contains(r#"class="all" style="--share:1.000" title="a&lt;b to c: everything""#),
            "{text}"
        );
        assert!(!text.contains("http") && !text.contains("src="), "no references");
    }
}
