//! Results as JUnit XML, in the form that pipelines read: a suite for each case, and a test case for each probe.

use std::borrow::Cow;
use std::io;

use quick_xml::events::{BytesDecl, BytesText, Event};
use quick_xml::{ElementWriter, Writer};

use super::report::{CaseResult, NO_PROBES, NOT_SENT, Outcome, Report};
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
        counts.skipped += of_case.skipped;
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
    skipped: usize,
}

impl Counts {
    fn of<'x>(&self, element: ElementWriter<'x, Vec<u8>>) -> ElementWriter<'x, Vec<u8>> {
        let Counts { tests, failures, errors, skipped } = self;
        let counts = [("tests", tests), ("failures", failures), ("errors", errors), ("skipped", skipped)];
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
        let (errors, skipped) = (usize::from(is_refused), result.not_sent.len());
        Suite { result, is_whole, counts: Counts { tests, failures, errors, skipped } }
    }

    fn write(&self, xml: &mut Xml) -> io::Result<()> {
        let name = attribute(&self.result.name);
        let suite = xml.create_element("testsuite").with_attribute(("name", name.as_str()));
        self.counts.of(suite).write_inner_content(|xml| {
            if self.is_whole {
                let (file, line) = self.result.place.rsplit_once(':').unwrap_or((&self.result.place, "1"));
                return write_test(xml, [&name, &name, file, line], Some(&self.problem()));
            }
            let mut failures = self.result.failures.iter().peekable();
            for (number, (location, connection)) in self.result.connections.iter().enumerate() {
                let (file, line) = (location.source().name(), location.line().to_string());
                let problem = match failures.next_if(|failed| failed.number == number) {
                    Some(failed) => Some(Problem::new("failure", failed.verdicts(), failed.text.clone())),
                    None if self.result.not_sent.contains(&number) => {
                        Some(Problem::new("skipped", NOT_SENT.to_owned(), String::new()))
                    }
                    None => None,
                };
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
        Problem::new(element, message.to_owned(), errors.join("\n"))
    }
}

/// Child of a test case that did not pass, or did not run.
struct Problem {
    element: &'static str,
    message: String,
    text: String,
}

impl Problem {
    fn new(element: &'static str, message: String, text: String) -> Problem {
        Problem { element, message, text }
    }
}

fn write_test(
    xml: &mut Xml,
    [name, case, file, line]: [&str; 4],
    problem: Option<&Problem>,
) -> io::Result<()> {
    let (name, file) = (attribute(name), attribute(file));
    let attributes = [("name", name.as_str()), ("classname", case), ("file", &file), ("line", line)];
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

/// Leaves out characters that are none of XML 1.0 (section 2.2).
fn allowed(text: &str) -> Cow<'_, str> {
    let is_allowed =
        |c: char| matches!(c, '\n' | '\t') || !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    if text.chars().all(is_allowed) {
        return Cow::Borrowed(text);
    }
    text.chars().filter(|c| is_allowed(*c)).collect()
}

/// Text as an attribute: one line.
fn attribute(text: &str) -> String {
    allowed(&printable::line(text)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::policy::parse::{Source, parse_source};

    /// Case that is wrong, or one with a probe that passes and one that is not sent.
    fn result(errors: Vec<String>) -> CaseResult {
        let (name, place) = ("x\" y=\"".to_owned(), "f<.yaml:3".to_owned());
        let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
        let (_, location) = parse_source(&Source::new("f<.yaml", text)).unwrap().objects.remove(0);
        let mut connections =
            vec![(location.clone(), "TCP from a to b&".to_owned()), (location, "UDP".to_owned())];
        let mut not_sent = BTreeSet::from([1]);
        if !errors.is_empty() {
            connections.clear();
            not_sent.clear();
        }
        CaseResult {
            name,
            place,
            probes: connections.len(),
            connections,
            not_sent,
            failures: Vec::new(),
            errors,
        }
    }

    #[test]
    fn names_and_errors_cannot_break_out_of_their_element() {
        let error = "a<b>&\"c\"\u{0}\u{1b}\u{ffff}\nd".to_owned();
        let text = xml(&Report::new(vec![result(Vec::new()), result(vec![error])])).unwrap();
        let place = |line: u8| format!(r#"classname="x&quot; y=&quot;" file="f&lt;.yaml" line="{line}""#);
        let expected = format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="palisade test" tests="3" failures="0" errors="1" skipped="1">
  <testsuite name="x&quot; y=&quot;" tests="2" failures="0" errors="0" skipped="1">
    <testcase name="TCP from a to b&amp;" {}/>
    <testcase name="UDP" {}>
      <skipped message="{NOT_SENT}"></skipped>
    </testcase>
  </testsuite>
  <testsuite name="x&quot; y=&quot;" tests="1" failures="0" errors="1" skipped="0">
    <testcase name="x&quot; y=&quot;" {}>
      <error message="the case is wrong">a&lt;b&gt;&amp;&quot;c&quot;
d</error>
    </testcase>
  </testsuite>
</testsuites>
"#,
            place(1),
            place(1),
            place(3)
        );
        assert_eq!(text, expected);
    }
}
