//! Encoder of metrics as text: `OpenMetrics` 1.0, and the Prometheus text format 0.0.4 for older readers.
//!
//! The formats differ in the name of a counter's family (`OpenMetrics` leaves `_total` to the samples), in types and
//! units that only `OpenMetrics` has, and in its last line, `# EOF`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use crate::limits::METRICS_LABEL_CHARS_MAX;
use crate::printable;

/// Text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus text format 0.0.4.
    Prometheus,
}

impl Format {
    /// Selects a format by the header `Accept` of a request: the older one if it names that and not `OpenMetrics`.
    pub fn accepted(accept: &str) -> Format {
        let accept = accept.to_ascii_lowercase();
        let names = |media_type| accept.contains(media_type);
        if names("text/plain") && !names("application/openmetrics-text") {
            Format::Prometheus
        } else {
            Format::OpenMetrics
        }
    }

    /// Media type of the format, for the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Count since the start. Its samples end in `_total`.
    Counter,
    /// Value that rises and falls.
    Gauge,
    /// Counts by upper bound. Its samples end in `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Constant 1, whose labels are the information. Its samples end in `_info`.
    Info,
}

/// Family with one number for each `T`.
pub(super) struct Column<T> {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    pub(super) value: fn(&T) -> u64,
}

/// Text of metrics, to which families are added.
pub(super) struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    pub(super) fn new(format: Format) -> Exposition {
        Exposition { format, text: String::new() }
    }

    /// Begins a family. `name` has neither `_total` nor `_info`, and ends in `unit` where that is not empty.
    pub(super) fn family(&mut self, kind: Kind, name: &'static str, unit: &str, help: &str) -> Family<'_> {
        debug_assert!(
            unit.is_empty() || name.strip_suffix(unit).is_some_and(|stem| stem.ends_with('_')),
            "{name}"
        );
        let suffix = match kind {
            Kind::Counter => "_total",
            Kind::Gauge | Kind::Histogram => "",
            Kind::Info => "_info",
        };
        let (family_suffix, kind) = match (self.format, kind) {
            (Format::OpenMetrics, Kind::Counter) => ("", "counter"),
            (Format::OpenMetrics, Kind::Info) => ("", "info"),
            (Format::Prometheus, Kind::Counter) => (suffix, "counter"),
            (Format::Prometheus, Kind::Info) => (suffix, "gauge"),
            (_, Kind::Gauge) => ("", "gauge"),
            (_, Kind::Histogram) => ("", "histogram"),
        };
        let text = &mut self.text;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name}{family_suffix} {help}");
        let _ = writeln!(text, "# TYPE {name}{family_suffix} {kind}");
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        Family { text, name, suffix }
    }

    /// Writes a family for each column, with a sample for each row. `label` has the key of the row.
    pub(super) fn columns<T>(&mut self, columns: &[Column<T>], label: &str, rows: &BTreeMap<String, T>) {
        for Column { kind, name, unit, help, value } in columns {
            let mut family = self.family(*kind, name, unit, help);
            rows.iter().for_each(|(key, row)| _ = family.sample(&[(label, key)], value(row)));
        }
    }

    /// Ends the metrics.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Family that takes samples.
pub(super) struct Family<'e> {
    text: &'e mut String,
    name: &'static str,
    suffix: &'static str,
}

impl Family<'_> {
    /// Writes a sample. No two samples of a family have the same labels.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: u64) -> &mut Self {
        self.write(self.suffix, labels, value);
        self
    }

    /// Writes a sample of a duration in nanoseconds.
    pub(super) fn sample_nanos(&mut self, labels: &[(&str, &str)], nanos: u64) {
        self.write(self.suffix, labels, seconds(nanos));
    }

    /// Writes the samples of a histogram of durations. `counts` has the longest one of each bucket and its count, and
    /// `bounds` the upper bounds of the samples, all in nanoseconds and in order.
    pub(super) fn histogram(&mut self, label: &str, key: &str, counts: &[(u64, u64)], bounds: &[u64]) {
        let mut counts_left = counts.iter().peekable();
        let (mut count, mut sum) = (0, 0_u64);
        for bound in bounds {
            while let Some((nanos, times)) = counts_left.next_if(|(nanos, _)| nanos <= bound) {
                (count, sum) = (count + times, sum.saturating_add(nanos.saturating_mul(*times)));
            }
            self.write("_bucket", &[(label, key), ("le", &seconds(*bound))], count);
        }
        for (nanos, times) in counts_left {
            (count, sum) = (count + times, sum.saturating_add(nanos.saturating_mul(*times)));
        }
        self.write("_bucket", &[(label, key), ("le", "+Inf")], count);
        self.write("_sum", &[(label, key)], seconds(sum));
        self.write("_count", &[(label, key)], count);
    }

    fn write(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (number, (label, value)) in labels.iter().enumerate() {
            self.text.push_str(if number == 0 { "{" } else { "," });
            self.text.push_str(label);
            self.text.push_str("=\"");
            push_escaped(self.text, value);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, " {value}");
    }
}

/// Nanoseconds in seconds, as a decimal fraction without trailing zeros.
fn seconds(nanos: u64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    let short = text.trim_end_matches('0');
    if short.ends_with('.') { format!("{short}0") } else { short.to_owned() }
}

/// Untrusted text for a label: bounded, and without characters that confuse terminals or readers of the format.
pub(super) fn shown(value: &str) -> String {
    let short = printable::cut(value, METRICS_LABEL_CHARS_MAX);
    printable::line(&short).into_owned()
}

/// Escapes a label value as `OpenMetrics` requires: "line feed (\n), double quotes and backslashes".
fn push_escaped(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(format: Format) -> String {
        let mut out = Exposition::new(format);
        out.family(Kind::Counter, "palisade_port_received_bytes", "bytes", "Bytes.")
            .sample(&[("port", "a")], 7);
        out.family(Kind::Info, "palisade_build", "", "Version.")
            .sample(&[("version", "1"), ("commit", "x")], 1);
        out.family(Kind::Gauge, "palisade_generation", "", "Generation.").sample(&[], 3);
        out.finish()
    }

    #[test]
    fn a_histogram_has_cumulative_buckets_in_seconds() {
        let mut out = Exposition::new(Format::OpenMetrics);
        let counts = [(700, 2), (1024, 1), (5000, 4), (3_000_000_000, 1)];
        out.family(Kind::Histogram, "palisade_x_seconds", "seconds", "X.").histogram(
            "worker",
            "0",
            &counts,
            &[1024, 4096, 16384],
        );
        let text = out.finish();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let bucket = |le, count| format!("palisade_x_seconds_bucket{{worker=\"0\",le=\"{le}\"}} {count}");
        let expected = [
            bucket("0.000001024", 3),
            bucket("0.000004096", 3),
            bucket("0.000016384", 7),
            bucket("+Inf", 8),
            "palisade_x_seconds_sum{worker=\"0\"} 3.000022424".to_owned(),
            "palisade_x_seconds_count{worker=\"0\"} 8".to_owned(),
        ];
        assert_eq!(samples, expected);
        assert_eq!([0, 1, 1_500_000_000].map(seconds), ["0.0", "0.000000001", "1.5"]);
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        let expected = "\
# HELP palisade_port_received_bytes Bytes.
# TYPE palisade_port_received_bytes counter
# UNIT palisade_port_received_bytes bytes
palisade_port_received_bytes_total{port=\"a\"} 7
# HELP palisade_build Version.
# TYPE palisade_build info
palisade_build_info{version=\"1\",commit=\"x\"} 1
# HELP palisade_generation Generation.
# TYPE palisade_generation gauge
palisade_generation 3
# EOF
";
        assert_eq!(sample(Format::OpenMetrics), expected);
    }

    #[test]
    fn the_prometheus_format_names_families_as_their_samples() {
        let expected = "\
# HELP palisade_port_received_bytes_total Bytes.
# TYPE palisade_port_received_bytes_total counter
palisade_port_received_bytes_total{port=\"a\"} 7
# HELP palisade_build_info Version.
# TYPE palisade_build_info gauge
palisade_build_info{version=\"1\",commit=\"x\"} 1
# HELP palisade_generation Generation.
# TYPE palisade_generation gauge
palisade_generation 3
";
        assert_eq!(sample(Format::Prometheus), expected);
    }

    #[test]
    fn a_hostile_label_stays_one_label_of_one_line() {
        let mut out = Exposition::new(Format::OpenMetrics);
        let hostile = "a\"} 1\nb\\\r\0\u{202e}\u{1b}[2J#ü";
        out.family(Kind::Gauge, "g", "", "G.")
            .sample(&[("pod", &shown(hostile))], 1)
            .sample(&[("pod", hostile)], 2);
        let text = out.finish();
        assert_eq!(text.matches('\n').count(), 5, "{text}");
        let expected = r#"g{pod="a\"} 1\\nb\\\\r\\u{0}\\u{202e}\\u{1b}[2J#ü"} 1"#;
        assert_eq!(text.lines().nth(2), Some(expected));
        let long = shown(&"x".repeat(100_000)).chars().count();
        assert!(long < 2 * METRICS_LABEL_CHARS_MAX, "{long} characters");
    }

    #[test]
    fn the_format_is_that_which_the_reader_accepts() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            ("", Format::OpenMetrics),
            ("*/*", Format::OpenMetrics),
            (prometheus, Format::OpenMetrics),
            ("Text/Plain", Format::Prometheus),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", Format::Prometheus),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept:?}");
        }
    }
}
