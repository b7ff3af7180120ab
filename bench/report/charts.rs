//! Charts of the results: one for each scenario and size that varies. Bars compare systems, lines compare
//! them by a size.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::json_lines::Fields;
use crate::common::statistics::Summary;
use crate::plot::{Bar, DrawError, Heading, Line, bars, lines};

/// Fields of sizes that a scenario may vary.
const SIZES: [&str; 5] = ["flows", "rules", "pods", "rate_mpps", "frame_bytes"];
/// Prefix of the names of the packet path's charts.
pub(crate) const PIPELINE: &str = "pipeline-";
/// Characters of a reason that a chart shows.
const REASON_MAX: usize = 70;

/// Chart of one scenario.
pub(crate) struct Chart {
    /// Name of its file, without extension.
    pub(crate) name: String,
    /// SVG document.
    pub(crate) svg: String,
}

/// Draws the charts of all results, in the order of the scenarios there.
pub(crate) fn charts(results: &[Fields]) -> Result<Vec<Chart>, DrawError> {
    let mut scenarios: Vec<(String, Vec<&Fields>)> = vec![];
    for line in results {
        let (Some(name), Some(_)) = (scenario(line), metric(line)) else { continue };
        match scenarios.iter_mut().find(|(known, _)| *known == name) {
            Some((_, lines)) => lines.push(line),
            None => scenarios.push((name, vec![line])),
        }
    }
    let mut charts = vec![];
    for (name, lines) in scenarios {
        charts.extend(of_scenario(&name, &lines)?);
    }
    Ok(charts)
}

fn of_scenario(name: &str, results: &[&Fields]) -> Result<Vec<Chart>, DrawError> {
    let metric = results.iter().find_map(|line| metric(line)).unwrap_or_default();
    let varying: Vec<&str> = SIZES.into_iter().filter(|size| values(results, size).len() > 1).collect();
    let head = |rest: String| Heading {
        title: format!("{}{rest}", title(name)),
        unit: unit(&metric),
        better: better(results, &metric),
    };
    if varying.is_empty() {
        let svg = bars(&head(String::new()), &by_system(results, &metric))?;
        return Ok(vec![Chart { name: name.to_owned(), svg }]);
    }
    let by_size = varying.iter().map(|&size| {
        // The other sizes have their most common value.
        let others = varying.iter().filter(|&&other| other != size);
        let fixed: Vec<(&str, f64)> =
            others.filter_map(|other| Some((*other, most_common(results, other)?))).collect();
        let fits = |line: &&&Fields| fixed.iter().all(|(size, value)| number(line, size) == Some(*value));
        let lines_of: Vec<&Fields> = results.iter().filter(fits).copied().collect();
        let svg =
            lines(&head(format!(", by {}", axis(size))), axis(size), &by_value(&lines_of, size, &metric))?;
        Ok(Chart { name: format!("{name}-by-{size}"), svg })
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
        Bar { label, value: Summary::of(numbers).ok_or_else(|| format!("does not run: {reason}")) }
    };
    found.into_iter().map(bar).collect()
}

fn by_value(results: &[&Fields], size: &str, metric: &str) -> Vec<Line> {
    let mut found: BTreeMap<String, BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
    for line in results {
        let (Some(at), Some(value)) = (number(line, size), number(line, metric)) else { continue };
        // Sizes are whole numbers. Only rates have fractions; a thousandth is exact enough.
        let place = (at * 1e3).round() as u64;
        found.entry(system(line)).or_default().entry(place).or_default().push(value);
    }
    let points = |of: BTreeMap<u64, Vec<f64>>| {
        let point = |(place, values)| Some((place as f64 / 1e3, Summary::of(values)?));
        of.into_iter().filter_map(point).collect()
    };
    found.into_iter().map(|(label, of)| Line { label, points: points(of) }).collect()
}

/// Scenario of a line, or its case in the packet path.
fn scenario(line: &Fields) -> Option<String> {
    let text = |field: &str| line.get(field)?.as_str();
    match text("bench")? {
        "e2e" => Some(text("scenario")?.to_owned()),
        "pipeline" => Some(format!("{PIPELINE}{}", text("case")?)),
        _ => None,
    }
}

/// Field of a line that systems are compared by.
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

/// Title of a scenario.
fn title(scenario: &str) -> &str {
    match scenario {
        "udp64" => "UDP frames of 64 bytes received",
        "imix" => "UDP frames of mixed sizes (IMIX) received",
        "tcp-connect" => "TCP connections opened and closed, four clients",
        "tcp-connect-64" => "TCP connections opened and closed, 64 clients",
        "tcp-connect-generated" => "TCP connections opened and closed, both ends generated",
        "tcp-bulk-mtu1500" => "One TCP connection, MTU 1,500",
        "tcp-bulk-mtu9000" => "One TCP connection, MTU 9,000",
        "tcp-bulk-largest" => "One TCP connection, the largest MTU that the system carries",
        "latency-no-drop" => "Highest rate with at most one frame in a thousand lost",
        "latency-50" => "Latency at half of the system's own no-drop rate, 99th percentile",
        "latency-90" => "Latency at nine tenths of the system's own no-drop rate, 99th percentile",
        "latency-common" => "Latency at one rate for all, 99th percentile",
        "update" => "From a policy change to its effect, under load, 99th percentile",
        "flow-memory" => "Memory of a UDP flow",
        "idle" => "Processor time with 100 pods and no traffic",
        other => other,
    }
}

/// Label of an axis.
fn axis(size: &str) -> &str {
    match size {
        "rate_mpps" => "rate (Mpps)",
        "frame_bytes" => "frame size (bytes)",
        other => other,
    }
}

fn unit(metric: &str) -> &str {
    match metric {
        "gbps" => "Gbit/s",
        "mpps" => "million packets/s",
        "connections_per_s" => "connections/s",
        "bytes_per_flow" => "bytes",
        "cpu_percent" => "% of a core",
        "ns_per_packet" => "ns a packet",
        "p99_us" => "µs",
        "effective_p99_ms" => "ms",
        other => other,
    }
}

/// Direction of the better values, from the results or from the metric.
fn better(results: &[&Fields], metric: &str) -> &'static str {
    let said = results.iter().find_map(|line| line.get("better")?.as_str());
    match said.unwrap_or(if metric == "ns_per_packet" { "less" } else { "more" }) {
        "less" => "lower is better",
        _ => "higher is better",
    }
}

fn number(line: &Fields, field: &str) -> Option<f64> {
    line.get(field)?.as_f64()
}

/// Distinct values of a size, each with its number of lines.
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
