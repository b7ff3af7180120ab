//! Results as JUnit XML, in the form that pipelines read: a suite for each case, and a test case for each probe.

use std::borrow::Cow;
use std::io;

use quick_xml::events::{BytesDecl, BytesText, Event};
use quick_xml::{ElementWriter, Writer};

use super::report::{CaseResult, NO_PROBES, Outcome, Report};
use crate::printable;

type Xml = Writer<Vec<u8>>;

/// Renders the report as one XML document.
pub(super) fn xml(report: &Report) -> io::Result<String> {
    let suites: Vec<Suite<'_>> = report.results.iter().map(Suite::of).collect();
    let mut counts = Counts::default();
    for Suite { counts: of_case, .. } in &suites {
        counts.tests += of_case.tests;
        counts.failures += of_case.failures;
        counts.errors += of_case.errors;
    }
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
    xml.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let root = xml.create_element("testsuites").with_attribute(("name", "palisade test"));
    counts.of(root).write_inner_content(|xml| suites.iter().try_for_each(|suite| suite.write(xml)))?;
    let text = String::from_utf8(xml.into_inner()).map_err(io::Error::other)?;
    Ok(text + "\n")
}

/// Counts of a suite, or of all of them.
#[derive(Default)]
struct Counts {
    tests: usize,
    failures: usize,
    errors: usize,
}

impl Counts {
    fn of<'x>(&self, element: ElementWriter<'x, Vec<u8>>) -> ElementWriter<'x, Vec<u8>> {
        let counts = [("tests", self.tests), ("failures", self.failures), ("errors", self.errors)];
        counts.into_iter().fold(element, |element, (name, count)| {
            element.with_attribute((name, count.to_string().as_str()))
        })
    }
}

/// Case, as a suite with a test case for each probe. A case that is wrong, or has no probes, is one test case itself.
struct Suite<'r> {
    result: &'r CaseResult,
    is_whole: bool,
    counts: Counts,
}

impl Suite<'_> {
    fn of(result: &CaseResult) -> Suite<'_> {
        let is_refused = result.outcome() == Outcome::Refused;
        let is_whole = is_refused || result.connections.is_empty();
        let (tests, failures) = if is_whole {
            (1, usize::from(!is_refused))
        } else {
            (result.connections.len(), result.failures.len())
        };
        Suite { result, is_whole, counts: Counts { tests, failures, errors: usize::from(is_refused) } }
    }

    fn write(&self, xml: &mut Xml) -> io::Result<()> {
        let name = printable::line(&self.result.name);
        let suite = xml.create_element("testsuite").with_attribute(("name", &*name));
        self.counts.of(suite).write_inner_content(|xml| {
            if self.is_whole {
                let (file, line) = self.result.place.rsplit_once(':').unwrap_or((&self.result.place, "1"));
                return write_test(xml, [&name, &name, file, line], Some(&self.problem()));
            }
            for (number, (location, connection)) in self.result.connections.iter().enumerate() {
                let (file, line) = (location.source().name(), location.line().to_string());
                let failed = self.result.failures.iter().find(|failed| failed.number == number);
                let problem = failed.map(|failed| Problem {
                    element: "failure",
                    message: failed.verdicts(),
                    text: failed.text.clone(),
                });
                write_test(xml, [connection, &name, file, &line], problem.as_ref())?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Error of a case that is wrong, or has no probes.
    fn problem(&self) -> Problem {
        let errors = &self.result.errors;
        let (element, message) =
            if errors.is_empty() { ("failure", NO_PROBES) } else { ("error", "the case is wrong") };
        Problem { element, message: message.to_owned(), text: errors.join("\n") }
    }
}

/// Child of a test case that did not pass.
struct Problem {
    element: &'static str,
    message: String,
    text: String,
}

fn write_test(
    xml: &mut Xml,
    [name, case, file, line]: [&str; 4],
    problem: Option<&Problem>,
) -> io::Result<()> {
    let (name, file) = (printable::line(name), allowed(file));
    let attributes = [("name", &*name), ("classname", case), ("file", &file), ("line", line)];
    let element = xml.create_element("testcase").with_attributes(attributes);
    let Some(Problem { element: kind, message, text }) = problem else {
        element.write_empty()?;
        return Ok(());
    };
    element.write_inner_content(|xml| {
        let element = xml.create_element(*kind).with_attribute(("message", &*allowed(message)));
        element.write_text_content(BytesText::new(&allowed(text)))?;
        Ok(())
    })?;
    Ok(())
}

/// Leaves out control characters, which XML 1.0 section 2.2 does not allow in a document.
fn allowed(text: &str) -> Cow<'_, str> {
    let is_allowed = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
    if text.chars().all(is_allowed) {
        return Cow::Borrowed(text);
    }
    text.chars().filter(|c| is_allowed(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse::{Source, parse_source};

    fn result(errors: Vec<String>) -> CaseResult {
        let (name, place) = ("x\" y=\"".to_owned(), "f<.yaml:3".to_owned());
        let location =
            parse_source(&Source::new("f<.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"));
        let (_, location) = location.unwrap().objects.remove(0);
        let connections =
            if errors.is_empty() { vec![(location, "TCP from a to b&".to_owned())] } else { Vec::new() };
        CaseResult { name, place, probes: 1, connections, not_sent: 0, failures: Vec::new(), errors }
    }

    #[test]
    fn names_and_errors_cannot_break_out_of_their_element() {
        let error = "a<b>&\"c\"\u{0}\u{1b}\nd".to_owned();
        let text = xml(&Report::new(vec![result(Vec::new()), result(vec![error])])).unwrap();
        let place = |line: u8| format!(r#"classname="x&quot; y=&quot;" file="f&lt;.yaml" line="{line}""#);
        let expected = format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="palisade test" tests="2" failures="0" errors="1">
  <testsuite name="x&quot; y=&quot;" tests="1" failures="0" errors="0">
    <testcase name="TCP from a to b&amp;" {}/>
  </testsuite>
  <testsuite name="x&quot; y=&quot;" tests="1" failures="0" errors="1">
    <testcase name="x&quot; y=&quot;" {}>
      <error message="the case is wrong">a&lt;b&gt;&amp;&quot;c&quot;
d</error>
    </testcase>
  </testsuite>
</testsuites>
"#,
            place(1),
            place(3)
        );
        assert_eq!(text, expected);
    }
}
