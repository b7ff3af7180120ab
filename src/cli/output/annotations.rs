//! Annotations of a pull request: workflow commands of GitHub Actions.

/// Place of an annotation: file, line, and column if it is known.
pub(in crate::cli) type Place<'p> = (&'p str, usize, Option<usize>);

/// One line: `::warning file=policies/db.yaml,line=7,col=5,title=shadowed-rule::message`.
pub(in crate::cli) fn line(severity: &str, place: Option<Place<'_>>, title: &str, message: &str) -> String {
    let mut properties = String::new();
    if let Some((file, line, column)) = place {
        let column = column.map(|column| format!(",col={column}")).unwrap_or_default();
        properties = format!("file={},line={line}{column},", property(file));
    }
    format!("::{severity} {properties}title={}::{}\n", property(title), data(message))
}

/// Escapes the data of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_title_and_message_cannot_break_out_of_their_place() {
        let place = Some(("a,b:c%\n", 3, None));
        assert_eq!(
            line("error", place, "x::y", "50 %: a,b\n::error ::z"),
            "::error file=a%2Cb%3Ac%25%0A,line=3,title=x%3A%3Ay::50 %25: a,b%0A::error ::z\n"
        );
        assert_eq!(line("warning", None, "t", "m"), "::warning title=t::m\n");
    }
}
