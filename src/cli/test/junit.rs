//! Results as JUnit XML, in the form that pipelines read: a suite for the run, a case for each case, a failure for each probe
//! that failed.

use std::fmt::Write;

use super::report::{CaseResult, NO_PROBES, Outcome, Report};
use crate::printable;

/// The report as one XML document.
pub(super) fn xml(report: &Report) -> String {
    let (total, failed, refused) = (report.results.len(), report.cases.failed, report.cases.refused);
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "<testsuites tests=\"{total}\" failures=\"{failed}\" errors=\"{refused}\">");
    let _ = writeln!(
        text,
        "  <testsuite name=\"palisade test\" tests=\"{total}\" failures=\"{failed}\" errors=\"{refused}\">"
    );
    report.results.iter().for_each(|result| case(&mut text, result));
    text + "  </testsuite>\n</testsuites>\n"
}

fn case(text: &mut String, result: &CaseResult) {
    let (file, line) = result.place.rsplit_once(':').unwrap_or((&result.place, "1"));
    let (name, file) = (escape(&printable::line(&result.name)), escape(file));
    let _ =
        write!(text, "    <testcase name=\"{name}\" classname=\"{file}\" file=\"{file}\" line=\"{line}\"");
    if result.outcome() == Outcome::Passed {
        text.push_str("/>\n");
        return;
    }
    text.push_str(">\n");
    for failed in &result.failures {
        let (message, why) = (escape(&failed.to_string()), escape(&failed.text));
        let _ = writeln!(text, "      <failure message=\"{message}\">{why}</failure>");
    }
    if !result.errors.is_empty() {
        let all = result.errors.iter().map(|error| escape(error)).collect::<Vec<_>>().join("\n");
        let _ = writeln!(text, "      <error message=\"the case is wrong\">{all}</error>");
    } else if result.failures.is_empty() {
        let _ = writeln!(text, "      <failure message=\"{NO_PROBES}\"/>");
    }
    text.push_str("    </testcase>\n");
}

/// Characters that XML gives a meaning are spelt out; those that it does not allow at all are left out.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_their_attribute() {
        assert_eq!(escape("a<b>&\"c\"\u{0}\u{1b}"), "a&lt;b&gt;&amp;&quot;c&quot;");
        let result = CaseResult {
            name: "x\" y=\"".to_owned(),
            place: "f<.yaml:3".to_owned(),
            probes: 1,
            not_sent: 0,
            failures: Vec::new(),
            errors: Vec::new(),
        };
        let text = xml(&Report::new(vec![result]));
        assert!(
            text.contains(r#"name="x&quot; y=&quot;" classname="f&lt;.yaml" file="f&lt;.yaml" line="3"/>"#),
            "{text}"
        );
    }
}
