//! Rules of documents: links that resolve, decision pages of one page, and line widths.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::text::{files, read, root};

/// Longest decision page, lines.
const DECISION_LINES_MAX: usize = 45;

/// Widest line of prose, characters. Links are not broken, and tables and code have lines of their own.
const COLUMNS_MAX: usize = 120;

/// Paths of all documents, relative to the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![];
    for folder in ["", "docs", "docs/decisions"] {
        for entry in fs::read_dir(root().join(folder)).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    assert!(found.len() > 20, "documents are missing: {found:?}");
    found
}

fn text_of(document: &Path) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

/// Lines outside fenced and indented code, tables left out, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = vec![];
    for (number, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        if !fenced && !is_fence && !line.starts_with("    ") && !line.starts_with('|') {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// Targets of the links of a document: the text between `](` and `)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Anchors of headings: lower case, hyphens for blanks, no punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Tells whether a link leads to a file of the repository, and to a heading of it if it names one.
fn resolves(document: &Path, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => root().join(document),
        _ => root().join(document).parent().unwrap().join(file),
    };
    target.exists() && (anchor.is_empty() || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor))
}

#[test]
fn every_link_of_a_document_leads_to_a_file_and_a_heading() {
    let mut broken = vec![];
    for document in documents() {
        let text = text_of(&document);
        let local = links(&text).filter(|link| !link.starts_with("http"));
        let dead = local.filter(|link| !resolves(&document, link)).map(str::to_owned);
        broken.extend(dead.map(|link| format!("{}: {link}", document.display())));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn a_decision_is_one_page_with_its_four_parts_and_a_line_in_the_index() {
    let index = text_of(Path::new("docs/decisions/README.md"));
    for document in documents() {
        let name = document.file_name().unwrap().to_str().unwrap();
        if !document.starts_with("docs/decisions") || name == "README.md" {
            continue;
        }
        let text = text_of(&document);
        let name = format!("({name})");
        assert!(index.contains(&name), "docs/decisions/README.md lacks {name}");
        assert!(
            text.lines().count() <= DECISION_LINES_MAX,
            "{name} is longer than {DECISION_LINES_MAX} lines"
        );
        for part in ["**Context.**", "**Decision.**", "**Consequences.**", "**Rejected.**"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
    }
}

#[test]
fn prose_wraps_at_120_columns() {
    let mut wide = vec![];
    for document in documents() {
        let text = text_of(&document);
        let lines = prose(&text).into_iter().filter(|(_, line)| !line.contains("]("));
        let lines = lines.filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        wide.extend(lines.map(|(number, _)| format!("{}:{number}", document.display())));
    }
    assert!(wide.is_empty(), "wider than {COLUMNS_MAX} columns: {wide:#?}");
}

/// Names in backquotes that only a test has: at least five words.
fn names_of_tests(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |name: &&str| {
        name.matches('_').count() >= 4
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    text.split('`').skip(1).step_by(2).filter(is_name)
}

#[test]
fn every_promise_names_tests_that_exist() {
    let sources: String =
        ["src", "tests"].iter().flat_map(|folder| files(folder, "rs")).map(|file| read(&file)).collect();
    let text = read(&root().join("SECURITY.md"));
    let exists = |name: &&str| {
        [format!("fn {name}("), format!("    {name}: ")].iter().any(|form| sources.contains(form))
    };
    let (named, missing): (Vec<&str>, Vec<&str>) = names_of_tests(&text).partition(exists);
    assert!(missing.is_empty(), "no test has these names: {missing:#?}");
    let rows: Vec<&str> =
        text.lines().filter(|line| line.starts_with("| ") && !line.contains(" tests ")).collect();
    for row in &rows {
        assert!(names_of_tests(row).next().is_some(), "no test holds this promise: {row}");
    }
    assert!(rows.len() > 30, "{rows:#?}");
    assert!(named.len() > 30, "{named:?}");
}
