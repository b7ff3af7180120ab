//! Drawing of the live view into a buffer of cells.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Row, Sparkline, Table, Widget};

use super::view::{Lines, View};
use crate::printable;

/// Styles, without colours if the environment forbids them.
struct Look {
    title: Style,
    bad: Style,
    curve: Style,
}

impl Look {
    fn new(colors: bool) -> Look {
        let color = |color: Color| if colors { Style::new().fg(color) } else { Style::new() };
        Look {
            title: color(Color::Cyan).add_modifier(Modifier::BOLD),
            bad: color(Color::Red).add_modifier(Modifier::BOLD),
            curve: color(Color::Green),
        }
    }
}

/// Draws a frame. `problem` is the reason for which the switch has not answered last.
pub(super) fn draw(view: &View, problem: Option<&str>, colors: bool, area: Rect, buffer: &mut Buffer) {
    let look = Look::new(colors);
    let lines = |lines: &Lines, most: u16| Constraint::Max((lines.rows.len() as u16).clamp(1, most) + 2);
    let [head, curve, workers, drops, flows, denied] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(2),
        lines(&view.workers, 8),
        lines(&view.drops, 8),
        Constraint::Fill(2),
        Constraint::Fill(1),
    ])
    .areas(area);
    let status = match (problem, &view.problems) {
        (Some(problem), _) => {
            Line::styled(format!("switch gone, trying again: {}", printable::line(problem)), look.bad)
        }
        (None, Some(problems)) => Line::styled(problems.as_str(), look.bad),
        (None, None) => Line::raw(""),
    };
    let title = Line::styled(view.heading.as_str(), look.title);
    for (line, row) in
        [title, status, view.throughput.as_str().into(), view.latency.as_str().into()].iter().zip(head.rows())
    {
        line.render(row, buffer);
    }
    let from = view.history.len().saturating_sub(usize::from(curve.width));
    Sparkline::default().data(&view.history[from..]).style(look.curve).render(curve, buffer);
    table(&view.workers, [8, 6, 9, 12, 9, 12, 14].map(Constraint::Length).to_vec(), &look, workers, buffer);
    table(&view.drops, [10, 14, 40].map(Constraint::Length).to_vec(), &look, drops, buffer);
    table(
        &view.flows,
        [12, 9, 9, 13].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]).collect(),
        &look,
        flows,
        buffer,
    );
    table(
        &view.denied,
        vec![Constraint::Length(8), Constraint::Fill(2), Constraint::Length(10), Constraint::Fill(3)],
        &look,
        denied,
        buffer,
    );
}

/// Draws the lines that fit, and the number of the others in the title.
fn table(lines: &Lines, widths: Vec<Constraint>, look: &Look, area: Rect, buffer: &mut Buffer) {
    let fitting = usize::from(area.height.saturating_sub(2));
    let hidden = lines.rows.len().saturating_sub(fitting);
    let more = if hidden > 0 { format!(" ({hidden} more)") } else { String::new() };
    let block =
        Block::new().borders(Borders::TOP).title(Line::styled(format!("{}{more} ", lines.title), look.title));
    let rows = lines.rows.iter().take(fitting).map(|row| Row::new(row.iter().map(String::as_str)));
    let header = Row::new(lines.header.iter().copied()).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, widths).header(header).block(block).render(area, buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(buffer: &Buffer) -> String {
        buffer.content.iter().map(ratatui::buffer::Cell::symbol).collect()
    }

    #[test]
    fn a_frame_fits_any_size() {
        let rows = || (0..300).map(|number| vec![format!("{number}"); 5]).collect();
        let lines = || Lines { title: "t".to_owned(), header: &["a", "b", "c", "d", "e"], rows: rows() };
        let view = View {
            history: (0..500).collect(),
            workers: lines(),
            drops: lines(),
            flows: lines(),
            denied: lines(),
            ..View::default()
        };
        for (width, height) in [(0, 0), (1, 1), (3, 200), (500, 2), (80, 24), (200, 60)] {
            let area = Rect::new(0, 0, width, height);
            let mut buffer = Buffer::empty(area);
            draw(&view, Some("\u{1b}[2J away"), true, area, &mut buffer);
            assert!(!text(&buffer).contains('\u{1b}'));
        }
        let area = Rect::new(0, 0, 100, 40);
        let mut buffer = Buffer::empty(area);
        draw(&view, Some("\u{1b}[2J away"), true, area, &mut buffer);
        let text = text(&buffer);
        assert!(text.contains("switch gone, trying again: \\u{1b}[2J away"), "{text}");
        assert!(text.contains("t (292 more)"), "{text}");
    }
}
