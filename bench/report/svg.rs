//! Plots as SVG: bars with their spread, and lines over a logarithmic axis. Readable on light and dark pages.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const LABELS: f64 = 110.0;
const VALUES: f64 = 240.0;
const ROW: f64 = 26.0;
const HEAD: f64 = 52.0;
const PLOT: f64 = 260.0;
const LEGEND: f64 = 140.0;
/// Told apart also by who sees few colours (Okabe and Ito); the switch's own first, and the last two for whatever else there is.
const COLOURS: [&str; 11] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7f00", "#777777", "#6a3d9a",
    "#b15928", "#1b1b1b",
];
/// Systems, each with the colour at its place, in every plot.
const SYSTEMS: [&str; 9] =
    ["palisade", "nftables", "iptables", "tc-identity", "ovs", "noop", "dpdk", "kernel", "bridge"];
const GREY: &str = "#777777";
const STYLE: &str = "text{font:13px sans-serif;fill:#555}.t{font-weight:bold;font-size:14px}@media \
                     (prefers-color-scheme:dark){text{fill:#bbb}}";

/// One bar: what it stands for, and its value, or why there is none.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: Result<Spread, String>,
}

/// Title of a plot.
pub(crate) struct Head<'a> {
    /// Description, in words.
    pub(crate) title: String,
    pub(crate) unit: &'a str,
    /// Which values are the better ones.
    pub(crate) better: &'static str,
}

/// Median, least, most, of so many trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) trials: usize,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// One line: its name, and its points in the order of their first coordinate.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, Spread)>,
}

/// Horizontal bars, with a whisker from the least to the most, and of how many trials. What has no value says why.
pub(crate) fn bars(head: &Head<'_>, bars: &[Bar]) -> String {
    let unit = head.unit;
    let most = bars.iter().filter_map(|bar| bar.value.as_ref().ok()).map(|of| of.most).fold(0.0, f64::max);
    let scale = if most > 0.0 { (WIDTH - LABELS - VALUES) / most } else { 0.0 };
    let mut body = String::new();
    for (row, bar) in bars.iter().enumerate() {
        let y = HEAD + ROW * row as f64;
        text(&mut body, LABELS - 8.0, y + 16.0, "end", &bar.label);
        match &bar.value {
            Ok(Spread { median, least, most, trials }) => {
                let x = |value: &f64| LABELS + value * scale;
                let colour = if bar.label == SYSTEMS[0] { COLOURS[0] } else { COLOURS[5] };
                // Writing to a string cannot fail, here and below.
                let _ = write!(
                    body,
                    r#"<rect x="{LABELS}" y="{:.1}" width="{:.1}" height="18" fill="{colour}"/><path d="M{:.1} {:.1}H{:.1}" stroke="{}" stroke-width="2"/>"#,
                    y + 3.0,
                    median * scale,
                    x(least),
                    y + 12.0,
                    x(most),
                    GREY
                );
                let told = format!("{} {unit} ({})", number(*median), of_trials(*trials, *trials));
                text(&mut body, x(most) + 8.0, y + 16.0, "start", &told);
            }
            Err(why) => text(&mut body, LABELS, y + 16.0, "start", why),
        }
    }
    document(
        head,
        "medians; the line goes from the least to the most",
        HEAD + ROW * bars.len() as f64 + 8.0,
        &body,
    )
}

/// Lines over a logarithmic first axis; the second begins at zero.
pub(crate) fn lines(head: &Head<'_>, axis: &str, lines: &[Line]) -> String {
    let trials: Vec<usize> = lines.iter().flat_map(|line| &line.points).map(|(_, of)| of.trials).collect();
    let points = || lines.iter().flat_map(|line| line.points.iter().map(|(at, of)| (*at, of.median)));
    let most = points().map(|point| point.1).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let low = points().map(|point| point.0.max(1.0)).fold(f64::INFINITY, f64::min).ln();
    let high = points().map(|point| point.0.max(1.0)).fold(1.0, f64::max).ln();
    let (left, right) = (70.0, WIDTH - LEGEND);
    let x = |value: f64| left + (right - left) * (value.max(1.0).ln() - low) / (high - low).max(1e-9);
    let y = |value: f64| HEAD + PLOT * (1.0 - value / most);
    let mut body = String::new();
    for step in 0..=4 {
        let value = most * f64::from(step) / 4.0;
        let _ =
            write!(body, r##"<path d="M{left} {:.1}H{right}" stroke="#999" stroke-width="0.5"/>"##, y(value));
        text(&mut body, left - 8.0, y(value) + 4.0, "end", &number(value));
    }
    let mut marks: Vec<f64> = points().map(|point| point.0).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    for mark in marks {
        text(&mut body, x(mark), HEAD + PLOT + 18.0, "middle", &number(mark));
    }
    text(&mut body, left, HEAD + PLOT + 38.0, "start", &format!("{}, by {axis}", head.unit));
    for (place, line) in lines.iter().enumerate() {
        let colour = colour(&line.label, place);
        let path: Vec<String> =
            line.points.iter().map(|point| format!("{:.1} {:.1}", x(point.0), y(point.1.median))).collect();
        let _ =
            write!(body, r#"<path d="M{}" fill="none" stroke="{colour}" stroke-width="2"/>"#, path.join("L"));
        for point in &line.points {
            let _ = write!(
                body,
                r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"/>"#,
                x(point.0),
                y(point.1.median)
            );
        }
        let key = HEAD + 18.0 * place as f64;
        let _ = write!(
            body,
            r#"<rect x="{:.1}" y="{key:.1}" width="12" height="12" fill="{colour}"/>"#,
            right + 12.0
        );
        text(&mut body, right + 30.0, key + 11.0, "start", &line.label);
    }
    let least_and_most = trials.iter().min().zip(trials.iter().max());
    let told = least_and_most
        .map_or_else(String::new, |(least, most)| format!("medians, {} a point", of_trials(*least, *most)));
    document(head, &told, HEAD + PLOT.max(18.0 * lines.len() as f64) + 48.0, &body)
}

/// The colour of a line: a system's own in every plot, any other's by its place.
fn colour(label: &str, place: usize) -> &'static str {
    let known = SYSTEMS.iter().position(|system| *system == label);
    COLOURS[known.unwrap_or(place) % COLOURS.len()]
}

fn of_trials(least: usize, most: usize) -> String {
    match (least, most) {
        (1, 1) => "1 trial".to_owned(),
        _ if least == most => format!("{most} trials"),
        _ => format!("{least} to {most} trials"),
    }
}

/// A number for people: three digits, thousands apart.
pub(crate) fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|part| str::from_utf8(part).ok()).collect();
    parts.join(",")
}

/// Text that may stand in XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escaped(words);
    let _ = write!(body, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#);
}

fn document(head: &Head<'_>, note: &str, height: f64, body: &str) -> String {
    let title = escaped(&head.title);
    let note = escaped(&format!("{}, {}; {note}", head.unit, head.better));
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" width="{WIDTH}" role="img"><title>{title}</title><style>{STYLE}</style><text x="8" y="20" class="t">{title}</text><text x="8" y="38">{note}</text>{body}</svg>
"#
    )
}
