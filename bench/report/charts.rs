//! From lines of results to plots: one for each scenario, by system; lines where a size varies, bars where none does.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::svg::{Bar, Line, Spread, bars, lines};

/// Sizes that a scenario may vary.
const SIZES: [&str; 5] = ["flows", "rules", "pods", "rate_mpps", "frame_bytes"];
/// Characters of a reason that a plot shows.
const REASON_MAX: usize = 70;

/// A line of results.
pub(crate) type Fields = Map<String, Value>;

/// A plot.
pub(crate) struct Chart {
    /// The name of its file, without extension.
    pub(crate) name: String,
    /// What it shows, as SVG.
    pub(crate) svg: String,
}

/// The plots of all results, in the order in which the scenarios stand there.
pub(crate) fn charts(results: &[Fields]) -> Vec<Chart> {
    let mut scenarios: Vec<(String, Vec<&Fields>)> = vec![];
    for line in results {
        let (Some(name), Some(_)) = (scenario(line), metric(line)) else { continue };
        match scenarios.iter_mut().find(|(known, _)| *known == name) {
            Some((_, lines)) => lines.push(line),
            None => scenarios.push((name, vec![line])),
        }
    }
    scenarios.into_iter().flat_map(|(name, lines)| of_scenario(&name, &lines)).collect()
}

fn of_scenario(name: &str, results: &[&Fields]) -> Vec<Chart> {
    let metric = results.iter().find_map(|line| metric(line)).unwrap_or_default();
    let varying: Vec<&str> = SIZES.into_iter().filter(|size| values(results, size).len() > 1).collect();
    if varying.is_empty() {
        let svg = bars(name, unit(&metric), &by_system(results, &metric));
        return vec![Chart { name: name.to_owned(), svg }];
    }
    let by_size = varying.iter().map(|&size| {
        // The other sizes stay what they mostly are.
        let others = varying.iter().filter(|&&other| other != size);
        let fixed: Vec<(&str, f64)> =
            others.filter_map(|other| Some((*other, most_common(results, other)?))).collect();
        let fits = |line: &&&Fields| fixed.iter().all(|(size, value)| number(line, size) == Some(*value));
        let lines_of: Vec<&Fields> = results.iter().filter(fits).copied().collect();
        let svg =
            lines(&format!("{name} by {size}"), size, unit(&metric), &by_value(&lines_of, size, &metric));
        Chart { name: format!("{name}-by-{size}"), svg }
    });
    by_size.collect()
}

fn by_system(results: &[&Fields], metric: &str) -> Vec<Bar> {
    let mut found: Vec<(String, Vec<&Fields>)> = vec![];
    for &line in results {
        let name = system(line);
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, lines)) => lines.push(line),
            None => found.push((name, vec![line])),
        }
    }
    let bar = |(label, lines): (String, Vec<&Fields>)| {
        let numbers = lines.iter().filter_map(|line| number(line, metric)).collect();
        let reason = lines.iter().find_map(|line| line.get("not_run")?.as_str()).unwrap_or("no result");
        let reason: String = reason.chars().take(REASON_MAX).collect();
        Bar { label, value: spread(numbers).ok_or_else(|| format!("does not run: {reason}")) }
    };
    found.into_iter().map(bar).collect()
}

fn by_value(results: &[&Fields], size: &str, metric: &str) -> Vec<Line> {
    let mut found: BTreeMap<String, BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
    for line in results {
        let (Some(at), Some(value)) = (number(line, size), number(line, metric)) else { continue };
        // Sizes are whole, but for rates, of which a thousandth tells enough.
        let place = (at * 1e3).round() as u64;
        found.entry(system(line)).or_default().entry(place).or_default().push(value);
    }
    let points = |of: BTreeMap<u64, Vec<f64>>| {
        let point = |(place, values)| Some((place as f64 / 1e3, spread(values)?.median));
        of.into_iter().filter_map(point).collect()
    };
    found.into_iter().map(|(label, of)| Line { label, points: points(of) }).collect()
}

/// What a line is about: its scenario, or its case in the packet path.
fn scenario(line: &Fields) -> Option<String> {
    let text = |field: &str| line.get(field)?.as_str();
    match text("bench")? {
        "e2e" => Some(text("scenario")?.to_owned()),
        "pipeline" => Some(format!("pipeline-{}", text("case")?)),
        _ => None,
    }
}

/// The field that a line's system is compared by.
fn metric(line: &Fields) -> Option<String> {
    if line.get("bench")?.as_str()? == "pipeline" {
        return Some("ns_per_packet".to_owned());
    }
    Some(line.get("metric")?.as_str()?.to_owned())
}

fn system(line: &Fields) -> String {
    let name = line.get("system").and_then(Value::as_str);
    let family = line.get("family").and_then(Value::as_u64);
    let order = line.get("order").and_then(Value::as_str).unwrap_or_default();
    match (name, family) {
        (Some(name), _) => name.to_owned(),
        (None, Some(family)) => format!("IPv{family}, {order}"),
        (None, None) => "palisade".to_owned(),
    }
}

fn unit(metric: &str) -> &str {
    match metric {
        "gbps" => "Gbit/s",
        "mpps" => "Mpps",
        "connections_per_s" => "a second",
        "bytes_per_flow" => "bytes a flow",
        "cpu_percent" => "% of a core",
        "ns_per_packet" => "ns a packet",
        other => other,
    }
}

fn number(line: &Fields, field: &str) -> Option<f64> {
    line.get(field)?.as_f64()
}

/// The distinct values of a size, each with how often it occurs.
fn values(results: &[&Fields], size: &str) -> Vec<(f64, usize)> {
    let mut found: Vec<(f64, usize)> = vec![];
    for value in results.iter().filter_map(|line| number(line, size)) {
        match found.iter_mut().find(|(known, _)| known.total_cmp(&value).is_eq()) {
            Some((_, count)) => *count += 1,
            None => found.push((value, 1)),
        }
    }
    found
}

fn most_common(results: &[&Fields], size: &str) -> Option<f64> {
    values(results, size).into_iter().max_by_key(|(_, count)| *count).map(|(value, _)| value)
}

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let median = *values.get(values.len() / 2)?;
    Some(Spread { median, least: *values.first()?, most: *values.last()? })
}
