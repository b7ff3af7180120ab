//! Files of the repository, and their text without comments or literals.

use std::fs;
use std::path::{Path, PathBuf};

/// Root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Path of a file below the root, with slashes.
pub(crate) fn name_of(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Files with an extension in a folder and the folders below it, in order.
pub(crate) fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no .{extension} file: the rule would check nothing");
    found.sort();
    found
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Text of a Rust file, taken apart.
#[derive(Default)]
pub(crate) struct Parts {
    /// The code with spaces in place of comments and of the contents of literals.
    pub(crate) code: String,
    /// Line comments without their slashes: line number from one, whether it is a doc comment, text.
    pub(crate) comments: Vec<(usize, bool, String)>,
}

/// Takes a Rust file apart. Block comments do not occur in this repository.
pub(crate) fn parts(text: &str) -> Parts {
    let chars: Vec<char> = text.chars().collect();
    let (mut parts, mut at, mut line) = (Parts::default(), 0, 1);
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => {
                let end = find(&chars, at, |c| c == '\n');
                parts.comments.push(comment(line, &chars[at + 2..end]));
                parts.code.push(' ');
                end
            }
            '"' => literal(&chars, at, &mut parts.code),
            'r' if !is_in_word(&chars, at) && raw_hashes(&chars, at).is_some() => {
                raw_literal(&chars, at, &mut parts.code)
            }
            '\'' if is_char_literal(&chars, at) => {
                parts.code.push_str("' '");
                char_end(&chars, at)
            }
            other => {
                parts.code.push(other);
                at + 1
            }
        };
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    parts
}

fn find(chars: &[char], from: usize, is_end: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|at| is_end(chars[*at])).unwrap_or(chars.len())
}

fn comment(line: usize, text: &[char]) -> (usize, bool, String) {
    let text: String = text.iter().collect();
    let is_doc = text.starts_with('/') && !text.starts_with("//") || text.starts_with('!');
    let text = if is_doc { &text[1..] } else { &text };
    (line, is_doc, text.trim().to_owned())
}

fn is_in_word(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

/// End of a string literal that begins here. Line breaks within it stay.
fn literal(chars: &[char], at: usize, code: &mut String) -> usize {
    let mut end = at + 1;
    code.push('"');
    while end < chars.len() && chars[end] != '"' {
        let step = if chars[end] == '\\' { 2 } else { 1 };
        chars[end..(end + step).min(chars.len())].iter().filter(|c| **c == '\n').for_each(|c| code.push(*c));
        end += step;
    }
    code.push('"');
    (end + 1).min(chars.len())
}

/// Hashes of a raw string literal that begins here.
fn raw_hashes(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

fn raw_literal(chars: &[char], at: usize, code: &mut String) -> usize {
    let hashes = raw_hashes(chars, at).unwrap_or(0);
    let body = at + 2 + hashes;
    let closes = |at: usize| {
        chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    let end = (body..chars.len()).find(|at| closes(*at)).unwrap_or(chars.len());
    code.push('"');
    chars[body..end].iter().filter(|c| **c == '\n').for_each(|c| code.push(*c));
    code.push('"');
    (end + 1 + hashes).min(chars.len())
}

/// Tells a character from a lifetime.
fn is_char_literal(chars: &[char], at: usize) -> bool {
    chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'')
}

fn char_end(chars: &[char], at: usize) -> usize {
    let body = if chars.get(at + 1) == Some(&'\\') { at + 3 } else { at + 2 };
    (find(chars, body, |c| c == '\'') + 1).min(chars.len())
}

#[test]
fn comments_and_literals_are_told_from_code() {
    let parts = parts(
        "//! Head\nlet a = \"// no \\\" comment\"; // note\nlet c = '\"'; let r = r#\"use crate::x\"#;\n/// Doc\nfn f<'a>() {}\n",
    );
    let comments: Vec<_> =
        parts.comments.iter().map(|(line, is_doc, text)| (*line, *is_doc, text.as_str())).collect();
    assert_eq!(comments, [(1, true, "Head"), (2, false, "note"), (4, true, "Doc")]);
    assert!(!parts.code.contains("crate") && !parts.code.contains("comment"), "{}", parts.code);
    assert!(parts.code.contains("fn f<'a>() {}"), "{}", parts.code);
}
