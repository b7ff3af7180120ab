//! Results as JUnit XML, in the form that pipelines read: one suite for the run, one test case for each case, and one failure for
//! each probe that failed.

use std::borrow::Cow;
use std::io;

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

use super::report::{CaseResult, NO_PROBES, Outcome, Report};
use crate::printable;

type Xml = Writer<Vec<u8>>;

/// Renders the report as one XML document.
pub(super) fn xml(report: &Report) -> io::Result<String> {
    let (total, failed, refused) = (report.results.len(), report.cases.failed, report.cases.refused);
    let counts = [total, failed, refused].map(|count| count.to_string());
    let counts = || ["tests", "failures", "errors"].into_iter().zip(counts.iter().map(String::as_str));
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
    xml.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    xml.create_element("testsuites").with_attributes(counts()).write_inner_content(|xml| {
        let suite = xml.create_element("testsuite").with_attribute(("name", "palisade test"));
        suite.with_attributes(counts()).write_inner_content(|xml| {
            report.results.iter().try_for_each(|result| write_case(xml, result))
        })?;
        Ok(())
    })?;
    let text = String::from_utf8(xml.into_inner()).map_err(io::Error::other)?;
    Ok(text + "\n")
}

fn write_case(xml: &mut Xml, result: &CaseResult) -> io::Result<()> {
    let (file, line) = result.place.rsplit_once(':').unwrap_or((&result.place, "1"));
    let (name, file) = (printable::line(&result.name), allowed(file));
    let attributes = [("name", &*name), ("classname", &file), ("file", &file), ("line", line)];
    let element = xml.create_element("testcase").with_attributes(attributes);
    if result.outcome() == Outcome::Passed {
        element.write_empty()?;
        return Ok(());
    }
    element.write_inner_content(|xml| write_failures(xml, result))?;
    Ok(())
}

fn write_failures(xml: &mut Xml, result: &CaseResult) -> io::Result<()> {
    for failed in &result.failures {
        write_message(xml, "failure", &failed.to_string(), &failed.text)?;
    }
    if !result.errors.is_empty() {
        write_message(xml, "error", "the case is wrong", &result.errors.join("\n"))?;
    } else if result.failures.is_empty() {
        xml.create_element("failure").with_attribute(("message", NO_PROBES)).write_empty()?;
    }
    Ok(())
}

fn write_message(xml: &mut Xml, element: &str, message: &str, text: &str) -> io::Result<()> {
    let element = xml.create_element(element).with_attribute(("message", &*allowed(message)));
    element.write_text_content(BytesText::new(&allowed(text)))?;
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

    fn result(errors: Vec<String>) -> CaseResult {
        let (name, place) = ("x\" y=\"".to_owned(), "f<.yaml:3".to_owned());
        CaseResult { name, place, probes: 1, not_sent: 0, failures: Vec::new(), errors }
    }

    #[test]
    fn names_and_errors_cannot_break_out_of_their_element() {
        let error = "a<b>&\"c\"\u{0}\u{1b}\nd".to_owned();
        let text = xml(&Report::new(vec![result(Vec::new()), result(vec![error])])).unwrap();
        let case =
            r#"    <testcase name="x&quot; y=&quot;" classname="f&lt;.yaml" file="f&lt;.yaml" line="3""#;
        let error = r#"      <error message="the case is wrong">a&lt;b&gt;&amp;&quot;c&quot;"#;
        let counts = r#"tests="2" failures="0" errors="1""#;
        let expected = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite name=\"palisade test\" {counts}>\n\
             {case}/>\n{case}>\n{error}\nd</error>\n    </testcase>\n  </testsuite>\n</testsuites>\n"
        );
        assert_eq!(text, expected);
    }
}
