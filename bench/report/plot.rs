//! Plots as SVG, drawn by `plotters`: bars with their range, and lines over a logarithmic axis.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::common::statistics::Summary;

const WIDTH: u32 = 720;
/// Height of title and description.
const HEAD: i32 = 46;
/// Height of the x axis with its labels.
const AXIS: u32 = 44;
/// Width of the systems' names, beside bars and in a legend.
const NAMES: u32 = 112;
const BAR: u32 = 26;
const LINES_HEIGHT: u32 = 360;
const FONT: (&str, f64) = ("sans-serif", 15.5);
const TITLE_FONT: (&str, f64) = ("sans-serif", 18.6);
/// Width of a value label that stands behind a bar, as a share of the longest bar.
const LABEL_SHARE: f64 = 0.5;
/// Colours that people with a colour vision deficiency can tell apart (Okabe and Ito), and a few more.
const COLOURS: [RGBColor; 11] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x8a, 0x7f, 0x00),
    RGBColor(0x77, 0x77, 0x77),
    RGBColor(0x6a, 0x3d, 0x9a),
    RGBColor(0xb1, 0x59, 0x28),
    RGBColor(0x1b, 0x1b, 0x1b),
];
/// Systems that have the same colour in every plot: the one at the same place of [`COLOURS`].
const SYSTEMS: [&str; 9] =
    ["palisade", "nftables", "iptables", "tc-identity", "ovs", "noop", "dpdk", "kernel", "bridge"];
const GREY: RGBColor = RGBColor(0x77, 0x77, 0x77);

/// Failure to draw. Drawing into a string cannot fail by itself.
pub(crate) type DrawError = Box<dyn std::error::Error>;

/// Title and unit of a plot.
pub(crate) struct Heading<'a> {
    pub(crate) title: String,
    pub(crate) unit: &'a str,
    /// Direction of the better values, in words.
    pub(crate) better: &'static str,
}

/// Bar of one system: its value, or the reason why it has none.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: Result<Summary, String>,
}

/// Line of one system: points by their first coordinate, in ascending order.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, Summary)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws horizontal bars. A line in a bar goes from the least to the most of its trials.
pub(crate) fn bars(heading: &Heading<'_>, bars: &[Bar]) -> Result<String, DrawError> {
    let mut svg = String::new();
    {
        let height = HEAD as u32 + BAR * bars.len() as u32 + AXIS;
        let root = begin(&mut svg, height, heading, "medians; the line goes from the least to the most")?;
        let values = bars.iter().filter_map(|bar| bar.value.as_ref().ok());
        let most = values.map(|value| value.most).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let mut chart = ChartBuilder::on(&root)
            .margin_top(HEAD)
            .margin_right(8)
            .x_label_area_size(AXIS)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(0.0..most * (1.0 + LABEL_SHARE), bars.len() as f64..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|value| number(*value))
            .label_style(FONT)
            .draw()?;
        for (row, bar) in bars.iter().enumerate() {
            let (top, middle) = (row as f64, row as f64 + 0.5);
            let name = text_style(HPos::Right);
            let at = EmptyElement::at((0.0, middle));
            chart.draw_series([at + Text::new(bar.label.clone(), (-8, 0), name)])?;
            let (end, label) = match &bar.value {
                Ok(Summary { median, least, most, trials }) => {
                    let colour = if bar.label == SYSTEMS[0] { COLOURS[0] } else { COLOURS[5] };
                    let corners = [(0.0, top), (*median, top + 1.0)];
                    let mut rectangle = Rectangle::new(corners, colour.filled());
                    rectangle.set_margin(4, 4, 0, 0);
                    chart.draw_series([rectangle])?;
                    let range = vec![(*least, middle), (*most, middle)];
                    chart.draw_series([PathElement::new(range, GREY.stroke_width(2))])?;
                    (*most, format!("{} ({})", value_text(*median), trials_text(*trials, *trials)))
                }
                Err(reason) => (0.0, reason.clone()),
            };
            let at = EmptyElement::at((end, middle));
            chart.draw_series([at + Text::new(label, (8, 0), text_style(HPos::Left))])?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Draws lines over a logarithmic x axis, with a legend. The y axis begins at zero.
pub(crate) fn lines(heading: &Heading<'_>, axis: &str, lines: &[Line]) -> Result<String, DrawError> {
    let mut svg = String::new();
    {
        let summaries = || lines.iter().flat_map(|line| line.points.iter().map(|(_, summary)| summary));
        let trials = || summaries().map(|summary| summary.trials);
        let note = trials_text(trials().min().unwrap_or(0), trials().max().unwrap_or(0));
        let root = begin(&mut svg, LINES_HEIGHT, heading, &format!("medians, {note} a point"))?;
        let most = summaries().map(|summary| summary.median).fold(f64::MIN_POSITIVE, f64::max);
        let mut marks: Vec<f64> = lines.iter().flat_map(|line| &line.points).map(|(at, _)| *at).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        let (low, high) = (marks.first().copied().unwrap_or(1.0), marks.last().copied().unwrap_or(10.0));
        let (plot, legend) = root.split_horizontally(WIDTH - NAMES);
        let mut chart = ChartBuilder::on(&plot)
            .margin_top(HEAD)
            .margin_right(24)
            .x_label_area_size(AXIS)
            .y_label_area_size(56)
            .build_cartesian_2d((low..high).log_scale().with_key_points(marks), 0.0..most * 1.05)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .x_desc(axis)
            .y_labels(5)
            .label_style(FONT)
            .draw()?;
        for (place, line) in lines.iter().enumerate() {
            let colour = colour(&line.label, place);
            let points = || line.points.iter().map(|(at, summary)| (*at, summary.median));
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
            chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
            draw_legend(&legend, place as i32, &line.label, colour)?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Begins a plot on white, so that it is readable on a dark page: title, unit and description.
fn begin<'a>(
    svg: &'a mut String,
    height: u32,
    heading: &Heading<'_>,
    note: &str,
) -> Result<Area<'a>, DrawError> {
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = TITLE_FONT.into_font().style(FontStyle::Bold).color(&BLACK);
    root.draw(&Text::new(heading.title.clone(), (8, 6), title))?;
    let description = format!("{}, {}; {note}", heading.unit, heading.better);
    root.draw(&Text::new(description, (8, 26), FONT.into_font().color(&BLACK)))?;
    Ok(root)
}

fn draw_legend(area: &Area<'_>, place: i32, label: &str, colour: RGBColor) -> Result<(), DrawError> {
    let top = HEAD + 20 * place;
    area.draw(&Rectangle::new([(0, top), (12, top + 12)], colour.filled()))?;
    area.draw(&Text::new(label.to_owned(), (18, top + 6), text_style(HPos::Left)))?;
    Ok(())
}

fn text_style(anchor: HPos) -> TextStyle<'static> {
    FONT.into_font().color(&BLACK).pos(Pos::new(anchor, VPos::Center))
}

/// Colour of a line: that of its system, or that of its place.
fn colour(label: &str, place: usize) -> RGBColor {
    let known = SYSTEMS.iter().position(|system| *system == label);
    COLOURS[known.unwrap_or(place) % COLOURS.len()]
}

fn trials_text(least: usize, most: usize) -> String {
    match (least, most) {
        (1, 1) => "1 trial".to_owned(),
        _ if least == most => format!("{most} trials"),
        _ => format!("{least} to {most} trials"),
    }
}

/// Formats a number of an axis: whole numbers without decimals.
fn number(value: f64) -> String {
    if value.fract() == 0.0 { with_separators(value) } else { value_text(value) }
}

/// Formats a value: three digits, or all of its integer part.
fn value_text(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => with_separators(value),
    }
}

/// Formats the integer part with separators of thousands.
fn with_separators(value: f64) -> String {
    let digits = format!("{value:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
